//! JSON as Python's `json.dumps` writes it, for the `tojson` filter of chat templates.
//!
//! Insertion order, `", "` and `": "` between items by default, no escaping of HTML, and floats with Python's
//! digits (`1e-07`, `1e+16`).

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The keyword arguments of transformers' `tojson`.
struct Style {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

/// The `tojson` filter: `ensure_ascii` (off), `indent` (none), `separators`, `sort_keys` (off).
pub(super) fn to_json(value: &Value, options: &Kwargs) -> Result<Value, Error> {
    let style = Style::new(options)?;
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// A value as `json.dumps(value, ensure_ascii=False)` writes it; one that cannot be written is empty.
#[must_use]
pub fn python_json(value: &serde_json::Value) -> String {
    let style = Style { ascii: false, sorted: false, indent: None, item: ", ".to_owned(), key: ": ".to_owned() };
    let mut out = String::new();
    match style.write(&Value::from(minijinja::value::Serde(value)), 0, &mut out) {
        Ok(()) => out,
        Err(_) => String::new(),
    }
}

impl Style {
    fn new(options: &Kwargs) -> Result<Self, Error> {
        let indent = match options.get::<Option<Value>>("indent")? {
            None => None,
            Some(value) if value.is_none() || value.is_undefined() => None,
            Some(value) => Some(match value.as_str() {
                Some(text) => text.to_owned(),
                None => " ".repeat(usize::try_from(i64::try_from(value)?.max(0)).unwrap_or(0)),
            }),
        };
        let (item, key) = match options.get::<Option<Vec<String>>>("separators")? {
            Some(pair) => match <[String; 2]>::try_from(pair) {
                Ok([item, key]) => (item, key),
                Err(_) => return Err(invalid("separators takes two strings")),
            },
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        };
        Ok(Self {
            ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            indent,
            item,
            key,
        })
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => write_python_string(value.as_str().unwrap_or_default(), self.ascii, out),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth, out)?,
            ValueKind::Map => self.map(value, depth, out)?,
            kind => return Err(invalid(&format!("Object of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.between(&mut empty, depth, out);
            self.write(&item, depth + 1, out)?;
        }
        self.close(empty, depth, out);
        out.push(']');
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sorted {
            keys.sort();
        }
        let mut empty = true;
        for key in &keys {
            self.between(&mut empty, depth, out);
            match key.as_str() {
                Some(text) => write_python_string(text, self.ascii, out),
                None => {
                    let mut text = String::new();
                    self.write(key, depth, &mut text)?;
                    write_python_string(&text, self.ascii, out);
                }
            }
            out.push_str(&self.key);
            self.write(&value.get_item(key)?, depth + 1, out)?;
        }
        self.close(empty, depth, out);
        out.push('}');
        Ok(())
    }

    fn between(&self, empty: &mut bool, depth: usize, out: &mut String) {
        if !std::mem::replace(empty, false) {
            out.push_str(&self.item);
        }
        self.line(depth + 1, out);
    }

    fn close(&self, empty: bool, depth: usize, out: &mut String) {
        if !empty {
            self.line(depth, out);
        }
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }
}

/// Writes a text as `json.dumps` does: with `ascii` as `ensure_ascii` has it.
pub fn write_python_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn number(value: &Value) -> String {
    as_float(value).map_or_else(|| value.to_string(), python_float)
}

/// The value, where it is a float.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    (value.is_number() && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// A float as Python's `repr` writes it: the shortest digits, an exponent below 1e-4 and from 1e16 on.
#[must_use]
pub fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let mut buffer = ryu::Buffer::new();
    let shortest = buffer.format_finite(value.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((shortest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let leading = all.len() - all.trim_start_matches('0').len();
    let digits = all.trim_matches('0');
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if digits.is_empty() {
        return format!("{sign}0.0");
    }
    // The value is 0.digits × 10^point.
    let point = i64::try_from(whole.len()).unwrap_or(0) - i64::try_from(leading).unwrap_or(0)
        + exponent.parse::<i64>().unwrap_or(0);
    let magnitude = if (-3..=16).contains(&point) { positional(digits, point) } else { scientific(digits, point - 1) };
    format!("{sign}{magnitude}")
}

fn positional(digits: &str, point: i64) -> String {
    let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or(0));
    let length = i64::try_from(digits.len()).unwrap_or(0);
    if point <= 0 {
        format!("0.{}{digits}", zeros(-point))
    } else if point >= length {
        format!("{digits}{}.0", zeros(point - length))
    } else {
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        format!("{whole}.{fraction}")
    }
}

fn scientific(digits: &str, exponent: i64) -> String {
    let (first, rest) = digits.split_at(1);
    let sign = if exponent < 0 { '-' } else { '+' };
    let dot = if rest.is_empty() { "" } else { "." };
    format!("{first}{dot}{rest}e{sign}{:02}", exponent.abs())
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::{Environment, context};

    fn render(expression: &str, value: serde_json::Value) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", |value: &Value, options: Kwargs| to_json(value, &options));
        environment.render_str(expression, context! { v => minijinja::value::Serde(value) }).unwrap()
    }

    #[test]
    fn json_is_what_python_writes() {
        let value: serde_json::Value =
            serde_json::from_str(r#"{"b":[1,2.5,1e-7,true,null,{}],"a":"<é\u0001\n\"🦀>"}"#).unwrap();
        assert_eq!(
            render("{{ v|tojson }}", value.clone()),
            r#"{"b": [1, 2.5, 1e-07, true, null, {}], "a": "<é\u0001\n\"🦀>"}"#
        );
        assert_eq!(
            render("{{ v|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}", value),
            r#"{"a":"<\u00e9\u0001\n\"\ud83e\udd80>","b":[1,2.5,1e-07,true,null,{}]}"#
        );
        assert_eq!(
            render("{{ v|tojson(indent=2) }}", serde_json::json!({"a": [1], "b": []})),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}"
        );
    }

    #[test]
    fn floats_are_pythons() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (12.75, "12.75"),
            (100.0, "100.0"),
        ] {
            assert_eq!(python_float(value), expected);
        }
    }
}
