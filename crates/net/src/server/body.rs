//! Bodies of requests and responses.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Collected, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::ending::ConnectionEnd;

/// Reasons for which a body ends early; the connection is then closed in the middle of it.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body that this one is read from ended early.
    #[error("the connection broke off")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
    /// It is cut on purpose.
    #[error("{0}")]
    Aborted(&'static str),
    /// It is broken on purpose, and its connection ends like this.
    #[error("{0}")]
    Broken(#[source] ConnectionEnd),
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

/// Reasons for which a body was not received whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotWhole {
    /// It is larger than it may be.
    TooLarge,
    /// It ended early.
    BrokeOff,
}

/// Receives a body of at most so many bytes.
///
/// # Errors
/// When it is larger, or ends early.
pub async fn receive_whole<B>(body: B, most: usize) -> Result<Bytes, NotWhole>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    if usize::try_from(body.size_hint().lower()).is_ok_and(|announced| announced > most) {
        return Err(NotWhole::TooLarge);
    }
    let received = Limited::new(body, most).collect().await;
    // Most bodies come in one piece, which is taken as it is.
    received.map(Collected::to_bytes).map_err(|error| match error.is::<LengthLimitError>() {
        true => NotWhole::TooLarge,
        false => NotWhole::BrokeOff,
    })
}

/// Sign that the server is shutting down.
#[derive(Debug, Clone)]
pub struct Stopping(pub(super) watch::Receiver<()>);

impl Stopping {
    /// Ends once it is.
    async fn begun(mut self) {
        // Dropped by the server, which has nothing else to report.
        let _stopped = self.0.changed().await;
    }
}

/// The body of a request that ends early when the server is shutting down and the rest has not come: a request that was not sent whole is
/// none in flight.
pub struct UntilStopping<B> {
    body: B,
    stopping: Stopping,
    /// The wait for it, from the first time on that nothing has come.
    begun: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<B> UntilStopping<B> {
    /// Wraps a body.
    pub fn new(body: B, stopping: Stopping) -> Self {
        Self { body, stopping, begun: None }
    }
}

impl<B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin> Body for UntilStopping<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, stopping, begun } = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::broken)));
        }
        let begun = begun.get_or_insert_with(|| Box::pin(stopping.clone().begun()));
        begun.as_mut().poll(context).map(|()| Some(Err(BodyError::Aborted("the server is shutting down"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        Self::Live(body)
    }
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
