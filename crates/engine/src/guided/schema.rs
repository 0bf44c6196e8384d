//! JSON schemas: what the engine takes, and what its two libraries make of it.
//!
//! The engine tries one library first, and what that refuses on another. The second one is the one that is used here, so
//! that its refusals have its own words. What the first takes and the second does not know is taken too, and then left
//! out of the text's rules.

use serde_json::{Map, Value, json};

/// Formats of strings that the engine's first library knows.
const FORMATS: [&str; 14] = [
    "email",
    "date",
    "time",
    "date-time",
    "duration",
    "ipv4",
    "ipv6",
    "hostname",
    "uuid",
    "uri",
    "uri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
];

/// Returns true if the engine's first library leaves a schema, or a part of it, to the second.
pub(super) fn is_left_to_guidance(schema: &Value) -> bool {
    any_part(schema, |map| {
        has_number_rule(map)
            || has_string_rule(map)
            || has_object_rule(map)
            || map.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1)
    })
}

pub(super) fn is_of(map: &Map<String, Value>, kind: &str) -> bool {
    match map.get("type") {
        Some(Value::String(own)) => own == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|own| own == kind),
        _ => false,
    }
}

fn has_number_rule(map: &Map<String, Value>) -> bool {
    let is_multiple = (is_of(map, "integer") || is_of(map, "number")) && map.contains_key("multipleOf");
    let of_items = ["uniqueItems", "contains", "minContains", "maxContains"];
    is_multiple || (is_of(map, "array") && of_items.iter().any(|key| map.contains_key(*key)))
}

fn has_string_rule(map: &Map<String, Value>) -> bool {
    let is_unknown =
        map.get("format").is_some_and(|format| !format.as_str().is_some_and(|format| FORMATS.contains(&format)));
    is_of(map, "string") && (is_unknown || has_two_bounds(map))
}

fn has_two_bounds(map: &Map<String, Value>) -> bool {
    let has = |key: &str| map.contains_key(key);
    (has("pattern") || has("format")) && (has("minLength") || has("maxLength"))
}

fn has_object_rule(map: &Map<String, Value>) -> bool {
    if !is_of(map, "object") {
        return false;
    }
    let has = |key: &str| map.contains_key(key);
    let names = map.get("propertyNames");
    let of_names = names.is_some()
        && (names.and_then(Value::as_object).is_some_and(has_two_bounds)
            || has("patternProperties")
            || has("properties")
            || map.get("unevaluatedProperties").is_some_and(|rest| rest != &Value::Bool(true)));
    let patterns = map.get("patternProperties").and_then(Value::as_object);
    of_names || patterns.is_some_and(|patterns| has("properties") || patterns.len() > 1)
}

/// Returns true if a key occurs at any depth.
pub(super) fn mentions(schema: &Value, key: &str) -> bool {
    match schema {
        Value::Object(map) => map.contains_key(key) || map.values().any(|value| mentions(value, key)),
        Value::Array(items) => items.iter().any(|item| item.is_object() && mentions(item, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// A schema with the options of its text: spaces as Python puts them, and no more. Unknown keywords are errors, or left out.
pub(super) fn with_options(schema: &Value, is_lenient: bool) -> Value {
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    let mut options = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    if let Some(options) = options.as_object_mut().filter(|_| is_lenient) {
        options.extend([("lenient".to_owned(), json!(true)), ("coerce_one_of".to_owned(), json!(true))]);
    }
    schema.insert("x-guidance".to_owned(), options);
    Value::Object(schema)
}

/// A schema without what only the engine's first library takes, though it ignores it too: expressions that look around,
/// references to other documents.
pub(super) fn relaxed(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let is_kept = |(key, value): &(&String, &Value)| match (key.as_str(), value) {
                ("pattern", Value::String(pattern)) => {
                    !pattern.contains("(?=") && !pattern.contains("(?!") && !pattern.contains("(?<")
                }
                ("$ref", Value::String(target)) => target.starts_with('#'),
                _ => true,
            };
            Value::Object(map.iter().filter(is_kept).map(|(key, value)| (key.clone(), relaxed(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(relaxed).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// Formats whose texts may not grow long, and texts of them that do not.
const SHORT: [(&str, &str); 2] =
    [("email", "^[a-z]{1,12}@[a-z]{1,12}\\.(com|net|org)$"), ("hostname", "^[a-z]{1,12}\\.(com|net|org)$")];

/// Anchors the patterns of a schema at both ends of a text, if their meaning stays the same.
pub(super) fn spanned(schema: &Value) -> Value {
    let span = |pattern: &str| {
        let is_split = pattern.contains(['|', '\\', '[', '(']);
        match (pattern.starts_with('^'), pattern.ends_with('$')) {
            (false, false) if !pattern.contains(['^', '$']) => format!("^(?:{pattern})$"),
            (true, false) if !is_split => format!("{pattern}$"),
            (false, true) if !is_split => format!("^{pattern}"),
            _ => pattern.to_owned(),
        }
    };
    match schema {
        Value::Object(map) => {
            let has_pattern = map.contains_key("pattern");
            let short = |format: &str| SHORT.iter().find(|(name, _)| !has_pattern && *name == format);
            let part = |(key, value): (&String, &Value)| match value {
                Value::String(pattern) if key == "pattern" => (key.clone(), span(pattern).into()),
                Value::String(format) if key == "format" => match short(format) {
                    Some((_, pattern)) => ("pattern".to_owned(), Value::from(*pattern)),
                    None => (key.clone(), value.clone()),
                },
                value => (key.clone(), spanned(value)),
            };
            Value::Object(map.iter().map(part).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(spanned).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => schema.clone(),
    }
}

/// Returns true if this holds for a schema or a part of it, where the first library looks for parts: not in lists of lists.
pub(super) fn any_part(schema: &Value, is_so: fn(&Map<String, Value>) -> bool) -> bool {
    match schema {
        Value::Object(map) => is_so(map) || map.values().any(|part| any_part(part, is_so)),
        Value::Array(items) => items.iter().any(|item| item.is_object() && any_part(item, is_so)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns true if a string's least length is below zero, in any part of a schema.
pub(super) fn has_negative_length(schema: &Value) -> bool {
    any_part(schema, |map| {
        is_of(map, "string") && map.get("minLength").and_then(Value::as_i64).is_some_and(|least| least < 0)
    })
}
