//! Bodies of requests and responses.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;

/// Reasons for which a body ends early; the connection is then closed in the middle of it.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body that this one is read from ended early.
    #[error("the connection broke off")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
    /// It is cut on purpose.
    #[error("{0}")]
    Aborted(&'static str),
    /// It paused for longer than it may.
    #[error("nothing came for {0:?}")]
    Idle(Duration),
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        Self::broken(error)
    }
}

impl BodyError {
    /// Builds the error for a body whose source ended early.
    pub fn broken(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Connection(error.into())
    }
}

/// The body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// Builds a body from bytes.
#[must_use]
pub fn whole_body(bytes: Bytes) -> ResponseBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The body of a request: as it arrives, or read already.
#[derive(Debug)]
pub enum RequestBody {
    /// As it arrives.
    Live(Incoming),
    /// As it arrives, through a router.
    Boxed(ResponseBody),
    /// Bytes that were read; `None` once they are taken.
    Read(Option<Bytes>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Live(body) => Pin::new(body).poll_frame(context).map_err(BodyError::broken),
            Self::Boxed(body) => Pin::new(body).poll_frame(context),
            Self::Read(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Live(body) => body.is_end_stream(),
            Self::Boxed(body) => body.is_end_stream(),
            Self::Read(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Live(body) => body.size_hint(),
            Self::Boxed(body) => body.size_hint(),
            Self::Read(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}
