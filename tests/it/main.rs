//! The integration tests, one binary.
mod goldens;
mod openai_errors;

mod trace;
