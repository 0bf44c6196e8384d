//! Figures of a simulated engine's scheduler, as vLLM shows them: set and counted at the end of each step.

use std::{
    num::NonZeroU32,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use serde::Serialize;

use super::{Metrics, drafts::DraftCounts, engine::EngineMetrics, process::unix_time, transfers::KvTransfers};
use crate::engine::EngineConfig;
use ::engine::{kv_cache::Eviction, scheduler::Decisions};

/// Values that `/metrics` shows.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(in super::super) struct ShownValues {
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

impl ShownValues {
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

impl Metrics {
    /// Counters of a server with simulated engines.
    pub(in super::super) fn scheduled(max_model_len: u32, ranks: NonZeroU32, config: &EngineConfig) -> Self {
        let of_rank = || {
            let transfers = config.kv_transfer.as_ref().map(|connector| KvTransfers::new(connector.role));
            let drafts = config.scheduler.speculation.as_ref().map(DraftCounts::new);
            Arc::new(EngineMetrics { is_scheduled: true, transfers, drafts, ..EngineMetrics::new(max_model_len) })
        };
        let others = (1..ranks.get()).map(|_| of_rank()).collect();
        Self { engine: of_rank(), others, ..Self::new(max_model_len) }
    }

    pub(in super::super) fn shown(&self, rank: usize) -> ShownValues {
        let engine = self.of_rank(rank);
        ShownValues {
            running: engine.running.load(Relaxed),
            waiting: engine.waiting.load(Relaxed) + engine.deferred.load(Relaxed),
            prompt_tokens: engine.prompt_tokens.load(Relaxed),
            cached_tokens: engine.cached_tokens.load(Relaxed),
            generated_tokens: engine.generation_tokens.load(Relaxed),
            unfinished: self.engine.admitted.load(Relaxed),
            others: engine.others.load(Relaxed),
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

    /// Counts a step that has ended, with the tokens of prompts that were computed for first tokens in it, and of outputs.
    pub(in super::super) fn step(&self, rank: usize, decisions: &Decisions, computed: usize, generated: usize) {
        let engine = self.of_rank(rank);
        let stats = &decisions.stats;
        let of = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        engine.running.store(of(stats.num_running_reqs), Relaxed);
        engine.waiting.store(of(stats.num_waiting_reqs), Relaxed);
        engine.deferred.store(of(stats.num_skipped_waiting_reqs), Relaxed);
        engine.kv_cache_usage.store(stats.kv_cache_usage.to_bits(), Relaxed);
        engine.prefix_queries.fetch_add(of(stats.prefix_cache_stats.queries), Relaxed);
        engine.prefix_hits.fetch_add(of(stats.prefix_cache_stats.hits), Relaxed);
        engine.preemptions.fetch_add(of(decisions.preempted.len()), Relaxed);
        engine.transfers.iter().for_each(|transfers| transfers.step(stats));
        engine.drafts.iter().for_each(|drafts| drafts.step(&decisions.spec_decoding));
        self.lora.iter().for_each(|lora| lora.step(unix_time()));
        if generated > 0 {
            engine.step_tokens.count(u32::try_from(computed.saturating_add(generated)).unwrap_or(u32::MAX));
        }
    }
}
