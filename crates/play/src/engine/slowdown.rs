//! How long steps and KV transfers take, how many times longer steps take than that, and whether the cache has free blocks, which may change while the engine runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ::engine::step_clock::{StepClock, StepTimes, StepWork, TransferTimes};
use base::lock::Lock;

base::with_defaults! {
    /// A factor of all steps, 1 at first, and whether the cache is exhausted.
    #[derive(Debug)]
    pub(in super::super) struct Slowdown {
        factor: AtomicU64 = AtomicU64::new(1.0_f64.to_bits()),
        is_exhausted: AtomicBool,
        /// Times that were set, with a number that counts how often.
        times: Lock<Option<StepTimes>>,
        changes: AtomicU64,
        transfers: Lock<Option<TransferTimes>>,
    }
}

impl Slowdown {
    /// Sets the factor from the next step on.
    pub(in super::super) fn set(&self, factor: f64) {
        self.factor.store(factor.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn set_times(&self, times: StepTimes) {
        *self.times.lock() = Some(times);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Times that were set.
    pub(super) fn times(&self) -> Option<StepTimes> {
        self.times.lock().clone()
    }

    /// Sets how long the transfers take that begin from now on.
    pub(super) fn set_transfer_times(&self, times: TransferTimes) {
        *self.transfers.lock() = Some(times);
    }

    pub(super) fn transfer_times(&self) -> Option<TransferTimes> {
        *self.transfers.lock()
    }

    /// Sets whether the cache has no free block.
    pub(in super::super) fn exhaust(&self, is_exhausted: bool) {
        self.is_exhausted.store(is_exhausted, Ordering::Relaxed);
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Ordering::Relaxed)
    }

    fn factor(&self) -> f64 {
        f64::from_bits(self.factor.load(Ordering::Relaxed))
    }

    fn of(&self, time: Duration) -> Duration {
        Duration::try_from_secs_f64(time.as_secs_f64() * self.factor()).unwrap_or(time)
    }
}

/// A step clock behind a slowdown.
#[derive(Debug)]
pub(super) struct PacedClock {
    pub(super) clock: StepClock,
    pub(super) slowdown: Arc<Slowdown>,
    pub(super) changes: u64,
}

impl PacedClock {
    /// The factor of the next step.
    pub(super) fn slower(&self) -> f64 {
        self.slowdown.factor()
    }

    /// Time of a request before its first step.
    pub(super) fn before_steps(&self) -> Duration {
        self.slowdown.of(self.clock.before_steps())
    }

    /// Checks whether times were set since the last step began.
    pub(super) fn is_changed(&self) -> bool {
        self.slowdown.changes.load(Ordering::Acquire) != self.changes
    }

    pub(super) fn duration(&mut self, work: &StepWork) -> Duration {
        let changes = self.slowdown.changes.load(Ordering::Acquire);
        if changes != self.changes {
            self.changes = changes;
            self.slowdown.times().into_iter().for_each(|times| self.clock.set_times(times));
        }
        self.slowdown.of(self.clock.duration(work))
    }
}
