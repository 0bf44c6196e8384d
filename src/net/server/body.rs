//! Bodies that servers of this program pass around.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;

/// Why a body breaks off; the connection is then closed in the middle of it.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The one that it came from broke off.
    #[error("the connection broke off")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
    /// It was meant to.
    #[error("{0}")]
    Meant(&'static str),
}

impl BodyError {
    /// The body that this one came from broke off.
    pub fn broken(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Connection(error.into())
    }
}

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is all there.
#[must_use]
pub fn whole_body(bytes: Bytes) -> AnswerBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The body of a request: still on its way, or read by somebody who passed it on.
#[derive(Debug)]
pub enum RequestBody {
    /// On its way.
    Live(Incoming),
    /// Read; `None` once it was taken.
    Read(Option<Bytes>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Live(body) => Pin::new(body).poll_frame(context).map_err(BodyError::broken),
            Self::Read(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Live(body) => body.is_end_stream(),
            Self::Read(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Live(body) => body.size_hint(),
            Self::Read(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}
