//! Spellings that are evened out.

use serde_json::{Map, Number, Value};

use crate::children::children_mut;

/// The largest integer up to which every integer is a float.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// JSON with sorted keys.
pub(super) fn sorted(value: &Value) -> Vec<u8> {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string().into_bytes()
}

/// 1.0 becomes 1.
pub(super) fn even_numbers(value: &mut Value) {
    if let Value::Number(number) = value {
        let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT);
        #[allow(clippy::cast_possible_truncation)] // it is an integer in range
        if let Some(float) = float {
            *number = Number::from(float as i64);
        }
    }
    children_mut(value).for_each(|(_, value)| even_numbers(value));
}

/// Drops nulls, and switches that are at their defaults. Schemas stay as they are.
pub(super) fn drop_neutral(body: &mut Value) {
    drop_nulls(body);
    let Some(fields) = body.as_object_mut() else { return };
    let has_tools = fields.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
    fields.retain(|name, value| match name.as_str() {
        "n" => value.as_f64() != Some(1.0),
        "echo" | "logprobs" => *value != Value::Bool(false),
        "tools" => value.as_array().is_none_or(|tools| !tools.is_empty()),
        "tool_choice" => !(has_tools && value.as_str() == Some("auto")),
        _ => true,
    });
}

/// Drops fields that are null, in schemas not.
pub(super) fn drop_nulls(value: &mut Value) {
    const SCHEMAS: [&str; 6] = ["parameters", "input_schema", "inputSchema", "outputSchema", "schema", "guided_json"];
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
    }
    let is_schema = |name: Option<&str>| name.is_some_and(|name| SCHEMAS.contains(&name));
    children_mut(value).filter(|(name, _)| !is_schema(*name)).for_each(|(_, value)| drop_nulls(value));
}

/// Reduces a message with an explicit type, or with texts in parts, to its role and its text.
pub(super) fn join_texts(message: &mut Value) {
    let Some(fields) = message.as_object_mut() else { return };
    if fields.get("type").is_some_and(|kind| kind == "message") {
        ["type", "id", "status"].into_iter().for_each(|name| drop(fields.shift_remove(name)));
    }
    let is_text = |part: &Value| {
        ["text", "input_text", "output_text"].iter().any(|kind| part.get("type").is_some_and(|own| own == kind))
    };
    let Some(Value::Array(parts)) = fields.get("content") else { return };
    if parts.iter().all(is_text) {
        let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
        let text = texts.join("\n");
        fields.insert("content".to_owned(), text.into());
    }
}

/// Arguments that are JSON in text are spelled with sorted keys and without white space.
pub(super) fn respell_arguments(body: &mut Value) {
    for name in ["messages", "input"] {
        let items = body.get_mut(name).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default();
        items.iter_mut().for_each(respell_item);
    }
}

/// As [`respell_arguments`], for one message or item.
pub(super) fn respell_item(item: &mut Value) {
    let Some(item) = item.as_object_mut() else { return };
    respell(item);
    if let Some(call) = item.get_mut("function_call").and_then(Value::as_object_mut) {
        respell(call);
    }
    let calls = item.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.map(Vec::as_mut_slice).unwrap_or_default() {
        if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
            respell(function);
        }
    }
}

fn respell(call: &mut Map<String, Value>) {
    let Some(Value::String(text)) = call.get_mut("arguments") else { return };
    if let Ok(mut parsed) = serde_json::from_str::<Value>(text) {
        even_numbers(&mut parsed);
        *text = String::from_utf8_lossy(&sorted(&parsed)).into_owned();
    }
}
