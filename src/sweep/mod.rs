//! `sweep`: what a client sees of a text that a guardrail in front of a model has to hold back.
//!
//! The `matrix` has the places of the text in an answer and its cuts into tokens, `answers` writes these answers, which
//! the server behind the gateway gives word for word, `leak` finds what of the text came through, `block` whether the stream is a valid
//! one, `clean` whether streams without the text are what they were; `sweeper` runs it all.
//!
//! Limits: a block whose own words begin with the next character of the text counts as one byte more.
//!
//! See docs/decisions/0128-a-guardrail-is-measured-by-what-its-client-saw.md.

mod answers;
mod block;
mod canary;
mod clean;
mod leak;
mod matrix;
mod outcome;
mod sweeper;

pub use self::{
    canary::{Canary, CanaryError},
    clean::CleanCompare,
    matrix::{CanaryField, CanaryForm, CanaryPosition, SweepCell, TokenSplit, matrix, sampled},
    outcome::{CellOutcome, CleanResult, LatencyCost, StreamLatency, SweepReport, SweepRow},
    sweeper::{SweepPlan, Sweeper, served_answers},
};
