//! An engine's place among those of a server: where its figures go.

use std::sync::Arc;

use tokio::time::Instant;

use super::{balancer::Balancer, step_reports::StepReports};
use crate::{
    engine::{
        kv_cache::{Eviction, LoraRequest},
        scheduler::Decisions,
    },
    play::metrics::{Metrics, RunningAdapter, ShownValues},
};

/// One of a server's engines.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) number: usize,
    pub(super) metrics: Arc<Metrics>,
    /// `None` where there is no choice.
    pub(super) balancer: Option<Arc<Balancer>>,
    pub(super) reports: Arc<StepReports>,
}

impl Rank {
    /// Counts a step that has ended, with the tokens of prompts that were computed for first tokens in it, and of outputs.
    pub(super) fn step(&self, decisions: &Decisions, computed: usize, generated: usize) {
        self.metrics.step(self.number, decisions, computed, generated);
        self.reports.add(decisions);
        if let Some(balancer) = &self.balancer {
            balancer.step(self.number, &decisions.stats, Instant::now());
        }
    }

    /// Counts a request of an adapter from its first token on.
    pub(super) fn run_adapter(&self, lora: &Arc<LoraRequest>) -> Option<RunningAdapter> {
        self.metrics.run_adapter(lora)
    }

    /// Counts blocks that were evicted from the cache.
    pub(super) fn evicted(&self, evictions: &[Eviction]) {
        self.metrics.evicted(self.number, evictions);
    }

    /// Values that `/metrics` shows of it.
    pub(super) fn shown(&self) -> ShownValues {
        self.metrics.shown(self.number)
    }
}
