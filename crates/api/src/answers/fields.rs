//! Fields of answers: read, set, and grown event by event.

use serde_json::{Map, Value};

/// A list under a name; empty where there is none.
pub(super) fn list<'v>(fields: &'v Map<String, Value>, name: &str) -> &'v [Value] {
    fields.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// An object with some fields added or replaced.
pub(super) fn with(value: &Value, changes: Value) -> Value {
    let mut value = value.clone();
    if let (Some(fields), Value::Object(changes)) = (value.as_object_mut(), changes) {
        fields.extend(changes);
    }
    value
}

/// Sets a field of an object, in its place if it has one.
pub(crate) fn put(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(name.to_owned(), value);
    }
}

/// Adds to an object: lists grow, other fields are set.
pub(super) fn extend(whole: &mut Value, part: &Value) {
    let (Some(whole), Some(part)) = (whole.as_object_mut(), part.as_object()) else { return };
    for (name, value) in part {
        match (whole.get_mut(name), value) {
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
            (_, value) => drop(whole.insert(name.clone(), value.clone())),
        }
    }
}

/// Adds to a text, or begins it.
pub(super) fn append(fields: &mut Map<String, Value>, name: &str, more: &str) {
    match fields.get_mut(name) {
        Some(Value::String(text)) => text.push_str(more),
        _ => drop(fields.insert(name.to_owned(), more.into())),
    }
}
