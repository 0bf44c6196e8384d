//! Quantities as people type them: durations, speed factors, and their conversion to the types the code computes with.
//!
//! Everything here is parsed once, at the edge; below it a duration is a [`std::time::Duration`].

mod duration;
mod scale;
mod size;

pub use duration::{Millis, duration_text, parse_duration};
pub use scale::TimeScale;
pub use size::parse_size;

/// A quantity that could not be read, with the text and what would have been accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

impl UnitError {
    fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}
