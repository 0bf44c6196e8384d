//! Forwards a request to the upstream and copies its response for the recorder. The client's bytes go first and as they came.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::time::Instant;

use super::{
    recorder::{CassetteRecorder, PendingExchange},
    request::Asked,
};
use crate::{
    net::server::{AnswerBody, BodyError, RequestBody, media_type},
    net::upstream::{self, Upstream, UpstreamError},
    recording::{capture::Capture, exchange::ExchangeRequest, trace::Outcome},
    replay::account::http::{put, whole},
    replay::matching::requests::Retry,
};

type Received = upstream::UpstreamBody<RequestBody>;

/// Forwards a request as it came; its response is not recorded.
pub(super) async fn pass(upstream: &Upstream<RequestBody>, request: Request<RequestBody>) -> Response<AnswerBody> {
    match upstream.send(request).await {
        Ok(response) => response.map(|body| body.map_err(BodyError::broken).boxed_unsync()),
        Err(error) => unreachable(&error),
    }
}

/// Forwards a request, and records the exchange where there is a recorder.
pub(super) async fn forward(
    upstream: &Upstream<RequestBody>,
    asked: Asked,
    recorder: Option<Arc<CassetteRecorder>>,
    at: Instant,
) -> Response<AnswerBody> {
    let pending = recorder.map(|recorder| recorder.begin(request_of(&asked), at));
    let mut request: Request<RequestBody> = asked.into_request();
    // A compressed response could not be read.
    upstream::remove(request.headers_mut(), |name| name == header::ACCEPT_ENCODING && pending.is_some());
    match upstream.send(request).await {
        Ok(response) => copied(response, pending),
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

/// The request's part of an exchange.
pub(super) fn request_of(asked: &Asked) -> ExchangeRequest {
    ExchangeRequest {
        method: asked.parts.method.as_str().to_owned(),
        target: asked.target().to_owned(),
        headers: asked.counted.clone(),
        body: asked.body.clone(),
        raw: asked.raw.clone(),
        size: asked.bytes.len(),
        is_retry: asked.retry() == Retry::Again,
    }
}

fn copied(response: Response<Received>, pending: Option<PendingExchange>) -> Response<AnswerBody> {
    let is_readable = !response.headers().contains_key(header::CONTENT_ENCODING);
    let Some(mut pending) = pending.filter(|pending| is_readable || pending.give_up("came compressed")) else {
        return response.map(|body| body.map_err(BodyError::broken).boxed_unsync());
    };
    let is_stream = media_type(response.headers()).starts_with("text/event-stream");
    pending.status = response.status().as_u16();
    let mut capture = pending.capture();
    capture.headers(response.headers());
    if is_stream {
        capture = capture.splitting();
    }
    response.map(|body| {
        // Nobody asks for the end of a body that is empty.
        let recording = if body.is_end_stream() {
            pending.end(capture, Outcome::Finished);
            None
        } else {
            Some(Box::new(Recording { pending, capture }))
        };
        Copied { body, recording, broken: None }.boxed_unsync()
    })
}

/// A response that is copied while it passes.
struct Copied {
    body: Received,
    /// Taken when the exchange ends.
    recording: Option<Box<Recording>>,
    /// What broke it, while the server still writes what came before.
    broken: Option<BodyError>,
}

struct Recording {
    pending: PendingExchange,
    capture: Capture,
}

impl Copied {
    fn end(&mut self, outcome: Outcome) {
        if let Some(recording) = self.recording.take() {
            let Recording { pending, capture } = *recording;
            pending.end(capture, outcome);
        }
    }
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
                if let (Some(bytes), Some(recording)) = (frame.data_ref(), self.recording.as_mut()) {
                    let at = recording.pending.elapsed();
                    recording.capture.received(bytes, at);
                }
                // The transport may never ask for the end of a body whose length it knows.
                if self.body.is_end_stream() {
                    self.end(Outcome::Finished);
                }
            }
            Some(Err(_)) => {
                self.end(Outcome::UpstreamFailed);
                self.broken = polled.and_then(Result::err).map(BodyError::broken);
                // The server writes what it has when nothing more is ready, and not any more after an error.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => self.end(Outcome::Finished),
        }
        Poll::Ready(polled.map(|frame| frame.map_err(BodyError::broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.recording.is_none() && self.broken.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let is_whole = self.recording.as_ref().is_some_and(|recording| recording.capture.is_whole_stream());
        self.end(if is_whole { Outcome::Finished } else { Outcome::ClientGone });
    }
}
