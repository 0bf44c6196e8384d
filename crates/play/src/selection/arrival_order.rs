//! Whose prompt is read next when requests come together.
//!
//! To read a prompt (parse, render, tokenize) takes a worker of the runtime for a tenth of a millisecond and more. Were
//! every request read as it is found, the last of a burst would be found late and all its deadlines would be late with
//! it. So each worker reads one request at a time, and looks for further arrivals before it reads the next.
//!
//! See docs/decisions/0017-simultaneous-requests-take-turns.md.

use std::{
    num::NonZeroUsize,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::yield_now,
    time::Instant,
};

/// A request that is found so soon after another was read came with it: no client answers that fast.
const TOGETHER: Duration = Duration::from_micros(50);

/// Turns at reading prompts.
#[derive(Debug)]
pub(crate) struct Turns {
    workers: usize,
    free: Semaphore,
    start: Instant,
    /// Nanoseconds from `start` to the end of the latest turn.
    latest_end: AtomicU64,
}

impl Turns {
    /// As many turns at a time as the runtime has workers.
    pub(crate) fn new() -> Self {
        let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { workers, free: Semaphore::new(workers), start: Instant::now(), latest_end: AtomicU64::new(0) }
    }

    /// Waits for a turn, which ends when it is dropped. A request that came alone does not wait.
    pub(crate) async fn next(&self) -> ReadTurn<'_> {
        let since_latest = self.now().saturating_sub(self.latest_end.load(Ordering::Relaxed));
        let is_alone = self.free.available_permits() == self.workers && u128::from(since_latest) > TOGETHER.as_nanos();
        // Never closed, so never an error.
        let permit = self.free.acquire().await.ok();
        if !is_alone {
            yield_now().await;
        }
        ReadTurn { turns: self, _permit: permit }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The right to read a prompt now.
pub(crate) struct ReadTurn<'a> {
    turns: &'a Turns,
    _permit: Option<SemaphorePermit<'a>>,
}

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        self.turns.latest_end.store(self.turns.now(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_request_of_a_burst_lets_others_arrive_first() {
        let turns = Turns::new();
        turns.latest_end.store(u64::MAX, Ordering::Relaxed);
        let mut second = Box::pin(turns.next());
        assert!(futures_util::FutureExt::now_or_never(second.as_mut()).is_none());
        drop(second.await);
    }

    #[tokio::test]
    async fn a_request_that_came_alone_is_read_at_once() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let turns = Turns { start: long_ago, ..Turns::new() };
        assert!(futures_util::FutureExt::now_or_never(turns.next()).is_some());
    }

    #[tokio::test]
    async fn turns_come_back() {
        let turns = Turns::new();
        for _ in 0..100 {
            drop(turns.next().await);
        }
        assert_eq!(turns.free.available_permits(), turns.workers);
    }
}
