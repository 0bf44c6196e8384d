//! Serves recorded responses: those of records that no token ids stand for. They come before validation: an error that was
//! recorded is the response too.
//!
//! Each event is due at its recorded time, or with its last token where an engine is simulated, through the same delivery as every
//! other response. A request for a stream
//! where a body was recorded, or the other way, gets the other form where the family is known. Else a stream is sent as it
//! was recorded, and a body that was recorded for a request without a stream is a miss for one with it.
//!
//! Limits: a recorded response is sent to its end, beyond `max_tokens` too. A stream that broke off does so where the capture
//! ended.
//!
//! See docs/decisions/0026-recorded-responses-before-validation.md.

mod answer;
pub(super) mod errors;
pub(super) mod failure;
pub(super) mod logprobs;
mod refresh;
pub(super) mod responses;

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{extract::Request, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header, uri::PathAndQuery};
use http_body::Frame;
use serde_json::Value;
use tokio::time::Instant;
use tower::Service;

use self::{
    refresh::Refresh,
    responses::{RequestKey, ResponseQuery},
};
use crate::{
    ServerState, endpoints,
    engine::RecordedTiming,
    http::{REQUEST_ID, body_of_type, error, events_of_type, header_text, read_body, unix_seconds},
    load::account::TraceSession,
    metrics::ResponseMetrics,
    middleware::called,
    request::{blocking::off_the_loop, extract::clock},
};
use api::{ApiError, endpoints::route};
use base::units::Millis;
use net::wire::{RawObject, encode_event, json_as_utf8};
use recording::{
    cassette::Moment,
    trace::{Endpoint, Outcome, Record, Response as Recorded, ResponseContent},
};
use replay::{
    account::http::put,
    delivery::{Clock, RecordedContent, RecordedResponse, ResponseEnd, Wait, class_of, stream_of},
    matching::MatchBy,
    player::{other_form, stream_error, token_limit},
};

/// Content type of a stream that was recorded without one.
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// Answers a request whose path has recorded responses, with its endpoint behind it or without.
/// Errors: a miss where nothing else answers, a body that cannot be read, and a wrong session.
pub(super) async fn answer<S>(state: &Arc<ServerState>, request: Request, inner: S) -> Result<Response, ApiError>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let session = state.session(request.extensions(), request.headers())?;
    let clock = clock(request.extensions())?;
    let (mut parts, body) = request.into_parts();
    let body = read_body(body, state.config.body_limit).await?;
    let at = Instant::now();
    let candidate = Candidate {
        headers: parts.headers.clone(),
        uri: parts.uri.clone(),
        body: body.clone(),
        is_served: endpoints::is_served(&parts.extensions),
        session,
        at,
        limit: 0,
    };
    let planner = Arc::clone(state);
    match off_the_loop(body.len(), move || plan(&planner, candidate)).await? {
        RecordedPlan::Answer(planned) => {
            let is_withheld = planned.is_withheld;
            let recorded = planned.send(state, clock, at).await;
            if !is_withheld {
                return Ok(recorded);
            }
            let own = called(inner, Request::from_parts(parts, body.into())).await;
            Ok(if own.status() == recorded.status() { worded(own, &recorded) } else { recorded })
        }
        RecordedPlan::Pass(key) => {
            if let Some(key) = key {
                parts.extensions.insert(key);
            }
            Ok(called(inner, Request::from_parts(parts, body.into())).await)
        }
    }
}

/// This server's own error of a request in place of the recorded one, with the recorded headers that it has not.
fn worded(mut own: Response, recorded: &Response) -> Response {
    for (name, value) in recorded.headers() {
        own.headers_mut().entry(name).or_insert_with(|| value.clone());
    }
    own
}

/// A request that may have a recorded response.
struct Candidate {
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
    is_served: bool,
    session: Option<Arc<TraceSession>>,
    at: Instant,
    /// As [`RecordedRequestFields`] has it.
    limit: u32,
}

impl Candidate {
    /// The path with its query.
    fn target(&self) -> &str {
        self.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }
}

/// Fields of a JSON body that decide which recorded response is served and in which form.
#[derive(Debug, Default)]
pub(super) struct RecordedRequestFields {
    pub(super) stream: bool,
    /// Counts where the header `x-request-id` is missing.
    pub(super) request_id: Option<String>,
    /// The most tokens that a choice may have; 0 where it has no limit.
    limit: u32,
}

impl RecordedRequestFields {
    /// Reads the fields that have their type; others count as missing.
    pub(super) fn read(body: &[u8]) -> Self {
        let body = json_as_utf8(body);
        let fields = RawObject::read(&body).unwrap_or_default();
        let limits = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
        let limits: [Value; 3] = limits.map(|name| fields.value(name).unwrap_or_default());
        Self {
            stream: fields.value("stream").unwrap_or_default(),
            request_id: fields.value("request_id"),
            limit: token_limit(limits.each_ref()),
        }
    }
}

/// Decision about a request: a recorded response, or the endpoints answer it.
enum RecordedPlan {
    Answer(Box<PlannedResponse>),
    /// With the request's key, where it was computed.
    Pass(Option<RequestKey>),
}

/// A recorded response before any of it is due.
struct PlannedResponse {
    answer: RecordedResponse<ResponseMetrics>,
    is_stream: bool,
    /// True where the engine's server comments a silent stream.
    has_comments: bool,
    status: StatusCode,
    headers: HeaderMap,
    content_type: Option<HeaderValue>,
    /// True for an error without its words, where only a tokenizer is needed for this server's own.
    is_withheld: bool,
}

impl PlannedResponse {
    async fn send(self, state: &Arc<ServerState>, clock: Clock, at: Instant) -> Response {
        let Self { answer, is_stream, has_comments, status, headers, content_type, is_withheld: _ } = self;
        let class = class_of(is_stream, state.pacing());
        let wait = Wait { clock, class, gate: state.hold(state.fresh_id(), 1) };
        if !is_stream {
            return match answer.body(at, wait).await {
                Some(body) => body_of_type(status, content_type, body, headers),
                None => error(&ApiError::internal("The request was aborted.")),
            };
        }
        let keep_alive = state.config.server.keep_alive.filter(|_| has_comments);
        let content_type = content_type.unwrap_or(HeaderValue::from_static(EVENTS));
        events_of_type(status, content_type, stream_of(answer, at, wait, keep_alive, Frame::data), headers)
    }
}

fn plan(state: &ServerState, mut request: Candidate) -> Result<RecordedPlan, ApiError> {
    let Some(replay) = &state.replay else { return Ok(RecordedPlan::Pass(None)) };
    let fields = RecordedRequestFields::read(&request.body);
    request.limit = fields.limit;
    let request_id = header_text(&request.headers, REQUEST_ID).or(fields.request_id.as_deref());
    let session = request.session.as_deref();
    let slot = session.unwrap_or(replay.account.default_session());
    let rules = replay.matcher.rules();
    let is_by_content = MatchBy::any_by_prompt(&rules.order) && replay.matcher.index_of(request_id).is_none();
    let key = is_by_content.then(|| RequestKey::new(replay, request.target(), &request.body));
    let query = ResponseQuery {
        state,
        replay,
        session: slot,
        path: request.uri.path(),
        is_served: request.is_served,
        request_id,
        key: key.as_ref(),
        wants_stream: fields.stream,
    };
    let selected = query.found()?;
    let kept = selected.and_then(|selected| Some((selected, replay.records.get(selected.record)?.record())));
    let Some((selected, record)) = kept else { return Ok(RecordedPlan::Pass(key)) };
    let Some(response) = record.response.as_deref() else {
        return Ok(RecordedPlan::Pass(key.map(|key| RequestKey { taken: Some(selected.taken()), ..key })));
    };
    let mut refresh = Refresh::new(state, record.request_id.as_deref(), request_id, unix_seconds());
    let content = content(&record, response, &request, fields.stream, &mut refresh);
    let (status, content) = content.ok_or_else(|| query.unservable(selected, UNCONVERTIBLE))?;
    selected.count(slot);
    let is_stream = matches!(content, RecordedContent::Events(_));
    Ok(RecordedPlan::Answer(Box::new(PlannedResponse {
        status: status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::OK),
        headers: headers(response, selected.record, selected.by, session),
        content_type: content_type(response, &content).and_then(|kind| HeaderValue::from_str(kind).ok()),
        is_stream,
        is_withheld: status.is_some_and(|status| status >= 400) && is_withheld(&request, &content),
        has_comments: record.endpoint.is_some_and(Endpoint::has_choices),
        answer: {
            let chunks = answer::chunks(&content, &record);
            let schedule = answer::schedule(&content, &record, &chunks, state.pacing());
            let concurrency = replay.concurrency(Some(selected.record));
            let timing = RecordedTiming { schedule: &schedule, arrived: request.at, concurrency };
            let mut metrics = ResponseMetrics::default();
            if record.output_tokens > 0 && record.endpoint.is_some_and(Endpoint::generates) {
                let permit = state.metrics.admit(1, state.config.server.max_queued)?;
                let generated = answer::generated(state, (&record, response), &request);
                metrics = state.response_metrics(permit, &generated, timing)?;
            }
            let breaks_off = is_stream && record.outcome.is_some_and(Outcome::breaks_off);
            let end = if breaks_off { ResponseEnd::Broken } else { ResponseEnd::Complete };
            RecordedResponse::new(content, schedule, end, metrics).by_tokens(&chunks)
        },
    })))
}

/// Checks whether words are left out of an error that this server can word without generating anything.
fn is_withheld(request: &Candidate, content: &RecordedContent) -> bool {
    let RecordedContent::Body(body) = content else { return false };
    let tokenizes = route(request.uri.path()).is_some_and(|route| route.only_tokenizes);
    request.is_served && tokenizes && errors::is_withheld(&String::from_utf8_lossy(body))
}

/// Reason for which a response has no such form as was asked for.
const UNCONVERTIBLE: &str = "The recorded response is known as one body only; ask for it so.";

/// Gives the response in the form that the request asks for, or as it is for a request that asks as the recorded one did, with its
/// status; `None` where it has no such form.
fn content(
    record: &Record,
    response: &Recorded,
    request: &Candidate,
    wants_stream: bool,
    refresh: &mut Refresh<'_>,
) -> Option<(Option<u16>, RecordedContent)> {
    let is_stream = matches!(response.content, ResponseContent::Events(_));
    let is_error = record.status.is_some_and(|status| status >= 400);
    let generates = record.endpoint.is_some_and(Endpoint::generates);
    // An engine may answer a request for a stream with one body.
    let is_same_request = !is_stream && wants_stream && record.stream == Some(true);
    if !generates || is_error || is_same_request || wants_stream == is_stream {
        return Some((record.status, as_recorded(response, refresh)));
    }
    if let ResponseContent::Events(events) = &response.content
        && record.stream == Some(true)
        && let Some((status, body)) = events.iter().find_map(|event| stream_error(event.1.as_deref()?))
    {
        return Some((Some(status), RecordedContent::Body(refresh.apply(&body).into())));
    }
    match other_form(request.target(), &request.body, response, record.e2e.unwrap_or_default()) {
        Some(mut content) => {
            content.change(|part| Some(refresh.apply(&String::from_utf8_lossy(part))));
            Some((record.status, content))
        }
        // The same request once got a stream without asking for it.
        None => is_stream.then(|| (record.status, as_recorded(response, refresh))),
    }
}

/// The type of what is sent, which may be another form than was recorded.
fn content_type<'r>(response: &'r Recorded, sent: &RecordedContent) -> Option<&'r str> {
    let recorded = response.header("content-type");
    match sent {
        RecordedContent::Events(_) => recorded.filter(|kind| kind.starts_with("text/event-stream")),
        RecordedContent::Body(_) if matches!(response.content, ResponseContent::Events(_)) => Some("application/json"),
        RecordedContent::Body(_) => recorded,
    }
}

fn as_recorded(response: &Recorded, refresh: &mut Refresh<'_>) -> RecordedContent {
    match &response.content {
        ResponseContent::Events(events) => {
            RecordedContent::Events(events.iter().map(|event| framed(event, refresh)).collect())
        }
        ResponseContent::Body(body) => match std::str::from_utf8(body) {
            Ok(text) => RecordedContent::Body(refresh.apply(text).into()),
            Err(_) => RecordedContent::Body(body.clone().into()),
        },
    }
}

/// An event as it is on the wire.
fn framed(Moment(ms, data, name): &Moment, refresh: &mut Refresh<'_>) -> (Duration, Bytes) {
    let data = refresh.apply(data.as_deref().unwrap_or_default());
    (Millis(*ms).duration().unwrap_or_default(), encode_event(name.as_deref(), &data))
}

fn headers(response: &Recorded, record: usize, by: MatchBy, session: Option<&TraceSession>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in response.headers.iter().filter(|(name, _)| name != header::CONTENT_TYPE.as_str()) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    put(&mut headers, "x-vcr-record", &record.to_string());
    if let Some(name) = session.and_then(TraceSession::name) {
        put(&mut headers, "x-vcr-session", name);
    }
    put(&mut headers, "x-vcr-match", if by == MatchBy::Index { "index" } else { "request" });
    headers
}

#[cfg(test)]
mod tests {
    use super::RecordedRequestFields;

    #[test]
    fn a_field_of_another_type_counts_as_missing_and_leaves_the_other() {
        let read = |body: &str| {
            let RecordedRequestFields { stream, request_id, limit } = RecordedRequestFields::read(body.as_bytes());
            assert_eq!(limit, if body.contains("max_tokens") { 7 } else { 0 }, "{body}");
            (stream, request_id)
        };
        let twice =
            r#"{"stream":false,"max_tokens":"many","max_tokens":7,"stream":true,"request_id":1,"request_id":"a"}"#;
        assert_eq!(read(twice), (true, Some("a".to_owned())));
        assert_eq!(
            read(r#"{"stream":true,"request_id":"a","max_tokens":7,"user":1,"user":2}"#),
            (true, Some("a".to_owned()))
        );
        assert_eq!(read(r#"{"stream":true,"request_id":"a"}"#), (true, Some("a".to_owned())));
        assert_eq!(read(r#"{"stream":"yes","request_id":"a"}"#), (false, Some("a".to_owned())));
        assert_eq!(read(r#"{"stream":true,"request_id":7}"#), (true, None));
        assert_eq!(read("no json"), (false, None));
    }
}
