//! Values of JSON as Python's `json` reads and writes it, with integers of any size.
//!
//! Limit: text nested deeper than [`DEEPEST`] is no JSON.

use crate::python::{self, Build};

/// About where Python gives up.
pub(super) const DEEPEST: usize = 900;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// Its digits.
    Int(String),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Text that is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotJson;

impl Json {
    /// `json.loads`
    pub(super) fn read(text: &str) -> Result<Self, NotJson> {
        python::read(text, DEEPEST, &mut Tree).map_err(|_| NotJson)
    }

    /// `raw_decode`: the value that a text begins with, and its bytes.
    pub(super) fn read_first(text: &str) -> Result<(Self, usize), NotJson> {
        python::read_first(text, DEEPEST, &mut Tree).map_err(|_| NotJson)
    }

    /// `json.dumps` without ASCII escapes.
    pub(super) fn write(&self) -> String {
        let mut out = String::new();
        self.put(&mut out);
        out
    }

    fn put(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(digits) => out.push_str(digits),
            Self::Float(value) => out.push_str(&python::json_float(*value)),
            Self::Text(text) => python::write_string(text, false, out),
            Self::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "[" } else { ", " });
                    item.put(out);
                }
                out.push_str(if items.is_empty() { "[]" } else { "]" });
            }
            Self::Object(members) => {
                for (at, (key, value)) in members.iter().enumerate() {
                    out.push_str(if at == 0 { "{" } else { ", " });
                    python::write_string(key, false, out);
                    out.push_str(": ");
                    value.put(out);
                }
                out.push_str(if members.is_empty() { "{}" } else { "}" });
            }
        }
    }

    /// The value of a key of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Returns true for a value that is true in Python.
    pub(super) fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(digits) => !digits.trim_start_matches(['-', '0']).is_empty(),
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Object(members) => !members.is_empty(),
        }
    }

    /// Returns true if it has no number that is infinite or NaN.
    pub(super) fn is_finite(&self) -> bool {
        match self {
            Self::Float(value) => value.is_finite(),
            Self::List(items) => items.iter().all(Self::is_finite),
            Self::Object(members) => members.iter().all(|(_, value)| value.is_finite()),
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Text(_) => true,
        }
    }
}

/// Sets a member; one of that name keeps its place.
pub(super) fn set(members: &mut Vec<(String, Json)>, key: String, value: Json) {
    match members.iter_mut().find(|(known, _)| *known == key) {
        Some((_, old)) => *old = value,
        None => members.push((key, value)),
    }
}

/// Builder of a value.
struct Tree;

impl Build<'_> for Tree {
    type Value = Json;

    fn scalar(&mut self, text: &str, _at: usize) -> Json {
        match text {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "NaN" => Json::Float(f64::NAN),
            "Infinity" => Json::Float(f64::INFINITY),
            "-Infinity" => Json::Float(f64::NEG_INFINITY),
            "-0" => Json::Int("0".to_owned()),
            number if number.contains(['.', 'e', 'E']) => Json::Float(number.parse().unwrap_or(f64::NAN)),
            digits => Json::Int(digits.to_owned()),
        }
    }

    fn string(&mut self, raw: &str) -> Json {
        Json::Text(python::unescaped(raw))
    }

    fn list(&mut self) -> Json {
        Json::List(Vec::new())
    }

    fn object(&mut self) -> Json {
        Json::Object(Vec::new())
    }

    fn push(&mut self, list: &mut Json, item: Json) {
        if let Json::List(items) = list {
            items.push(item);
        }
    }

    fn insert(&mut self, object: &mut Json, raw_key: &str, value: Json) {
        if let Json::Object(members) = object {
            set(members, python::unescaped(raw_key), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written_as_python_does() {
        let round = |text: &str| Json::read(text).map(|value| value.write());
        let text =
            r#" {"a":[1,2.50,1e5,-0,12345678901234567890123],"b":null,"a":{"\u00e9\ud83e\udd80":"x\n"},"n":NaN} "#;
        assert_eq!(round(text).unwrap(), r#"{"a": {"é🦀": "x\n"}, "b": null, "n": NaN}"#);
        assert_eq!(round("[1, 2.50, 1e5, -0, 1E400]").unwrap(), "[1, 2.5, 100000.0, 0, Infinity]");
        for broken in ["", "{", "{\"a\":1,}", "[1 2]", "\"a\nb\"", "01", "1.", "nul", "{a:1}", "'a'", "1 2"] {
            assert_eq!(round(broken), Err(NotJson), "{broken}");
        }
        assert_eq!(Json::read(&"[".repeat(100_000)), Err(NotJson));
        assert_eq!(Json::read_first("1.x").unwrap(), (Json::Int("1".to_owned()), 1));
    }
}
