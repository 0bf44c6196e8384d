//! Choices that wait for their turn, as the engine's gauges see them.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::{Metrics, engine::EngineMetrics};

/// Choices that wait instead of running, until this is dropped.
#[derive(Debug)]
pub(in super::super) struct Queued {
    engine: Arc<EngineMetrics>,
    choices: u64,
}

impl Queued {
    /// Some choices that have set out wait from now on.
    pub(in super::super) fn new(metrics: &Metrics, choices: u32) -> Self {
        // The scheduler of a simulated engine has gauges of its own.
        let choices = if metrics.engine.scheduled.is_some() { 0 } else { choices };
        let (engine, choices) = (Arc::clone(&metrics.engine), u64::from(choices));
        engine.waiting.fetch_add(choices, Relaxed);
        engine.running.fetch_sub(choices, Relaxed);
        Self { engine, choices }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.engine.running.fetch_add(self.choices, Relaxed);
        self.engine.waiting.fetch_sub(self.choices, Relaxed);
    }
}
