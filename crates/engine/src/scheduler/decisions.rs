//! What a step decides.

use super::{Rejection, RequestId, Slot};
use engine_core::stats::{SchedulerStats, SpecDecodingStats};

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

/// Origin of a scheduled request.
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

base::named! {
    /// Reason why a request ended by itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SchedulerFinishReason {
        /// A stop token, or the end of its content.
        Stop = "stop",
        /// `max_tokens`, or the model's length.
        Length = "length",
    }
}

/// A request that waits in its blocks for a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadingRequest {
    /// The request.
    pub request_id: RequestId,
    /// Tokens that are transferred.
    pub num_tokens: usize,
}

impl Decisions {
    pub(super) fn begin_step(&mut self) {
        self.scheduled.clear();
        self.preempted.clear();
        self.loading.clear();
        self.outputs.clear();
        self.spec_decoding = SpecDecodingStats::default();
        self.stats = SchedulerStats::default();
    }
}
