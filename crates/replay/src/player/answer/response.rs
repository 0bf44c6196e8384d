//! The response of a record: its status and headers, and its content with deadlines.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    account::http::{plain, put},
    delivery::{Clock, Gate, RecordedContent, RecordedResponse, ResponseEnd, TokenCounter, Wait, class_of, stream_of},
    meter::{chunks_of, event_data},
    player::{
        CassettePlayer,
        answer::{
            content::{ContentReply, EVENTS, time},
            fresh_ids::Renaming,
            generated::{self, Counter, Generated},
        },
        incoming::IncomingRequest,
        record::assemble,
    },
    timing::{Pacing, ResponseSchedule, TokenChunk},
};
use api::{Endpoint, answers::Answer, endpoints::route};
use net::{
    server::{BodyError, ResponseBody, whole_body},
    upstream::{BodyObserver, Observed, Relayed},
};
use recording::{
    canonical::CanonicalKey,
    cassette::{self, AnswerContent, BreakForm, CassetteRecord, Moment, TransportFault},
};

/// Headers of how this server sends a body, whatever was written by hand.
const IS_OF_THE_SERVER: [&str; 5] = ["content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"];

/// A response from a record before any of it is due.
#[derive(Debug)]
pub struct ReplayedResponse {
    content: RecordedContent,
    schedule: ResponseSchedule,
    chunks: Vec<TokenChunk>,
    end: ResponseEnd,
    pacing: Pacing,
    head: StatusAndHeaders,
    /// Time of the request.
    pub at: Instant,
    /// Tokens in it, where a model generated it.
    pub generated: Option<Generated>,
    /// The request as an engine sees it.
    pub request: EngineRequest,
    pub(crate) failure: Option<FailureDelivery>,
}

#[derive(Debug)]
struct StatusAndHeaders {
    status: u16,
    content_type: &'static str,
    /// Length of a body, also where it is not kept. Without it a body whose head leaves early would be sent in chunks.
    length: Option<usize>,
    recorded: Vec<(String, String)>,
    /// Of this program.
    own: HeaderMap,
}

/// Properties of a request by which a server admits and comments its response.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// True where it is work for an engine.
    pub is_work: bool,
    pub endpoint: Endpoint,
    /// The id that its client gave it.
    pub id: Option<String>,
}

impl EngineRequest {
    /// The properties of a received request.
    pub(crate) fn of(incoming: &IncomingRequest) -> Self {
        let is_work =
            incoming.parts.method == Method::POST && !route(incoming.path()).is_some_and(|route| route.only_tokenizes);
        Self { is_work, endpoint: Endpoint::of_path(incoming.path()), id: incoming.request_id().map(str::to_owned) }
    }
}

pub(crate) struct ServedRecord<'a> {
    pub(crate) record: &'a CassetteRecord,
    /// The request, as the chat that it stands for where a chat's record answers another family.
    pub(crate) incoming: &'a IncomingRequest,
    pub(crate) counter: &'a Counter,
    pub(crate) pacing: Pacing,
}

impl ServedRecord<'_> {
    pub(crate) fn response(&self, reply: ContentReply, renaming: &Renaming) -> ReplayedResponse {
        let (record, fault) = (self.record, self.record.answer.fault);
        let mut generated = generated::of(record, self.incoming, self.counter);
        let totals: Vec<u32> = generated.iter().flat_map(|it| &it.choices).map(|choice| choice.tokens).collect();
        let mut length = None;
        let ContentReply { mut content, content_type, status, end: complete } = reply;
        renaming.rename(&mut content);
        let (schedule, chunks) = match &mut content {
            RecordedContent::Events(events) => {
                let times: Vec<Duration> = events.iter().map(|(at, _)| *at).collect();
                let chunks = chunks_of(events.iter().map(|(at, event)| (*at, event_data(event))), &totals);
                let schedule = ResponseSchedule::stream(&times, &chunks, self.pacing);
                (schedule, chunks)
            }
            RecordedContent::Body(bytes) => {
                let schedule =
                    ResponseSchedule::body(complete, &streamed_chunks(record, &totals), &totals, self.pacing);
                length = Some(bytes.len()).filter(|length| *length > 0);
                if fault.is_some_and(|fault| fault.form == BreakForm::Truncate) {
                    // Half of what is announced, and the connection breaks.
                    bytes.truncate(bytes.len() / 2);
                }
                (schedule, Vec::new())
            }
        };
        if let (Some(fault), RecordedContent::Events(_), Some(generated)) = (fault, &content, &mut generated) {
            generated.break_off(&chunks, fault.after_events);
        }
        let recorded = record.answer.headers.clone();
        ReplayedResponse {
            schedule: cut(schedule, fault, &content),
            end: end(fault, &content),
            content,
            chunks,
            pacing: self.pacing,
            head: StatusAndHeaders {
                status: status.unwrap_or(record.answer.status),
                content_type,
                length,
                recorded,
                own: HeaderMap::new(),
            },
            at: self.incoming.at,
            generated,
            request: EngineRequest::of(self.incoming),
            failure: None,
        }
    }
}

/// The chunks of a record that came as a stream and is served as a body.
fn streamed_chunks(record: &CassetteRecord, totals: &[u32]) -> Vec<TokenChunk> {
    let side = record.side.as_ref().filter(|_| record.is_as_recorded());
    let events = side.map(|side| &*side.events).unwrap_or_default();
    chunks_of(
        events.iter().map(|Moment(ms, data, _)| (time(*ms), data.as_deref().unwrap_or_default().as_bytes())),
        totals,
    )
}

/// Leaves out what comes after a fault.
fn cut(mut schedule: ResponseSchedule, fault: Option<TransportFault>, content: &RecordedContent) -> ResponseSchedule {
    match (fault, content) {
        (Some(TransportFault { form: BreakForm::Truncate, .. }), RecordedContent::Body(_)) | (None, _) => {}
        // Events of a stream are counted: no body is whole before the fault.
        (Some(_), RecordedContent::Body(_)) => schedule.events.clear(),
        (Some(fault), RecordedContent::Events(_)) => schedule.events.truncate(fault.after_events),
    }
    schedule
}

fn end(fault: Option<TransportFault>, content: &RecordedContent) -> ResponseEnd {
    match (fault.map(|fault| fault.form), content) {
        (None, _) => ResponseEnd::Complete,
        (Some(BreakForm::Reset), _) | (Some(BreakForm::Truncate), RecordedContent::Body(_)) => ResponseEnd::Broken,
        (Some(BreakForm::Truncate), RecordedContent::Events(_)) => ResponseEnd::Cut,
        (Some(BreakForm::Stall), _) => ResponseEnd::Silent,
    }
}

impl ReplayedResponse {
    /// Adds a header of this program.
    pub(crate) fn put(&mut self, name: &'static str, value: &str) {
        put(&mut self.head.own, name, value);
    }

    /// Returns a header of this program.
    pub(crate) fn own(&self, name: &str) -> Option<&str> {
        self.head.own.get(name)?.to_str().ok()
    }

    /// Its deadlines.
    pub fn schedule(&self) -> &ResponseSchedule {
        &self.schedule
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    /// Counts its choices; 1 for what no model generated.
    pub fn choices(&self) -> u32 {
        let choices = self.generated.as_ref().map_or(1, |generated| generated.choices.len());
        u32::try_from(choices).unwrap_or(u32::MAX).max(1)
    }

    /// Sends it at its deadlines. A body is sent with its head once it is due; the head of a stream, a fault or a failure at once.
    pub async fn deliver<G, C>(
        self,
        clock: Clock,
        gate: Option<G>,
        keep_alive: Option<Duration>,
        counter: C,
    ) -> Response<ResponseBody>
    where
        G: Gate + 'static,
        C: TokenCounter + 'static,
    {
        let Self { content, schedule, chunks, end, pacing, head, at, request, failure, .. } = self;
        let is_stream = matches!(content, RecordedContent::Events(_));
        let wait = Wait { clock, class: class_of(is_stream, pacing), gate };
        // The head of a failure leaves at once: it shows its record to a client that leaves before the rest.
        let is_late_failure = failure.is_some() && schedule.events.first().is_some_and(|due| !due.is_zero());
        let response = RecordedResponse::new(content, schedule, end, counter).by_tokens(&chunks);
        let body = if is_stream || is_late_failure || end != ResponseEnd::Complete {
            let keep_alive = keep_alive.filter(|_| is_stream && request.endpoint.has_choices());
            StreamBody::new(stream_of(response, at, wait, keep_alive, Frame::data)).boxed_unsync()
        } else {
            match response.body(at, wait).await {
                Some(body) => whole_body(body),
                None => return plain(StatusCode::INTERNAL_SERVER_ERROR, "the request was aborted"),
            }
        };
        let response = head.onto(Response::new(body));
        match failure {
            Some(failure) => failure.watch(response, end == ResponseEnd::Silent),
            None => response,
        }
    }
}

impl StatusAndHeaders {
    fn onto(self, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        if let Ok(status) = StatusCode::from_u16(self.status) {
            *response.status_mut() = status;
        }
        let headers = response.headers_mut();
        // In the engine's order.
        if let Some(length) = self.length {
            put(headers, "content-length", &length.to_string());
        }
        put(headers, "content-type", self.content_type);
        let is_stream = self.content_type == EVENTS;
        let is_of_the_server = |name: &str| IS_OF_THE_SERVER.iter().any(|own| own.eq_ignore_ascii_case(name));
        for (name, value) in self.recorded.iter().filter(|(name, _)| !is_of_the_server(name)) {
            // A record may be served in another form than it was recorded in.
            let is_type = name == "content-type";
            if is_type && (is_stream || value.starts_with("text/event-stream")) {
                continue;
            }
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                if is_type {
                    headers.insert(name, value);
                } else {
                    headers.append(name, value);
                }
            }
        }
        headers.extend(self.own);
        response
    }
}

/// The record of a text that names a request, in the form of a model's.
pub(crate) fn stub(incoming: &IncomingRequest) -> CassetteRecord {
    let key: String = incoming.identity.key.to_string().chars().skip("xxh3:".len()).take(8).collect();
    let text = format!("<novel: {key}>");
    let path = incoming.path();
    let stub = Answer::of_text(Endpoint::of_path(path), &text, incoming.body.get("model"));
    let stub = stub.map_or_else(|| json!({"stub": text}), Answer::into_body);
    let content = assemble::choices(path, &stub).unwrap_or(AnswerContent::Json(stub));
    let answer = cassette::RecordedAnswer { status: 200, content, ..cassette::RecordedAnswer::default() };
    CassetteRecord { body: incoming.body.clone(), answer, ..CassetteRecord::default() }
}

/// Observer of the delivery of a failure. One that is dropped before the end leaves no mark: its client did not get it.
#[derive(Debug)]
pub(crate) struct FailureDelivery {
    pub(crate) cassette_player: Arc<CassettePlayer>,
    pub(crate) session: String,
    pub(crate) key: CanonicalKey,
    pub(crate) record: usize,
}

impl FailureDelivery {
    /// Watches the response; one that stalls never ends, and an empty body is never polled.
    pub(crate) fn watch(mut self, response: Response<ResponseBody>, stalls: bool) -> Response<ResponseBody> {
        if stalls || response.body().is_end_stream() {
            self.end(None);
            return response;
        }
        response.map(|body| Observed::new(Relayed::untouched(body), self).boxed_unsync())
    }
}

impl BodyObserver for FailureDelivery {
    fn data(&mut self, _: &Bytes) {}

    fn end(&mut self, _: Option<&BodyError>) {
        if let Some(state) = self.cassette_player.sessions.lock().get_mut(&self.session) {
            state.session.failed(self.key, self.record);
        }
    }
}
