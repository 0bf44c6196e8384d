//! Placeholders in text: `[REDACTED:email:1]`.

use std::{
    fmt,
    ops::Range,
    str::FromStr,
    sync::{Arc, LazyLock},
};

use memchr::memmem;
use serde_json::Value;

pub(super) const PLACEHOLDER: &str = "[REDACTED:";

/// Bytes within which a placeholder ends.
pub(super) const LONGEST_PLACEHOLDER: usize = 256;

/// Digits of the largest number.
const MOST_DIGITS: usize = 9;

/// Replacement of a secret in text: its kind, and its number among those of its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placeholder {
    /// The kind.
    pub kind: Arc<str>,
    /// The number, from 1.
    pub number: usize,
}

/// A text that is no placeholder. It is not repeated: it may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no placeholder: write it as `email:1`, or as it stands in the cassette, `[REDACTED:email:1]`")]
pub struct NoPlaceholder;

impl Placeholder {
    /// The same without `[REDACTED:` around it: `email:1`.
    #[must_use]
    pub fn short(&self) -> String {
        format!("{}:{}", self.kind, self.number)
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PLACEHOLDER}{}:{}]", self.kind, self.number)
    }
}

impl FromStr for Placeholder {
    type Err = NoPlaceholder;

    /// Reads `email:1` or `[REDACTED:email:1]`.
    fn from_str(text: &str) -> Result<Self, NoPlaceholder> {
        let inside = text.strip_prefix(PLACEHOLDER).and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        numbered(inside).ok_or(NoPlaceholder)
    }
}

fn numbered(inside: &str) -> Option<Placeholder> {
    let (kind, number) = inside.rsplit_once(':')?;
    let is_number = !number.starts_with('0') && number.len() <= MOST_DIGITS;
    let number = number.parse().ok().filter(|_| is_number && number.bytes().all(|byte| byte.is_ascii_digit()))?;
    let is_kind = !kind.is_empty() && kind.len() < LONGEST_PLACEHOLDER && !kind.contains(['[', ']', ':', '\n']);
    is_kind.then(|| Placeholder { kind: Arc::from(kind), number })
}

/// Searcher for the beginning of placeholders: every text is searched, and to prepare one costs more than most searches.
static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(PLACEHOLDER));

/// Returns true if a text may hold placeholders.
#[must_use]
pub fn has_placeholder(text: &str) -> bool {
    FINDER.find(text.as_bytes()).is_some()
}

/// Returns true if a text or a name of a JSON value may hold placeholders.
#[must_use]
pub fn json_has_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => has_placeholder(text),
        Value::Array(items) => items.iter().any(json_has_placeholder),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| has_placeholder(name) || json_has_placeholder(value))
        }
        _ => false,
    }
}

/// The placeholders of a text and where they stand, in order. Those without a number are left out.
pub fn placeholders(text: &str) -> impl Iterator<Item = (Range<usize>, Placeholder)> + '_ {
    all(text).filter_map(move |span| Some((span.clone(), text.get(span)?.parse().ok()?)))
}

/// Where placeholders stand, with a number or without.
pub(super) fn all(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    FINDER.find_iter(text.as_bytes()).filter_map(move |at| {
        let near = text.as_bytes().get(at..(at + LONGEST_PLACEHOLDER).min(text.len())).unwrap_or_default();
        memchr::memchr(b']', near).map(|end| at..at + end + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_where_they_are_whole() {
        let found =
            |text: &str| placeholders(text).map(|(span, it)| (text[span].to_owned(), it.short())).collect::<Vec<_>>();
        let pair = |spelled: &str, short: &str| (spelled.to_owned(), short.to_owned());
        assert_eq!(
            found("to [REDACTED:email:1], [REDACTED:x-api-key:12][REDACTED:unsearched] [REDACTED:email:3"),
            [pair("[REDACTED:email:1]", "email:1"), pair("[REDACTED:x-api-key:12]", "x-api-key:12")]
        );
        for none in
            ["[REDACTED:email:0]", "[REDACTED::1]", "[REDACTED:a:b:1]", "[REDACTED:email:1234567890]", "email:1"]
        {
            assert!(found(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn a_placeholder_is_read_as_it_is_written() {
        let placeholder: Placeholder = "github_token:2".parse().unwrap();
        assert_eq!(placeholder.to_string(), "[REDACTED:github_token:2]");
        assert_eq!(placeholder.to_string().parse(), Ok(placeholder));
        assert_eq!("jane@example.org".parse::<Placeholder>(), Err(NoPlaceholder));
    }
}
