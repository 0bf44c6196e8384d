//! How many times longer steps take than their clock has it, which may change while the engine runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::engine::step_clock::{StepClock, StepWork};

/// A factor of all steps, 1 at first.
#[derive(Debug)]
pub(in super::super) struct Slowdown(AtomicU64);

impl Default for Slowdown {
    fn default() -> Self {
        Self(AtomicU64::new(1.0_f64.to_bits()))
    }
}

impl Slowdown {
    /// Sets the factor from the next step on.
    pub(in super::super) fn set(&self, factor: f64) {
        self.0.store(factor.to_bits(), Ordering::Relaxed);
    }

    fn factor(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
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

    /// Draws the duration of the next step.
    pub(super) fn duration(&mut self, work: &StepWork) -> Duration {
        self.slowdown.of(self.clock.duration(work))
    }
}
