//! Patterns that texts of requests are searched for.

use std::{fmt, str::FromStr};

use regex::Regex;

/// A regular expression.
#[derive(Debug, Clone)]
pub struct TextPattern(Regex);

/// A text that is no regular expression.
#[derive(Debug, Clone, thiserror::Error)]
#[error("`{text}` is no regular expression: {reason}")]
pub struct TextPatternError {
    text: String,
    reason: String,
}

impl FromStr for TextPattern {
    type Err = TextPatternError;

    fn from_str(text: &str) -> Result<Self, TextPatternError> {
        Regex::new(text).map(Self).map_err(|error| {
            // The library shows the pattern over several lines and the reason in the last one.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            TextPatternError { text: text.to_owned(), reason }
        })
    }
}

impl TextPattern {
    /// Returns whether it occurs in a text.
    #[must_use]
    pub fn is_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl fmt::Display for TextPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}
