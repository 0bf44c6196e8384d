//! `SchedulerStats`: figures of an engine's steps, which a front end makes its metrics of.
//!
//! It is a map, so that versions pass over what they do not know. Gauges are those of the last step; counts are those since the message before.

use crate::msgpack::MsgpackValue;

/// Figures of an engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WireStats {
    /// Requests that run.
    pub running: usize,
    /// Requests that wait for a place or for blocks.
    pub waiting: usize,
    /// Requests that wait and were skipped.
    pub skipped: usize,
    /// Requests whose prompts another engine computes, by stage: not begun, in progress, over.
    pub kv_fetches: [usize; 3],
    /// Steps since the engine started.
    pub steps: u64,
    /// Share of blocks in use, from 0 to 1.
    pub kv_cache_usage: f64,
    /// Lookups in the prefix cache.
    pub prefix: WirePrefixStats,
    /// Lookups in other engines, where there is a connector.
    pub connector_prefix: Option<WirePrefixStats>,
    /// Drafts, where the engine speculates.
    pub drafts: Option<WireDraftStats>,
    /// Requests that run by the adapter's name.
    pub running_adapters: Vec<(String, u64)>,
}

/// Lookups in a prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WirePrefixStats {
    /// New requests.
    pub requests: usize,
    /// Their tokens.
    pub queries: usize,
    /// Those of them that were cached.
    pub hits: usize,
    /// Requests that were preempted before.
    pub preempted_requests: usize,
    /// Their tokens.
    pub preempted_queries: usize,
    /// Those of them that were cached.
    pub preempted_hits: usize,
}

/// Drafts of speculative decoding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WireDraftStats {
    /// Draft tokens of a step.
    pub speculative_tokens: usize,
    /// Requests with drafts.
    pub drafts: usize,
    /// Draft tokens.
    pub draft_tokens: usize,
    /// Those of them that were accepted.
    pub accepted_tokens: usize,
    /// The same by place.
    pub accepted_by_place: Vec<usize>,
}

impl WireStats {
    /// The map as an engine sends it.
    #[must_use]
    pub fn value(&self) -> MsgpackValue {
        let stages = ["waiting_to_start", "in_progress", "completed_waiting"];
        let fetches = stages.into_iter().zip(self.kv_fetches.map(MsgpackValue::from));
        let adapters = self.running_adapters.iter().map(|(name, count)| (name.as_str(), (*count).into()));
        MsgpackValue::map([
            ("num_running_reqs", self.running.into()),
            ("num_waiting_reqs", self.waiting.into()),
            ("num_skipped_waiting_reqs", self.skipped.into()),
            ("num_kv_fetch_reqs_by_stage", MsgpackValue::map(fetches)),
            ("step_counter", self.steps.into()),
            ("current_wave", 0_u32.into()),
            ("kv_cache_usage", self.kv_cache_usage.into()),
            ("iteration_details", MsgpackValue::Nil),
            ("prefix_cache_stats", self.prefix.value()),
            ("connector_prefix_cache_stats", self.connector_prefix.map(WirePrefixStats::value).into()),
            ("kv_cache_eviction_events", MsgpackValue::Array(Vec::new())),
            ("spec_decoding_stats", self.drafts.as_ref().map(WireDraftStats::value).into()),
            ("kv_connector_stats", MsgpackValue::Nil),
            ("ec_connector_stats", MsgpackValue::Nil),
            ("waiting_lora_adapters", MsgpackValue::Map(Vec::new())),
            ("running_lora_adapters", MsgpackValue::map(adapters)),
            ("cudagraph_stats", MsgpackValue::Nil),
            ("perf_stats", MsgpackValue::Nil),
        ])
    }
}

impl WirePrefixStats {
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

impl WireDraftStats {
    fn value(&self) -> MsgpackValue {
        MsgpackValue::map([
            ("num_spec_tokens", self.speculative_tokens.into()),
            ("num_drafts", self.drafts.into()),
            ("num_draft_tokens", self.draft_tokens.into()),
            ("num_accepted_tokens", self.accepted_tokens.into()),
            ("num_accepted_tokens_per_pos", self.accepted_by_place.clone().into()),
        ])
    }
}
