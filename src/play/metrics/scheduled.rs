//! Figures of a simulated engine's scheduler, as vLLM shows them: set and counted at the end of each step.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::Serialize;

use super::{Metrics, drafts::DraftCounts, engine::EngineMetrics, histogram::float, transfers::KvTransfers};
use crate::{
    engine::{
        kv_cache::Eviction,
        scheduler::{Decisions, SchedulerStats},
    },
    play::engine::EngineConfig,
};

/// Gauges and counters of the scheduler.
#[derive(Debug, Default)]
pub(super) struct Scheduled {
    running: AtomicU64,
    waiting: AtomicU64,
    deferred: AtomicU64,
    /// Share of blocks in use, as the bits of a float.
    usage: AtomicU64,
    queries: AtomicU64,
    hits: AtomicU64,
    preemptions: AtomicU64,
    /// Choices that did not pass through the engine.
    others: AtomicU64,
    /// Those of a KV connector, where there is one.
    pub(super) transfers: Option<KvTransfers>,
    /// Those of speculative decoding, where there is any.
    pub(super) drafts: Option<DraftCounts>,
}

/// Values that `/metrics` shows.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(in super::super) struct Shown {
    pub(in super::super) running: u64,
    pub(in super::super) waiting: u64,
    pub(in super::super) prompt_tokens: u64,
    pub(in super::super) cached_tokens: u64,
    pub(in super::super) generated_tokens: u64,
    /// Choices of answers that have not ended.
    pub(in super::super) unfinished: u64,
    /// Choices that did not pass through the engine, with tokens among those above.
    pub(in super::super) others: u64,
}

/// Counts of one step.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct StepCounts {
    stats: SchedulerStats,
    preempted: usize,
    /// Prompt tokens that were computed for the requests with a first token in this step.
    pub(in super::super) computed: usize,
    /// Tokens of outputs.
    pub(in super::super) generated: usize,
}

impl Shown {
    /// The sum with another rank's.
    pub(in super::super) fn with(self, rank: &Self) -> Self {
        Self {
            running: self.running + rank.running,
            waiting: self.waiting + rank.waiting,
            prompt_tokens: self.prompt_tokens + rank.prompt_tokens,
            cached_tokens: self.cached_tokens + rank.cached_tokens,
            generated_tokens: self.generated_tokens + rank.generated_tokens,
            // Of all ranks.
            unfinished: rank.unfinished,
            others: self.others + rank.others,
        }
    }
}

impl StepCounts {
    /// A step's counts without its tokens.
    pub(in super::super) fn of(decisions: &Decisions) -> Self {
        Self { stats: decisions.stats, preempted: decisions.preempted.len(), computed: 0, generated: 0 }
    }
}

impl Metrics {
    /// Counters of a server with simulated engines.
    pub(in super::super) fn scheduled(max_model_len: u32, ranks: NonZeroU32, config: &EngineConfig) -> Self {
        let of_rank = || {
            let transfers = config.kv_transfer.as_ref().map(|connector| KvTransfers::new(connector.role));
            let drafts = config.scheduler.speculation.as_ref().map(DraftCounts::new);
            let scheduled = Scheduled { transfers, drafts, ..Scheduled::default() };
            Arc::new(EngineMetrics { scheduled: Some(scheduled), ..EngineMetrics::new(max_model_len) })
        };
        let others = (1..ranks.get()).map(|_| of_rank()).collect();
        Self { engine: of_rank(), others, ..Self::new(max_model_len) }
    }

    /// Values that are shown of a rank now.
    pub(in super::super) fn shown(&self, rank: usize) -> Shown {
        let engine = self.of_rank(rank);
        let scheduled = engine.scheduled.as_ref();
        let waiting = |scheduled: &Scheduled| scheduled.waiting.load(Relaxed) + scheduled.deferred.load(Relaxed);
        Shown {
            running: scheduled.map_or(0, Scheduled::running),
            waiting: scheduled.map_or(0, waiting),
            prompt_tokens: engine.prompt_tokens.load(Relaxed),
            cached_tokens: engine.cached_tokens.load(Relaxed),
            generated_tokens: engine.generation_tokens.load(Relaxed),
            unfinished: self.engine.admitted.load(Relaxed),
            others: scheduled.map_or(0, |scheduled| scheduled.others.load(Relaxed)),
        }
    }

    /// Counts blocks that were evicted from the cache.
    pub(in super::super) fn evicted(&self, rank: usize, evictions: &[Eviction]) {
        let engine = self.of_rank(rank);
        for Eviction { lifetime, idle, reuse_gaps } in evictions {
            engine.block_lifetime.time(*lifetime);
            engine.block_idle.time(*idle);
            reuse_gaps.iter().for_each(|gap| engine.block_reuse_gap.time(*gap));
        }
    }

    /// Counts a step that has ended.
    pub(in super::super) fn step(&self, rank: usize, counts: &StepCounts) {
        let engine = self.of_rank(rank);
        let Some(scheduled) = &engine.scheduled else { return };
        scheduled.step(counts);
        self.step_of_adapters();
        if counts.generated > 0 {
            let tokens = counts.computed.saturating_add(counts.generated);
            engine.step_tokens.count(u32::try_from(tokens).unwrap_or(u32::MAX));
        }
    }
}

impl Scheduled {
    fn step(&self, counts: &StepCounts) {
        let StepCounts { stats, preempted, .. } = counts;
        let of = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.running.store(of(stats.num_running_reqs), Relaxed);
        self.waiting.store(of(stats.num_waiting_reqs), Relaxed);
        self.deferred.store(of(stats.num_skipped_waiting_reqs), Relaxed);
        self.usage.store(stats.kv_cache_usage.to_bits(), Relaxed);
        self.queries.fetch_add(of(stats.prefix_cache_stats.queries), Relaxed);
        self.hits.fetch_add(of(stats.prefix_cache_stats.hits), Relaxed);
        self.preemptions.fetch_add(of(*preempted), Relaxed);
        self.transfers.iter().for_each(|transfers| transfers.step(stats));
    }

    /// Counts a choice that did not pass through the engine: one that was sent as it was recorded, or has no tokens.
    pub(super) fn count_other(&self) {
        self.others.fetch_add(1, Relaxed);
    }

    /// Requests that run.
    pub(super) fn running(&self) -> u64 {
        self.running.load(Relaxed)
    }

    /// The value of a sample that the scheduler knows.
    pub(super) fn value(&self, name: &str, labels: &str) -> Option<f64> {
        if let Some(value) = self.transfers.as_ref().and_then(|transfers| transfers.value(name, labels)) {
            return Some(value);
        }
        if let Some(value) = self.drafts.as_ref().and_then(|drafts| drafts.value(name)) {
            return Some(value);
        }
        let (waiting, deferred) = (self.waiting.load(Relaxed), self.deferred.load(Relaxed));
        let has = |label: &str| labels.contains(label);
        Some(match name {
            "vllm:num_requests_running" => float(self.running()),
            "vllm:num_requests_waiting" => float(waiting + deferred),
            "vllm:num_requests_waiting_by_reason" if has("\"capacity\"") => float(waiting),
            "vllm:num_requests_waiting_by_reason" => float(deferred),
            "vllm:kv_cache_usage_perc" => f64::from_bits(self.usage.load(Relaxed)),
            "vllm:prefix_cache_queries_total" => float(self.queries.load(Relaxed)),
            "vllm:prefix_cache_hits_total" => float(self.hits.load(Relaxed)),
            "vllm:prompt_tokens_cached_by_source_total" if has("\"device\"") => float(self.hits.load(Relaxed)),
            "vllm:num_preemptions_total" => float(self.preemptions.load(Relaxed)),
            _ => return None,
        })
    }
}
