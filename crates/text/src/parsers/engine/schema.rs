//! Values converted to the types in a function's schema, as far as they can be.

use serde_json::{Map, Value};

use crate::parsers::json::JsonValue;

/// A value of its schema's type; `None` where it stays as it is.
fn coerced(value: &JsonValue, schema: &Value) -> Option<JsonValue> {
    match value {
        JsonValue::Text(text) => cast(text, &types(schema)),
        JsonValue::Object(_) => {
            let properties = schema.get("properties")?.as_object()?;
            let mut value = value.clone();
            coerce(&mut value, properties).then_some(value)
        }
        JsonValue::List(items) => {
            let schema = schema.get("items").filter(|items| items.is_object())?;
            let new: Vec<Option<JsonValue>> = items.iter().map(|item| coerced(item, schema)).collect();
            if new.iter().all(Option::is_none) {
                return None;
            }
            Some(JsonValue::List(
                new.into_iter().zip(items).map(|(new, old)| new.unwrap_or_else(|| old.clone())).collect(),
            ))
        }
        JsonValue::Null | JsonValue::Bool(_) | JsonValue::Int(_) | JsonValue::Float(_) => {
            let text = value.write();
            let new = cast(&text, &types(schema)).unwrap_or(JsonValue::Text(text));
            (new != *value).then_some(new)
        }
    }
}

/// Converts an object's members by the schemas of their names; whether any changed.
pub(super) fn coerce(value: &mut JsonValue, properties: &Map<String, Value>) -> bool {
    let JsonValue::Object(members) = value else { return false };
    let mut changed = false;
    for (key, value) in members {
        let schema = properties.get(key.as_str()).filter(|schema| schema.is_object());
        if let Some(new) = schema.and_then(|schema| coerced(value, schema)) {
            *value = new;
            changed = true;
        }
    }
    changed
}

/// The keys whose values are strings and nothing else; `None` without schemas.
pub(super) fn string_keys(properties: &Map<String, Value>) -> Option<Vec<String>> {
    if properties.is_empty() {
        return None;
    }
    let is_string = |schema: &Value| types(schema).iter().all(|kind| kind == "string");
    Some(properties.iter().filter(|(_, schema)| is_string(schema)).map(|(key, _)| key.clone()).collect())
}

/// Every type that a schema allows; a string where it has none.
fn types(schema: &Value) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    match schema.get("type") {
        Some(Value::String(kind)) => found.push(kind.clone()),
        Some(Value::Array(kinds)) => found.extend(kinds.iter().filter_map(|kind| Some(kind.as_str()?.to_owned()))),
        _ => {}
    }
    for value in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        found.push(kind.to_owned());
    }
    for field in ["anyOf", "oneOf", "allOf"] {
        found.extend(schema.get(field).and_then(Value::as_array).into_iter().flatten().flat_map(types));
    }
    if found.is_empty() { vec!["string".to_owned()] } else { found }
}

/// Other names of types.
fn kind(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let known = match name.as_str() {
        "str" | "text" | "varchar" | "char" | "enum" => "string",
        "int" | "int32" | "int64" | "uint" | "uint32" | "uint64" | "long" | "short" | "unsigned" => "integer",
        "float" | "float32" | "float64" | "double" => "number",
        "bool" => "boolean",
        "dict" => "object",
        "arr" | "list" | "sequence" => "array",
        other => other,
    };
    known.to_owned()
}

/// A text as the first of these types that it fits, the narrow ones first; `None` where it stays text.
fn cast(text: &str, types: &[String]) -> Option<JsonValue> {
    let kinds: Vec<String> = types.iter().map(|name| kind(name)).collect();
    let has = |name: &str| kinds.iter().any(|kind| kind == name);
    let finite = |value: Result<JsonValue, _>| value.ok().filter(JsonValue::is_finite);
    if has("null") && text.to_lowercase() == "null" {
        return Some(JsonValue::Null);
    }
    let number =
        has("integer").then(|| integer(text)).flatten().or_else(|| has("number").then(|| float(text)).flatten());
    if number.is_some() {
        return number;
    }
    if has("boolean") {
        match text.to_lowercase().trim() {
            "true" | "1" => return Some(JsonValue::Bool(true)),
            "false" | "0" => return Some(JsonValue::Bool(false)),
            _ => {}
        }
    }
    if has("object") || has("array") {
        let value = finite(JsonValue::read(text));
        if value.is_some() {
            return value;
        }
    }
    if has("string") { None } else { finite(JsonValue::read(text)) }
}

/// Digits with single underscores between them, as Python's numbers may have.
fn digits(text: &str) -> Option<String> {
    let is_apart = text.split('_').all(|group| !group.is_empty());
    let all = || text.bytes().all(|c| c.is_ascii_digit() || c == b'_');
    (is_apart && all()).then(|| text.replace('_', ""))
}

fn integer(text: &str) -> Option<JsonValue> {
    let text = text.trim();
    let (sign, rest) = text.strip_prefix('-').map_or(("", text.strip_prefix('+').unwrap_or(text)), |rest| ("-", rest));
    let digits = digits(rest)?;
    let digits = digits.trim_start_matches('0');
    Some(JsonValue::Int(if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") }))
}

fn float(text: &str) -> Option<JsonValue> {
    let text = text.trim();
    let is_plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-' | '_');
    let is_apart = text.split('_').collect::<Vec<_>>();
    let between_digits = is_apart.windows(2).all(|pair| {
        let ends = pair.first().is_some_and(|part| part.ends_with(|c: char| c.is_ascii_digit()));
        ends && pair.last().is_some_and(|part| part.starts_with(|c: char| c.is_ascii_digit()))
    });
    if !text.chars().all(is_plain) || !between_digits {
        return None;
    }
    let value: f64 = text.replace('_', "").parse().ok().filter(|value: &f64| value.is_finite())?;
    let whole = value.trunc();
    Some(if whole == value { JsonValue::Int(format!("{:.0}", whole + 0.0)) } else { JsonValue::Float(value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_become_values_of_the_schemas_types() {
        let cast =
            |text: &str, schema: Value| coerced(&JsonValue::Text(text.to_owned()), &schema).map(|value| value.write());
        assert_eq!(cast("5", json!({"type": "integer"})).unwrap(), "5");
        assert_eq!(cast(" -1_000 ", json!({"type": "int"})).unwrap(), "-1000");
        assert_eq!(cast("1.5", json!({"type": "integer"})).unwrap(), "1.5");
        assert_eq!(cast("2.0", json!({"type": "number"})).unwrap(), "2");
        assert_eq!(cast("1e-7", json!({"type": "number"})).unwrap(), "1e-07");
        assert_eq!(cast("abc", json!({"type": "integer"})), None);
        assert_eq!(cast("True", json!({"type": "boolean"})).unwrap(), "true");
        assert_eq!(cast("NULL", json!({"type": ["string", "null"]})).unwrap(), "null");
        assert_eq!(cast("[1, {\"a\": null}]", json!({"type": "array"})).unwrap(), "[1, {\"a\": null}]");
        assert_eq!(cast("5", json!({})), None);
        assert_eq!(cast("5", json!({"anyOf": [{"type": "string"}, {"enum": [1]}]})).unwrap(), "5");
        assert_eq!(cast("[1e999]", json!({"type": "array"})), None);
    }
}
