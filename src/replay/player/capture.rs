//! Forwards a request and keeps a copy of its answer. The client's bytes go first and as they came.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::Instant;

use super::{
    assemble,
    recorder::{Recorder, Ticket},
    request::{Asked, texts},
};
use crate::{
    net::server::{AnswerBody, BodyError, RequestBody, media_type},
    net::upstream::{self, Upstream, UpstreamError},
    net::wire::SseSplitter,
    recording::cassette::{Answer, Content, Episode, Fault, Moment, Record, Side},
    replay::account::http::{put, whole},
    replay::matching::requests::Retry,
};

/// A longer answer passes, and is not recorded.
const LARGEST: usize = 256 << 20;

/// Headers of answers that are kept.
const KEPT: [&str; 3] = ["content-type", "retry-after", "x-should-retry"];
const KEPT_STARTS: [&str; 3] = ["x-ratelimit-", "openai-", "mcp-"];

type Received = upstream::Received<RequestBody>;

/// Passes a request on as it came, and its answer.
pub(super) async fn pass(upstream: &Upstream<RequestBody>, request: Request<RequestBody>) -> Response<AnswerBody> {
    match upstream.send(request).await {
        Ok(response) => copied(response, None),
        Err(error) => unreachable(&error),
    }
}

/// Sends a request upstream and answers with what comes back.
pub(super) async fn forward(
    upstream: &Upstream<RequestBody>,
    asked: Asked,
    recorder: Option<Arc<Recorder>>,
    at: Instant,
) -> Response<AnswerBody> {
    let is_retry = asked.retry() == Retry::Again;
    let record = recorder.map(|recorder| Begun { ticket: recorder.ticket(), record: record_of(&asked), is_retry, at });
    let mut request: Request<RequestBody> = asked.into_request();
    // A compressed answer could not be read.
    upstream::remove(request.headers_mut(), |name| name == header::ACCEPT_ENCODING && record.is_some());
    match upstream.send(request).await {
        Ok(response) => copied(response, record),
        Err(error) => unreachable(&error),
    }
}

fn unreachable(error: &UpstreamError) -> Response<AnswerBody> {
    let message = format!("vllm-vcr: {error}: {}", error.cause());
    tracing::warn!("{message}");
    let code = StatusCode::BAD_GATEWAY.as_u16();
    let body = json!({"error": {"message": message, "type": "UpstreamError", "param": null, "code": code}});
    let mut response = whole(code, "application/json", body.to_string());
    put(response.headers_mut(), "x-vcr-miss", "upstream_unreachable");
    response
}

/// The request's part of a record.
fn record_of(asked: &Asked) -> Record {
    Record {
        method: asked.parts.method.as_str().to_owned(),
        path: asked.target().to_owned(),
        headers: asked.counted.clone(),
        body: asked.body.clone(),
        raw: asked.raw.clone(),
        ..Record::default()
    }
}

/// A record whose answer is on its way.
#[derive(Debug)]
struct Begun {
    ticket: Ticket,
    record: Record,
    is_retry: bool,
    at: Instant,
}

fn copied(response: Response<Received>, begun: Option<Begun>) -> Response<AnswerBody> {
    let readable = !response.headers().contains_key(header::CONTENT_ENCODING);
    if !readable && let Some(Begun { record, .. }) = &begun {
        tracing::warn!("the answer to {} {} came packed and is not recorded", record.method, route_of(&record.path));
    }
    let Some(begun) = begun.filter(|_| readable) else {
        return response.map(|body| body.map_err(BodyError::broken).boxed_unsync());
    };
    let is_stream = media_type(response.headers()).starts_with("text/event-stream");
    let status = response.status().as_u16();
    let headers = texts(response.headers(), |name| {
        KEPT.contains(&name) || KEPT_STARTS.iter().any(|start| name.starts_with(start))
    });
    response.map(|body| {
        let kept = Kept {
            begun,
            status,
            headers,
            read: if is_stream {
                Read::Events(SseSplitter::default(), Vec::new())
            } else {
                Read::Body(BytesMut::new())
            },
            size: 0,
        };
        // Nobody asks for the end of what has no beginning.
        let kept = if body.is_end_stream() {
            kept.end(End::Whole);
            None
        } else {
            Some(Box::new(kept))
        };
        Copied { body, kept, broken: None }.boxed_unsync()
    })
}

/// A path without its query.
pub(super) fn route_of(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
}

/// What an answer has anyway.
pub(super) fn is_usual(name: &str, value: &str) -> bool {
    name == "content-type" && (value == "application/json" || value.starts_with("text/event-stream"))
}

/// An answer that is copied while it passes.
struct Copied {
    body: Received,
    /// Taken when it is over.
    kept: Option<Box<Kept>>,
    /// What broke it, while the server still writes what came before.
    broken: Option<BodyError>,
}

struct Kept {
    begun: Begun,
    status: u16,
    headers: Vec<(String, String)>,
    read: Read,
    size: usize,
}

enum Read {
    Events(SseSplitter, Vec<Moment>),
    Body(BytesMut),
}

/// How an answer ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    /// The upstream broke off.
    Broken,
    /// The client left.
    Left,
}

impl Kept {
    fn saw(&mut self, bytes: &Bytes) {
        self.size += bytes.len();
        if self.size > LARGEST {
            return;
        }
        let ms = (self.begun.at.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        match &mut self.read {
            Read::Body(read) => read.extend_from_slice(bytes),
            Read::Events(splitter, events) => {
                splitter.push(bytes.clone());
                while let Some(event) = splitter.next_event() {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    if let Some(data) = event.data() {
                        events.push(Moment(ms, Some(text(&data)), event.name().map(text)));
                    }
                }
            }
        }
    }

    fn end(self, end: End) {
        let Begun { ticket, mut record, is_retry, at } = self.begun;
        if self.size > LARGEST {
            return;
        }
        let mut side = Side {
            ms: (at.elapsed().as_secs_f64() * 1e6).round() / 1e3,
            recorded_at: OffsetDateTime::now_utc().format(&Rfc3339).ok(),
            ..Side::default()
        };
        let path = route_of(&record.path);
        let (assembled, seen) = match self.read {
            Read::Events(_, events) => {
                let assembled = assemble::events(path, &events);
                let seen = events.len();
                side.events = events.into();
                (assembled, seen)
            }
            Read::Body(bytes) => {
                let assembled = assemble::body(path, self.status, &bytes);
                if matches!(assembled.content, Content::Said { .. } | Content::Json(_)) {
                    side.body = String::from_utf8(bytes.to_vec()).ok();
                }
                (assembled, 0)
            }
        };
        side.head = assembled.head;
        // JSON is shown as text where it could not be shown as itself, and is JSON still.
        let is_text = matches!(assembled.content, Content::Text(_) | Content::Bytes(_));
        let headers = self.headers.into_iter().filter(|(name, value)| is_text || !is_usual(name, value)).collect();
        let fault = (end == End::Broken).then_some(Fault::Reset { after_events: seen });
        record.aborted = (end == End::Left).then_some(seen as u64);
        record.answer = Answer { status: self.status, headers, content: assembled.content, fault };
        ticket.finish(Episode { record, side, is_retry });
    }

    /// Whether all that was to come has come.
    fn is_done(&self) -> bool {
        match &self.read {
            Read::Events(_, events) => events.last().is_some_and(|Moment(_, data, _)| {
                data.as_deref().is_some_and(|data| data == "[DONE]" || is_last(data))
            }),
            Read::Body(_) => false,
        }
    }
}

/// Whether an event ends a stream of the other families.
fn is_last(data: &str) -> bool {
    ["\"type\":\"message_stop\"", "\"type\":\"response.completed\""]
        .iter()
        .any(|end| data.replace(": ", ":").contains(end))
}

impl Body for Copied {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(Some(Err(broken)));
        }
        let polled = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        match &polled {
            Some(Ok(frame)) => {
                if let (Some(bytes), Some(kept)) = (frame.data_ref(), self.kept.as_mut()) {
                    kept.saw(bytes);
                }
                // The transport may never ask for the end of a body whose length it knows.
                if self.body.is_end_stream() {
                    self.kept.take().into_iter().for_each(|kept| kept.end(End::Whole));
                }
            }
            Some(Err(_)) => {
                self.kept.take().into_iter().for_each(|kept| kept.end(End::Broken));
                self.broken = polled.and_then(Result::err).map(BodyError::broken);
                // The server writes what it has when nothing more is ready, and not any more after an error.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => self.kept.take().into_iter().for_each(|kept| kept.end(End::Whole)),
        }
        Poll::Ready(polled.map(|frame| frame.map_err(BodyError::broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.kept.is_none() && self.broken.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            let end = if kept.is_done() { End::Whole } else { End::Left };
            kept.end(end);
        }
    }
}
