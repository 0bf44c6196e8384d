//! Bodies on their way through: what is sent upstream, and an answer that is watched while it passes.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use super::{
    amend::Added,
    event::StreamEvent,
    exchange::Exchange,
    learned::{Fingerprint, Learned},
    restore::{Restored, restore_event},
    said::Said,
};
use crate::{
    trace::Outcome,
    upstream,
    wire::{Event, SseSplitter},
};

/// An event longer than this is passed on without being looked at, and so is the rest of its stream.
const LONGEST_EVENT: usize = 16 << 20;

/// What a longer answer says is not read.
const LONGEST_COPY: usize = 16 << 20;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The connection broke, or its bytes are no HTTP.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// It paused for longer than it may.
    #[error("nothing came for {0:?}")]
    Idle(Duration),
}

impl BodyError {
    /// The outcome of an exchange whose answer ended so.
    fn outcome(&self) -> Outcome {
        match self {
            Self::Broken(_) => Outcome::UpstreamFailed,
            Self::Idle(_) => Outcome::TimedOut,
        }
    }
}

/// A request's body on its way to the upstream.
pub(super) type Sent = Relayed<Incoming>;

/// What the upstream sends back.
pub(super) type Received = upstream::Received<Sent>;

/// Bytes that were already received, then what is still to come.
#[derive(Debug)]
pub(super) struct Relayed<R> {
    first: Option<Bytes>,
    rest: Option<R>,
    idle: Option<Box<Idle>>,
}

/// A limit on pauses.
#[derive(Debug)]
struct Idle {
    limit: Duration,
    /// Running while nothing comes.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<R> Relayed<R> {
    /// A body that is all there.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { first: Some(bytes), rest: None, idle: None }
    }

    /// A body of which nothing was taken.
    pub(super) fn untouched(body: R) -> Self {
        Self { first: None, rest: Some(body), idle: None }
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

impl<R: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for Relayed<R> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = self.rest.as_mut() else { return Poll::Ready(None) };
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
        polled.map_err(BodyError::Broken)
    }

    fn is_end_stream(&self) -> bool {
        self.first.as_ref().is_none_or(Bytes::is_empty) && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
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
    Timed(Relayed<Received>, Exchange),
    /// It is read when it has passed.
    Copied(Box<Copied>),
    /// A stream whose events are looked at.
    Watched(Box<Watched>),
}

/// JSON of another API, on its way to the client.
#[derive(Debug)]
pub(super) struct Copied {
    body: Relayed<Received>,
    exchange: Exchange,
    copy: BytesMut,
}

impl Copied {
    pub(super) fn new(body: Relayed<Received>, exchange: Exchange) -> Self {
        Self { body, exchange, copy: BytesMut::new() }
    }

    fn saw(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref().filter(|data| self.copy.len() + data.len() <= LONGEST_COPY) {
                    self.copy.extend_from_slice(data);
                }
                if self.body.is_end_stream() {
                    self.end();
                }
            }
            Some(Err(error)) => self.exchange.end(error.outcome()),
            None => self.end(),
        }
    }

    fn end(&mut self) {
        let at = self.exchange.elapsed();
        if let (Some(findings), Some(said)) = (self.exchange.findings(), Said::read(&self.copy)) {
            findings.saw_whole(said, at);
        }
        self.exchange.unread();
        self.exchange.end_of_answer();
    }
}

/// A stream of events that is looked at, and restored, while it passes.
#[derive(Debug)]
pub(super) struct Watched {
    upstream: Relayed<Received>,
    exchange: Exchange,
    learned: Arc<Learned>,
    added: Added,
    fingerprint: Option<Fingerprint>,
    /// `None` once the stream turned out not to be worth looking at.
    splitter: Option<SseSplitter>,
    /// Restored events that wait to be sent.
    ready: VecDeque<Bytes>,
    /// What follows them: trailers, or that the upstream broke.
    last: Option<Result<Frame<Bytes>, BodyError>>,
    /// Whether the server had a chance to write what came before an error.
    is_flushed: bool,
}

impl Watched {
    /// Watches `upstream`, the answer of a request to which `added` was added.
    pub(super) fn new(upstream: Relayed<Received>, exchange: Exchange, added: Added, learned: Arc<Learned>) -> Self {
        let fingerprint = learned.fingerprint();
        let splitter = Some(SseSplitter::default());
        Self {
            upstream,
            exchange,
            learned,
            added,
            fingerprint,
            splitter,
            ready: VecDeque::new(),
            last: None,
            is_flushed: false,
        }
    }

    /// Looks at what arrived. Where nothing has to be restored the bytes pass as they are.
    fn received(&mut self, bytes: Bytes) {
        let at = self.exchange.elapsed();
        let Some(mut splitter) = self.splitter.take() else {
            self.ready.push_back(bytes);
            return;
        };
        splitter.push(&bytes);
        if !self.added.any() {
            self.ready.push_back(bytes);
        }
        while let Some(event) = splitter.next_event() {
            let restored = self.look_at(&event, at);
            if self.added.any() {
                match restored {
                    Restored::Kept => self.ready.push_back(event.raw),
                    Restored::Edited(bytes) => self.ready.push_back(bytes),
                    Restored::Dropped => {}
                }
            }
        }
        if splitter.pending_len() <= LONGEST_EVENT {
            self.splitter = Some(splitter);
            return;
        }
        self.exchange.unread();
        if self.added.any() {
            self.ready.push_back(splitter.take_rest());
        }
    }

    fn look_at(&mut self, event: &Event, at: Duration) -> Restored {
        let Some(payload) = event.data() else { return Restored::Kept };
        let Some(findings) = self.exchange.findings() else { return Restored::Kept };
        if payload.as_ref() == b"[DONE]" {
            findings.saw_done();
            return Restored::Kept;
        }
        if !findings.facts.has_choices() {
            if let Some(said) = Said::read(&payload) {
                findings.saw_said(said, at);
            }
            return Restored::Kept;
        }
        let Some(parsed) = StreamEvent::read(&payload) else { return Restored::Kept };
        findings.saw_event(&parsed, at);
        let client_wants_usage = findings.facts.wants_usage;
        self.learn(&parsed, client_wants_usage);
        restore_event(event, &payload, &parsed, self.added, self.fingerprint.as_ref())
    }

    fn learn(&self, event: &StreamEvent<'_>, client_wants_usage: bool) {
        let fingerprint = event.system_fingerprint.as_deref();
        if event.is_usage_only() {
            if self.added.usage {
                self.learned.compare_fingerprint(fingerprint);
            } else if !client_wants_usage {
                self.learned.saw_forced_usage();
            }
        } else if !client_wants_usage
            && !self.added.usage
            && self.fingerprint.is_none()
            && event.choices.iter().any(|choice| choice.finish_reason.is_some())
        {
            self.learned.saw_fingerprint(fingerprint);
        }
    }

    fn rest(&mut self) -> Option<Bytes> {
        let rest = self.splitter.take()?.take_rest();
        (self.added.any() && !rest.is_empty()).then_some(rest)
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(last) = self.last.take() {
                if last.is_err() && !std::mem::replace(&mut self.is_flushed, true) {
                    // The server writes what it has when nothing more is ready, and not any more after an error.
                    self.last = Some(last);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return Poll::Ready(Some(last));
            }
            match std::task::ready!(Pin::new(&mut self.upstream).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.received(bytes),
                    Err(trailers) => self.last = Some(Ok(trailers)),
                },
                Some(Err(error)) => {
                    tracing::debug!(%error, "the upstream broke off in the middle of a stream");
                    self.exchange.end(error.outcome());
                    let rest = self.rest();
                    self.ready.extend(rest);
                    self.last = Some(Err(error));
                }
                None => {
                    self.exchange.end_of_answer();
                    let Some(rest) = self.rest() else { return Poll::Ready(None) };
                    self.ready.push_back(rest);
                }
            }
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
            Self::Watched(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Copied(copied) => {
                let polled = std::task::ready!(Pin::new(&mut copied.body).poll_frame(cx));
                copied.saw(polled.as_ref());
                Poll::Ready(polled)
            }
            Self::Timed(body, exchange) => {
                let polled = std::task::ready!(Pin::new(&mut *body).poll_frame(cx));
                match &polled {
                    None => exchange.end_of_answer(),
                    Some(Err(error)) => exchange.end(error.outcome()),
                    // The transport may never ask for the end of a body whose length it knows.
                    Some(Ok(_)) if body.is_end_stream() => exchange.end_of_answer(),
                    Some(Ok(_)) => {}
                }
                Poll::Ready(polled)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passed(body) | Self::Timed(body, _) => body.is_end_stream(),
            Self::Copied(copied) => copied.body.is_end_stream(),
            Self::Empty | Self::Watched(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Passed(body) | Self::Timed(body, _) => body.size_hint(),
            Self::Copied(copied) => copied.body.size_hint(),
            Self::Watched(_) => SizeHint::default(),
        }
    }
}
