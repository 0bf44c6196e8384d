//! A whole message from a whole chat answer.

use serde_json::{Map, Value, json};

use super::{Tools, signature, stop, usage};
use crate::api::ChatAnswer;

/// The body of a message; what is null is left out.
#[must_use]
pub fn message_body(answer: &ChatAnswer) -> String {
    let choice = answer.choices.first();
    let mut content = Vec::new();
    let message = choice.map(|choice| &choice.message);
    if let Some(thought) =
        message.and_then(|message| message.reasoning.as_deref()).filter(|thought| !thought.is_empty())
    {
        content.push(json!({"type": "thinking", "thinking": thought, "signature": signature(&answer.id, 0)}));
    }
    if let Some(text) = message.and_then(|message| message.content.as_deref()).filter(|text| !text.is_empty()) {
        content.push(json!({"type": "text", "text": text}));
    }
    let calls = message.map(|message| message.tool_calls.as_slice()).unwrap_or_default();
    for call in calls {
        let function = call.function.clone().unwrap_or_default();
        let input: Value = function.arguments.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        content.push(json!({"type": "tool_use", "id": call.id, "name": function.name, "input": input}));
    }
    if content.is_empty() {
        content.push(json!({"type": "text", "text": ""}));
    }
    let tools = if calls.is_empty() { Tools::Unused } else { Tools::Complete };
    let finish = choice.and_then(|choice| choice.finish_reason.as_deref());
    let (reason, sequence) = stop(finish, choice.and_then(|choice| choice.stop_reason.as_ref()), tools);
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.to_owned(), value);
        }
    };
    put("id", answer.id.as_str().into());
    put("type", "message".into());
    put("role", "assistant".into());
    put("content", Value::Array(content));
    put("model", answer.model.as_str().into());
    put("stop_reason", reason.into());
    put("stop_sequence", sequence.into());
    put("usage", usage(Some(&answer.usage)));
    Value::Object(body).to_string()
}

/// The body of a token count.
#[must_use]
pub fn count_body(tokens: usize) -> String {
    json!({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}).to_string()
}
