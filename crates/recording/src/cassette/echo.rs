//! Forms in which clients repeat a response in the next request of a conversation: a chat's message, the blocks of a message of the
//! Messages API, the output items of a response.
//!
//! An edited response is therefore also what the next request is expected to repeat.
//!
//! See docs/decisions/0079-turns-of-every-family.md.

use serde_json::{Map, Value, json};

use super::{
    message::wire_message,
    record::{AnswerContent, Echo, RecordedAnswer},
};
use crate::canonical::{SharedBody, SharedList};

/// All forms; where several are equal, the last one is meant.
pub(super) const FORMS: [Echo; 4] = [Echo::Bare, Echo::Text, Echo::Whole, Echo::Plain];

/// Returns the messages or items in which a client repeats a response, as on the wire. `None` if it has no such form.
pub(super) fn echo(answer: &RecordedAnswer, how: Echo) -> Option<Vec<Value>> {
    match &answer.content {
        AnswerContent::Choices { choices, .. } => {
            of_chat(&wire_message(choices.first()?.get("message")?), how).map(|message| vec![message])
        }
        AnswerContent::Json(value) if answer.status < 400 => match (list(value, "content"), list(value, "output")) {
            (Some(blocks), None) => of_message(blocks, how).map(|message| vec![message]),
            (None, Some(items)) => of_response(items, how),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the messages or items in which a client repeats a model's response, in the form in which it repeated an earlier one. `None`
/// if it has no such form.
#[must_use]
pub fn repeated_like(answer: &RecordedAnswer, earlier: &[Value]) -> Option<Vec<Value>> {
    let has = |name: &str| earlier.iter().any(|item| item.get(name).is_some());
    let parts = || earlier.iter().filter_map(|item| list(item, "content")).flatten();
    let is_text = earlier.iter().all(|item| item.get("content").is_some_and(Value::is_string));
    let is_chat = matches!(answer.content, AnswerContent::Choices { .. });
    let is_message = matches!(&answer.content, AnswerContent::Json(value) if value.get("content").is_some());
    let with_reasoning = match is_chat {
        true => earlier.iter().filter_map(Value::as_object).flatten().any(|(name, _)| name.starts_with("reasoning")),
        false => earlier.iter().chain(parts()).any(|part| is_of(&["reasoning", "thinking", "redacted_thinking"], part)),
    };
    let how = match (with_reasoning, is_chat) {
        (true, _) => Echo::Whole,
        (false, true) => Echo::Plain,
        (false, false) if is_text && !has("type") => Echo::Text,
        (false, false) if is_message || has("id") || has("status") => Echo::Plain,
        (false, false) => Echo::Bare,
    };
    echo(answer, how).or_else(|| echo(answer, Echo::Plain))
}

/// The conversation of a request, and the field that it is in; an `input` that is a text is one item.
pub(super) fn conversation_of(body: &SharedBody) -> Option<(&'static str, SharedList<Value>)> {
    if let (Some(list), Some(messages)) = (body.list(), body.messages()) {
        return Some((list, messages.clone()));
    }
    let text = body.get("input").and_then(Value::as_str)?;
    Some(("input", [json!({"role": "user", "content": text})].into_iter().collect()))
}

/// Returns true if messages or items that follow an earlier request begin with a response of the model: then they are all that follows, the
/// response of that request is not repeated before them. Chats have always repeated it.
pub(super) fn stand_alone(answer: &RecordedAnswer, added: &[Value]) -> bool {
    let is_own = |item: &Value| {
        item.get("role").is_some_and(|role| role == "assistant") || is_of(&["function_call", "reasoning"], item)
    };
    !matches!(answer.content, AnswerContent::Choices { .. }) && added.first().is_some_and(is_own)
}

fn list<'v>(value: &'v Value, name: &str) -> Option<&'v [Value]> {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice)
}

fn is_of(kinds: &[&str], value: &Value) -> bool {
    value.get("type").and_then(Value::as_str).is_some_and(|kind| kinds.contains(&kind))
}

fn of_chat(message: &Value, how: Echo) -> Option<Value> {
    let kept = |name: &str| match how {
        Echo::Whole => true,
        Echo::Plain => matches!(name, "role" | "content" | "tool_calls"),
        Echo::Text | Echo::Bare => false,
    };
    let fields = message.as_object()?.iter().filter(|(name, _)| kept(name));
    let echoed: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    (!echoed.is_empty()).then(|| echoed.into())
}

/// A message of the Messages API: its blocks, without the reasoning in all forms but the whole one.
fn of_message(blocks: &[Value], how: Echo) -> Option<Value> {
    let spoken = || blocks.iter().filter(|block| !is_of(&["thinking", "redacted_thinking"], block));
    let content: Value = match how {
        Echo::Whole => blocks.iter().cloned().collect(),
        Echo::Plain => spoken().cloned().collect(),
        Echo::Text => text_of(spoken().collect(), "text")?.into(),
        Echo::Bare => return None,
    };
    let is_empty = content.as_array().is_some_and(Vec::is_empty);
    (!is_empty).then(|| json!({"role": "assistant", "content": content}))
}

/// The output items of a response, without the reasoning in all forms but the whole one.
fn of_response(items: &[Value], how: Echo) -> Option<Vec<Value>> {
    let spoken = || items.iter().filter(|item| !is_of(&["reasoning"], item));
    let repeated: Vec<Value> = match how {
        Echo::Whole => items.to_vec(),
        Echo::Plain => spoken().cloned().collect(),
        Echo::Text => {
            vec![json!({"role": "assistant", "content": text_of(parts_of(spoken().collect())?, "output_text")?})]
        }
        Echo::Bare => spoken().map(bare).collect(),
    };
    (!repeated.is_empty()).then_some(repeated)
}

/// An item without what only its response has: ids of items, states.
fn bare(item: &Value) -> Value {
    let kept: &[&str] = match is_of(&["function_call"], item) {
        true => &["type", "call_id", "name", "arguments"],
        false => &["role", "content"],
    };
    let mut left: Map<String, Value> =
        kept.iter().filter_map(|name| Some(((*name).to_owned(), item.get(*name)?.clone()))).collect();
    let parts = left.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
    for part in parts.filter_map(Value::as_object_mut) {
        part.retain(|name, _| matches!(name.as_str(), "type" | "text"));
    }
    left.into()
}

/// The parts of items that are nothing but messages.
fn parts_of(items: Vec<&Value>) -> Option<Vec<&Value>> {
    let parts = items.into_iter().map(|item| list(item, "content").filter(|_| is_of(&["message"], item)));
    Some(parts.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// The text of parts that are nothing but texts of this kind.
fn text_of(parts: Vec<&Value>, kind: &str) -> Option<String> {
    let text =
        |part: &Value| part.get("text").and_then(Value::as_str).filter(|_| is_of(&[kind], part)).map(str::to_owned);
    let texts = parts.into_iter().map(text).collect::<Option<Vec<String>>>()?;
    (!texts.is_empty()).then(|| texts.concat())
}
