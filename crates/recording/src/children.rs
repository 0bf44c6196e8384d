//! The values right in a JSON value: what is done at any depth calls itself on them. Where strings and numbers end in JSON text.

use serde_json::{Map, Value};

/// The items of a list, or the fields of an object with their names, in their order; other values have none.
pub fn children(value: &Value) -> impl Iterator<Item = (Option<&str>, &Value)> {
    let items = value.as_array().into_iter().flatten().map(|item| (None, item));
    let fields = value.as_object().into_iter().flatten().map(|(name, value)| (Some(name.as_str()), value));
    items.chain(fields)
}

/// As [`children`], to be changed.
pub fn children_mut(value: &mut Value) -> impl Iterator<Item = (Option<&str>, &mut Value)> {
    let (items, fields) = match value {
        Value::Array(items) => (Some(items), None),
        Value::Object(fields) => (None, Some(fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (None, None),
    };
    let items = items.into_iter().flatten().map(|item| (None, item));
    let fields = fields.into_iter().flatten().map(|(name, value)| (Some(name.as_str()), value));
    items.chain(fields)
}

/// Changes the fields of an object as a value.
pub fn as_value<T>(fields: &mut Map<String, Value>, change: impl FnOnce(&mut Value) -> T) -> T {
    let mut whole = Value::Object(std::mem::take(fields));
    let result = change(&mut whole);
    if let Value::Object(whole) = whole {
        *fields = whole;
    }
    result
}

/// Gives the fields of objects at any depth the names that `new` has for them. True where it had any.
pub fn rename(value: &mut Value, new: &mut dyn FnMut(&str) -> Option<String>) -> bool {
    let found = children_mut(value).fold(false, |found, (_, value)| rename(value, new) || found);
    let Value::Object(fields) = value else { return found };
    let names: Vec<Option<String>> = fields.keys().map(|name| new(name)).collect();
    if names.iter().all(Option::is_none) {
        return found;
    }
    let old = std::mem::take(fields).into_iter().zip(names);
    *fields = old.map(|((name, value), new)| (new.unwrap_or(name), value)).collect();
    true
}

/// Returns the length of the string with which JSON text begins, its quotes included; `None` where it does not end.
pub(crate) fn string_length(json: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the length of the number with which JSON text begins.
pub(crate) fn number_length(json: &[u8]) -> usize {
    let is_of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    json.iter().take_while(is_of_number).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_objects_have_children_and_scalars_none() {
        let value = json!({"b": [1, {"c": 2}], "a": "x"});
        let of = |value: &Value| children(value).map(|(name, value)| format!("{name:?} {value}")).collect::<Vec<_>>();
        assert_eq!(of(&value), ["Some(\"b\") [1,{\"c\":2}]", "Some(\"a\") \"x\""]);
        assert_eq!(of(&value["b"]), ["None 1", "None {\"c\":2}"]);
        assert!(of(&json!("x")).is_empty() && children_mut(&mut json!(null)).next().is_none());
        let mut changed = value.clone();
        children_mut(&mut changed).for_each(|(name, value)| *value = name.into());
        assert_eq!(changed, json!({"b": "b", "a": "a"}));
    }

    #[test]
    fn fields_are_renamed_in_their_places() {
        let mut value = json!([{"a": {"a": 1, "b": 2}, "b": 3}]);
        assert!(rename(&mut value, &mut |name| (name == "a").then(|| "A".to_owned())));
        assert_eq!(value.to_string(), r#"[{"A":{"A":1,"b":2},"b":3}]"#);
        assert!(!rename(&mut value, &mut |_| None));
    }
}
