//! What faults know of the endpoints' streams: tokens of events, and arguments in them.

use net::wire::event_data;
use serde_json::Value;

/// Tokens that an event carries.
#[must_use]
pub fn tokens_of(event: &[u8]) -> u64 {
    let Some(value) = event_data(event).and_then(|data| serde_json::from_slice::<Value>(&data).ok()) else { return 0 };
    let Some(choices) = value.get("choices").and_then(Value::as_array) else {
        // Events of messages and responses carry output as deltas.
        let delta = value.get("delta").map(|delta| {
            delta
                .as_str()
                .or_else(|| ["text", "thinking", "partial_json"].iter().find_map(|name| delta.get(name)?.as_str()))
        });
        return u64::from(delta.flatten().is_some_and(|text| !text.is_empty()));
    };
    let of_choice = |choice: &Value| {
        if let Some(ids) = choice.get("token_ids").and_then(Value::as_array) {
            return u64::try_from(ids.len()).unwrap_or_default();
        }
        let is_output = |value: &Value| value.as_str().map_or_else(|| value.is_array(), |text| !text.is_empty());
        let delta = choice.get("delta").unwrap_or(choice);
        let has = ["content", "reasoning", "reasoning_content", "tool_calls", "text"];
        u64::from(has.iter().any(|name| delta.get(name).is_some_and(is_output)))
    };
    choices.iter().map(of_choice).sum()
}

/// The place after the first character of a tool call's arguments in an event.
pub(crate) fn inside_arguments(event: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(event).ok()?;
    let is_delta = net::wire::event_name(event).is_some_and(|name| name.ends_with(b"function_call_arguments.delta"));
    let keys: &[&str] = if is_delta { &["\"delta\""] } else { &["\"arguments\"", "\"partial_json\""] };
    keys.iter().find_map(|key| {
        let after = text.find(key)? + key.len();
        let value = text.get(after..)?.find('"').filter(|gap| *gap <= 2)? + after + 1;
        let first = text.get(value..)?.chars().next().filter(|first| *first != '"')?;
        // An escaped character has two.
        Some(value + if first == '\\' { 2 } else { first.len_utf8() })
    })
}
