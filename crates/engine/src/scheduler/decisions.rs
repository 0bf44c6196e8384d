//! What a step decides.

use super::{Rejection, RequestId, Slot, request::FetchStage};

/// Decisions of one step. The lists are reused by the next one.
#[derive(Debug, Default)]
pub struct Decisions {
    /// The requests of which the step computes tokens, in the order of the batch.
    pub scheduled: Vec<ScheduledRequest>,
    /// The requests whose blocks were taken from them, in this order; they wait again.
    pub preempted: Vec<RequestId>,
    /// The requests that have blocks now for a prompt that another engine has computed.
    pub loading: Vec<LoadingRequest>,
    /// What was sampled.
    pub outputs: Vec<EngineCoreOutput>,
    /// The requests that arrived with this step and were not accepted.
    pub rejected: Vec<(RequestId, Rejection)>,
    /// Draft tokens that were checked.
    pub spec_decoding: SpecDecodingStats,
    /// The state after the step.
    pub stats: SchedulerStats,
}

/// A request's share of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// The request.
    pub request_id: RequestId,
    pub(super) slot: Slot,
    /// Tokens that the step computes.
    pub num_tokens: usize,
    /// Tokens that were computed, or found in the cache, before it.
    pub num_computed_tokens: usize,
    /// Tokens that it lacked when it was admitted: those of its prompt that were not cached, over all steps that compute them.
    /// 0 once they are computed.
    pub prefill_tokens: usize,
    /// Where it came from.
    pub scheduled_as: ScheduledAs,
}

/// Where a scheduled request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduledAs {
    /// It waited.
    New,
    /// It waited after it was preempted.
    Resumed,
    /// It was running.
    Running,
}

/// A token that a step sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineCoreOutput {
    /// The request.
    pub request_id: RequestId,
    /// The token.
    pub new_token_id: u32,
    /// Whether the step sampled another one of the same request, which follows.
    pub has_more: bool,
    /// The reason why it is the last one; `None` while more will come.
    pub finish_reason: Option<SchedulerFinishReason>,
    /// Tokens of the prompt that were not computed here: found in the cache, or transferred. With the first token of a request only.
    pub num_cached_tokens: Option<usize>,
    /// Those of them that were transferred.
    pub num_external_tokens: usize,
}

/// Reason why a request ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerFinishReason {
    /// A stop token, or the end of its content.
    Stop,
    /// `max_tokens`, or the model's length.
    Length,
}

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

/// A request that waits in its blocks for a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadingRequest {
    /// The request.
    pub request_id: RequestId,
    /// Tokens that are transferred.
    pub num_tokens: usize,
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

impl KvFetchStats {
    pub(super) fn of(&mut self, stage: FetchStage) -> &mut usize {
        match stage {
            FetchStage::WaitingToStart => &mut self.waiting_to_start,
            FetchStage::InProgress => &mut self.in_progress,
            FetchStage::CompletedWaiting => &mut self.completed_waiting,
        }
    }
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

impl SchedulerFinishReason {
    /// The name in vLLM's outputs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl PrefixCacheStats {
    pub(super) fn record(&mut self, num_tokens: usize, num_hits: usize, is_preempted: bool) {
        let (requests, queries, hits) = match is_preempted {
            true => (&mut self.preempted_requests, &mut self.preempted_queries, &mut self.preempted_hits),
            false => (&mut self.requests, &mut self.queries, &mut self.hits),
        };
        *requests += 1;
        *queries += num_tokens;
        *hits += num_hits;
    }
}

impl Decisions {
    pub(super) fn begin_step(&mut self) {
        self.scheduled.clear();
        self.preempted.clear();
        self.loading.clear();
        self.outputs.clear();
        self.spec_decoding.clear();
        self.stats = SchedulerStats::default();
    }
}

impl SpecDecodingStats {
    pub(super) fn clear(&mut self) {
        let mut per_pos = std::mem::take(&mut self.num_accepted_tokens_per_pos);
        per_pos.clear();
        *self = Self { num_accepted_tokens_per_pos: per_pos, ..Self::default() };
    }

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

    pub(super) fn observe(&mut self, drafted: usize, accepted: usize) {
        self.num_drafts += 1;
        self.num_draft_tokens += drafted;
        self.num_accepted_tokens += accepted;
        if self.num_accepted_tokens_per_pos.len() < accepted {
            self.num_accepted_tokens_per_pos.resize(accepted, 0);
        }
        self.num_accepted_tokens_per_pos.iter_mut().take(accepted).for_each(|count| *count += 1);
    }
}
