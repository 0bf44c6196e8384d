//! The load client, as a program before `play` and before servers of the tests' own.

mod cassettes;
mod compare;
mod conversations;
mod converted;
mod counting;
mod outputs;
mod prompts;
mod round_trip;
mod server;
mod targets;
mod verdicts;
