//! A whole message from a whole chat answer.

use serde_json::{Map, Value, json};

use super::{Tools, signature, stop, usage};
use crate::answers::{Part, WholeChat, words::Words};

/// The body of a message; what is null is left out.
pub(super) fn message_body(chat: &WholeChat<'_>) -> String {
    let (id, choice) = (chat.id, &chat.choice);
    let block = |part: &Part<'_>| match part {
        Part::Words(Words::Reasoning, thought) => {
            Some(json!({"type": "thinking", "thinking": thought, "signature": signature(id, 0)}))
        }
        Part::Words(Words::Text, text) => Some(json!({"type": "text", "text": text})),
        Part::Words(Words::Refusal | Words::Arguments, _) => None,
        Part::Call(call) => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}))
        }
    };
    let mut content: Vec<Value> = choice.parts.iter().filter_map(block).collect();
    if content.is_empty() {
        content.push(json!({"type": "text", "text": ""}));
    }
    let has_calls = choice.parts.iter().any(|part| matches!(part, Part::Call(_)));
    let tools = if has_calls { Tools::Complete } else { Tools::Unused };
    let (reason, sequence) = stop(choice.finish_reason, choice.stop, tools);
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.to_owned(), value);
        }
    };
    put("id", id.into());
    put("type", "message".into());
    put("role", "assistant".into());
    put("content", Value::Array(content));
    put("model", chat.model.into());
    put("stop_reason", reason.into());
    put("stop_sequence", sequence.into());
    put("usage", usage(chat.counts));
    Value::Object(body).to_string()
}

/// The body of a token count.
#[must_use]
pub fn count_body(tokens: usize) -> String {
    json!({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}).to_string()
}
