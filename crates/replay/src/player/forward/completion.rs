//! Responses that are received to their end after their client has left, so that their records are whole.
//!
//! Limits: a time and bytes for each, and a number at a time. What exceeds them ends as it would have without: a record of what came.
//!
//! See docs/decisions/0064-completed-after-the-client-left.md.

use std::{
    pin::Pin,
    sync::{Arc, Condvar, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use base::lock::Lock;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::{runtime::Handle, time::timeout};

use net::{
    server::BodyError,
    upstream::{BodyObserver, Observed},
};

/// Maximum bytes that are received of a response after its client has left.
const MOST_BYTES: usize = 16 << 20;

/// Maximum number of responses that are received so at a time.
const MOST: usize = 256;

/// Time beyond the limit in which a completion may end.
const MARGIN: Duration = Duration::from_secs(1);

/// Completions of the responses of one recording.
#[derive(Debug)]
pub struct Completions {
    /// Longest time of each; zero for none at all.
    within: Duration,
    state: Lock<CompletionState>,
    one_ended: Condvar,
}

#[derive(Debug, Default)]
struct CompletionState {
    running: usize,
    is_closed: bool,
}

impl Completions {
    pub(crate) fn new(within: Duration) -> Self {
        Self { within, state: Lock::default(), one_ended: Condvar::new() }
    }

    /// Begins no further one; those that run go on.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Waits until those that run have ended, which their limits bound. Blocks.
    pub(crate) fn wait(&self) {
        let most = self.within.saturating_add(MARGIN);
        let waited = self.one_ended.wait_timeout_while(self.state.lock(), most, |state| state.running > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn begin(self: &Arc<Self>) -> Option<RunningCompletion> {
        let mut state = self.state.lock();
        if self.within.is_zero() || state.is_closed || state.running >= MOST {
            return None;
        }
        state.running += 1;
        Some(RunningCompletion(Arc::clone(self)))
    }
}

/// A completion that counts as long as this is there.
#[derive(Debug)]
struct RunningCompletion(Arc<Completions>);

impl Drop for RunningCompletion {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.one_ended.notify_all();
    }
}

/// A body that is received to its end when its client leaves before.
#[derive(Debug)]
pub struct Completed<B: CompletedBody> {
    body: Option<B>,
    /// `None` where the rest is of no use.
    completions: Option<Arc<Completions>>,
    has_ended: bool,
}

/// A body that can be received on its own.
pub trait CompletedBody: Body<Data = Bytes, Error = BodyError> + Send + Unpin + 'static {
    /// Returns true if what came is whole, although the body has not ended: not every upstream ends it.
    fn is_whole(&self) -> bool;
}

impl<R, O> CompletedBody for Observed<R, O>
where
    R: Body<Data = Bytes, Error: Into<BodyError>> + Send + Unpin + 'static,
    O: BodyObserver + Send + Unpin + 'static,
{
    fn is_whole(&self) -> bool {
        self.has_all()
    }
}

impl<B: CompletedBody> Completed<B> {
    /// The body, until it has been taken.
    #[must_use]
    pub fn inner(&self) -> Option<&B> {
        self.body.as_ref()
    }

    /// The body likewise.
    pub fn inner_mut(&mut self) -> Option<&mut B> {
        self.body.as_mut()
    }

    /// A body whose end is noted by `completions`, where there are any.
    pub fn new(body: B, completions: Option<Arc<Completions>>) -> Self {
        Self { body: Some(body), completions, has_ended: false }
    }
}

impl<B: CompletedBody> Body for Completed<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = ready!(Pin::new(&mut *body).poll_frame(cx));
        // The transport may never poll for the end of a body whose length it knows.
        self.has_ended = !matches!(polled, Some(Ok(_))) || body.is_end_stream();
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl<B: CompletedBody> Drop for Completed<B> {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !(self.has_ended || body.is_whole())) else { return };
        let Some(running) = self.completions.as_ref().and_then(Completions::begin) else { return };
        // A connection is dropped by its runtime; without one nothing could be received.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(complete(body, running));
        }
    }
}

/// Receives the rest of a body, whose observer records it.
async fn complete(mut body: impl CompletedBody, running: RunningCompletion) {
    let receiving = async move {
        let mut received = 0;
        while let Some(Ok(frame)) = body.frame().await {
            received += frame.data_ref().map_or(0, Bytes::len);
            if received > MOST_BYTES || body.is_whole() {
                break;
            }
        }
    };
    let is_late = timeout(running.0.within, receiving).await.is_err();
    tracing::debug!(is_late, "the rest of a response was received after its client had left");
}
