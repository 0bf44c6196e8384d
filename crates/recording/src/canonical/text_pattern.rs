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

impl PartialEq for TextPattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl TextPattern {
    /// Returns whether it occurs in a text.
    #[must_use]
    pub fn is_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// The groups of its first match in a text: the match itself, then its groups, each with its name. A group that has no part in the
    /// match is empty.
    #[must_use]
    pub fn groups(&self, text: &str) -> Option<Vec<(Option<String>, String)>> {
        let found = self.0.captures(text)?;
        let group = |(name, group): (Option<&str>, Option<regex::Match<'_>>)| {
            (name.map(str::to_owned), group.map_or_else(String::new, |group| group.as_str().to_owned()))
        };
        Some(self.0.capture_names().zip(found.iter()).map(group).collect())
    }
}

impl fmt::Display for TextPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}
