//! The body of an answer, which drives the connection that it comes over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{connection::Connection, pool::Pool};

/// The body of an upstream's answer. Dropped before its end, it closes the connection.
#[derive(Debug)]
pub struct Received<B: 'static> {
    body: Incoming,
    /// `None` when the connection has ended, or is not needed any more.
    connection: Option<Connection<B>>,
    pool: Arc<Pool<B>>,
}

impl<B: Send> Received<B> {
    pub(super) fn new(body: Incoming, connection: Option<Connection<B>>, pool: &Arc<Pool<B>>) -> Self {
        let mut received = Self { body, connection, pool: Arc::clone(pool) };
        received.give_back_at_end();
        received
    }

    /// The rest of the body, as far as it arrived.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        if self.connection.as_mut().is_some_and(|connection| connection.poll(cx).is_ready()) {
            self.connection = None;
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    /// Who reads a body of known length may not ask for its end.
    fn give_back_at_end(&mut self) {
        if self.body.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.give_back(connection);
        }
    }
}

impl<B: Send> Body for Received<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(self.poll_body(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            Some(Err(_)) => self.connection = None,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
