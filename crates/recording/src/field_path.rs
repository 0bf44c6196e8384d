//! Names of places in a JSON body, as `--ignore` and `--redact` take them: `$.a.b`, `$['a.b']`, `$.a[0]`, `$.a[*].c`, `$.a.*`, and
//! `$..name` or `**.name` for any depth.
//!
//! See docs/decisions/0044-one-grammar-of-places.md.

use std::{fmt, str::FromStr};

use serde_json::Value;

use crate::children::children;

/// A place, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath {
    text: String,
    pub(super) steps: Vec<PathStep>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(String),
    AnyKey,
    Item(usize),
    AnyItem,
    /// The rest holds at any depth.
    Anywhere,
}

/// A text that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no place in a body: write $.field, $.list[*].field, or **.field for any depth")]
pub struct PathError(String);

impl FieldPath {
    /// Returns the values at this place, in their order.
    #[must_use]
    pub fn find<'v>(&self, body: &'v Value) -> Vec<&'v Value> {
        let mut found = Vec::new();
        find(&self.steps, body, &mut found);
        found
    }
}

fn find<'v>(steps: &[PathStep], value: &'v Value, found: &mut Vec<&'v Value>) {
    let Some((step, rest)) = steps.split_first() else {
        found.push(value);
        return;
    };
    match step {
        PathStep::Key(name) => value.get(name).into_iter().for_each(|child| find(rest, child, found)),
        PathStep::Item(at) => value.get(*at).into_iter().for_each(|child| find(rest, child, found)),
        PathStep::AnyKey => {
            value.as_object().into_iter().flat_map(|map| map.values()).for_each(|it| find(rest, it, found))
        }
        PathStep::AnyItem => value.as_array().into_iter().flatten().for_each(|child| find(rest, child, found)),
        PathStep::Anywhere => {
            find(rest, value, found);
            children(value).for_each(|(_, child)| find(steps, child, found));
        }
    }
}

impl FromStr for FieldPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let fail = || PathError(text.to_owned());
        let (mut steps, mut rest) = match (text.strip_prefix("**"), text.strip_prefix('$')) {
            (Some(rest), _) => (vec![PathStep::Anywhere], rest),
            (None, Some(rest)) => (Vec::new(), rest),
            (None, None) => return Err(fail()),
        };
        while !rest.is_empty() {
            // The second of two points belongs to the name behind it.
            if rest.starts_with("..") && steps.last() != Some(&PathStep::Anywhere) {
                steps.push(PathStep::Anywhere);
                rest = rest.get(1..).unwrap_or_default();
            }
            let (step, after) = step(rest).ok_or_else(fail)?;
            steps.push(step);
            rest = after;
        }
        let names_something = steps.iter().any(|step| *step != PathStep::Anywhere);
        if names_something { Ok(Self { text: text.to_owned(), steps }) } else { Err(fail()) }
    }
}

fn step(rest: &str) -> Option<(PathStep, &str)> {
    if let Some(rest) = rest.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        let quoted = |quote| inside.strip_prefix(quote).and_then(|inside| inside.strip_suffix(quote));
        let step = match (inside, quoted('\'').or_else(|| quoted('"'))) {
            ("*", _) => PathStep::AnyItem,
            (_, Some(name)) => PathStep::Key(name.to_owned()),
            (number, None) => PathStep::Item(number.parse().ok()?),
        };
        return Some((step, after));
    }
    let rest = rest.strip_prefix('.')?;
    let end = rest.find(['.', '[']).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    match name {
        "" => None,
        "*" => Some((PathStep::AnyKey, after)),
        name => Some((PathStep::Key(name.to_owned()), after)),
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Vec<PathStep> {
        text.parse::<FieldPath>().unwrap().steps
    }

    #[test]
    fn any_depth_is_written_in_two_ways_and_stands_anywhere() {
        let key = |name: &str| PathStep::Key(name.to_owned());
        assert_eq!(steps("**.user"), [PathStep::Anywhere, key("user")]);
        assert_eq!(steps("$..user"), steps("**.user"));
        assert_eq!(steps("$.a..b[0]"), [key("a"), PathStep::Anywhere, key("b"), PathStep::Item(0)]);
        assert_eq!(steps("$['a.b'][\"c\"].*[*]"), [key("a.b"), key("c"), PathStep::AnyKey, PathStep::AnyItem]);
    }

    #[test]
    fn values_at_a_place_are_found() {
        let body = serde_json::json!({"a": [{"b": 1}, {"b": 2, "c": {"b": 3}}], "b": 4});
        let found = |path: &str| -> Vec<u64> {
            let path: FieldPath = path.parse().unwrap();
            path.find(&body).into_iter().filter_map(Value::as_u64).collect()
        };
        assert_eq!(found("$.a[1].b"), [2]);
        assert_eq!(found("$.a[*].b"), [1, 2]);
        assert_eq!(found("**.b"), [4, 1, 2, 3]);
        assert_eq!(found("$.a[1].*"), [2]);
        assert_eq!(found("$.x[0]"), [] as [u64; 0]);
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for text in
            ["", "$", "**", "nonce", "a.b", "$.", "$..", "$.a..", "$.a...b", "**..a", "$[x]", "$['a\"]", "$.a[", "$a"]
        {
            assert!(text.parse::<FieldPath>().is_err(), "{text}");
        }
    }
}
