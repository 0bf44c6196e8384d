//! A pool for texts with a constraint. Their requests take no share of other heavy work, however long they take.
//!
//! A request is admitted for as long as it is planned, which takes a thread that mostly waits. It has a turn for each of its
//! texts, in the order in which turns are asked for; so a request of one text waits for one text of each other, not for
//! all of them.
//!
//! See docs/decisions/0071-turns-of-conforming-texts.md.

use std::{num::NonZero, sync::Arc};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
};

use crate::{api::ApiError, play::request::blocking::on_a_thread};

/// The most requests that are admitted at a time: each waits on a thread, of which there are 512 for all heavy work.
const ADMITTED: usize = 64;

/// Bounds on requests whose texts are drawn.
#[derive(Debug)]
pub(in crate::play) struct DrawingPool {
    admitted: Arc<Semaphore>,
    /// One for each text that may be drawn at a time: they take a processor and up to some hundred megabytes.
    turns: Semaphore,
}

impl DrawingPool {
    /// A pool of as many turns as there are processors.
    pub(in crate::play) fn new() -> Self {
        let turns = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { admitted: Arc::new(Semaphore::new(ADMITTED)), turns: Semaphore::new(turns) }
    }

    /// Runs work that draws texts on a thread of its own, which is cancelled when its request is dropped.
    ///
    /// # Errors
    /// Those of the work, and 500 where it panicked.
    pub(in crate::play) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let admitted = Arc::clone(&self.admitted).acquire_owned().await;
        on_a_thread(admitted.map_err(|_| ApiError::busy())?, work).await
    }

    /// Waits for a turn, on a thread that may be blocked; a turn ends when it is dropped.
    pub(in crate::play) fn turn(&self) -> Option<SemaphorePermit<'_>> {
        Handle::try_current().ok()?.block_on(self.turns.acquire()).ok()
    }
}
