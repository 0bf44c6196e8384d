//! The response of a record: its content, status, headers and times.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    assemble, encode,
    fresh_ids::Renaming,
    request::{IncomingRequest, wants_usage},
    token_counts::Counter,
};
use crate::{
    api::{
        Endpoint,
        answers::{Answer, Event},
    },
    net::server::{BodyError, ResponseBody},
    net::wire::encode_event,
    recording::cassette::{self, Content, Fault, Moment, Record},
    replay::account::http::{put, whole},
    replay::timing::{Pacer, Pacing},
};

/// The type of an event stream.
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The latest deadline: a year after the request.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// An event with its time in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    pub(super) ms: f64,
    pub(super) bytes: Bytes,
}

impl From<Event> for Timed {
    fn from(Event { ms, name, data }: Event) -> Self {
        Self { ms, bytes: encode_event(name.as_deref(), &data) }
    }
}

/// The content of a response: a stream or one body.
pub(super) enum Reply {
    Events(Vec<Timed>),
    Body { ms: f64, content_type: &'static str, bytes: Bytes },
}

/// Options of the delivery of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeliveryOptions<'a> {
    pub(super) pacing: Pacing,
    /// Time of the request.
    pub(super) at: Instant,
    pub(super) pacer: &'a Pacer,
}

impl Reply {
    fn renamed(mut self, renaming: &Renaming) -> Self {
        let rename = |bytes: &mut Bytes| renaming.apply(bytes).into_iter().for_each(|text| *bytes = text.into());
        match &mut self {
            Self::Events(events) => events.iter_mut().for_each(|event| rename(&mut event.bytes)),
            Self::Body { bytes, .. } => rename(bytes),
        }
        self
    }
}

/// Builds the response of a record.
pub(super) fn record(
    record: &Record,
    reply: Reply,
    renaming: &Renaming,
    options: DeliveryOptions<'_>,
) -> Response<ResponseBody> {
    let pacing = options.pacing;
    let mut response = match reply.renamed(renaming) {
        Reply::Events(events) => streamed(events, record.answer.fault, options),
        Reply::Body { ms, content_type, bytes } => {
            let length = bytes.len();
            let (bytes, fault) = match record.answer.fault {
                // Half of what was promised, and the connection breaks.
                Some(Fault::Truncate { .. }) => (bytes.slice(..length / 2), Some(Fault::Reset { after_events: 1 })),
                fault => (bytes, fault),
            };
            let events = vec![Timed { ms, bytes }];
            let mut response = match (fault, due(pacing, ms, 0)) {
                (None, Duration::ZERO) => {
                    whole(200, content_type, events.into_iter().next().map(|it| it.bytes).unwrap_or_default())
                }
                (fault, _) => streamed(events, fault, options),
            };
            put(response.headers_mut(), "content-type", content_type);
            if let Some(Fault::Truncate { .. }) = record.answer.fault {
                put(response.headers_mut(), "content-length", &length.to_string());
            }
            response
        }
    };
    dress(&mut response, &record.answer);
    response
}

/// Headers of how this server sends a body, whatever was written by hand.
const IS_OF_THE_SERVER: [&str; 5] = ["content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"];

fn is_of_the_server(name: &str) -> bool {
    IS_OF_THE_SERVER.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Sets status and headers as recorded.
fn dress(response: &mut Response<ResponseBody>, answer: &cassette::Answer) {
    if let Ok(status) = http::StatusCode::from_u16(answer.status) {
        *response.status_mut() = status;
    }
    let is_stream =
        response.headers().get("content-type").is_some_and(|value| value.as_bytes().starts_with(b"text/event"));
    for (name, value) in answer.headers.iter().filter(|(name, _)| !is_of_the_server(name)) {
        // A record may be served in another form than it was recorded in.
        let is_type = name == "content-type";
        if is_type && (is_stream || value.starts_with("text/event-stream")) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            if is_type {
                response.headers_mut().insert(name, value);
            } else {
                response.headers_mut().append(name, value);
            }
        }
    }
}

/// Builds the content of a response to a request; token counts that the record lacks are computed.
pub(super) fn reply(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Reply {
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
pub(super) fn events(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Option<Vec<Event>> {
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

/// Builds a response with a text that names the request, in the form of a model's.
pub(super) fn stub(asked: &IncomingRequest, counter: &Counter, options: DeliveryOptions<'_>) -> Response<ResponseBody> {
    let key: String = asked.identity.key.to_string().chars().skip("xxh3:".len()).take(8).collect();
    let text = format!("<novel: {key}>");
    let path = asked.path();
    let stub = Answer::of_text(Endpoint::of_path(path), &text, asked.body.get("model"));
    let stub = stub.map_or_else(|| json!({"stub": text}), Answer::into_body);
    let content = assemble::choices(path, &stub).unwrap_or(Content::Json(stub));
    let answer = cassette::Answer { status: 200, content, ..cassette::Answer::default() };
    let made_up = Record { body: asked.body.clone(), answer, ..Record::default() };
    let reply = reply(&made_up, asked, counter);
    let mut response = record(&made_up, reply, &Renaming::default(), options);
    put(response.headers_mut(), "x-vcr-match", "stub");
    response
}

/// Computes a deadline, from the request.
fn due(pacing: Pacing, ms: f64, index: usize) -> Duration {
    match pacing {
        Pacing::Recorded { scale } => {
            scale.apply(Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default()).min(FAR)
        }
        Pacing::Fixed { ttft, itl } => {
            ttft.saturating_add(itl.saturating_mul(u32::try_from(index).unwrap_or(u32::MAX))).min(FAR)
        }
        Pacing::Instant => Duration::ZERO,
    }
}

/// A step of a stream.
enum Step {
    Event(Duration, Bytes),
    /// The connection breaks.
    Break,
    /// Nothing more comes, ever.
    Stall,
}

/// Builds a stream of events at their times, up to the fault.
fn streamed(events: Vec<Timed>, fault: Option<Fault>, options: DeliveryOptions<'_>) -> Response<ResponseBody> {
    let DeliveryOptions { pacing, at, pacer } = options;
    let most = fault.map_or(usize::MAX, Fault::after_events);
    let event = |(index, event): (usize, Timed)| Step::Event(due(pacing, event.ms, index), event.bytes);
    let mut steps: VecDeque<Step> = events.into_iter().enumerate().take(most).map(event).collect();
    match fault {
        Some(Fault::Reset { .. }) => steps.push_back(Step::Break),
        Some(Fault::Stall { .. }) => steps.push_back(Step::Stall),
        Some(Fault::Truncate { .. }) | None => {}
    }
    let frames = stream::unfold((steps, pacer.clone()), move |(mut steps, pacer)| async move {
        match steps.pop_front()? {
            Step::Event(due, bytes) => {
                if !due.is_zero() {
                    pacer.sleep_until(at + due).await;
                }
                Some((Ok(Frame::data(bytes)), (steps, pacer)))
            }
            Step::Break => {
                // Earlier events have to be on the wire.
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Err(BodyError::Aborted("the record ends in a reset")), (VecDeque::new(), pacer)))
            }
            Step::Stall => std::future::pending().await,
        }
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    put(response.headers_mut(), "content-type", EVENTS);
    response
}
