//! Values of JSON as Python's `json` reads and writes it, with integers of any size.
//!
//! Limit: text nested deeper than [`DEEPEST`] is no JSON.

use crate::python::{self, Build};

/// About where Python gives up.
pub(super) const DEEPEST: usize = 900;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsonValue {
    Null,
    Bool(bool),
    /// Its digits.
    Int(String),
    Float(f64),
    Text(String),
    List(Vec<JsonValue>),
    Object(Vec<(String, JsonValue)>),
}

/// Text that is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotJson;

impl JsonValue {
    /// `json.loads`
    pub(super) fn read(text: &str) -> Result<Self, NotJson> {
        python::read(text, DEEPEST, &mut JsonBuilder).map_err(|_| NotJson)
    }

    /// `raw_decode`: the value that a text begins with, and its bytes.
    pub(super) fn read_first(text: &str) -> Result<(Self, usize), NotJson> {
        python::read_first(text, DEEPEST, &mut JsonBuilder).map_err(|_| NotJson)
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
pub(super) fn set(members: &mut Vec<(String, JsonValue)>, key: String, value: JsonValue) {
    match members.iter_mut().find(|(known, _)| *known == key) {
        Some((_, old)) => *old = value,
        None => members.push((key, value)),
    }
}

struct JsonBuilder;

impl Build<'_> for JsonBuilder {
    type Value = JsonValue;

    fn scalar(&mut self, text: &str, _at: usize) -> JsonValue {
        match text {
            "null" => JsonValue::Null,
            "true" => JsonValue::Bool(true),
            "false" => JsonValue::Bool(false),
            "NaN" => JsonValue::Float(f64::NAN),
            "Infinity" => JsonValue::Float(f64::INFINITY),
            "-Infinity" => JsonValue::Float(f64::NEG_INFINITY),
            "-0" => JsonValue::Int("0".to_owned()),
            number if number.contains(['.', 'e', 'E']) => JsonValue::Float(number.parse().unwrap_or(f64::NAN)),
            digits => JsonValue::Int(digits.to_owned()),
        }
    }

    fn string(&mut self, raw: &str) -> JsonValue {
        JsonValue::Text(python::unescaped(raw))
    }

    fn list(&mut self) -> JsonValue {
        JsonValue::List(Vec::new())
    }

    fn object(&mut self) -> JsonValue {
        JsonValue::Object(Vec::new())
    }

    fn push(&mut self, list: &mut JsonValue, item: JsonValue) {
        if let JsonValue::List(items) = list {
            items.push(item);
        }
    }

    fn insert(&mut self, object: &mut JsonValue, raw_key: &str, value: JsonValue) {
        if let JsonValue::Object(members) = object {
            set(members, python::unescaped(raw_key), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written_as_python_does() {
        let round = |text: &str| JsonValue::read(text).map(|value| value.write());
        let text =
            r#" {"a":[1,2.50,1e5,-0,12345678901234567890123],"b":null,"a":{"\u00e9\ud83e\udd80":"x\n"},"n":NaN} "#;
        assert_eq!(round(text).unwrap(), r#"{"a": {"é🦀": "x\n"}, "b": null, "n": NaN}"#);
        assert_eq!(round("[1, 2.50, 1e5, -0, 1E400]").unwrap(), "[1, 2.5, 100000.0, 0, Infinity]");
        for broken in ["", "{", "{\"a\":1,}", "[1 2]", "\"a\nb\"", "01", "1.", "nul", "{a:1}", "'a'", "1 2"] {
            assert_eq!(round(broken), Err(NotJson), "{broken}");
        }
        assert_eq!(JsonValue::read(&"[".repeat(100_000)), Err(NotJson));
        assert_eq!(JsonValue::read_first("1.x").unwrap(), (JsonValue::Int("1".to_owned()), 1));
    }
}
