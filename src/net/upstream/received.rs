//! The body of an answer, which drives the connection that it comes over.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{
    OutgoingBody,
    connection::{Coming, Connection},
    pool::Pool,
};

/// Why the body of an answer broke off.
#[derive(Debug, thiserror::Error)]
pub enum ReceivedError {
    /// What the HTTP library says.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The connection broke, or ended early.
    #[error("the connection broke in the middle of a stream")]
    Broken(#[source] io::Error),
    /// What came is not what HTTP calls chunks.
    #[error("a stream is not chunked as HTTP says: {0}")]
    BadChunk(&'static str),
}

/// The body of an upstream's answer. Dropped before its end, it closes the connection.
#[derive(Debug)]
pub struct Received<B: OutgoingBody> {
    body: Coming<B>,
    pool: Arc<Pool<B>>,
}

impl<B: OutgoingBody> Received<B> {
    pub(super) fn new(body: Coming<B>, pool: &Arc<Pool<B>>) -> Self {
        let mut received = Self { body, pool: Arc::clone(pool) };
        received.give_back_at_end();
        received
    }

    /// Who reads a body of known length may not ask for its end.
    fn give_back_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        match &mut self.body {
            Coming::Library(_, connection) => {
                if let Some(connection) = connection.take() {
                    self.pool.give_back(connection);
                }
            }
            Coming::Events(_) | Coming::LastEvents(_) | Coming::Over => {
                if let Coming::Events(events) = std::mem::replace(&mut self.body, Coming::Over)
                    && let Some(io) = events.into_idle()
                {
                    self.pool.give_back_bare(io);
                }
            }
        }
    }
}

impl<B: OutgoingBody> Coming<B> {
    /// The rest of the body, as far as it arrived.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReceivedError>>> {
        match self {
            Self::Library(body, connection) => poll_library(body, connection, cx).map_err(ReceivedError::Http),
            Self::Events(events) | Self::LastEvents(events) => events.poll_frame(cx),
            Self::Over => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Library(body, _) => body.is_end_stream(),
            Self::Events(_) | Self::LastEvents(_) => false,
            Self::Over => true,
        }
    }
}

fn poll_library<B: OutgoingBody>(
    body: &mut Incoming,
    connection: &mut Option<Connection<B>>,
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

impl<B: OutgoingBody> Body for Received<B> {
    type Data = Bytes;
    type Error = ReceivedError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReceivedError>>> {
        let frame = std::task::ready!(self.body.poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            Some(Err(_)) => self.body = Coming::Over,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Coming::Library(body, _) => body.size_hint(),
            Coming::Events(_) | Coming::LastEvents(_) | Coming::Over => SizeHint::default(),
        }
    }
}
