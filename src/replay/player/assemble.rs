//! From what went over the wire to what a file shows.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::{
    recording::canonical,
    recording::cassette::{Content, Moment, SseEvent},
};

/// An answer as a file shows it, and the fields of it that no two runs share.
#[derive(Debug, Default)]
pub(super) struct Assembled {
    pub(super) content: Content,
    pub(super) head: Map<String, Value>,
}

/// Fields at the top of an answer that no two runs share.
const HEAD: [&str; 6] = ["id", "created", "created_at", "completed_at", "system_fingerprint", "model"];

/// The token counts that a file shows: those that do not depend on what was asked before.
const COUNTS: [&str; 4] = ["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"];

/// Makes an answer of one body.
pub(super) fn body(path: &str, status: u16, bytes: &[u8]) -> Assembled {
    if bytes.is_empty() {
        return Assembled::default();
    }
    match serde_json::from_slice::<Value>(bytes) {
        Ok(value) if !std::str::from_utf8(bytes).is_ok_and(loses_digits) => json(path, status, even(path, value)),
        _ => Assembled { content: raw(bytes), head: Map::new() },
    }
}

/// Whether a number of a JSON text does not come back as it was.
fn loses_digits(json: &str) -> bool {
    matches!(canonical::with_exact_integers(json), Cow::Owned(_))
}

fn raw(bytes: &[u8]) -> Content {
    match std::str::from_utf8(bytes) {
        Ok(text) => Content::Text(text.to_owned()),
        Err(_) => Content::Bytes(bytes.to_vec()),
    }
}

/// A list of models without what engines make up each time they are asked.
fn even(path: &str, mut value: Value) -> Value {
    if path != "/v1/models" && !path.starts_with("/v1/models/") {
        return value;
    }
    let even_times = |fields: &mut Map<String, Value>| {
        fields.get_mut("created").filter(|created| created.is_number()).into_iter().for_each(|it| *it = 0.into());
    };
    let even_model = |model: &mut Value| {
        model.as_object_mut().into_iter().for_each(even_times);
        let permissions = model.get_mut("permission").and_then(Value::as_array_mut).into_iter().flatten();
        for permission in permissions.filter_map(Value::as_object_mut) {
            even_times(permission);
            permission.get_mut("id").filter(|id| id.is_string()).into_iter().for_each(|id| *id = "modelperm-0".into());
        }
    };
    even_model(&mut value);
    value.get_mut("data").and_then(Value::as_array_mut).into_iter().flatten().for_each(even_model);
    value
}

fn json(path: &str, status: u16, mut value: Value) -> Assembled {
    let of_model = canonical::boundary("POST", path, &Value::Null).starts_with("llm:");
    let mut head = Map::new();
    if let Some(fields) = value.as_object_mut().filter(|_| of_model && status < 400) {
        for name in HEAD.iter().filter(|name| **name != "model") {
            head.extend(fields.shift_remove(*name).map(|value| ((*name).to_owned(), value)));
        }
        head.extend(fields.get("model").map(|model| ("model".to_owned(), model.clone())));
    }
    let said = if status < 400 { said(path, &value) } else { None };
    Assembled { content: said.unwrap_or(Content::Json(value)), head }
}

/// What a chat or completions answer says.
fn said(path: &str, answer: &Value) -> Option<Content> {
    let name = match path {
        "/v1/chat/completions" => "message",
        "/v1/completions" => "text",
        _ => return None,
    };
    let choices = answer.get("choices")?.as_array()?;
    let choices: Vec<Map<String, Value>> =
        choices.iter().filter_map(|choice| choice_of(choice.as_object()?, name)).collect();
    (!choices.is_empty()).then(|| Content::Said { choices, usage: answer.get("usage").and_then(counts) })
}

fn choice_of(choice: &Map<String, Value>, name: &str) -> Option<Map<String, Value>> {
    let mut kept = Map::new();
    let said = choice.get(name)?;
    kept.insert(name.to_owned(), crate::recording::cassette::short_message(said));
    for name in ["finish_reason", "stop_reason", "logprobs"] {
        kept.extend(choice.get(name).filter(|value| !value.is_null()).map(|value| (name.to_owned(), value.clone())));
    }
    Some(kept)
}

fn counts(usage: &Value) -> Option<Value> {
    let kept = usage.as_object()?.iter().filter(|(name, _)| COUNTS.contains(&name.as_str()));
    let kept: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    (!kept.is_empty()).then(|| kept.into())
}

/// Makes an answer of a stream's events.
pub(super) fn events(path: &str, events: &[Moment]) -> Assembled {
    let data: Vec<Value> = events
        .iter()
        .filter_map(|Moment(_, data, _)| data.as_deref())
        .filter_map(|data| serde_json::from_str(data).ok())
        .collect();
    let is_exact = !events.iter().filter_map(|Moment(_, data, _)| data.as_deref()).any(loses_digits);
    let assembled = match path {
        _ if !is_exact => None,
        "/v1/chat/completions" | "/v1/completions" => streamed(path, &data),
        "/v1/responses" => data
            .iter()
            .rev()
            .find(|event| event.get("type").and_then(Value::as_str).is_some_and(is_end_of_response))
            .and_then(|event| event.get("response").cloned())
            .map(|response| json(path, 200, response)),
        "/v1/messages" => message(&data).map(|message| json(path, 200, message)),
        _ => None,
    };
    assembled
        .unwrap_or_else(|| Assembled { content: Content::Events(events.iter().map(shown).collect()), head: Map::new() })
}

fn is_end_of_response(kind: &str) -> bool {
    ["response.completed", "response.incomplete", "response.failed"].contains(&kind)
}

fn shown(Moment(_, data, name): &Moment) -> SseEvent {
    let data = data.clone().unwrap_or_default();
    let parsed = serde_json::from_str::<Value>(&data).ok().filter(|_| !loses_digits(&data));
    let parsed = parsed.filter(|value| value.is_object() || value.is_array());
    SseEvent { name: name.clone(), data: parsed.unwrap_or(Value::String(data)) }
}

/// A chat or completions stream; `None` where one of its events is an error, or none is a choice.
fn streamed(path: &str, events: &[Value]) -> Option<Assembled> {
    let chat = path.contains("chat");
    let (mut choices, mut usage, mut head) = (Vec::<Map<String, Value>>::new(), None, Map::new());
    for event in events {
        if event.get("error").is_some() {
            return None;
        }
        for name in HEAD {
            let known = event.get(name).filter(|value| !value.is_null());
            head.extend(known.map(|value| (name.to_owned(), value.clone())));
        }
        usage = event.get("usage").and_then(counts).or(usage);
        for part in event.get("choices").and_then(Value::as_array).into_iter().flatten() {
            let index = part.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok())?;
            if index > 1000 {
                return None;
            }
            while choices.len() <= index {
                let said =
                    if chat { json!({"message": {"role": "assistant", "content": null}}) } else { json!({"text": ""}) };
                choices.extend(said.as_object().cloned());
            }
            if let Some(choice) = choices.get_mut(index) {
                add_part(choice, part);
            }
        }
    }
    for message in choices.iter_mut().filter_map(|choice| choice.get_mut("message")) {
        *message = crate::recording::cassette::short_message(message);
    }
    (!choices.is_empty()).then_some(Assembled { content: Content::Said { choices, usage }, head })
}

fn add_part(choice: &mut Map<String, Value>, part: &Value) {
    if let (Some(Value::String(text)), Some(more)) = (choice.get_mut("text"), part.get("text").and_then(Value::as_str))
    {
        text.push_str(more);
    }
    if let (Some(message), Some(delta)) = (choice.get_mut("message"), part.get("delta").and_then(Value::as_object)) {
        add_delta(message, delta);
    }
    for name in ["finish_reason", "stop_reason"] {
        let known = part.get(name).filter(|value| !value.is_null());
        choice.extend(known.map(|value| (name.to_owned(), value.clone())));
    }
    if let Some(logprobs) = part.get("logprobs").filter(|value| !value.is_null()) {
        join(choice.entry("logprobs").or_insert(json!({})), logprobs);
    }
}

/// Lists grow, other fields are set.
fn join(whole: &mut Value, part: &Value) {
    let (Some(whole), Some(part)) = (whole.as_object_mut(), part.as_object()) else { return };
    for (name, value) in part {
        match (whole.get_mut(name), value) {
            (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.clone()),
            (_, value) => drop(whole.insert(name.clone(), value.clone())),
        }
    }
}

fn add_delta(message: &mut Value, delta: &Map<String, Value>) {
    let Some(fields) = message.as_object_mut() else { return };
    for (name, value) in delta {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("role", _) => {}
            ("tool_calls", Value::Array(parts)) => {
                let calls = fields.entry("tool_calls").or_insert(json!([]));
                parts.iter().for_each(|part| add_call(calls, part));
            }
            // The empty text of a role event says nothing.
            ("content", Value::String(text)) if text.is_empty() => {}
            (_, Value::String(more)) => match fields.get_mut(name) {
                Some(Value::String(text)) => text.push_str(more),
                _ => drop(fields.insert(name.clone(), more.clone().into())),
            },
            (_, value) => drop(fields.insert(name.clone(), value.clone())),
        }
    }
}

fn add_call(calls: &mut Value, part: &Value) {
    let Some(calls) = calls.as_array_mut() else { return };
    let index = part.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
    let index = index.unwrap_or(calls.len()).min(1000);
    while calls.len() <= index {
        calls.push(json!({"id": "", "type": "function", "function": {"name": "", "arguments": ""}}));
    }
    let Some(call) = calls.get_mut(index) else { return };
    if let (Some(id), Some(known)) = (part.get("id").filter(|id| id.is_string()), call.get_mut("id")) {
        *known = id.clone();
    }
    for name in ["name", "arguments"] {
        let more = part.get("function").and_then(|function| function.get(name)).and_then(Value::as_str);
        let known = call.get_mut("function").and_then(|function| function.get_mut(name));
        if let (Some(more), Some(Value::String(known))) = (more, known) {
            known.push_str(more);
        }
    }
}

/// A message of the Messages family.
fn message(events: &[Value]) -> Option<Value> {
    let mut message = events.iter().find_map(|event| event.get("message"))?.clone();
    let mut blocks: Vec<(Value, String)> = Vec::new();
    for event in events {
        match event.get("type").and_then(Value::as_str)? {
            "content_block_start" => blocks.push((event.get("content_block")?.clone(), String::new())),
            "content_block_delta" => {
                let index = usize::try_from(event.get("index")?.as_u64()?).ok()?;
                let (block, json) = blocks.get_mut(index)?;
                add_block(block, json, event.get("delta")?.as_object()?);
            }
            "message_delta" => {
                join(&mut message, event.get("delta")?);
                if let (Some(usage), Some(more)) = (message.get_mut("usage"), event.get("usage")) {
                    join(usage, more);
                }
            }
            "error" => return None,
            _ => {}
        }
    }
    let finished = blocks.into_iter().map(|(mut block, json)| {
        let input = serde_json::from_str::<Value>(&json).ok();
        if let (Some(input), Some(fields)) = (input, block.as_object_mut()) {
            fields.insert("input".to_owned(), input);
        }
        block
    });
    let content: Vec<Value> = finished.collect();
    message.as_object_mut()?.insert("content".to_owned(), content.into());
    Some(message)
}

fn add_block(block: &mut Value, json: &mut String, delta: &Map<String, Value>) {
    let Some(fields) = block.as_object_mut() else { return };
    for (name, value) in delta {
        match (name.as_str(), value) {
            ("type", _) => {}
            ("partial_json", Value::String(more)) => json.push_str(more),
            (_, Value::String(more)) => match fields.get_mut(name) {
                Some(Value::String(text)) => text.push_str(more),
                _ => drop(fields.insert(name.clone(), more.clone().into())),
            },
            (_, value) => drop(fields.insert(name.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(events: &[Value]) -> Vec<Moment> {
        events.iter().map(|event| Moment(1.0, Some(event.to_string()), None)).collect()
    }

    #[test]
    fn a_stream_and_a_body_come_to_the_same() {
        let delta = |delta: Value, finish: Value| {
            json!({"id": "c", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        };
        let call = |call: Value| delta(json!({"tool_calls": [call]}), Value::Null);
        let stream = events(
            "/v1/chat/completions",
            &moments(&[
                delta(json!({"role": "assistant", "content": ""}), Value::Null),
                delta(json!({"reasoning": "Let "}), Value::Null),
                delta(json!({"reasoning": "me see."}), Value::Null),
                call(json!({"index": 0, "id": "x", "type": "function", "function": {"name": "f"}})),
                call(json!({"index": 0, "function": {"arguments": "{\"a\":"}})),
                call(json!({"index": 0, "function": {"arguments": " 1}"}})),
                delta(json!({}), json!("tool_calls")),
                json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}),
            ]),
        );
        let whole = json!({"id": "d", "created": 2, "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls",
            "logprobs": null, "message": {"role": "assistant", "content": null, "reasoning": "Let me see.", "refusal": null,
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}});
        let whole = body("/v1/chat/completions", 200, whole.to_string().as_bytes());
        assert_eq!(stream.content, whole.content);
        assert_eq!(stream.head["id"], "c");
        let failed = events("/v1/chat/completions", &moments(&[json!({"error": {"message": "x"}})]));
        assert!(matches!(failed.content, Content::Events(_)));
    }

    #[test]
    fn what_is_told_as_a_stream_is_put_together_again() {
        let message = json!({"id": "m", "type": "message", "role": "assistant", "model": "x", "content": [
            {"type": "text", "text": "One two."}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}}],
            "stop_reason": "tool_use", "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 2}});
        let response = json!({"id": "r", "object": "response", "created_at": 5, "status": "completed", "output": [
            {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Hi there"}]},
            {"type": "function_call", "id": "j", "call_id": "k", "name": "f", "arguments": "{}"}]});
        for (path, answer) in [("/v1/messages", message), ("/v1/responses", response)] {
            let told = super::super::families::events(path, &answer, 0.0).unwrap();
            let moments: Vec<Moment> = told
                .iter()
                .map(|event| {
                    let text = String::from_utf8(event.bytes.to_vec()).unwrap();
                    let data = text.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned);
                    Moment(0.0, data, None)
                })
                .collect();
            let again = events(path, &moments);
            let whole = body(path, 200, answer.to_string().as_bytes());
            assert_eq!(again.content, whole.content, "{path}");
            assert_eq!(again.head, whole.head, "{path}");
        }
    }

    #[test]
    fn other_bodies_stay_what_they_are() {
        assert_eq!(body("/x", 200, b"hello").content, Content::Text("hello".to_owned()));
        assert_eq!(body("/x", 200, &[0xff, 0]).content, Content::Bytes(vec![0xff, 0]));
        assert_eq!(body("/x", 200, b"").content, Content::Empty);
        let kept = body("/x", 200, br#"{"id":7,"a":1}"#);
        assert_eq!((kept.content, kept.head.len()), (Content::Json(json!({"id": 7, "a": 1})), 0));
        let error = body("/v1/chat/completions", 400, br#"{"error":{"id":1}}"#);
        assert_eq!(error.content, Content::Json(json!({"error": {"id": 1}})));
    }
}
