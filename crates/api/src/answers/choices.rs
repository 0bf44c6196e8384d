//! Choices of chats and completions: accumulated from events, and cut into events.

use serde_json::{Map, Value, json};

use super::{
    append,
    cut::{Cut, TimedEvent, split},
    extend, list, logprobs,
    view::CallView,
    words::OF_MESSAGE,
};
use crate::DONE;

/// The most choices and tool calls of an answer; a stream that names more is no answer.
const MOST: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChoiceShape {
    /// With a `message`, of which a stream sends `delta`s.
    Chat,
    /// With a `text`.
    Completions,
}

/// Makes up an answer.
pub(super) fn of_text(text: &str, kind: ChoiceShape) -> Value {
    match kind {
        ChoiceShape::Chat => json!({"choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}),
        ChoiceShape::Completions => json!({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}),
    }
}

/// Puts the choices of a stream together; `None` where one of its events is an error, or none has a choice.
pub(super) fn accumulate(events: &[Value], kind: ChoiceShape) -> Option<Map<String, Value>> {
    let (mut body, mut choices) = (Map::new(), Vec::new());
    for event in events {
        if event.get("error").is_some() {
            return None;
        }
        for (name, value) in event.as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("choices", Value::Array(parts)) => {
                    // The place among the fields.
                    body.entry("choices").or_insert(Value::Null);
                    parts.iter().try_for_each(|part| add_part(&mut choices, part, kind))?;
                }
                ("object", Value::String(object)) => {
                    let object = object.strip_suffix(".chunk").unwrap_or(object);
                    body.insert(name.clone(), object.into());
                }
                (_, value) => drop(body.insert(name.clone(), value.clone())),
            }
        }
    }
    if choices.is_empty() {
        return None;
    }
    body.insert("choices".to_owned(), choices.into_iter().map(Value::Object).collect());
    Some(body)
}

fn add_part(choices: &mut Vec<Map<String, Value>>, part: &Value, kind: ChoiceShape) -> Option<()> {
    let index = usize::try_from(part.get("index")?.as_u64()?).ok().filter(|index| *index <= MOST)?;
    while choices.len() <= index {
        let empty = match kind {
            ChoiceShape::Chat => {
                json!({"index": choices.len(), "message": {"role": "assistant", "content": null}, "logprobs": null})
            }
            ChoiceShape::Completions => json!({"index": choices.len(), "text": "", "logprobs": null}),
        };
        choices.extend(empty.as_object().cloned());
    }
    let choice = choices.get_mut(index)?;
    for (name, value) in part.as_object()? {
        match (name.as_str(), value) {
            ("index", _) | (_, Value::Null) => {}
            ("delta", Value::Object(delta)) => {
                let message = choice.get_mut("message").and_then(Value::as_object_mut);
                message.into_iter().for_each(|message| add_delta(message, delta));
            }
            ("text", Value::String(more)) if kind == ChoiceShape::Completions => append(choice, "text", more),
            ("delta" | "text" | "message", _) => {}
            ("logprobs", part) => match choice.get_mut("logprobs") {
                Some(known @ Value::Object(_)) => extend(known, part),
                _ => drop(choice.insert(name.clone(), part.clone())),
            },
            (_, Value::Array(more)) => match choice.get_mut(name) {
                Some(Value::Array(list)) => list.extend(more.iter().cloned()),
                _ => drop(choice.insert(name.clone(), value.clone())),
            },
            _ => drop(choice.insert(name.clone(), value.clone())),
        }
    }
    Some(())
}

fn add_delta(message: &mut Map<String, Value>, delta: &Map<String, Value>) {
    for (name, value) in delta {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("tool_calls", Value::Array(parts)) => {
                let calls = message.entry("tool_calls").or_insert(json!([]));
                if let Value::Array(calls) = calls {
                    parts.iter().for_each(|part| add_call(calls, part));
                }
            }
            // The empty text of a role event adds nothing.
            ("content", Value::String(text)) if text.is_empty() => {}
            ("role", value) => drop(message.insert(name.clone(), value.clone())),
            (_, Value::String(more)) => append(message, name, more),
            (_, Value::Object(more)) if !more.is_empty() => match message.get_mut(name) {
                Some(Value::Object(known)) => add_fields(known, more),
                _ => drop(message.insert(name.clone(), value.clone())),
            },
            (_, value) => drop(message.insert(name.clone(), value.clone())),
        }
    }
}

/// Adds to an object of a message: its texts go on, such as the arguments of a `function_call` and the transcript of `audio`.
fn add_fields(known: &mut Map<String, Value>, part: &Map<String, Value>) {
    for (name, value) in part {
        match (name.as_str(), value, known.get_mut(name)) {
            (_, Value::Null, _) => {}
            ("id" | "type" | "role", value, _) => drop(known.insert(name.clone(), value.clone())),
            (_, Value::String(more), Some(Value::String(text))) => text.push_str(more),
            (_, Value::Object(more), Some(Value::Object(inner))) => add_fields(inner, more),
            (_, value, _) => drop(known.insert(name.clone(), value.clone())),
        }
    }
}

fn add_call(calls: &mut Vec<Value>, part: &Value) {
    let index = part.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
    let index = index.unwrap_or(calls.len()).min(MOST);
    while calls.len() <= index {
        calls.push(json!({"id": "", "type": "function", "function": {"name": "", "arguments": ""}}));
    }
    let Some(call) = calls.get_mut(index).and_then(Value::as_object_mut) else { return };
    if let Some(id) = part.get("id").filter(|id| id.is_string()) {
        call.insert("id".to_owned(), id.clone());
    }
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { return };
    for name in ["name", "arguments"] {
        let more = part.get("function").and_then(|function| function.get(name)).and_then(Value::as_str);
        more.into_iter().for_each(|more| append(function, name, more));
    }
}

/// The events of choices: a role where it is a chat, texts and calls in pieces, the end of each choice, token counts where
/// they are wanted, `[DONE]`.
pub(super) fn events(body: &Map<String, Value>, kind: ChoiceShape, cut: &Cut) -> Vec<TimedEvent> {
    let mut events = Vec::new();
    for (index, choice) in list(body, "choices").iter().filter_map(Value::as_object).enumerate() {
        let deltas = match kind {
            ChoiceShape::Chat if !cut.parts.is_empty() => chat_parts(choice, &cut.parts),
            ChoiceShape::Completions if !cut.parts.is_empty() => text_parts(choice, &cut.parts),
            ChoiceShape::Chat => chat_deltas(choice, cut.pieces()),
            ChoiceShape::Completions => text_deltas(choice, cut.pieces()),
        };
        let count = deltas.len();
        for (at, ChoiceDelta { name, value, logprobs, end }) in deltas.into_iter().enumerate() {
            let mut part = Map::new();
            part.insert("index".to_owned(), index.into());
            part.insert(name.to_owned(), value);
            part.insert("logprobs".to_owned(), logprobs);
            part.extend(end);
            part.entry("finish_reason").or_insert(Value::Null);
            let is_first = events.is_empty();
            events.push(TimedEvent {
                ms: cut.at(at, count),
                name: None,
                data: event(body, json!([part]), is_first).to_string(),
            });
        }
    }
    events.sort_by(|a, b| a.ms.total_cmp(&b.ms));
    let ms = events.last().map_or(0.0, |last| last.ms).max(cut.end);
    let usage = cut.usage.then(|| usage_event(body).to_string());
    events.extend(usage.into_iter().chain([DONE.to_owned()]).map(|data| TimedEvent { ms, name: None, data }));
    events
}

/// The event of the token counts.
pub(super) fn usage_event(body: &Map<String, Value>) -> Value {
    let mut event = event(body, json!([]), false);
    if let (Some(fields), Some(usage)) = (event.as_object_mut(), body.get("usage")) {
        fields.insert("usage".to_owned(), usage.clone());
    }
    event
}

/// An event with these choices. Lists and objects of the answer come with the first one, everything else with each.
fn event(body: &Map<String, Value>, choices: Value, is_first: bool) -> Value {
    let mut event = Map::new();
    for (name, value) in body {
        match (name.as_str(), value) {
            ("usage", _) | (_, Value::Null) => {}
            ("choices", _) => drop(event.insert(name.clone(), Value::Null)),
            ("object", Value::String(object)) if object == "chat.completion" => {
                event.insert(name.clone(), "chat.completion.chunk".into());
            }
            (_, Value::Array(_) | Value::Object(_)) if !is_first => {}
            _ => drop(event.insert(name.clone(), value.clone())),
        }
    }
    event.insert("choices".to_owned(), choices);
    Value::Object(event)
}

/// Addition of one event to a choice.
struct ChoiceDelta {
    /// `delta` or `text`.
    name: &'static str,
    value: Value,
    logprobs: Value,
    /// Fields of the choice that come with its last event.
    end: Map<String, Value>,
}

impl ChoiceDelta {
    fn new(name: &'static str, value: Value, logprobs: Option<Value>) -> Self {
        Self { name, value, logprobs: logprobs.unwrap_or_default(), end: Map::new() }
    }

    fn last(name: &'static str, value: Value, logprobs: Option<Value>, choice: &Map<String, Value>) -> Self {
        let is_end = |name: &str| !["index", "message", "text", "logprobs"].contains(&name);
        let end = choice.iter().filter(|(name, value)| is_end(name) && !value.is_null());
        let end = end.map(|(name, value)| (name.clone(), value.clone())).collect();
        Self { end, ..Self::new(name, value, logprobs) }
    }
}

fn chat_deltas(choice: &Map<String, Value>, pieces: Option<usize>) -> Vec<ChoiceDelta> {
    let none = Map::new();
    let message = choice.get("message").and_then(Value::as_object).unwrap_or(&none);
    let logprobs = choice.get("logprobs").filter(|logprobs| logprobs::has_any(logprobs));
    let role = message.get("role").cloned().unwrap_or("assistant".into());
    let mut deltas = vec![ChoiceDelta::new("delta", json!({"role": role, "content": ""}), None)];
    let values = values(message, pieces);
    let plain = message.get("content").and_then(Value::as_str).unwrap_or_default();
    let is_plain = values.iter().all(|value| value.get("content").is_some());
    match logprobs.filter(|_| is_plain).and_then(|all| logprobs::cut(plain, all, pieces)) {
        Some((cut, rest)) => {
            let delta = |(text, logprobs)| ChoiceDelta::new("delta", json!({"content": text}), Some(logprobs));
            deltas.extend(cut.into_iter().map(delta));
            deltas.push(ChoiceDelta::last("delta", json!({}), rest, choice));
        }
        // What the tokens do not spell is spread over all of it, the end too.
        None => {
            let mut spread = logprobs::spread(logprobs, values.len() + 1).into_iter();
            let delta = |value| ChoiceDelta::new("delta", value, spread.next());
            deltas.extend(values.into_iter().map(delta));
            deltas.push(ChoiceDelta::last("delta", json!({}), spread.next(), choice));
        }
    }
    deltas
}

/// A message whose texts are cut already; everything else of it follows them.
fn chat_parts(choice: &Map<String, Value>, parts: &[(&'static str, String)]) -> Vec<ChoiceDelta> {
    let message = choice.get("message").and_then(Value::as_object);
    let role = message.and_then(|message| message.get("role")).cloned().unwrap_or("assistant".into());
    let rest = message.map(|message| {
        let is_cut = |name: &str| parts.iter().any(|(field, _)| *field == name);
        message.iter().filter(|(name, _)| !is_cut(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    });
    let mut values: Vec<Value> = parts.iter().map(|(field, text)| json!({ *field: text })).collect();
    values.extend(self::values(&rest.unwrap_or_default(), None));
    let logprobs = choice.get("logprobs").filter(|logprobs| logprobs::has_any(logprobs));
    let mut spread = logprobs::spread(logprobs, values.len() + 1).into_iter();
    let mut deltas = vec![ChoiceDelta::new("delta", json!({"role": role, "content": ""}), None)];
    deltas.extend(values.into_iter().map(|value| ChoiceDelta::new("delta", value, spread.next())));
    deltas.push(ChoiceDelta::last("delta", json!({}), spread.next(), choice));
    deltas
}

/// A text that is cut already.
fn text_parts(choice: &Map<String, Value>, parts: &[(&'static str, String)]) -> Vec<ChoiceDelta> {
    let logprobs = choice.get("logprobs").filter(|logprobs| logprobs::has_any(logprobs));
    let mut spread = logprobs::spread(logprobs, parts.len() + 1).into_iter();
    // As the role of a chat, so that times belong to the same parts.
    let mut deltas = vec![ChoiceDelta::new("text", "".into(), None)];
    deltas.extend(parts.iter().map(|(_, text)| ChoiceDelta::new("text", text.as_str().into(), spread.next())));
    deltas.push(ChoiceDelta::last("text", "".into(), spread.next(), choice));
    deltas
}

fn values(message: &Map<String, Value>, pieces: Option<usize>) -> Vec<Value> {
    let mut values = Vec::new();
    for (name, _) in OF_MESSAGE {
        let text = message.get(name).and_then(Value::as_str).unwrap_or_default();
        values.extend(split(text, pieces).into_iter().map(|piece| json!({ name: piece })));
    }
    for (index, call) in list(message, "tool_calls").iter().enumerate() {
        let CallView { id, name, arguments } = CallView::read(call);
        let start = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        values.push(json!({"tool_calls": [start]}));
        let part = |piece: String| json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]});
        values.extend(split(&arguments, pieces).into_iter().map(part));
    }
    let is_text = |name: &str| OF_MESSAGE.iter().any(|(text, _)| *text == name);
    let is_other = |name: &str, value: &Value| match name {
        "role" => false,
        "tool_calls" => !value.is_array(),
        name => !(value.is_null() || value.is_string() && is_text(name)),
    };
    let others = message.iter().filter(|(name, value)| is_other(name, value));
    values.extend(others.map(|(name, value)| json!({ name: value })));
    values
}

fn text_deltas(choice: &Map<String, Value>, pieces: Option<usize>) -> Vec<ChoiceDelta> {
    let text = choice.get("text").and_then(Value::as_str).unwrap_or_default();
    let logprobs = choice.get("logprobs").filter(|logprobs| logprobs::has_any(logprobs));
    let (parts, rest) = logprobs.and_then(|all| logprobs::cut(text, all, pieces)).unwrap_or_else(|| {
        let texts = split(text, pieces);
        let mut spread = logprobs::spread(logprobs, texts.len() + 1);
        let rest = spread.pop();
        (texts.into_iter().zip(spread).collect(), rest)
    });
    let delta = |(text, logprobs): (String, Value)| ChoiceDelta::new("text", text.into(), Some(logprobs));
    let mut deltas: Vec<ChoiceDelta> = parts.into_iter().map(delta).collect();
    deltas.push(ChoiceDelta::last("text", "".into(), rest, choice));
    deltas
}
