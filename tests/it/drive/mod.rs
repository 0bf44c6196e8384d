//! The load client, as a program before `play` and before servers of the tests' own.

mod compare;
mod report;
mod round_trip;
mod verdicts;
