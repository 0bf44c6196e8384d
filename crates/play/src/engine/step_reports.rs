//! Figures of a rank's steps and where they go, also to be reported elsewhere: gauges as they are, counts since they were taken last.

use std::sync::Arc;

use tokio::{sync::Notify, time::Instant};

use super::balancer::Balancer;
use crate::metrics::Metrics;
use ::engine::scheduler::{Decisions, SchedulerStats, SpecDecodingStats};
use base::lock::Lock;

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
}

/// Figures of the steps of a rank, and the news of them.
#[derive(Debug, Default)]
pub(in super::super) struct StepReports {
    state: Lock<ReportState>,
    news: Notify,
}

#[derive(Debug, Default)]
struct ReportState {
    steps: u64,
    report: Option<StepReport>,
}

/// Figures of the steps since the report before.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct StepReport {
    /// Steps since the engine started.
    pub(in super::super) steps: u64,
    /// Gauges of the last step; its lookups are those of all of them.
    pub(in super::super) stats: SchedulerStats,
    pub(in super::super) spec_decoding: SpecDecodingStats,
}

impl StepReports {
    fn add(&self, decisions: &Decisions) {
        let mut state = self.state.lock();
        state.steps += 1;
        let steps = state.steps;
        let StepReport { stats: before, mut spec_decoding, .. } = state.report.take().unwrap_or_default();
        let mut stats = decisions.stats;
        stats.prefix_cache_stats.add(&before.prefix_cache_stats);
        stats.connector_prefix_cache_stats.add(&before.connector_prefix_cache_stats);
        spec_decoding.add(&decisions.spec_decoding);
        state.report = Some(StepReport { steps, stats, spec_decoding });
    }

    /// Wakes who waits for news.
    pub(super) fn notify(&self) {
        self.news.notify_one();
    }

    /// Waits for a step after the last wait.
    pub(in super::super) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Takes the figures since the last time; `None` where there was no step.
    pub(in super::super) fn take(&self) -> Option<StepReport> {
        self.state.lock().report.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::engine::scheduler::PrefixCacheStats;

    #[test]
    fn gauges_are_the_last_ones_and_counts_add_up_until_they_are_taken() {
        let reports = StepReports::default();
        for (running, queries) in [(3, 10), (1, 5)] {
            let prefix_cache_stats = PrefixCacheStats { requests: 1, queries, ..PrefixCacheStats::default() };
            let stats = SchedulerStats { num_running_reqs: running, prefix_cache_stats, ..SchedulerStats::default() };
            reports.add(&Decisions { stats, ..Decisions::default() });
        }
        let report = reports.take().unwrap();
        assert_eq!((report.steps, report.stats.num_running_reqs), (2, 1));
        assert_eq!((report.stats.prefix_cache_stats.requests, report.stats.prefix_cache_stats.queries), (2, 15));
        assert!(reports.take().is_none());
    }
}
