//! Bodies of responses on their way to the client.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use super::{exchange::OpenExchange, observed_stream::ObservedStream, other_apis::ApiEvent, refusal::Refusal};
use net::{
    server::{BodyError, ResponseBody},
    upstream::{BodyObserver, Observed, Relayed, UpstreamBody},
};
use recording::exchange::outcome_of;
use replay::{
    mcp_traffic::ExchangeObserver,
    player::{Completed, Completions},
};

/// Maximum size of a response that is decoded, in bytes.
const MAX_COPY: usize = 16 << 20;

/// Maximum size of a response that is recorded in a cassette, in bytes.
const MAX_COPY_FOR_CASSETTE: usize = 256 << 20;

/// A response's body on its way to the client.
#[derive(Debug)]
pub(super) enum ProxyBody {
    /// Empty, with `content-length: 0`.
    Empty,
    /// Not recorded.
    Passed(Relayed<UpstreamBody>),
    /// Recorded once it has passed: from a copy, or without its content.
    Copied(Box<Completed<Observed<UpstreamBody, Copied>>>),
    ObservedStream(Box<Completed<ObservedStream>>),
    Mcp(Box<Observed<UpstreamBody, ExchangeObserver>>),
    /// A recorded response of the player.
    Played(Box<ResponseBody>),
}

/// Observer of a response that is recorded when it ends, which is the exchange's end.
#[derive(Debug)]
pub(super) struct Copied {
    exchange: OpenExchange,
    /// The copy is decoded as the JSON of another API.
    is_decoded: bool,
    copy: BytesMut,
    /// Maximum size of the copy, in bytes; 0 for a response that is not copied.
    limit: usize,
    is_cut: bool,
    /// The error to record, if the response is one.
    refusal: Option<Box<Refusal>>,
}

impl Copied {
    pub(super) fn new(exchange: OpenExchange) -> Self {
        let limit = if exchange.is_for_cassette() { MAX_COPY_FOR_CASSETTE } else { MAX_COPY };
        Self { exchange, is_decoded: false, copy: BytesMut::new(), limit, is_cut: false, refusal: None }
    }

    /// Creates the observer of a response of which only the times are recorded, and the error if it is one.
    pub(super) fn unread(mut exchange: OpenExchange) -> Self {
        exchange.observed.unread = true;
        let mut observer = Self::new(exchange);
        observer.limit = 0;
        observer
    }

    /// The completions of its cassette, if it is recorded in one.
    pub(super) fn completions(&self) -> Option<Arc<Completions>> {
        if self.limit > 0 { self.exchange.completions() } else { None }
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
}

impl BodyObserver for Copied {
    fn data(&mut self, bytes: &Bytes) {
        if self.copy.len() + bytes.len() <= self.limit {
            self.copy.extend_from_slice(bytes);
        } else {
            self.is_cut = true;
        }
        self.refusal.iter_mut().for_each(|refusal| refusal.push(bytes));
    }

    fn end(&mut self, error: Option<&BodyError>) {
        if let Some(error) = error {
            self.capture();
            return self.exchange.end(outcome_of(error));
        }
        let at = self.exchange.elapsed();
        let event = if self.is_decoded { ApiEvent::read(&self.copy) } else { None };
        if let Some(event) = event {
            self.exchange.observed.observe_api_response(event, at);
        }
        if let Some(refusal) = self.refusal.take() {
            self.exchange.observed.refusal = Some(*refusal);
        }
        self.capture();
        self.exchange.observed.unread = true;
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
            Self::Played(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Copied(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Mcp(body) => Pin::new(body.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl ProxyBody {
    /// Returns the body that is passed on; `None` for an empty one.
    fn inner(&self) -> Option<&dyn Body<Data = Bytes, Error = BodyError>> {
        Some(match self {
            Self::Empty => return None,
            Self::Passed(body) => body,
            Self::Copied(body) => body.as_ref(),
            Self::ObservedStream(body) => body.as_ref(),
            Self::Mcp(body) => body.as_ref(),
            Self::Played(body) => body.as_ref(),
        })
    }
}
