//! Messages as a file shows them, and as they are on the wire.
//!
//! A file shows a call of a function as `{id, name, arguments}` with the arguments as YAML; the wire has it one level deeper,
//! with the arguments as JSON in text. Fields that are null are not shown, except an assistant's `content`.

use serde_json::{Map, Value, json};

use crate::canonical::CanonicalRules;

/// The message as a file shows it.
#[must_use]
pub fn short_message(message: &Value) -> Value {
    let Some(fields) = message.as_object() else { return message.clone() };
    let kept = fields.iter().filter(|(name, value)| !value.is_null() || name.as_str() == "content");
    let mut short: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(Value::Array(calls)) = short.get_mut("tool_calls") {
        if calls.is_empty() {
            short.shift_remove("tool_calls");
        } else {
            calls.iter_mut().for_each(|call| *call = short_call(call));
        }
    }
    Value::Object(short)
}

/// The message as it is on the wire.
#[must_use]
pub fn wire_message(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(fields) = message.as_object_mut() {
        // What a file does not show when it is written again may not count when it is read.
        fields.retain(|name, value| !value.is_null() || name == "content");
        fields.retain(|name, value| name != "tool_calls" || *value != json!([]));
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.map(Vec::as_mut_slice).unwrap_or_default().iter_mut().for_each(|call| *call = wire_call(call));
    message
}

/// Id, name and arguments of a call in either form.
#[must_use]
pub fn call_of(call: &Value) -> (String, String, String) {
    let wire = wire_call(call);
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let function = wire.get("function");
    (
        text(wire.get("id")),
        text(function.and_then(|function| function.get("name"))),
        text(function.and_then(|function| function.get("arguments"))),
    )
}

fn short_call(call: &Value) -> Value {
    let is_plain = call.as_object().is_some_and(|fields| {
        fields.iter().all(|(name, value)| match name.as_str() {
            "id" => value.is_string(),
            "type" => value == "function",
            "index" => true,
            "function" => value.as_object().is_some_and(|function| {
                function.len() == 2 && function.contains_key("name") && function.contains_key("arguments")
            }),
            _ => false,
        })
    });
    let (Some(id), Some(function), true) = (call.get("id"), call.get("function"), is_plain) else {
        return call.clone();
    };
    json!({"id": id, "name": function.get("name"), "arguments": shown(function.get("arguments"))})
}

/// Arguments as YAML where nothing is lost by it.
fn shown(arguments: Option<&Value>) -> Value {
    let Some(Value::String(text)) = arguments else { return arguments.cloned().unwrap_or_default() };
    match serde_json::from_str::<Value>(text) {
        Ok(value @ Value::Object(_)) if !has_long_number(text) => value,
        _ => Value::String(text.clone()),
    }
}

/// A number of so many digits may not come back as it was.
fn has_long_number(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').any(|digits| digits.len() > 15)
}

fn wire_call(call: &Value) -> Value {
    if call.get("function").is_some() || call.get("name").is_none() {
        return call.clone();
    }
    let arguments = match call.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => spaced(value),
        None => String::new(),
    };
    json!({
        "id": call.get("id"),
        "type": "function",
        "function": {"name": call.get("name"), "arguments": arguments},
    })
}

/// JSON as models write it, with a space after each comma and colon.
fn spaced(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), spaced(value));
            format!("{{{}}}", map.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        scalar => scalar.to_string(),
    }
}

/// Returns true if two lists of messages are the same conversation.
pub(super) fn means_same(one: &Value, other: &Value) -> bool {
    let rules = CanonicalRules::default();
    let canonical = |messages: &Value| rules.canonical("llm:", &json!({ "messages": messages }));
    canonical(one) == canonical(other)
}
