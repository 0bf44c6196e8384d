//! The load client, as a program before `play` and before servers of the tests' own.

mod capacity;
mod compare;
mod round_trip;
mod scale_out;
mod server_side;
mod verdicts;
