//! `SchedulerStats`: figures of an engine's steps, which a front end makes its metrics of.
//!
//! Gauges are those of a step, counts what came with it; those of several steps are added up. On the wire it is a map, so that versions pass over
//! what they do not know.

use crate::msgpack::MsgpackValue;

/// Figures of the scheduler and its cache, as vLLM takes its metrics from.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SchedulerStats {
    /// Requests that run.
    pub num_running_reqs: usize,
    /// Requests that wait, without those that were skipped.
    pub num_waiting_reqs: usize,
    /// Requests that wait and were skipped, for their adapter had no place or their blocks are on their way.
    pub num_skipped_waiting_reqs: usize,
    /// Share of blocks in use, from 0 to 1.
    pub kv_cache_usage: f64,
    /// Lookups of the step in the prefix cache.
    pub prefix_cache_stats: PrefixCacheStats,
    /// Lookups of the step in other engines, of what is not cached here.
    pub connector_prefix_cache_stats: PrefixCacheStats,
    /// Requests that wait for another engine's prompt, by stage.
    pub kv_fetches: KvFetchStats,
}

/// Lookups in the prefix cache of requests that were admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixCacheStats {
    /// New requests.
    pub requests: usize,
    /// Their tokens.
    pub queries: usize,
    /// Those of them that were cached.
    pub hits: usize,
    /// Preempted requests.
    pub preempted_requests: usize,
    /// Their tokens.
    pub preempted_queries: usize,
    /// Those of them that were cached.
    pub preempted_hits: usize,
}

/// Waiting requests by the stage of their transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvFetchStats {
    /// Transfers that have not begun.
    pub waiting_to_start: usize,
    /// Transfers that have not ended.
    pub in_progress: usize,
    /// Transfers that have ended, of requests that do not run yet.
    pub completed_waiting: usize,
}

/// Drafts of a step, as vLLM counts them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpecDecodingStats {
    /// Requests with drafts.
    pub num_drafts: usize,
    /// Draft tokens.
    pub num_draft_tokens: usize,
    /// Those of them that were accepted.
    pub num_accepted_tokens: usize,
    /// The same by place.
    pub num_accepted_tokens_per_pos: Vec<usize>,
}

/// What a message has beside the figures of the scheduler.
#[derive(Debug, Clone, Default)]
pub struct EngineFigures<'a> {
    /// Steps since the engine started.
    pub steps: u64,
    /// Whether lookups in other engines are counted.
    pub has_connector: bool,
    /// Tokens of a draft and the drafts, where there were any.
    pub drafts: Option<(usize, &'a SpecDecodingStats)>,
}

impl SchedulerStats {
    /// The map as an engine sends it.
    #[must_use]
    pub fn value(&self, figures: &EngineFigures<'_>) -> MsgpackValue {
        let KvFetchStats { waiting_to_start, in_progress, completed_waiting } = self.kv_fetches;
        let fetches = MsgpackValue::map([
            ("waiting_to_start", waiting_to_start.into()),
            ("in_progress", in_progress.into()),
            ("completed_waiting", completed_waiting.into()),
        ]);
        let connector = figures.has_connector.then_some(self.connector_prefix_cache_stats);
        let drafts = figures.drafts.map(|(tokens, drafts)| drafts.value(tokens));
        MsgpackValue::map([
            ("num_running_reqs", self.num_running_reqs.into()),
            ("num_waiting_reqs", self.num_waiting_reqs.into()),
            ("num_skipped_waiting_reqs", self.num_skipped_waiting_reqs.into()),
            ("num_kv_fetch_reqs_by_stage", fetches),
            ("step_counter", figures.steps.into()),
            ("current_wave", 0_u32.into()),
            ("kv_cache_usage", self.kv_cache_usage.into()),
            ("iteration_details", MsgpackValue::Nil),
            ("prefix_cache_stats", self.prefix_cache_stats.value()),
            ("connector_prefix_cache_stats", connector.map(PrefixCacheStats::value).into()),
            ("kv_cache_eviction_events", MsgpackValue::Array(Vec::new())),
            ("spec_decoding_stats", drafts.into()),
            ("kv_connector_stats", MsgpackValue::Nil),
            ("ec_connector_stats", MsgpackValue::Nil),
            ("waiting_lora_adapters", MsgpackValue::Map(Vec::new())),
            // The front end counts them.
            ("running_lora_adapters", MsgpackValue::Map(Vec::new())),
            ("cudagraph_stats", MsgpackValue::Nil),
            ("perf_stats", MsgpackValue::Nil),
        ])
    }
}

impl PrefixCacheStats {
    /// Counts the lookup of a request.
    pub fn record(&mut self, num_tokens: usize, num_hits: usize, is_preempted: bool) {
        let (requests, queries, hits) = match is_preempted {
            true => (&mut self.preempted_requests, &mut self.preempted_queries, &mut self.preempted_hits),
            false => (&mut self.requests, &mut self.queries, &mut self.hits),
        };
        *requests += 1;
        *queries += num_tokens;
        *hits += num_hits;
    }

    /// Adds the lookups of another step.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.queries += other.queries;
        self.hits += other.hits;
        self.preempted_requests += other.preempted_requests;
        self.preempted_queries += other.preempted_queries;
        self.preempted_hits += other.preempted_hits;
    }

    fn value(self) -> MsgpackValue {
        MsgpackValue::map([
            ("reset", false.into()),
            ("requests", self.requests.into()),
            ("queries", self.queries.into()),
            ("hits", self.hits.into()),
            ("preempted_requests", self.preempted_requests.into()),
            ("preempted_queries", self.preempted_queries.into()),
            ("preempted_hits", self.preempted_hits.into()),
            ("hits_by_source", MsgpackValue::Map(Vec::new())),
        ])
    }
}

impl SpecDecodingStats {
    /// Adds the drafts of another step.
    pub fn add(&mut self, other: &Self) {
        self.num_drafts += other.num_drafts;
        self.num_draft_tokens += other.num_draft_tokens;
        self.num_accepted_tokens += other.num_accepted_tokens;
        let places = self.num_accepted_tokens_per_pos.len().max(other.num_accepted_tokens_per_pos.len());
        self.num_accepted_tokens_per_pos.resize(places, 0);
        self.num_accepted_tokens_per_pos
            .iter_mut()
            .zip(&other.num_accepted_tokens_per_pos)
            .for_each(|(sum, count)| *sum += count);
    }

    /// Counts the draft of a request, and how many of its tokens were accepted.
    pub fn observe(&mut self, drafted: usize, accepted: usize) {
        self.num_drafts += 1;
        self.num_draft_tokens += drafted;
        self.num_accepted_tokens += accepted;
        if self.num_accepted_tokens_per_pos.len() < accepted {
            self.num_accepted_tokens_per_pos.resize(accepted, 0);
        }
        self.num_accepted_tokens_per_pos.iter_mut().take(accepted).for_each(|count| *count += 1);
    }

    /// The map of steps with drafts of so many tokens.
    fn value(&self, speculative_tokens: usize) -> MsgpackValue {
        MsgpackValue::map([
            ("num_spec_tokens", speculative_tokens.into()),
            ("num_drafts", self.num_drafts.into()),
            ("num_draft_tokens", self.num_draft_tokens.into()),
            ("num_accepted_tokens", self.num_accepted_tokens.into()),
            ("num_accepted_tokens_per_pos", self.num_accepted_tokens_per_pos.clone().into()),
        ])
    }
}
