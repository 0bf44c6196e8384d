//! JSON as Python's `json.dumps` writes it, for the `tojson` filter of chat templates.
//!
//! Insertion order, `", "` and `": "` between items by default, no escaping of HTML, and floats with Python's
//! digits (`1e-07`, `1e+16`).

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::python;

/// The keyword arguments of transformers' `tojson`.
struct ToJsonStyle {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

/// The `tojson` filter: `ensure_ascii` (off), `indent` (none), `separators`, `sort_keys` (off).
pub(super) fn to_json(value: &Value, options: &Kwargs) -> Result<Value, Error> {
    let style = ToJsonStyle::new(options)?;
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

impl ToJsonStyle {
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
            ValueKind::String => python::write_string(value.as_str().unwrap_or_default(), self.ascii, out),
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
                Some(text) => python::write_string(text, self.ascii, out),
                None => {
                    let mut text = String::new();
                    self.write(key, depth, &mut text)?;
                    python::write_string(&text, self.ascii, out);
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

fn number(value: &Value) -> String {
    as_float(value).map_or_else(|| value.to_string(), python::json_float)
}

/// The value, where it is a float.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    (value.is_number() && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
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
}
