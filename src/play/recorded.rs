//! Serves recorded responses: those of records that no token ids stand for. Before anything judges a request, for whatever
//! was answered to it once is the answer, an error too.
//!
//! Each event is due at its recorded time, through the same delivery as every other answer. A client that asks for a stream
//! where a body was recorded, or the other way, is answered in its form where the family is known. Else a stream is sent as it
//! was recorded, and a body that was recorded for a request without a stream is a miss for one with it.
//!
//! Limits: a recorded response is told to its end, whatever `max_tokens` says. A stream that broke off ends where the capture
//! did.
//!
//! See docs/decisions/0026-recorded-responses-before-validation.md.

use std::{collections::VecDeque, ops::ControlFlow, sync::Arc, time::Duration};

use axum::{extract::Request, response::Response};
use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts, uri::PathAndQuery};
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    State,
    account::Slot,
    blocking::off_the_loop,
    delivery::{Clock, Deliverable, Wait, gathered, stream_of},
    events::Events,
    extract::{clock, session},
    http::{body_of_type, error, events_of_type, read_body},
    info,
    load::Replay,
    metrics::{Flight, Group},
    middleware,
    recordings::{asks_for_stream, found},
    refresh::Refresh,
    routes,
};
use crate::{
    api::ApiError,
    base::stats::StreamClass,
    base::units::Millis,
    net::wire::encode_event,
    recording::cassette::Moment,
    recording::trace::{Endpoint, FinishReason, Record, Response as Recorded, ResponseContent},
    replay::matching::MatchBy,
    replay::player::{OtherForm, other_form},
    replay::timing::{Pacing, Schedule},
};

/// The type of a stream that did not tell one.
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The recorded responses of a trace.
#[derive(Debug, Clone)]
pub(super) struct RecordedResponses(pub(super) Arc<State>);

impl middleware::Replay for RecordedResponses {
    fn takes(&self, request: &Request) -> bool {
        let is_recorded = |replay: &Arc<Replay>| replay.recordings.has(request.uri().path());
        let is_candidate = *request.method() == Method::POST && self.0.replay.as_ref().is_some_and(is_recorded);
        is_candidate && !routes::is_redirected(request.extensions())
    }

    async fn answer(self, request: Request) -> ControlFlow<Response, Request> {
        answer(&self.0, request).await.unwrap_or_else(|refused| ControlFlow::Break(error(&refused)))
    }
}

async fn answer(state: &Arc<State>, request: Request) -> Result<ControlFlow<Response, Request>, ApiError> {
    let session = session(state, request.extensions(), request.headers())?;
    let clock = clock(request.extensions())?;
    let (parts, body) = request.into_parts();
    let body = read_body(body, state.config.body_limit).await?;
    let at = Instant::now();
    Ok(match serve(state, &clock, (&parts, session), &body, at).await? {
        Some(response) => ControlFlow::Break(response),
        None => ControlFlow::Continue(Request::from_parts(parts, body.into())),
    })
}

async fn serve(
    state: &Arc<State>,
    clock: &Clock,
    (parts, session): (&Parts, Option<Arc<Slot>>),
    body: &Bytes,
    at: Instant,
) -> Result<Option<Response>, ApiError> {
    let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    let (planner, asked, bytes) = (Arc::clone(state), parts.headers.clone(), body.clone());
    let (path, is_served) = (parts.uri.path().to_owned(), routes::is_served(&parts.extensions));
    let work = move || {
        let asked = Asked { headers: &asked, path: &path, target: &target, body: &bytes, is_served };
        plan(&planner, session.as_deref(), &asked, at)
    };
    let planned = off_the_loop(body.len(), work).await?;
    let Some(Planned { answer, status, headers, content_type, class }) = planned else { return Ok(None) };
    let hold = state.hold(state.fresh_id(), 1);
    let wait = Wait { clock: clock.clone(), class, hold };
    let told = if class == StreamClass::Whole {
        body_of_type(status, content_type, gathered(answer, at, wait).await, headers)
    } else {
        let content_type = content_type.unwrap_or(HeaderValue::from_static(EVENTS));
        events_of_type(status, content_type, stream_of(answer, at, wait, state.config.server.keep_alive), headers)
    };
    Ok(Some(told))
}

/// What a request gets, before any of it is due.
struct Planned {
    answer: RecordedAnswer,
    status: StatusCode,
    headers: HeaderMap,
    content_type: Option<HeaderValue>,
    class: StreamClass,
}

/// A request that may have a recorded response.
pub(super) struct Asked<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) path: &'a str,
    /// The path with its query.
    pub(super) target: &'a str,
    pub(super) body: &'a Bytes,
    /// Whether an endpoint would answer without a recorded response.
    pub(super) is_served: bool,
}

fn plan(state: &State, session: Option<&Slot>, asked: &Asked<'_>, at: Instant) -> Result<Option<Planned>, ApiError> {
    let Some(replay) = &state.replay else { return Ok(None) };
    let header = asked.headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let request_id = header.or_else(|| request_id_in(asked.body));
    let sent_id = request_id.as_deref();
    let slot = session.unwrap_or(replay.account.default_session());
    let Some(selected) = found(state, (replay, slot), sent_id, asked)? else { return Ok(None) };
    let (index, by) = (selected.record, selected.by);
    let Some(kept) = replay.records.get(index) else { return Ok(None) };
    let record = kept.record();
    let Some(response) = record.response.as_deref() else { return Ok(None) };
    let mut refresh = Refresh::new(state, record.request_id.as_deref(), sent_id, info::unix_seconds());
    let told = match told(&record, (asked.target, asked.body), &mut refresh) {
        Ok(told) => told,
        Err(Unconvertible(message)) => {
            return Err(selected.miss(state, (replay, slot), asked.path, message.to_owned()));
        }
    };
    selected.count(slot);
    let flight = flight(state, &record, at)?;
    let class = match (&told, state.config.pacing) {
        (Told::Body(_), _) => StreamClass::Whole,
        (Told::Events(_), Pacing::Fixed { .. }) => StreamClass::Fixed,
        (Told::Events(_), Pacing::Recorded { .. }) => StreamClass::Recorded,
        (Told::Events(_), Pacing::Instant) => StreamClass::Instant,
    };
    let content_type = match &told {
        Told::Events(_) => response.header("content-type").filter(|kind| kind.starts_with("text/event-stream")),
        Told::Body(_) if matches!(response.content, ResponseContent::Events(_)) => Some("application/json"),
        Told::Body(_) => response.header("content-type"),
    };
    Ok(Some(Planned {
        status: record.status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::OK),
        headers: headers(response, index, by, session),
        content_type: content_type.and_then(|kind| HeaderValue::from_str(kind).ok()),
        answer: RecordedAnswer::new(told, &record, state.config.pacing, flight),
        class,
    }))
}

/// Reads the `request_id` of a JSON body, which counts where the header `x-request-id` is missing.
pub(super) fn request_id_in(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        request_id: Option<String>,
    }
    serde_json::from_slice::<Named>(body).ok()?.request_id
}

/// What is told.
enum Told {
    /// Events with their recorded times.
    Events(Vec<(Duration, Bytes)>),
    Body(Bytes),
}

/// A response has no such form as was asked for; with the reason, for people.
struct Unconvertible(&'static str);

/// The response in the form that the request asks for, or as it is for a request that asks as the recorded one did.
///
/// # Errors
/// Where it has no such form.
fn told(record: &Record, (target, body): (&str, &Bytes), refresh: &mut Refresh<'_>) -> Result<Told, Unconvertible> {
    let Some(response) = record.response.as_deref() else { return Ok(Told::Body(Bytes::new())) };
    let is_stream = matches!(response.content, ResponseContent::Events(_));
    let is_error = record.status.is_some_and(|status| status >= 400);
    let generates = record.endpoint.is_some_and(Endpoint::generates);
    let wants_stream = asks_for_stream(body);
    // An engine may answer a request for a stream with one body.
    let is_same_request = !is_stream && wants_stream && record.stream == Some(true);
    if !generates || is_error || is_same_request || wants_stream == is_stream {
        return Ok(as_recorded(response, refresh));
    }
    let ms = Millis::from(record.e2e.unwrap_or_default()).0;
    let mut renewed = |bytes: &Bytes| Bytes::from(refresh.apply(&String::from_utf8_lossy(bytes)));
    match other_form(target, body, response, ms) {
        Some(OtherForm::Body(body)) => Ok(Told::Body(renewed(&body))),
        Some(OtherForm::Events(events)) => {
            Ok(Told::Events(events.iter().map(|(ms, event)| (time(*ms), renewed(event))).collect()))
        }
        // A stream that nobody asked for is what the request once got.
        None if is_stream => Ok(as_recorded(response, refresh)),
        None => Err(Unconvertible("The recorded response is known as one body only; ask for it so.")),
    }
}

fn as_recorded(response: &Recorded, refresh: &mut Refresh<'_>) -> Told {
    match &response.content {
        ResponseContent::Events(events) => Told::Events(events.iter().map(|event| framed(event, refresh)).collect()),
        ResponseContent::Body(body) => match std::str::from_utf8(body) {
            Ok(text) => Told::Body(refresh.apply(text).into()),
            Err(_) => Told::Body(body.clone().into()),
        },
    }
}

/// An event as it is on the wire.
fn framed(Moment(ms, data, name): &Moment, refresh: &mut Refresh<'_>) -> (Duration, Bytes) {
    let data = refresh.apply(data.as_deref().unwrap_or_default());
    (time(*ms), encode_event(name.as_deref(), &data))
}

fn time(ms: f64) -> Duration {
    Millis(ms).duration().unwrap_or_default()
}

fn headers(response: &Recorded, record: usize, by: MatchBy, session: Option<&Slot>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in response.headers.iter().filter(|(name, _)| name != header::CONTENT_TYPE.as_str()) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    headers.insert(HeaderName::from_static("x-vcr-record"), HeaderValue::from(record));
    if let Some(Ok(name)) = session.and_then(Slot::name).map(HeaderValue::from_str) {
        headers.insert(HeaderName::from_static("x-vcr-session"), name);
    }
    headers.insert(
        HeaderName::from_static("x-vcr-match"),
        HeaderValue::from_static(if by == MatchBy::Index { "index" } else { "request" }),
    );
    headers
}

/// The request among the engine's counters, where tokens were generated for it.
///
/// # Errors
/// 503 where there is too little room.
fn flight(state: &State, record: &Record, at: Instant) -> Result<Option<Flight>, ApiError> {
    if record.output_tokens == 0 || !record.endpoint.is_some_and(Endpoint::generates) {
        return Ok(None);
    }
    let places = state.metrics.admit(1, state.config.server.max_queued)?;
    let group = Group::new(&state.metrics, at, 1, places);
    Ok(Some(group.start(record.prompt_tokens, record.cached_tokens.unwrap_or(0), record.output_tokens)))
}

/// A recorded response on its way.
#[derive(Debug)]
pub(super) struct RecordedAnswer {
    events: VecDeque<(Duration, Bytes)>,
    /// When tokens came, of which the engine's counters tell.
    tokens: VecDeque<(Duration, u32)>,
    flight: Option<Flight>,
    finish: &'static str,
}

impl RecordedAnswer {
    fn new(told: Told, record: &Record, pacing: Pacing, flight: Option<Flight>) -> Self {
        let due: VecDeque<(Duration, u32)> =
            Schedule::of(record, pacing, None).map(|chunk| (chunk.due, chunk.tokens)).collect();
        let events = match told {
            Told::Events(events) => {
                let times = dues(record, events.iter().map(|(at, _)| *at), pacing, &due);
                times.zip(&events).map(|(due, (_, event))| (due, event.clone())).collect()
            }
            Told::Body(body) => {
                let last = due.back().map_or(Duration::ZERO, |(due, _)| *due);
                let end = match pacing {
                    Pacing::Recorded { scale } => scale.apply(record.e2e.unwrap_or_default()).max(last),
                    Pacing::Fixed { ttft, .. } => last.max(ttft),
                    Pacing::Instant => Duration::ZERO,
                };
                VecDeque::from([(end, body)])
            }
        };
        let finish = match record.finish_reason {
            Some(FinishReason::Stop) => "stop",
            Some(FinishReason::Length) => "length",
            Some(FinishReason::Error) => "error",
            Some(FinishReason::Repetition) => "repetition",
            Some(FinishReason::Abort) | None => "abort",
        };
        Self { events, tokens: due, flight, finish }
    }

    fn count(&mut self, until: Duration, now: Instant) {
        let Some(flight) = &mut self.flight else { return };
        let is_last = self.events.is_empty();
        while let Some((_, tokens)) = self.tokens.pop_front_if(|(due, _)| is_last || *due <= until) {
            flight.step(tokens, now);
        }
        if is_last {
            flight.finish(self.finish);
        }
    }
}

/// When events are due: at their times, or with the chunk of tokens that they came with.
fn dues<'a>(
    record: &'a Record,
    times: impl Iterator<Item = Duration> + 'a,
    pacing: Pacing,
    chunks: &'a VecDeque<(Duration, u32)>,
) -> impl Iterator<Item = Duration> + 'a {
    let mut recorded = record
        .emissions()
        .scan(Duration::ZERO, |sum, chunk| {
            *sum = sum.saturating_add(chunk.gap);
            Some(*sum)
        })
        .peekable();
    let mut seen = 0_usize;
    times.map(move |at| match pacing {
        Pacing::Recorded { scale } => scale.apply(at),
        Pacing::Instant => Duration::ZERO,
        Pacing::Fixed { ttft, .. } => {
            while recorded.next_if(|chunk| *chunk <= at).is_some() {
                seen += 1;
            }
            chunks.get(seen.saturating_sub(1)).or(chunks.back()).map_or(ttft, |(due, _)| *due)
        }
    })
}

impl Deliverable for RecordedAnswer {
    type Turn = ();

    fn next_due(&self) -> Option<(Duration, ())> {
        self.events.front().map(|(due, _)| (*due, ()))
    }

    fn advance(&mut self, (): (), now: Instant, events: &mut Events) {
        let Some((due, event)) = self.events.pop_front() else { return };
        events.put(event.len(), |out| out.put_slice(&event));
        self.count(due, now);
    }

    fn settle(&mut self) {
        self.flight.iter_mut().for_each(Flight::settle);
    }

    fn abort(&mut self) {
        self.events.clear();
    }
}
