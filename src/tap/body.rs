//! Bodies on their way through: what is sent upstream, and what comes back.

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

use super::{exchange::Exchange, observed_stream::ObservedStream, other_answers::Said, refusal::Refusal};
use crate::{
    net::server::{self, RequestBody, ResponseBody},
    net::upstream::{self, UpstreamBodyError},
    recording::trace::Outcome,
};

/// What a longer answer says is not read.
const LONGEST_COPY: usize = 16 << 20;

/// The same of an answer that is recorded in a cassette.
const LONGEST_IN_CASSETTE: usize = 256 << 20;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The connection broke, or its bytes are no HTTP.
    #[error(transparent)]
    Broken(#[from] UpstreamBodyError),
    /// It paused for longer than it may.
    #[error("nothing came for {0:?}")]
    Idle(Duration),
    /// A recorded response that breaks off.
    #[error(transparent)]
    Played(server::BodyError),
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        Self::Broken(error.into())
    }
}

impl BodyError {
    /// The outcome of an exchange whose answer ended so.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Broken(_) | Self::Played(_) => Outcome::UpstreamFailed,
            Self::Idle(_) => Outcome::TimedOut,
        }
    }
}

/// A request's body on its way to the upstream.
pub(super) type Sent = Relayed<Incoming>;

/// What the upstream sends back.
pub(super) type Received = upstream::UpstreamBody<Sent>;

/// Bytes that were already received, then what is still to come.
#[derive(Debug)]
pub(super) struct Relayed<R> {
    first: Option<Bytes>,
    rest: Option<R>,
    /// The trailers of a body that is all there.
    trailers: Option<Box<HeaderMap>>,
    idle: Option<Box<Idle>>,
    /// What broke it, while whoever sends it on still writes what came before.
    broken: Option<BodyError>,
}

/// A limit on pauses.
#[derive(Debug)]
struct Idle {
    limit: Duration,
    /// Running while nothing comes.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Relayed<Incoming> {
    /// The body of a request that the player left to the tap.
    pub(super) fn left(body: RequestBody, idle: Option<Duration>) -> Self {
        match body {
            RequestBody::Live(body) => Self::untouched(body).within(idle),
            RequestBody::Read(bytes) => Self::whole(bytes.unwrap_or_default()),
            // No router is before the tap.
            RequestBody::Boxed(_) => Self::whole(Bytes::new()),
        }
    }
}

impl<R> Relayed<R> {
    /// A body that is all there.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { first: Some(bytes), rest: None, trailers: None, idle: None, broken: None }
    }

    /// The same, with these trailers after it.
    pub(super) fn with_trailers(self, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { trailers, ..self }
    }

    /// A body of which nothing was taken.
    pub(super) fn untouched(body: R) -> Self {
        Self { first: None, rest: Some(body), trailers: None, idle: None, broken: None }
    }

    /// A body of which `first` was taken.
    pub(super) fn resumed(first: Bytes, rest: Self) -> Self {
        Self { first: Some(first), ..rest }
    }

    /// The same, and it may not pause for longer than that.
    pub(super) fn within(self, limit: Option<Duration>) -> Self {
        Self { idle: limit.map(|limit| Box::new(Idle { limit, pause: None })), ..self }
    }
}

impl Idle {
    /// Whether the pause that begins or goes on now is too long.
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
                // The server writes what it has when nothing more is ready, and not any more after an error.
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
        // Trailers need a body whose length is not told.
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

/// An answer on its way to the client.
#[derive(Debug)]
pub(super) enum Answer {
    /// There is none, and it was said so.
    Empty,
    /// Nothing looks at it.
    Passed(Relayed<Received>),
    /// Its end is an exchange's end, its bytes are not looked at (errors, unknown formats).
    Timed(Timed),
    /// It is read when it has passed.
    Copied(Box<Copied>),
    /// A stream whose events are looked at.
    ObservedStream(Box<ObservedStream>),
    /// The player's.
    Played(Box<ResponseBody>),
}

/// An answer whose bytes are not read, on its way to the client.
#[derive(Debug)]
pub(super) struct Timed {
    body: Relayed<Received>,
    exchange: Exchange,
    /// What is kept of it, where it is an error.
    refusal: Option<Box<Refusal>>,
}

impl Timed {
    pub(super) fn new(body: Relayed<Received>, exchange: Exchange, refusal: Option<Refusal>) -> Self {
        Self { body, exchange, refusal: refusal.map(Box::new) }
    }

    fn saw(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        match frame {
            Some(Ok(frame)) => {
                if let (Some(refusal), Some(data)) = (&mut self.refusal, frame.data_ref()) {
                    refusal.push(data);
                }
                // The transport may never ask for the end of a body whose length it knows.
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
    reading: Reading,
    copy: BytesMut,
    longest: usize,
    /// Whether there is more than the copy holds.
    is_cut: bool,
    /// What is kept of it, where it is an error.
    refusal: Option<Box<Refusal>>,
}

/// What is read of a body that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// What JSON of another API says.
    Content,
    /// Nothing.
    Nothing,
}

impl Copied {
    pub(super) fn new(body: Relayed<Received>, exchange: Exchange, reading: Reading) -> Self {
        let longest = if exchange.is_for_cassette() { LONGEST_IN_CASSETTE } else { LONGEST_COPY };
        Self { body, exchange, reading, copy: BytesMut::new(), longest, is_cut: false, refusal: None }
    }

    /// The same, of an error of which so much is kept.
    pub(super) fn refused_as(mut self, refusal: Option<Refusal>) -> Self {
        self.refusal = refusal.map(Box::new);
        self
    }

    fn saw(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        match frame {
            Some(Ok(frame)) => {
                match frame.data_ref() {
                    Some(data) if self.copy.len() + data.len() <= self.longest => self.copy.extend_from_slice(data),
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

    /// Gives the copy to the record.
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
        let said = if self.reading == Reading::Content { Said::read(&self.copy) } else { None };
        if let (Some(observed), Some(said)) = (self.exchange.observed(), said) {
            observed.saw_whole(said, at);
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
        // The client left in the middle: a cassette has what came until then.
        if self.exchange.is_for_cassette() {
            self.capture();
        }
    }
}

impl Body for Answer {
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
                copied.saw(polled.as_ref());
                Poll::Ready(polled)
            }
            Self::Timed(timed) => {
                let polled = std::task::ready!(Pin::new(&mut timed.body).poll_frame(cx));
                timed.saw(polled.as_ref());
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
