//! The load client, as a program before `play` and before servers of the tests' own.

mod compare;
mod converted;
mod counting;
mod outputs;
mod round_trip;
mod verdicts;
