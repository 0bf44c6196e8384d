//! The content of a record's response, in the form that its request asks for: a stream or one body, with token counts and the fields
//! that no two runs share.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    delivery::RecordedContent,
    player::{
        answer::{
            fresh_ids::made_up,
            generated::{Counter, on_the_wire, usage_of},
        },
        incoming::{IncomingRequest, wants_usage},
        record::{assemble, recorder::route_of},
    },
};
use api::{
    Endpoint,
    answers::{Answer, Cut, TimedEvent},
    is_set,
};
use base::units::Millis;
use net::wire::{encode_event, json_as_utf8, value_text};
use recording::{
    canonical::SharedBody,
    cassette::{self, AnswerContent, CassetteRecord, MadeAnswer, Moment, Sidecar},
    trace::{Response, ResponseContent},
};

pub(crate) const EVENTS: &str = "text/event-stream; charset=utf-8";

pub(crate) struct ContentReply {
    pub(crate) content: RecordedContent,
    pub(crate) content_type: &'static str,
    /// The status, where it is not that of the record.
    pub(crate) status: Option<u16>,
    /// When a body is complete.
    pub(crate) end: Duration,
}

impl ContentReply {
    pub(crate) fn stream(events: Vec<(Duration, Bytes)>) -> Self {
        Self { content: RecordedContent::Events(events), content_type: EVENTS, status: None, end: Duration::ZERO }
    }
}

/// The time of an event, and the event as it is on the wire.
fn encoded(TimedEvent { ms, name, data }: TimedEvent) -> (Duration, Bytes) {
    (time(ms), encode_event(name.as_deref(), &data))
}

/// A recorded time; zero for one that no clock can have.
pub(crate) fn time(ms: f64) -> Duration {
    Millis(ms).duration().unwrap_or_default()
}

/// Builds the content of a response to a request; token counts that the record lacks are computed.
pub(crate) fn reply(record: &CassetteRecord, incoming: &IncomingRequest, counter: &Counter) -> ContentReply {
    if let Some(events) = events(record, incoming, counter) {
        let asked_for_stream = record.body.get("stream").is_some_and(is_set);
        let mut seen = events.iter().filter(|_| asked_for_stream && !incoming.streams());
        if let Some((end, (status, body))) = seen.find_map(|it| Some((time(it.ms), stream_error(&it.data)?))) {
            let content = RecordedContent::Body(body.into());
            return ContentReply { content, content_type: "application/json", status: Some(status), end };
        }
        return ContentReply::stream(events.into_iter().map(encoded).collect());
    }
    let end = time(record.side.as_ref().map_or(0.0, |side| side.ms));
    let (content_type, bytes) = match &record.answer.content {
        AnswerContent::Choices { .. } | AnswerContent::Json(_) => {
            let side = record.side.as_ref().filter(|_| record.is_as_recorded());
            let recorded = side.and_then(|side| side.body.clone());
            let answer = || answer(record, incoming, counter).map(Answer::into_body);
            let plain = || match &record.answer.content {
                AnswerContent::Json(value) => with_head(value, record.side.as_ref()),
                _ => Value::Null,
            };
            let encoded = || answer().unwrap_or_else(plain).to_string();
            ("application/json", Bytes::from(recorded.unwrap_or_else(encoded)))
        }
        AnswerContent::Text(text) => ("text/plain; charset=utf-8", Bytes::from(text.clone())),
        AnswerContent::Bytes(bytes) => ("application/octet-stream", Bytes::from(bytes.clone())),
        AnswerContent::Empty | AnswerContent::Events(_) => ("application/json", Bytes::new()),
    };
    ContentReply { content: RecordedContent::Body(bytes), content_type, status: None, end }
}

/// Returns the events of a record that is served as a stream; `None` for one that is served as a body.
pub(crate) fn events(
    record: &CassetteRecord,
    incoming: &IncomingRequest,
    counter: &Counter,
) -> Option<Vec<TimedEvent>> {
    let verbatim = record.side.as_ref().filter(|_| record.is_as_recorded());
    let events = verbatim.map(|side| &*side.events).filter(|events| is_whole(events));
    let answer = || answer(record, incoming, counter);
    match (&record.answer.content, events) {
        (AnswerContent::Events(_), Some(events)) => Some(events.iter().map(recorded).collect()),
        (AnswerContent::Events(listed), None) => {
            let times = record.side.as_ref().map(|side| &*side.events).unwrap_or_default();
            let time = |at: usize| times.get(at).or(times.last()).map_or(0.0, |Moment(ms, ..)| *ms);
            let event = |(at, event): (usize, &cassette::SseEvent)| TimedEvent {
                ms: time(at),
                name: event.name.clone(),
                data: value_text(&event.data).into_owned(),
            };
            Some(listed.iter().enumerate().map(event).collect())
        }
        _ if !incoming.streams() => None,
        (AnswerContent::Choices { .. }, Some(events)) => Some(as_asked(record, events, incoming, answer)),
        (AnswerContent::Json(_), Some(events)) if record.answer.status < 400 => {
            Some(events.iter().map(recorded).collect())
        }
        (AnswerContent::Choices { .. } | AnswerContent::Json(_), _) => Some(answer()?.events(&cut(record, incoming))),
        (AnswerContent::Text(_) | AnswerContent::Bytes(_) | AnswerContent::Empty, _) => None,
    }
}

fn is_whole(events: &[Moment]) -> bool {
    !events.is_empty() && events.iter().all(|Moment(_, data, _)| data.is_some())
}

fn recorded(Moment(ms, data, name): &Moment) -> TimedEvent {
    TimedEvent { ms: *ms, name: name.clone(), data: data.clone().unwrap_or_default() }
}

/// Returns a recorded chat or completions stream, with token counts exactly where they are asked for.
fn as_asked(
    record: &CassetteRecord,
    events: &[Moment],
    incoming: &IncomingRequest,
    answer: impl Fn() -> Option<Answer>,
) -> Vec<TimedEvent> {
    let (had, wants) = (wants_usage(&record.body), wants_usage(&incoming.body));
    let is_usage = |data: &str| {
        let event = serde_json::from_str::<Value>(data).unwrap_or_default();
        event.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty)
            && event.get("usage").is_some_and(Value::is_object)
    };
    let mut served: Vec<TimedEvent> = Vec::with_capacity(events.len() + 1);
    for event in events {
        let data = event.1.as_deref().unwrap_or_default();
        if had && !wants && is_usage(data) {
            continue;
        }
        if let (true, false, "[DONE]") = (wants, had, data) {
            served.extend(answer().map(|answer| TimedEvent {
                ms: event.0,
                name: None,
                data: answer.usage_event().to_string(),
            }));
        }
        served.push(recorded(event));
    }
    served
}

/// Returns the error that an event of a stream is, as an engine gives it to a client that asked for no stream: its status, and the body.
#[must_use]
pub fn stream_error(data: &str) -> Option<(u16, String)> {
    let event: Value = serde_json::from_str(data).ok()?;
    let code = event.get("error").filter(|error| error.is_object())?.get("code").and_then(Value::as_u64);
    let status = code.and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
    Some((status.unwrap_or(500), event.to_string()))
}

/// Encodes a body that was recorded as a stream, and a stream as one body. `end` is when the body was complete, the time of all its events.
/// `None` where the endpoint of this path has no such form, or numbers would lose digits.
#[must_use]
pub fn other_form(path: &str, body: &[u8], response: &Response, end: Duration) -> Option<RecordedContent> {
    let request = SharedBody::from(serde_json::from_slice::<Value>(&json_as_utf8(body)).ok()?);
    let endpoint = Endpoint::of_path(route_of(path));
    let answer = assemble::answer(endpoint, &response.content)?;
    let answer = Counter::default().filled_answer(endpoint, answer, &request);
    if matches!(response.content, ResponseContent::Events(_)) {
        return Some(RecordedContent::Body(answer.into_body().to_string().into()));
    }
    let cut = Cut { times: Vec::new(), end: 0.0, usage: wants_usage(&request), parts: Vec::new() };
    let events = answer.events(&cut).into_iter().map(|event| (end, encoded(event).1));
    Some(RecordedContent::Events(events.collect()))
}

/// The whole answer of a record; `None` where it is none: an error, or anything else than generated text.
fn answer(record: &CassetteRecord, incoming: &IncomingRequest, counter: &Counter) -> Option<Answer> {
    match &record.answer_with_ids().content {
        AnswerContent::Choices { choices, usage } => {
            let is_chat = choices.iter().any(|choice| choice.contains_key("message"));
            let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completions };
            let choices = &*ended(record, choices);
            let usage = counter.filled(usage_of(record, usage).as_deref(), &incoming.body, choices);
            Answer::read(endpoint, body(endpoint, record, incoming, (choices, usage)))
        }
        AnswerContent::Json(value) if record.answer.status < 400 => {
            let endpoint = Endpoint::of_path(incoming.path());
            if endpoint.has_choices() {
                return None;
            }
            let whole = with_own_head(with_head(value, record.side.as_ref()), endpoint, record, incoming);
            let answer = Answer::read(endpoint, whole)?;
            Some(counter.filled_answer(endpoint, answer, &incoming.body))
        }
        _ => None,
    }
}

/// Adds why a choice ended, where it was written by hand without that.
pub(crate) fn complete(choice: &mut Map<String, Value>) {
    let calls = choice.get("message").and_then(|message| message.get("tool_calls")?.as_array());
    let reason = if calls.is_none_or(Vec::is_empty) { "stop" } else { "tool_calls" };
    choice.entry("finish_reason").or_insert_with(|| reason.into());
}

/// The choices with the reason of their end, where a record written by hand lacks it.
fn ended<'a>(record: &CassetteRecord, choices: &'a [Map<String, Value>]) -> Cow<'a, [Map<String, Value>]> {
    let is_missing = |choice: &Map<String, Value>| !choice.contains_key("finish_reason");
    let is_by_hand = record.side.is_none() && record.answer.status < 400;
    if !is_by_hand || !choices.iter().any(is_missing) {
        return Cow::Borrowed(choices);
    }
    let mut ended = choices.to_vec();
    ended.iter_mut().for_each(complete);
    Cow::Owned(ended)
}

fn body(
    endpoint: Endpoint,
    record: &CassetteRecord,
    incoming: &IncomingRequest,
    (choices, usage): (&[Map<String, Value>], Value),
) -> Value {
    let known = |name: &str| record.side.as_ref().and_then(|side| side.head.get(name)).cloned();
    let object = if endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
    let mut body = json!({
        "id": known("id").unwrap_or_else(|| made_up(record, incoming.path()).into()),
        "object": object,
        "created": known("created").unwrap_or_else(|| 0.into()),
        "model": known("model").or_else(|| incoming.body.get("model").cloned()),
        "choices": choices.iter().enumerate().map(choice).collect::<Vec<_>>(),
    });
    if let Some(fields) = body.as_object_mut() {
        for name in ["system_fingerprint", "provider"] {
            fields.extend(known(name).map(|value| (name.to_owned(), value)));
        }
        fields.insert("usage".to_owned(), usage);
    }
    body
}

fn choice((index, choice): (usize, &Map<String, Value>)) -> Value {
    let mut whole = Map::from_iter([("index".to_owned(), index.into())]);
    whole.extend(on_the_wire(choice).into_iter().filter(|(name, _)| name != "index"));
    whole.entry("logprobs").or_insert(Value::Null);
    Value::Object(whole)
}

/// The answer with the fields that no two runs share.
fn with_head(value: &Value, side: Option<&Sidecar>) -> Value {
    let (Some(fields), Some(side)) = (value.as_object(), side) else { return value.clone() };
    let head = side.head.iter().filter(|(name, _)| !fields.contains_key(*name));
    let mut whole: Map<String, Value> = head.map(|(name, value)| (name.clone(), value.clone())).collect();
    whole.extend(fields.clone());
    Value::Object(whole)
}

/// A message or response with the fields at its top that it was recorded without.
fn with_own_head(value: Value, endpoint: Endpoint, record: &CassetteRecord, incoming: &IncomingRequest) -> Value {
    let own: &[&str] = match endpoint {
        Endpoint::Messages => &["id", "model"],
        Endpoint::Responses => &["id", "created_at", "model"],
        Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => &[],
    };
    let Value::Object(fields) = value else { return value };
    let missing = own.iter().filter(|name| !fields.contains_key(**name)).map(|name| {
        let value = match *name {
            "id" => made_up(record, incoming.path()).into(),
            "model" => incoming.body.get("model").cloned().unwrap_or_default(),
            _ => 0.into(),
        };
        ((*name).to_owned(), value)
    });
    let mut whole: Map<String, Value> = missing.collect();
    whole.extend(fields);
    whole.into()
}

/// Returns how the answer is cut for a stream: into as many events as it came in, at their times.
fn cut(record: &CassetteRecord, incoming: &IncomingRequest) -> Cut {
    let side = record.side.as_ref();
    // The pieces of a hand-written answer.
    let parts = match &record.answer.made {
        Some(MadeAnswer::Parts(parts)) => parts.iter().map(|part| (part.field, part.text.clone())).collect(),
        _ => Vec::new(),
    };
    Cut {
        times: side.iter().flat_map(|side| &side.events).map(|Moment(ms, ..)| *ms).collect(),
        end: side.map_or(0.0, |side| side.ms),
        usage: wants_usage(&incoming.body),
        parts,
    }
}

#[cfg(test)]
mod tests {
    use crate::player::answer::content::*;
    use recording::cassette::Moment;

    #[test]
    fn a_message_is_written_in_either_form() {
        let whole = br#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"One two."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}"#;
        let response = Response { content: ResponseContent::Body(whole.to_vec()), ..Response::default() };
        let end = Duration::from_millis(7);
        let other_form = |path: &str, body: &[u8], response: &Response| other_form(path, body, response, end);
        let Some(RecordedContent::Events(events)) = other_form("/v1/messages", br#"{"stream":true}"#, &response) else {
            panic!("no events")
        };
        assert!(events.iter().all(|(at, _)| *at == end));
        let moments = events.iter().map(|(_, bytes)| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            Moment(7.0, text.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned), None)
        });
        let response = Response { content: ResponseContent::Events(moments.collect()), ..Response::default() };
        let Some(RecordedContent::Body(body)) = other_form("/v1/messages", b"{}", &response) else { panic!("no body") };
        let text = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap()["content"].clone();
        assert_eq!(text(&body), text(whole));
        let odd = Response { content: ResponseContent::Body(b"{\"data\":[]}".to_vec()), ..Response::default() };
        assert_eq!(other_form("/v1/embeddings", br#"{"stream":true}"#, &odd), None);
    }
}
