//! Edits of texts before they are compared: `s/in \d+\.\d+s/in Xs/`.

use std::{fmt, str::FromStr};

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::children::children_mut;

/// One edit; every occurrence is replaced.
#[derive(Debug, Clone)]
pub struct Scrub {
    text: String,
    pattern: Regex,
    replacement: String,
}

/// A text that is no edit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ScrubError {
    /// It is not written as an edit.
    #[error("`{0}` is no edit: write s/PATTERN/REPLACEMENT/, with i at its end to ignore case")]
    Shape(String),
    /// Its pattern is wrong.
    #[error("the pattern of `{text}` is wrong")]
    Pattern {
        /// The edit.
        text: String,
        /// Why.
        source: regex::Error,
    },
}

impl FromStr for Scrub {
    type Err = ScrubError;

    fn from_str(text: &str) -> Result<Self, ScrubError> {
        let shape = || ScrubError::Shape(text.to_owned());
        let rest = text.strip_prefix('s').ok_or_else(shape)?;
        let delimiter = rest.chars().next().filter(|c| c.is_ascii_punctuation() && *c != '\\').ok_or_else(shape)?;
        let parts = split(rest.strip_prefix(delimiter).unwrap_or_default(), delimiter);
        let [pattern, replacement, flags] = parts.as_slice() else { return Err(shape()) };
        if pattern.is_empty() || !flags.chars().all(|flag| matches!(flag, 'i' | 'g')) {
            return Err(shape());
        }
        let pattern = RegexBuilder::new(pattern).case_insensitive(flags.contains('i')).build();
        let pattern = pattern.map_err(|source| ScrubError::Pattern { text: text.to_owned(), source })?;
        Ok(Self { text: text.to_owned(), pattern, replacement: replacement.clone() })
    }
}

/// Cuts at the delimiter, which a backslash protects.
fn split(text: &str, delimiter: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == delimiter {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            if c == '\\' && chars.peek() == Some(&delimiter) {
                last.extend(chars.next());
            } else {
                last.push(c);
                // The character after another backslash is no delimiter of anything.
                last.extend(if c == '\\' { chars.next() } else { None });
            }
        }
    }
    parts
}

impl fmt::Display for Scrub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Scrub {
    /// Edits every text of a value; keys stay.
    pub fn apply(&self, value: &mut Value) {
        if let Value::String(text) = value
            && self.pattern.is_match(text)
        {
            *text = self.pattern.replace_all(text, self.replacement.as_str()).into_owned();
        }
        children_mut(value).for_each(|(_, value)| self.apply(value));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scrubbed(scrub: &str, text: &str) -> String {
        let mut value = json!([{"k": text}]);
        scrub.parse::<Scrub>().unwrap().apply(&mut value);
        value[0]["k"].as_str().unwrap().to_owned()
    }

    #[test]
    fn edits_replace_every_occurrence() {
        assert_eq!(scrubbed(r"s/in \d+\.\d+s/in Xs/", "in 0.42s, then in 1.5s"), "in Xs, then in Xs");
        assert_eq!(scrubbed("s|/tmp/[a-z]+|/tmp/X|", "see /tmp/abc"), "see /tmp/X");
        assert_eq!(scrubbed(r"s/a\/b/c/", "a/b"), "c");
        assert_eq!(scrubbed("s/HELLO (.)/$1/i", "hello x"), "x");
    }

    #[test]
    fn what_is_no_edit_is_refused() {
        for text in ["", "s", "x/a/b/", "s/a/b", "s//b/", "s/a/b/q", "s/(/b/", r"s\a\b\"] {
            assert!(text.parse::<Scrub>().is_err(), "{text}");
        }
    }
}
