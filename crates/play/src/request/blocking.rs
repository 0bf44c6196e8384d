//! Work that grows with a request, kept off the threads that serve connections.

use std::{
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
};

use api::ApiError;
use base::cancellation::{CancelOnDrop, is_cancelled};

/// Work of up to this weight (bytes of a body, tokens to make up) is done where the request is; heavier work goes to a
/// thread of its own.
pub(crate) const INLINE_BYTES: usize = 16 * 1024;

/// KiB of heavy work that are in hand at once: tokenizing takes some seventy bytes of memory for one of text.
const HEAVY_KIB: u32 = 16 * 1024;

/// The shares of [`HEAVY_KIB`]; work heavier than all of them has them alone.
static HEAVY: Semaphore = Semaphore::const_new(HEAVY_KIB as usize);

/// Runs work that grows with what was asked for without holding up other requests. Heavy work waits for its share of
/// the memory. It is not begun for a client that left meanwhile, and ends where it looks at [`check_cancelled`].
/// Errors: those of the work, and 500 where it panicked.
pub(crate) async fn off_the_loop<T: Send + 'static>(
    weight: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let panicked = || Err(ApiError::internal("Internal server error"));
    if weight <= INLINE_BYTES {
        return catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panicked());
    }
    let share = u32::try_from(weight / 1024).unwrap_or(u32::MAX).clamp(1, HEAVY_KIB);
    let Ok(share) = HEAVY.acquire_many(share).await else { return panicked() };
    on_a_thread(share, work).await
}

/// Runs work on a thread of its own, which holds `permit` until its end. It is cancelled when the returned future is dropped.
/// Errors: those of the work, and 500 where it panicked.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    permit: impl Send + 'static,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let until_dropped = CancelOnDrop::default();
    let cancellation = until_dropped.0.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        cancellation.scope(|| check_cancelled().and_then(|()| work()))
    });
    done.await.unwrap_or_else(|_| Err(ApiError::internal("Internal server error")))
}

/// Ends work whose client has left. For loops over what a request may have many of.
/// Errors: 500 then, which nobody sees.
pub(crate) fn check_cancelled() -> Result<(), ApiError> {
    if is_cancelled() { Err(ApiError::internal("The client has left")) } else { Ok(()) }
}

/// The most requests that are admitted at a time: each waits on a thread, of which there are 512 for all heavy work.
const ADMITTED: usize = 64;

/// Pool for texts with a constraint. Their requests take no share of other heavy work, however long they take.
///
/// A request is admitted for as long as it is planned, which takes a thread that mostly waits. It has a turn for each of its
/// texts, in the order in which turns are asked for; so a request of one text waits for one text of each other, not for
/// all of them.
///
/// See docs/decisions/0071-turns-of-conforming-texts.md.
#[derive(Debug)]
pub(crate) struct DrawingPool {
    admitted: Arc<Semaphore>,
    /// One for each text that may be drawn at a time: they take a processor and up to some hundred megabytes.
    turns: Semaphore,
}

impl DrawingPool {
    /// A pool of as many turns as there are processors.
    pub(crate) fn new() -> Self {
        let turns = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { admitted: Arc::new(Semaphore::new(ADMITTED)), turns: Semaphore::new(turns) }
    }

    /// Runs work that draws texts on a thread of its own, which is cancelled when its request is dropped.
    /// Errors: those of the work, and 500 where it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let admitted = Arc::clone(&self.admitted).acquire_owned().await;
        on_a_thread(admitted.map_err(|_| ApiError::busy())?, work).await
    }

    /// Waits for a turn, on a thread that may be blocked; a turn ends when it is dropped.
    pub(crate) fn turn(&self) -> Option<SemaphorePermit<'_>> {
        Handle::try_current().ok()?.block_on(self.turns.acquire()).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, thread};

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_ends_when_its_request_is_dropped() {
        let (started, mut starts) = mpsc::unbounded_channel();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let work = off_the_loop(INLINE_BYTES + 1, move || {
            started.send(()).unwrap();
            let wanted = iter::repeat_with(check_cancelled).inspect(|_| thread::yield_now()).find(Result::is_err);
            ended.send(()).unwrap();
            wanted.unwrap()
        });
        tokio::select! {
            _ = work => panic!("it ends only when it is dropped"),
            start = starts.recv() => start.unwrap(),
        }
        ends.recv().await.unwrap();
    }

    #[test]
    fn what_is_dropped_before_its_turn_is_not_begun() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let (begun, mut begins) = mpsc::unbounded_channel();
        runtime.block_on(async {
            let (free, occupied) = std::sync::mpsc::channel::<()>();
            let first = tokio::task::spawn_blocking(move || occupied.recv());
            let mut queued = Box::pin(off_the_loop(INLINE_BYTES + 1, move || {
                begun.send(()).unwrap();
                Ok(())
            }));
            assert!(futures_util::poll!(&mut queued).is_pending());
            drop(queued);
            drop(free);
            first.await.unwrap().unwrap_err();
        });
        assert_eq!(begins.blocking_recv(), None);
    }
}
