//! From what went over the wire to what a file shows.

use std::borrow::Cow;

use serde_json::{Map, Value};

use api::{Endpoint, answers::Answer};
use net::wire::json_as_utf8;
use recording::{
    canonical,
    cassette::{AnswerContent, Moment, SseEvent, short_message},
    trace::ResponseContent,
};

/// An answer as a file shows it, and the fields of it that no two runs share.
#[derive(Debug, Default)]
pub(crate) struct Assembled {
    pub(crate) content: AnswerContent,
    pub(crate) head: Map<String, Value>,
}

/// Fields at the top of an answer that no two runs share.
const HEAD: [&str; 7] = ["id", "created", "created_at", "completed_at", "system_fingerprint", "provider", "model"];

/// Fields of a choice that a file shows beside its text.
const OF_CHOICE: [&str; 4] = ["finish_reason", "native_finish_reason", "stop_reason", "logprobs"];

/// The token counts that a file shows: those that do not depend on what was asked before.
const COUNTS: [&str; 4] = ["prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"];

pub(crate) fn body(path: &str, status: u16, bytes: &[u8]) -> Assembled {
    if bytes.is_empty() {
        return Assembled::default();
    }
    match exact(bytes) {
        Some(value) => json(path, status, without_made_up(path, value)),
        None => Assembled { content: raw(bytes), head: Map::new() },
    }
}

/// Reads JSON; `None` where a number would not come back as it was.
fn exact(bytes: &[u8]) -> Option<Value> {
    let value = serde_json::from_slice(bytes).ok()?;
    Some(value).filter(|_| !std::str::from_utf8(bytes).is_ok_and(loses_digits))
}

/// Returns whether a number of a JSON text does not come back as it was.
fn loses_digits(json: &str) -> bool {
    matches!(canonical::with_exact_integers(json), Cow::Owned(_))
}

fn raw(bytes: &[u8]) -> AnswerContent {
    match std::str::from_utf8(bytes) {
        Ok(text) => AnswerContent::Text(text.to_owned()),
        Err(_) => AnswerContent::Bytes(bytes.to_vec()),
    }
}

/// A list of models without what engines make up each time they are asked.
fn without_made_up(path: &str, mut value: Value) -> Value {
    if path != "/v1/models" && !path.starts_with("/v1/models/") {
        return value;
    }
    let zero_times = |fields: &mut Map<String, Value>| {
        fields.get_mut("created").filter(|created| created.is_number()).into_iter().for_each(|it| *it = 0.into());
    };
    let zero_model = |model: &mut Value| {
        model.as_object_mut().into_iter().for_each(zero_times);
        let permissions = model.get_mut("permission").and_then(Value::as_array_mut).into_iter().flatten();
        for permission in permissions.filter_map(Value::as_object_mut) {
            zero_times(permission);
            permission.get_mut("id").filter(|id| id.is_string()).into_iter().for_each(|id| *id = "modelperm-0".into());
        }
    };
    zero_model(&mut value);
    value.get_mut("data").and_then(Value::as_array_mut).into_iter().flatten().for_each(zero_model);
    value
}

fn json(path: &str, status: u16, mut value: Value) -> Assembled {
    let of_model = canonical::boundary("POST", path, &Value::Null).starts_with("llm:");
    let mut head = Map::new();
    if let Some(fields) = value.as_object_mut().filter(|_| of_model && status < 400) {
        // The paths of later requests name a response that is made in the background.
        let is_named = fields.get("status").is_some_and(|status| status == "queued" || status == "in_progress");
        for name in HEAD.iter().filter(|name| **name != "model" && !(is_named && **name == "id")) {
            head.extend(fields.shift_remove(*name).map(|value| ((*name).to_owned(), value)));
        }
        let shown = ["id", "model"].into_iter().filter_map(|name| Some((name.to_owned(), fields.get(name)?.clone())));
        head.extend(shown);
    }
    let choices = if status < 400 { choices(path, &value) } else { None };
    Assembled { content: choices.unwrap_or(AnswerContent::Json(value)), head }
}

/// The choices of a chat or completions answer as a file shows them.
pub(crate) fn choices(path: &str, answer: &Value) -> Option<AnswerContent> {
    if !Endpoint::of_path(path).has_choices() {
        return None;
    }
    let choices = answer.get("choices")?.as_array()?.iter().filter_map(Value::as_object);
    let choices: Vec<Map<String, Value>> = choices.filter_map(|choice| shown_choice(choice, &OF_CHOICE)).collect();
    (!choices.is_empty()).then(|| AnswerContent::Choices { choices, usage: answer.get("usage").and_then(counts) })
}

/// A choice with its text and some of its other fields, those that are null left out.
fn shown_choice(choice: &Map<String, Value>, names: &[&str]) -> Option<Map<String, Value>> {
    let (name, text) = choice.get_key_value("message").or_else(|| choice.get_key_value("text"))?;
    let mut kept = Map::new();
    kept.insert(name.clone(), short_message(text));
    for name in names {
        let value = choice.get(*name).filter(|value| OF_CHOICE.contains(name) && !value.is_null());
        kept.extend(value.map(|value| ((*name).to_owned(), value.clone())));
    }
    Some(kept)
}

fn counts(usage: &Value) -> Option<Value> {
    let kept = usage.as_object()?.iter().filter(|(name, _)| COUNTS.contains(&name.as_str()));
    let kept: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    (!kept.is_empty()).then(|| kept.into())
}

/// The answer of a recorded response; `None` where it is none, or a number would not come back as it was.
pub(crate) fn answer(endpoint: Endpoint, content: &ResponseContent) -> Option<Answer> {
    match content {
        ResponseContent::Events(events) => Answer::accumulate(endpoint, &data(events)?),
        ResponseContent::Body(body) => Answer::read(endpoint, exact(&json_as_utf8(body))?),
    }
}

/// Makes an answer of a stream's events.
pub(crate) fn events(path: &str, events: &[Moment]) -> Assembled {
    let endpoint = Endpoint::of_path(path);
    match data(events).and_then(|data| Answer::accumulate(endpoint, &data)) {
        Some(answer) if endpoint.has_choices() => streamed(answer.fields()),
        Some(answer) => json(path, 200, answer.into_body()),
        None => Assembled { content: AnswerContent::Events(events.iter().map(shown).collect()), head: Map::new() },
    }
}

/// The data of events; `None` where a number would not come back as it was.
fn data(events: &[Moment]) -> Option<Vec<Value>> {
    let texts = || events.iter().filter_map(|Moment(_, data, _)| data.as_deref());
    (!texts().any(loses_digits)).then(|| texts().filter_map(|data| serde_json::from_str(data).ok()).collect())
}

/// Choices of a stream; their fields stand in the order in which they came.
fn streamed(answer: &Map<String, Value>) -> Assembled {
    let choices = answer.get("choices").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    let choice = |choice: &Map<String, Value>| {
        let names: Vec<&str> = choice.keys().map(String::as_str).collect();
        shown_choice(choice, &names)
    };
    let head = answer.iter().filter(|(name, _)| HEAD.contains(&name.as_str()));
    Assembled {
        content: AnswerContent::Choices {
            choices: choices.filter_map(choice).collect(),
            usage: answer.get("usage").and_then(counts),
        },
        head: head.map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

fn shown(Moment(_, data, name): &Moment) -> SseEvent {
    let data = data.clone().unwrap_or_default();
    let parsed = serde_json::from_str::<Value>(&data).ok().filter(|_| !loses_digits(&data));
    let parsed = parsed.filter(|value| value.is_object() || value.is_array());
    SseEvent { name: name.clone(), data: parsed.unwrap_or(Value::String(data)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn moments(events: &[Value]) -> Vec<Moment> {
        events.iter().map(|event| Moment(1.0, Some(event.to_string()), None)).collect()
    }

    #[test]
    fn a_response_in_the_background_shows_the_id_that_later_paths_have() {
        for (status, is_shown) in [("queued", true), ("in_progress", true), ("completed", false)] {
            let response =
                json!({"id": "resp_1", "object": "response", "created_at": 1, "status": status, "output": []});
            let whole = body("/v1/responses", 200, response.to_string().as_bytes());
            let AnswerContent::Json(shown) = whole.content else { panic!("no JSON") };
            assert_eq!(shown.get("id").is_some(), is_shown, "{shown}");
            assert_eq!(whole.head["id"], "resp_1");
        }
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
        assert!(matches!(failed.content, AnswerContent::Events(_)));
    }

    #[test]
    fn arguments_and_transcripts_in_pieces_are_put_together() {
        let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
        let stream = events(
            "/v1/chat/completions",
            &moments(&[
                delta(json!({"function_call": {"name": "f", "arguments": "{\"a\":"}})),
                delta(json!({"function_call": {"arguments": " 1}"}, "audio": {"id": "x", "transcript": "Hel"}})),
                delta(json!({"audio": {"id": "x", "transcript": "lo", "expires_at": 7}})),
            ]),
        );
        let AnswerContent::Choices { choices, .. } = stream.content else { panic!("no choices") };
        assert_eq!(choices[0]["message"]["function_call"], json!({"name": "f", "arguments": "{\"a\": 1}"}));
        assert_eq!(choices[0]["message"]["audio"], json!({"id": "x", "transcript": "Hello", "expires_at": 7}));
    }

    #[test]
    fn what_a_provider_wants_back_is_put_together() {
        let delta = |delta: Value| json!({"id": "c", "provider": "p", "choices": [{"index": 0, "delta": delta}]});
        let signed = json!({"google": {"thought_signature": "c2ln"}});
        let call = json!({"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": signed});
        let details = |text: &str| json!([{"type": "reasoning.text", "text": text, "index": 0}]);
        let mut last = delta(json!({"reasoning_details": []}));
        last["choices"][0]["native_finish_reason"] = json!("STOP");
        let stream = events(
            "/v1/chat/completions",
            &moments(&[
                delta(json!({"reasoning_details": details("Let ")})),
                delta(json!({"reasoning_details": details("me.")})),
                delta(json!({"tool_calls": [call]})),
                last,
            ]),
        );
        let AnswerContent::Choices { choices, .. } = stream.content else { panic!("no choices") };
        let message = &choices[0]["message"];
        assert_eq!(message["tool_calls"][0]["extra_content"], signed);
        let both: Vec<Value> = [details("Let "), details("me.")].iter().map(|details| details[0].clone()).collect();
        assert_eq!(message["reasoning_details"], json!(both));
        assert_eq!((&choices[0]["native_finish_reason"], &stream.head["provider"]), (&json!("STOP"), &json!("p")));
        let answer = Answer::read(Endpoint::Chat, json!({"choices": choices})).unwrap();
        let again: Vec<Value> = answer
            .events(&api::answers::Cut::default())
            .iter()
            .filter_map(|event| serde_json::from_str(&event.data).ok())
            .collect();
        assert_eq!(Answer::accumulate(Endpoint::Chat, &again).unwrap().fields()["choices"][0]["message"], *message);
    }

    #[test]
    fn other_bodies_stay_what_they_are() {
        assert_eq!(body("/x", 200, b"hello").content, AnswerContent::Text("hello".to_owned()));
        assert_eq!(body("/x", 200, &[0xff, 0]).content, AnswerContent::Bytes(vec![0xff, 0]));
        assert_eq!(body("/x", 200, b"").content, AnswerContent::Empty);
        let kept = body("/x", 200, br#"{"id":7,"a":1}"#);
        assert_eq!((kept.content, kept.head.len()), (AnswerContent::Json(json!({"id": 7, "a": 1})), 0));
        let error = body("/v1/chat/completions", 400, br#"{"error":{"id":1}}"#);
        assert_eq!(error.content, AnswerContent::Json(json!({"error": {"id": 1}})));
    }
}
