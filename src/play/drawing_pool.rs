//! A pool for texts with a constraint. Their requests take no share of other heavy work, however long they take.
//!
//! A request is admitted for as long as it is planned, which takes a thread that mostly waits. It has a turn for each of its
//! texts, in the order in which turns are asked for; so a request of one text waits for one text of each other, not for
//! all of them.
//!
//! See docs/decisions/0071-turns-of-conforming-texts.md.

use std::{
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
};

use crate::api::ApiError;

/// The most requests that are admitted at a time: each waits on a thread, of which there are 512 for all heavy work.
const ADMITTED: usize = 64;

/// Bounds on requests whose texts are drawn.
#[derive(Debug)]
pub(super) struct DrawingPool {
    admitted: Arc<Semaphore>,
    /// One for each text that may be drawn at a time: they take a processor and up to some hundred megabytes.
    turns: Semaphore,
}

/// A flag that is set when the request's future is dropped, as when its client leaves.
struct Leaves(Arc<AtomicBool>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl DrawingPool {
    /// A pool of as many turns as there are processors.
    pub(super) fn new() -> Self {
        let turns = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { admitted: Arc::new(Semaphore::new(ADMITTED)), turns: Semaphore::new(turns) }
    }

    /// Runs work that draws texts on a thread of its own. The flag that it gets is set when its request is dropped.
    ///
    /// # Errors
    /// Those of the work, and 500 where it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<AtomicBool>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let panicked = || Err(ApiError::internal("Internal server error"));
        let Ok(admitted) = Arc::clone(&self.admitted).acquire_owned().await else { return panicked() };
        let leaves = Leaves(Arc::default());
        let left = Arc::clone(&leaves.0);
        let done = tokio::task::spawn_blocking(move || {
            let _admitted = admitted;
            catch_unwind(AssertUnwindSafe(|| work(left))).unwrap_or_else(|_| panicked())
        });
        done.await.unwrap_or_else(|_| panicked())
    }

    /// Waits for a turn, on a thread that may be blocked; a turn ends when it is dropped.
    pub(super) fn turn(&self) -> Option<SemaphorePermit<'_>> {
        Handle::try_current().ok()?.block_on(self.turns.acquire()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_dropped_is_flagged() {
        let pool = DrawingPool::new();
        let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
        let work = pool.run(move |left: Arc<AtomicBool>| {
            started.send(()).unwrap();
            while !left.load(Relaxed) {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
            Ok(())
        });
        tokio::select! {
            _ = work => panic!("it ends only when it is dropped"),
            start = starts.recv() => start.unwrap(),
        }
        ends.recv().await.unwrap();
    }
}
