//! The load client, as a program before `play` and before servers of the tests' own.

mod capacity;
mod cassettes;
mod compare;
mod conversations;
mod converted;
mod counting;
mod failures;
mod outputs;
mod prompts;
mod report;
mod round_trip;
mod scale_out;
mod server;
mod server_side;
mod targets;
mod verdicts;
