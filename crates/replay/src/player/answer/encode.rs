//! From a record to the answer that its endpoint encodes: the fields that no two runs share, token counts, calls as on the wire.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::player::{
    answer::{fresh_ids::made_up, token_counts::Counter},
    receive::request::IncomingRequest,
};
use api::{
    Endpoint,
    answers::{Answer, Cut},
};
use recording::cassette::{Content, Moment, Record, Side, wire_message};

/// The whole answer of a record; `None` where it is none: an error, or anything else than generated text.
pub(in crate::player) fn answer(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Option<Answer> {
    match &record.answer.content {
        Content::Choices { choices, usage } => {
            let is_chat = choices.iter().any(|choice| choice.contains_key("message"));
            let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completions };
            let choices = &*ended(record, choices);
            let usage = counter.filled(usage.as_ref(), &asked.body, choices);
            Answer::read(endpoint, body(endpoint, record, asked, (choices, usage)))
        }
        Content::Json(value) if record.answer.status < 400 => {
            let endpoint = Endpoint::of_path(asked.path());
            if endpoint.has_choices() {
                return None;
            }
            let whole = with_own_head(with_head(value, record.side.as_ref()), endpoint, record, asked);
            let answer = Answer::read(endpoint, whole)?;
            Some(counter.filled_answer(endpoint, answer, &asked.body))
        }
        Content::Json(_) | Content::Empty | Content::Events(_) | Content::Text(_) | Content::Bytes(_) => None,
    }
}

/// The choices with the reason of their end, where a record written by hand lacks it.
fn ended<'a>(record: &Record, choices: &'a [Map<String, Value>]) -> Cow<'a, [Map<String, Value>]> {
    let is_missing = |choice: &Map<String, Value>| !choice.contains_key("finish_reason");
    let is_by_hand = record.side.is_none() && record.answer.status < 400;
    if !is_by_hand || !choices.iter().any(is_missing) {
        return Cow::Borrowed(choices);
    }
    let mut ended = choices.to_vec();
    for choice in ended.iter_mut().filter(|choice| is_missing(choice)) {
        let calls = choice.get("message").and_then(|message| message.get("tool_calls")?.as_array());
        let reason = if calls.is_some_and(|calls| !calls.is_empty()) { "tool_calls" } else { "stop" };
        choice.insert("finish_reason".to_owned(), reason.into());
    }
    Cow::Owned(ended)
}

/// A body of choices.
fn body(
    endpoint: Endpoint,
    record: &Record,
    asked: &IncomingRequest,
    (choices, usage): (&[Map<String, Value>], Value),
) -> Value {
    let known = |name: &str| record.side.as_ref().and_then(|side| side.head.get(name)).cloned();
    let object = if endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
    let mut body = json!({
        "id": known("id").unwrap_or_else(|| made_up(record, asked.path()).into()),
        "object": object,
        "created": known("created").unwrap_or_else(|| 0.into()),
        "model": known("model").or_else(|| asked.body.get("model").cloned()),
        "choices": choices.iter().enumerate().map(choice).collect::<Vec<_>>(),
    });
    if let Some(fields) = body.as_object_mut() {
        fields.extend(known("system_fingerprint").map(|fingerprint| ("system_fingerprint".to_owned(), fingerprint)));
        fields.insert("usage".to_owned(), usage);
    }
    body
}

fn choice((index, choice): (usize, &Map<String, Value>)) -> Value {
    let mut whole = Map::new();
    whole.insert("index".to_owned(), index.into());
    for (name, value) in choice.iter().filter(|(name, _)| name.as_str() != "index") {
        let value = if name == "message" { wire_message(value) } else { value.clone() };
        whole.insert(name.clone(), value);
    }
    whole.entry("logprobs").or_insert(Value::Null);
    Value::Object(whole)
}

/// The answer with the fields that no two runs share.
pub(in crate::player) fn with_head(value: &Value, side: Option<&Side>) -> Value {
    let (Some(fields), Some(side)) = (value.as_object(), side) else { return value.clone() };
    let head = side.head.iter().filter(|(name, _)| !fields.contains_key(*name));
    let mut whole: Map<String, Value> = head.map(|(name, value)| (name.clone(), value.clone())).collect();
    whole.extend(fields.clone());
    Value::Object(whole)
}

/// A message or response with the fields at its top that it was recorded without.
fn with_own_head(value: Value, endpoint: Endpoint, record: &Record, asked: &IncomingRequest) -> Value {
    let own: &[&str] = match endpoint {
        Endpoint::Messages => &["id", "model"],
        Endpoint::Responses => &["id", "created_at", "model"],
        Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => &[],
    };
    let Value::Object(fields) = value else { return value };
    let missing = own.iter().filter(|name| !fields.contains_key(**name)).map(|name| {
        let value = match *name {
            "id" => made_up(record, asked.path()).into(),
            "model" => asked.body.get("model").cloned().unwrap_or_default(),
            _ => 0.into(),
        };
        ((*name).to_owned(), value)
    });
    let mut whole: Map<String, Value> = missing.collect();
    whole.extend(fields);
    whole.into()
}

/// Returns how the answer is cut for a stream: into as many events as it came in, at their times.
pub(in crate::player) fn cut(record: &Record, asked: &IncomingRequest) -> Cut {
    let side = record.side.as_ref();
    Cut {
        times: side.iter().flat_map(|side| &side.events).map(|Moment(ms, ..)| *ms).collect(),
        end: side.map_or(0.0, |side| side.ms),
        usage: asked.wants_usage(),
    }
}
