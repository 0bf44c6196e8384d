//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr)]

mod goldens;
mod openai_errors;
mod prompt;
mod trace;
