//! The body of a response, which polls its connection.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{
    connection::{Connection, IncomingBody},
    error::UpstreamBodyError,
    pool::Pool,
};

/// The body of an upstream's response. Dropping it before its end closes the connection.
pub struct UpstreamBody {
    body: IncomingBody,
    pool: Arc<Pool>,
}

impl UpstreamBody {
    pub(super) fn new(body: IncomingBody, pool: &Arc<Pool>) -> Self {
        let mut received = Self { body, pool: Arc::clone(pool) };
        received.give_back_at_end();
        received
    }

    /// Returns the connection to the pool at the end of the body. A reader that knows the length may never poll for the end, so
    /// this is checked after each frame.
    fn give_back_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        match &mut self.body {
            IncomingBody::Hyper(_, connection) => {
                if let Some(connection) = connection.take() {
                    self.pool.give_back(connection);
                }
            }
            body => {
                if let IncomingBody::Events { events, is_last: false } = std::mem::replace(body, IncomingBody::Done)
                    && let Some(io) = events.into_idle()
                {
                    self.pool.give_back_socket(io);
                }
            }
        }
    }
}

impl IncomingBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        match self {
            Self::Hyper(body, connection) => poll_hyper(body, connection, cx).map_err(UpstreamBodyError::Http),
            Self::Events { events, .. } => events.poll_frame(cx),
            Self::Done => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body, _) => body.is_end_stream(),
            Self::Events { .. } => false,
            Self::Done => true,
        }
    }
}

fn poll_hyper(
    body: &mut Incoming,
    connection: &mut Option<Connection>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
        return Poll::Ready(frame);
    }
    if connection.as_mut().is_some_and(|connection| connection.poll(cx).is_ready()) {
        *connection = None;
    }
    Pin::new(body).poll_frame(cx)
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody").finish_non_exhaustive()
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBodyError>>> {
        let frame = std::task::ready!(self.body.poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            Some(Err(_)) => self.body = IncomingBody::Done,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            IncomingBody::Hyper(body, _) => body.size_hint(),
            IncomingBody::Events { .. } | IncomingBody::Done => SizeHint::default(),
        }
    }
}
