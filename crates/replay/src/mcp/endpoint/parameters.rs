//! Arguments that are repeated in headers: those that a tool's schema marks with `x-mcp-header`.

use std::collections::HashMap;

use serde_json::Value;

use super::checks::decoded;
use crate::mcp::record_index::RecordIndex;

/// Prefix of the headers of such arguments, in lower case.
pub const PREFIX: &str = "mcp-param-";

const MARK: &str = "x-mcp-header";

/// Properties that are looked at of one schema.
const MOST_PROPERTIES: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Repeated {
    /// The rest of the header's name, in lower case.
    header: String,
    /// Names of the properties that lead to it.
    path: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct Parameters(HashMap<String, Vec<Repeated>>);

impl Parameters {
    /// Those of the tools that a recording lists; of several lists the last one counts.
    pub(super) fn of(index: &RecordIndex) -> Self {
        let mut found = HashMap::new();
        for tool in index.tools() {
            let Some(name) = tool.get("name").and_then(Value::as_str) else { continue };
            let marked = tool.get("inputSchema").map(marked).unwrap_or_default();
            if !marked.is_empty() || found.contains_key(name) {
                found.insert(name.to_owned(), marked);
            }
        }
        Self(found)
    }

    /// Whether the headers of a call repeat its arguments; names are in lower case and without their beginning.
    pub(super) fn agree(&self, params: &Value, headers: &[(String, String)]) -> bool {
        let name = params.get("name").and_then(Value::as_str);
        let Some(repeated) = name.and_then(|name| self.0.get(name)) else { return true };
        repeated.iter().all(|repeated| {
            let start = params.get("arguments").unwrap_or(&Value::Null);
            let value = repeated.path.iter().try_fold(start, |value, name| value.get(name));
            let sent = headers.iter().find(|(header, _)| *header == repeated.header).map(|(_, value)| decoded(value));
            match (value, sent) {
                (None | Some(Value::Null | Value::Array(_) | Value::Object(_)), sent) => sent.is_none(),
                (Some(value), Some(Some(sent))) => is_equal(value, &sent),
                (Some(_), None | Some(None)) => false,
            }
        })
    }
}

/// Numbers are compared as such: `42` is `42.0`.
fn is_equal(value: &Value, sent: &str) -> bool {
    match value {
        Value::String(text) => text == sent,
        Value::Number(number) if number.to_string() == sent => true,
        Value::Number(number) => number.as_f64().is_some_and(|number| sent.parse() == Ok(number)),
        Value::Bool(true) => sent == "true",
        Value::Bool(false) => sent == "false",
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn marked(schema: &Value) -> Vec<Repeated> {
    let mut found = Vec::new();
    let mut left: Vec<(Vec<String>, &Value)> = vec![(Vec::new(), schema)];
    let mut seen = 0;
    while let Some((path, schema)) = left.pop() {
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            seen += 1;
            if seen > MOST_PROPERTIES {
                return found;
            }
            let path = [path.as_slice(), std::slice::from_ref(name)].concat();
            if let Some(header) = property.get(MARK).and_then(Value::as_str) {
                found.push(Repeated { header: header.to_ascii_lowercase(), path: path.clone() });
            }
            left.push((path, property));
        }
    }
    found
}
