//! The content of a record's response, in the form that its request asks for.

use bytes::Bytes;
use serde_json::Value;

use crate::player::{
    answer::{encode, fresh_ids::Renaming, token_counts::Counter},
    receive::request::{IncomingRequest, wants_usage},
};
use api::answers::{Answer, Event};
use net::wire::encode_event;
use recording::cassette::{self, Content, Moment, Record};

/// An event with its time in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::player) struct Timed {
    pub(in crate::player) ms: f64,
    pub(in crate::player) bytes: Bytes,
}

impl From<Event> for Timed {
    fn from(Event { ms, name, data }: Event) -> Self {
        Self { ms, bytes: encode_event(name.as_deref(), &data) }
    }
}

/// The content of a response: a stream or one body.
pub(in crate::player) enum Reply {
    Events(Vec<Timed>),
    Body { ms: f64, content_type: &'static str, bytes: Bytes },
}

impl Reply {
    /// The same with other ids.
    pub(in crate::player) fn renamed(mut self, renaming: &Renaming) -> Self {
        let rename = |bytes: &mut Bytes| renaming.apply(bytes).into_iter().for_each(|text| *bytes = text.into());
        match &mut self {
            Self::Events(events) => events.iter_mut().for_each(|event| rename(&mut event.bytes)),
            Self::Body { bytes, .. } => rename(bytes),
        }
        self
    }
}

/// Builds the content of a response to a request; token counts that the record lacks are computed.
pub(in crate::player) fn reply(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Reply {
    if let Some(events) = events(record, asked, counter) {
        return Reply::Events(events.into_iter().map(Timed::from).collect());
    }
    let ms = record.side.as_ref().map_or(0.0, |side| side.ms);
    let (content_type, bytes) = match &record.answer.content {
        Content::Choices { .. } | Content::Json(_) => {
            let side = record.side.as_ref().filter(|_| record.is_as_recorded());
            let recorded = side.and_then(|side| side.body.clone());
            let answer = || encode::answer(record, asked, counter).map(Answer::into_body);
            let encoded = || answer().or_else(|| plain_json(record)).unwrap_or_default().to_string();
            ("application/json", Bytes::from(recorded.unwrap_or_else(encoded)))
        }
        Content::Text(text) => ("text/plain; charset=utf-8", Bytes::from(text.clone())),
        Content::Bytes(bytes) => ("application/octet-stream", Bytes::from(bytes.clone())),
        Content::Empty | Content::Events(_) => ("application/json", Bytes::new()),
    };
    Reply::Body { ms, content_type, bytes }
}

/// Returns the events of a record that is served as a stream; `None` for one that is served as a body.
pub(in crate::player) fn events(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Option<Vec<Event>> {
    let verbatim = record.side.as_ref().filter(|_| record.is_as_recorded());
    let events = verbatim.map(|side| &*side.events).filter(|events| is_whole(events));
    let answer = || encode::answer(record, asked, counter);
    match (&record.answer.content, events) {
        (Content::Events(_), Some(events)) => Some(events.iter().map(recorded).collect()),
        (Content::Events(listed), None) => {
            let times = record.side.as_ref().map(|side| &*side.events).unwrap_or_default();
            let time = |at: usize| times.get(at).or(times.last()).map_or(0.0, |Moment(ms, ..)| *ms);
            let event = |(at, event): (usize, &cassette::SseEvent)| Event {
                ms: time(at),
                name: event.name.clone(),
                data: event.data.as_str().map_or_else(|| event.data.to_string(), str::to_owned),
            };
            Some(listed.iter().enumerate().map(event).collect())
        }
        _ if !asked.streams() => None,
        (Content::Choices { .. }, Some(events)) => Some(as_asked(record, events, asked, answer)),
        (Content::Json(_), Some(events)) if record.answer.status < 400 => Some(events.iter().map(recorded).collect()),
        (Content::Choices { .. } | Content::Json(_), _) => Some(answer()?.events(&encode::cut(record, asked))),
        (Content::Text(_) | Content::Bytes(_) | Content::Empty, _) => None,
    }
}

/// Returns the JSON of a record that is no answer of a model.
fn plain_json(record: &Record) -> Option<Value> {
    match &record.answer.content {
        Content::Json(value) => Some(encode::with_head(value, record.side.as_ref())),
        _ => None,
    }
}

/// Returns whether every event has its data.
fn is_whole(events: &[Moment]) -> bool {
    !events.is_empty() && events.iter().all(|Moment(_, data, _)| data.is_some())
}

fn recorded(Moment(ms, data, name): &Moment) -> Event {
    Event { ms: *ms, name: name.clone(), data: data.clone().unwrap_or_default() }
}

/// Returns a recorded chat or completions stream, with token counts exactly where they are asked for.
fn as_asked(
    record: &Record,
    events: &[Moment],
    asked: &IncomingRequest,
    answer: impl Fn() -> Option<Answer>,
) -> Vec<Event> {
    let (had, wants) = (wants_usage(&record.body), asked.wants_usage());
    let is_usage = |data: &str| {
        let event = serde_json::from_str::<Value>(data).unwrap_or_default();
        event.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty)
            && event.get("usage").is_some_and(Value::is_object)
    };
    let mut served: Vec<Event> = Vec::with_capacity(events.len() + 1);
    for event in events {
        let data = event.1.as_deref().unwrap_or_default();
        if had && !wants && is_usage(data) {
            continue;
        }
        if let (true, false, "[DONE]") = (wants, had, data) {
            served.extend(answer().map(|answer| Event {
                ms: event.0,
                name: None,
                data: answer.usage_event().to_string(),
            }));
        }
        served.push(recorded(event));
    }
    served
}
