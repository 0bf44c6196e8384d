//! Query of a path, judged by type in the framework's words.

use serde_json::Value;

use super::{
    issues::{FieldFault, Issues, Loc},
    values::{clamped, flag, int, int_in, one_of},
};
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
        self.read(name, issues, flag).unwrap_or(default)
    }

    /// A whole number from 0 up to `most`.
    pub(super) fn number(&self, name: &str, most: u8, issues: &mut Issues) -> Option<u8> {
        let number = self.read(name, issues, |value| int_in(value, 0, i128::from(most)))?;
        u8::try_from(number).ok()
    }

    /// A whole number of any size; one beyond 64 bits counts as the nearest.
    pub(super) fn integer(&self, name: &str, issues: &mut Issues) -> Option<i64> {
        self.read(name, issues, int).map(clamped)
    }

    /// One of these words: which.
    pub(super) fn word(&self, name: &str, words: &[&str], issues: &mut Issues) -> Option<usize> {
        self.read(name, issues, |value| one_of(value, words))
    }

    fn read<'f, T>(
        &self,
        name: &str,
        issues: &mut Issues,
        read: impl FnOnce(&Value) -> Result<T, FieldFault<'f>>,
    ) -> Option<T> {
        let value = Value::from(self.last(name)?);
        issues.take(&Loc::Root("query").field(name), &value, read(&value))
    }
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
