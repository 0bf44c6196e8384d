//! Bodies of forwarded requests and of their responses.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::{exchange::Exchange, observed_stream::ObservedStream, other_apis::ApiEvent, refusal::Refusal};
use crate::{
    net::server::{self, RequestBody, ResponseBody},
    net::upstream::{self, UpstreamBodyError},
    recording::trace::Outcome,
};

/// Maximum size of a response that is decoded, in bytes.
const MAX_COPY: usize = 16 << 20;

/// Maximum size of a response that is recorded in a cassette, in bytes.
const MAX_COPY_FOR_CASSETTE: usize = 256 << 20;

/// Error that ends a body early.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The connection broke, or its bytes are no HTTP.
    #[error(transparent)]
    Broken(#[from] UpstreamBodyError),
    /// No byte came for longer than the idle limit.
    #[error("nothing came for {0:?}")]
    Idle(Duration),
    /// A recorded response that ends in a connection error.
    #[error(transparent)]
    Played(server::BodyError),
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        Self::Broken(error.into())
    }
}

impl BodyError {
    /// Returns the outcome of an exchange whose response ended with this error.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Broken(_) | Self::Played(_) => Outcome::UpstreamFailed,
            Self::Idle(_) => Outcome::TimedOut,
        }
    }
}

/// A request's body on its way to the upstream.
pub(super) type Sent = Relayed<Incoming>;

/// A response's body from the upstream.
pub(super) type Received = upstream::UpstreamBody<Sent>;

/// Bytes that were already received, followed by the rest of their body.
#[derive(Debug)]
pub(super) struct Relayed<R> {
    first: Option<Bytes>,
    rest: Option<R>,
    /// Trailers of a whole body.
    trailers: Option<Box<HeaderMap>>,
    idle: Option<Box<Idle>>,
    /// Error of the body, held back until the bytes before it are written.
    broken: Option<BodyError>,
}

/// Idle limit of a body.
#[derive(Debug)]
struct Idle {
    limit: Duration,
    /// Timer that runs while no byte comes.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Relayed<Incoming> {
    /// The body of a request that the player does not answer.
    pub(super) fn left(body: RequestBody, idle: Option<Duration>) -> Self {
        match body {
            RequestBody::Live(body) => Self::untouched(body).within(idle),
            RequestBody::Read(bytes) => Self::whole(bytes.unwrap_or_default()),
            // Boxed bodies come from a router, and the tap has none before it.
            RequestBody::Boxed(_) => Self::whole(Bytes::new()),
        }
    }
}

impl<R> Relayed<R> {
    /// A body that was received whole.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { first: Some(bytes), rest: None, trailers: None, idle: None, broken: None }
    }

    /// Adds trailers.
    pub(super) fn with_trailers(self, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { trailers, ..self }
    }

    /// A body of which nothing was read.
    pub(super) fn untouched(body: R) -> Self {
        Self { first: None, rest: Some(body), trailers: None, idle: None, broken: None }
    }

    /// Puts `first`, which was read from the body, before its rest.
    pub(super) fn resumed(first: Bytes, rest: Self) -> Self {
        Self { first: Some(first), ..rest }
    }

    /// Sets the idle limit.
    pub(super) fn within(self, limit: Option<Duration>) -> Self {
        Self { idle: limit.map(|limit| Box::new(Idle { limit, pause: None })), ..self }
    }
}

impl Idle {
    /// Polls the timer, starting it if necessary. True once the limit is reached.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.limit;
        self.pause.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx).is_ready()
    }
}

impl<R: Body<Data = Bytes, Error: Into<BodyError>> + Unpin> Body for Relayed<R> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = self.rest.as_mut() else {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))));
        };
        let polled = Pin::new(rest).poll_frame(cx);
        if let Some(idle) = &mut self.idle {
            if polled.is_ready() {
                idle.pause = None;
            } else if idle.is_over(cx) {
                let limit = idle.limit;
                self.rest = None;
                return Poll::Ready(Some(Err(BodyError::Idle(limit))));
            }
        }
        match polled {
            Poll::Ready(Some(Err(error))) => {
                // The server writes its buffer when a body is pending but not after an error, so the bytes before it would be lost.
                (self.rest, self.broken) = (None, Some(error.into()));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled.map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.as_ref().is_none_or(Bytes::is_empty)
            && self.trailers.is_none()
            && self.broken.is_none()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        // HTTP/1.1 sends trailers only after a body without `content-length`.
        let nothing = || if self.trailers.is_some() { SizeHint::default() } else { SizeHint::with_exact(0) };
        let mut hint = self.rest.as_ref().map_or_else(nothing, Body::size_hint);
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + first);
        }
        hint.set_lower(hint.lower() + first);
        hint
    }
}

/// A response's body on its way to the client.
#[derive(Debug)]
pub(super) enum ProxyBody {
    /// Empty, with `content-length: 0`.
    Empty,
    /// Not recorded.
    Passed(Relayed<Received>),
    /// Recorded without its content (errors, unknown formats); its end is the exchange's end.
    Timed(Timed),
    /// Decoded from a copy once it has passed.
    Copied(Box<Copied>),
    /// A stream whose events are observed.
    ObservedStream(Box<ObservedStream>),
    /// A recorded response of the player.
    Played(Box<ResponseBody>),
}

/// A response's body that is not decoded.
#[derive(Debug)]
pub(super) struct Timed {
    body: Relayed<Received>,
    exchange: Exchange,
    /// The error to record, if the response is one.
    refusal: Option<Box<Refusal>>,
}

impl Timed {
    pub(super) fn new(body: Relayed<Received>, exchange: Exchange, refusal: Option<Refusal>) -> Self {
        Self { body, exchange, refusal: refusal.map(Box::new) }
    }

    fn observe_frame(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        match frame {
            Some(Ok(frame)) => {
                if let (Some(refusal), Some(data)) = (&mut self.refusal, frame.data_ref()) {
                    refusal.push(data);
                }
                // hyper does not poll a body of known length once it has all bytes.
                if self.body.is_end_stream() {
                    self.end();
                }
            }
            Some(Err(error)) => self.exchange.end(error.outcome()),
            None => self.end(),
        }
    }

    fn end(&mut self) {
        if let Some(refusal) = self.refusal.take() {
            self.exchange.refused(*refusal);
        }
        self.exchange.end_of_answer();
    }
}

/// A body that is copied on its way to the client.
#[derive(Debug)]
pub(super) struct Copied {
    body: Relayed<Received>,
    exchange: Exchange,
    /// The copy is decoded as the JSON of another API.
    is_decoded: bool,
    copy: BytesMut,
    /// Maximum size of the copy, in bytes.
    limit: usize,
    /// The body is longer than the copy.
    is_cut: bool,
    /// The error to record, if the response is one.
    refusal: Option<Box<Refusal>>,
}

impl Copied {
    pub(super) fn new(body: Relayed<Received>, exchange: Exchange) -> Self {
        let limit = if exchange.is_for_cassette() { MAX_COPY_FOR_CASSETTE } else { MAX_COPY };
        Self { body, exchange, is_decoded: false, copy: BytesMut::new(), limit, is_cut: false, refusal: None }
    }

    /// Decodes the copy as the JSON of another API, once it is whole.
    pub(super) fn decoded(mut self) -> Self {
        self.is_decoded = true;
        self
    }

    /// Adds the error to record.
    pub(super) fn refused_as(mut self, refusal: Option<Refusal>) -> Self {
        self.refusal = refusal.map(Box::new);
        self
    }

    fn observe_frame(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        match frame {
            Some(Ok(frame)) => {
                match frame.data_ref() {
                    Some(data) if self.copy.len() + data.len() <= self.limit => self.copy.extend_from_slice(data),
                    Some(_) => self.is_cut = true,
                    None => {}
                }
                if self.body.is_end_stream() {
                    self.end();
                }
            }
            Some(Err(error)) => {
                self.capture();
                self.exchange.end(error.outcome());
            }
            None => self.end(),
        }
    }

    /// Moves the copy into the record.
    fn capture(&mut self) {
        if let Some(capture) = self.exchange.capture() {
            if self.is_cut {
                capture.lose();
            } else {
                capture.body(self.copy.split().freeze());
            }
        }
    }

    fn end(&mut self) {
        let at = self.exchange.elapsed();
        let event = if self.is_decoded { ApiEvent::read(&self.copy) } else { None };
        if let (Some(observed), Some(event)) = (self.exchange.observed(), event) {
            observed.observe_api_response(event, at);
        }
        if let Some(mut refusal) = self.refusal.take() {
            refusal.push(&self.copy);
            self.exchange.refused(*refusal);
        }
        self.capture();
        self.exchange.unread();
        self.exchange.end_of_answer();
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // A client that leaves early: a cassette records the bytes until then.
        if self.exchange.is_for_cassette() {
            self.capture();
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Passed(body) => Pin::new(body).poll_frame(cx),
            Self::ObservedStream(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Played(body) => Pin::new(body.as_mut()).poll_frame(cx).map_err(BodyError::Played),
            Self::Copied(copied) => {
                let polled = std::task::ready!(Pin::new(&mut copied.body).poll_frame(cx));
                copied.observe_frame(polled.as_ref());
                Poll::Ready(polled)
            }
            Self::Timed(timed) => {
                let polled = std::task::ready!(Pin::new(&mut timed.body).poll_frame(cx));
                timed.observe_frame(polled.as_ref());
                Poll::Ready(polled)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passed(body) => body.is_end_stream(),
            Self::Timed(timed) => timed.body.is_end_stream(),
            Self::Copied(copied) => copied.body.is_end_stream(),
            Self::Played(body) => body.is_end_stream(),
            Self::Empty | Self::ObservedStream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Passed(body) => body.size_hint(),
            Self::Timed(timed) => timed.body.size_hint(),
            Self::Copied(copied) => copied.body.size_hint(),
            Self::ObservedStream(_) => SizeHint::default(),
            Self::Played(body) => body.size_hint(),
        }
    }
}
