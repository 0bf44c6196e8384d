//! Query of a path, judged by type in the framework's words.

use serde_json::Value;

use super::values::{Issue, Issues, flag, int};
use net::wire::percent_decoded;

/// The parameters of a query, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query; one without a `=` has an empty value.
    #[must_use]
    pub fn new(query: Option<&str>) -> Self {
        let decoded = |text: &str| percent_decoded(&text.replace('+', " ")).into_owned();
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(k, v)| (decoded(k), decoded(v)))
                .collect(),
        )
    }

    /// Every value of a parameter.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The value that counts: the last one.
    fn last(&self, name: &str) -> Option<&str> {
        self.all(name).pop()
    }

    /// A true or false.
    pub(super) fn flag(&self, name: &str, default: bool, issues: &mut Issues) -> bool {
        self.read(name, issues, |value, loc| flag(&value, loc)).unwrap_or(default)
    }

    /// A whole number from 0 up to `most`.
    pub(super) fn number(&self, name: &str, most: u8, issues: &mut Issues) -> Option<u8> {
        self.read(name, issues, |value, loc| {
            let number = int(&value, loc)?;
            let bound = |kind, words: &str, key: &str, bound: u8| {
                let message = format!("Input should be {words} than or equal to {bound}");
                Issue { context: Some(format!("'{key}': {bound}")), ..Issue::new(kind, loc, message, &value) }
            };
            match u8::try_from(number) {
                Ok(number) if number <= most => Ok(number),
                _ if number < 0 => Err(bound("greater_than_equal", "greater", "ge", 0)),
                _ => Err(bound("less_than_equal", "less", "le", most)),
            }
        })
    }

    /// A whole number of any size; one beyond 64 bits counts as the nearest.
    pub(super) fn integer(&self, name: &str, issues: &mut Issues) -> Option<i64> {
        let clamped = |number: i128| i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX });
        self.read(name, issues, |value, loc| int(&value, loc)).map(clamped)
    }

    /// One of these words: which.
    pub(super) fn word(&self, name: &str, words: &[&str], issues: &mut Issues) -> Option<usize> {
        self.read(name, issues, |value, loc| {
            let found = value.as_str().and_then(|text| words.iter().position(|word| *word == text));
            found.ok_or_else(|| literal_issue(words, &value, loc))
        })
    }

    fn read<T>(
        &self,
        name: &str,
        issues: &mut Issues,
        read: impl FnOnce(Value, &str) -> Result<T, Issue>,
    ) -> Option<T> {
        let read = read(Value::from(self.last(name)?), &format!("query.{name}"));
        read.map_err(|issue| issues.push(issue)).ok()
    }
}

/// A value that is none of the words.
pub(super) fn literal_issue(words: &[&str], value: &Value, loc: &str) -> Issue {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let expected = match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    };
    let message = format!("Input should be {expected}");
    let context = Some(format!("'expected': {}", super::python::repr(&expected)));
    Issue { context, ..Issue::new("literal_error", loc, message, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts_and_all_are_kept() {
        let query = Query::new(Some("tags=a&tags=b%20c+d&x&&y="));
        assert_eq!(query.all("tags"), ["a", "b c d"]);
        assert_eq!((query.last("tags"), query.last("x"), query.last("z")), (Some("b c d"), Some(""), None));
    }
}
