//! Requests that go upstream. `play` forwards them here and copies their responses for the recorder, the client's bytes first and as
//! they came; the tap forwards them itself.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::time::Instant;
use tower_service::Service;

use super::{CassettePlayer, forwarding::Plan, recorder::PendingExchange, request::IncomingRequest};
use crate::{
    net::server::{BodyError, RequestBody, ResponseBody, media_type},
    net::upstream::{self, Upstream, UpstreamError},
    recording::{capture::Capture, exchange::ExchangeRequest, trace::Outcome},
    replay::account::{
        self, Admin, Ledger,
        http::{plain, put, whole},
    },
    replay::matching::requests::Retry,
};

type Received = upstream::UpstreamBody<RequestBody>;

/// A request that goes upstream.
#[derive(Debug)]
pub(crate) struct Forward {
    /// It, its body read.
    pub(crate) request: Request<RequestBody>,
    /// The exchange that it begins, where it is recorded.
    pub(crate) pending: Option<PendingExchange>,
}

impl CassettePlayer {
    /// A request that goes upstream, and is recorded where it is to be.
    pub(super) fn begin_forward(&self, asked: IncomingRequest, plan: Plan, at: Instant) -> Forward {
        self.lock().entry(asked.session.clone()).or_default().forwarded += 1;
        let recorder = self.recorder.as_ref().filter(|_| plan == Plan::Record);
        let pending = recorder.map(|recorder| recorder.begin(request_of(&asked), at));
        let mut request = asked.into_request();
        // A compressed response could not be read.
        upstream::remove(request.headers_mut(), |name| name == header::ACCEPT_ENCODING && pending.is_some());
        Forward { request, pending }
    }

    /// Answers a request with the response of the upstream.
    pub(super) async fn forward(&self, Forward { request, pending }: Forward) -> Response<ResponseBody> {
        match &self.upstream {
            Some(upstream) => forward(upstream, request, pending).await,
            None => plain(StatusCode::BAD_GATEWAY, "there is no upstream"),
        }
    }

    /// Answers `/vcr/…` where that is served beside everything else.
    ///
    /// # Errors
    /// With any other request.
    pub(crate) async fn administer(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Box<Request<Incoming>>> {
        let Admin::Here(access) = &self.config.admin else { return Err(Box::new(request)) };
        if !request.uri().path().starts_with("/vcr/") {
            return Err(Box::new(request));
        }
        let mut router = account::router(Arc::clone(self) as Arc<dyn Ledger>, access.clone());
        let response = router.call(request).await.unwrap_or_else(|never: Infallible| match never {});
        Ok(response.map(|body| body.map_err(BodyError::broken).boxed_unsync()))
    }

    /// Whether a request that the player passes on may go upstream.
    pub(crate) fn may_relay(&self, method: &Method, path: &str) -> bool {
        let looks = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
        self.config.mode.records() || (looks && !path.starts_with("/v1/"))
    }

    /// A request that the player passed on, where it may go upstream: where only records answer, nothing leaves but the question how
    /// the server does.
    ///
    /// # Errors
    /// With the response, where it may not.
    pub(crate) fn relayed(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Request<RequestBody>, Box<Response<ResponseBody>>> {
        if self.may_relay(request.method(), request.uri().path()) {
            return Ok(request);
        }
        Err(Box::new(plain(StatusCode::NOT_FOUND, "this was not recorded, and it does not go upstream")))
    }
}

async fn forward(
    upstream: &Upstream<RequestBody>,
    request: Request<RequestBody>,
    pending: Option<PendingExchange>,
) -> Response<ResponseBody> {
    match upstream.send(request).await {
        Ok(response) => copied(response, pending),
        Err(error) => unreachable(&error),
    }
}

fn unreachable(error: &UpstreamError) -> Response<ResponseBody> {
    let message = format!("vllm-vcr: {error}: {}", error.cause());
    tracing::warn!("{message}");
    let code = StatusCode::BAD_GATEWAY.as_u16();
    let body = json!({"error": {"message": message, "type": "UpstreamError", "param": null, "code": code}});
    let mut response = whole(code, "application/json", body.to_string());
    put(response.headers_mut(), "x-vcr-miss", "upstream_unreachable");
    response
}

/// The request's part of an exchange.
fn request_of(asked: &IncomingRequest) -> ExchangeRequest {
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

fn copied(response: Response<Received>, pending: Option<PendingExchange>) -> Response<ResponseBody> {
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
            pending.end(capture, Vec::new(), Outcome::Finished);
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
            pending.end(capture, Vec::new(), outcome);
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
