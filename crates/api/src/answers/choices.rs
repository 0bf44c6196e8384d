//! Choices of chats and completions: accumulated from events, and cut into events.

use serde_json::{Map, Value, json};

use super::{
    append,
    cut::{Cut, TimedEvent, split},
    extend, list, logprobs,
    view::CallView,
    words::OF_MESSAGE,
};
use crate::{Api, DONE};

/// The most choices and tool calls of an answer; a stream that names more is no answer.
const MOST: usize = 1000;

/// Makes up an answer.
pub(super) fn of_text(text: &str, kind: Api) -> Value {
    match kind {
        Api::Chat => json!({"choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}),
        Api::Completions => json!({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}),
    }
}

/// Puts the choices of a stream together; `None` where one of its events is an error, or none has a choice.
pub(super) fn accumulate(events: &[Value], kind: Api) -> Option<Map<String, Value>> {
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

fn add_part(choices: &mut Vec<Map<String, Value>>, part: &Value, kind: Api) -> Option<()> {
    let index = usize::try_from(part.get("index")?.as_u64()?).ok().filter(|index| *index <= MOST)?;
    while choices.len() <= index {
        let empty = match kind {
            Api::Chat => {
                json!({"index": choices.len(), "message": {"role": "assistant", "content": null}, "logprobs": null})
            }
            Api::Completions => json!({"index": choices.len(), "text": "", "logprobs": null}),
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
            ("text", Value::String(more)) if kind == Api::Completions => append(choice, "text", more),
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
            // Such as the details of reasoning, of which each event has the next ones.
            (_, Value::Array(more)) => match message.get_mut(name) {
                Some(Value::Array(known)) => known.extend(more.iter().cloned()),
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
    add_fields(call, &of_provider(part));
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { return };
    for name in ["name", "arguments"] {
        let more = part.get("function").and_then(|function| function.get(name)).and_then(Value::as_str);
        more.into_iter().for_each(|more| append(function, name, more));
    }
}

/// What a call has beside what every call has: fields that its provider wants back.
fn of_provider(call: &Value) -> Map<String, Value> {
    let is_usual = |name: &str| ["index", "id", "type", "name", "arguments", "function"].contains(&name);
    let fields = call.as_object().into_iter().flatten().filter(|(name, value)| !is_usual(name) && !value.is_null());
    fields.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The events of choices: a role where it is a chat, texts and calls in pieces, the end of each choice, token counts where
/// they are wanted, `[DONE]`.
pub(super) fn events(body: &Map<String, Value>, kind: Api, cut: &Cut) -> Vec<TimedEvent> {
    let mut events = Vec::new();
    for (index, choice) in list(body, "choices").iter().filter_map(Value::as_object).enumerate() {
        let parts = parts(index, choice, kind, cut);
        let count = parts.len();
        for (at, part) in parts.into_iter().enumerate() {
            let data = event(body, json!([part]), events.is_empty()).to_string();
            events.push(TimedEvent { ms: cut.at(at, count), name: None, data });
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

/// What the events of a choice have of it, one after the other.
fn parts(index: usize, choice: &Map<String, Value>, kind: Api, cut: &Cut) -> Vec<Value> {
    let none = Map::new();
    let message = choice.get("message").and_then(Value::as_object).unwrap_or(&none);
    let (name, opening, text, end) = match kind {
        Api::Chat => {
            let role = message.get("role").cloned().unwrap_or("assistant".into());
            ("delta", Some(json!({"role": role, "content": ""})), message.get("content"), json!({}))
        }
        // As the role of a chat, so that times belong to the same parts.
        Api::Completions => ("text", (!cut.parts.is_empty()).then(|| "".into()), choice.get("text"), "".into()),
    };
    let text = text.and_then(Value::as_str).unwrap_or_default();
    let of_text = |text: String| match kind {
        Api::Chat => json!({"content": text}),
        Api::Completions => text.into(),
    };
    let values: Vec<Value> = match kind {
        Api::Chat if cut.parts.is_empty() => values(message, cut.pieces()),
        Api::Chat => values_of_parts(message, &cut.parts),
        Api::Completions if cut.parts.is_empty() => split(text, cut.pieces()).into_iter().map(of_text).collect(),
        Api::Completions => cut.parts.iter().map(|(_, text)| text.as_str().into()).collect(),
    };
    let logprobs = choice.get("logprobs").filter(|logprobs| logprobs::has_any(logprobs));
    let is_plain = values.iter().all(|value| value.is_string() || value.get("content").is_some());
    let spelled = logprobs.filter(|_| cut.parts.is_empty() && is_plain);
    let (values, rest) = match spelled.and_then(|all| logprobs::cut(text, all, cut.pieces())) {
        Some((pieces, rest)) => {
            (pieces.into_iter().map(|(text, logprobs)| (of_text(text), logprobs)).collect::<Vec<_>>(), rest)
        }
        // What the tokens do not spell is spread over all of it, the end too.
        None => {
            let mut spread = logprobs::spread(logprobs, values.len() + 1);
            let rest = spread.pop();
            (values.into_iter().zip(spread).collect(), rest)
        }
    };
    let opening = opening.map(|value| (value, Value::Null));
    let part = |(value, logprobs)| json!({"index": index, name: value, "logprobs": logprobs, "finish_reason": null});
    let mut parts: Vec<Value> = opening.into_iter().chain(values).map(part).collect();
    let mut last = Map::from_iter([("index".to_owned(), index.into()), (name.to_owned(), end)]);
    last.insert("logprobs".to_owned(), rest.unwrap_or_default());
    let is_end = |name: &str| !["index", "message", "text", "logprobs"].contains(&name);
    let ends = choice.iter().filter(|(name, value)| is_end(name) && !value.is_null());
    last.extend(ends.map(|(name, value)| (name.clone(), value.clone())));
    last.entry("finish_reason").or_insert(Value::Null);
    parts.push(last.into());
    parts
}

/// The additions of a message whose texts are cut already; everything else of it follows them.
fn values_of_parts(message: &Map<String, Value>, parts: &[(&'static str, String)]) -> Vec<Value> {
    let is_cut = |name: &str| parts.iter().any(|(field, _)| *field == name);
    let rest = message.iter().filter(|(name, _)| !is_cut(name)).map(|(name, value)| (name.clone(), value.clone()));
    let texts = parts.iter().map(|(field, text)| json!({ *field: text }));
    texts.chain(values(&rest.collect(), None)).collect()
}

fn values(message: &Map<String, Value>, pieces: Option<usize>) -> Vec<Value> {
    let mut values = Vec::new();
    for (name, _) in OF_MESSAGE {
        let text = message.get(name).and_then(Value::as_str).unwrap_or_default();
        values.extend(split(text, pieces).into_iter().map(|piece| json!({ name: piece })));
    }
    for (index, call) in list(message, "tool_calls").iter().enumerate() {
        let CallView { id, name, arguments } = CallView::read(call);
        let mut start =
            json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        start.as_object_mut().into_iter().for_each(|start| start.extend(of_provider(call)));
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
