//! Requests as they arrive and as the scheduler knows them.

use std::sync::Arc;

use super::{KvFetchStats, SchedulerFinishReason};
use crate::kv_cache::{CountedSequence, LoraRequest, Sequence};

/// Number that the caller gives a request; no two requests at a time share one.
pub type RequestId = u64;

/// Place of a request in the scheduler's table.
pub(super) type Slot = u32;

/// A request that arrives.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids that will be sampled, at least one. The request ends with the last of them, if not before.
    pub output: Vec<u32>,
    /// The reason why it ends with the last token of the output.
    pub ends_with: Option<SchedulerFinishReason>,
    /// Token ids after which it ends.
    pub stop_token_ids: Vec<u32>,
    /// Lower is sooner, with the policy of priorities.
    pub priority: i64,
    /// Text that is part of the first block's hash: requests with other salts share no blocks.
    pub cache_salt: Option<String>,
    /// The adapter.
    pub lora: Option<Arc<LoraRequest>>,
    /// The session that it belongs to, which its events name.
    pub session_id: Option<String>,
    /// Whether blocks that it finds cached are events too.
    pub reports_cached_blocks: bool,
    /// Whether its prompt is computed whole, whatever of it is cached, as for log probabilities of prompts.
    pub skip_reading_prefix_cache: bool,
    /// Counts and block hashes in place of `prompt` and `output`, where there are no token ids.
    pub counted: Option<CountedSequence>,
    /// Its part in transfers between engines.
    pub kv_transfer: KvTransfer,
    /// Numbers of output tokens, in order, after which a step of speculative decoding ends; empty where that is drawn.
    pub burst_ends: Vec<usize>,
}

/// Reason why a request was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// As many requests wait and run as may; vLLM answers with 503.
    #[error("the queue is full")]
    QueueFull,
    /// Another request has this id.
    #[error("another request has this id")]
    DuplicateId,
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt leaves no place for an output.
    #[error("the prompt has {tokens} tokens, max_model_len is {max_model_len}")]
    LongPrompt {
        /// Its tokens.
        tokens: usize,
        /// Limit of a prompt with its output.
        max_model_len: usize,
    },
    /// No token would be sampled.
    #[error("the output is empty")]
    EmptyOutput,
}

#[derive(Debug, Default)]
pub(super) struct RequestState {
    pub(super) id: RequestId,
    pub(super) status: RequestStatus,
    pub(super) is_deferred: bool,
    pub(super) num_computed_tokens: usize,
    /// Tokens of its own step in progress; 0 where it has none.
    pub(super) tokens_in_step: usize,
    /// The tokens that it lacked when it was admitted last.
    pub(super) prefill: std::ops::Range<usize>,
    pub(super) sequence: Sequence,
    pub(super) ends_with: Option<SchedulerFinishReason>,
    pub(super) stop_token_ids: Vec<u32>,
    pub(super) skips_cache: bool,
    pub(super) reports_cached_blocks: bool,
    pub(super) num_preemptions: u32,
    /// Tokens of the prompt found in the cache when it was first admitted; taken by its first output.
    pub(super) num_cached_tokens: Option<usize>,
    pub(super) priority: i64,
    /// Place in the order of arrivals.
    pub(super) arrival: u64,
    pub(super) transfer: KvTransfer,
    pub(super) drafts: Drafts,
    pub(super) burst_ends: Vec<usize>,
    /// Whether the last step that computed its tokens left some of its prompt.
    pub(super) is_prefill_chunk: bool,
    pub(super) fetch_stage: Option<FetchStage>,
    /// Tokens of the prompt that were transferred.
    pub(super) num_external_tokens: usize,
    /// Whether all of them are there.
    pub(super) is_received: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RequestStatus {
    #[default]
    Waiting,
    /// It has its blocks, and waits for a transfer to fill them.
    WaitingForRemoteKvs,
    Running,
    Preempted,
    Finished,
}

/// Part of a request in transfers between engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvTransfer {
    /// Whether its blocks are kept for another engine after its end.
    pub sends: bool,
    /// Whether another engine has computed its prompt. The first admission takes this back.
    pub receives: bool,
}

/// Stage of a request whose prompt another engine has computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FetchStage {
    WaitingToStart,
    InProgress,
    CompletedWaiting,
}

impl FetchStage {
    pub(super) fn count(self, fetches: &mut KvFetchStats) -> &mut usize {
        match self {
            Self::WaitingToStart => &mut fetches.waiting_to_start,
            Self::InProgress => &mut fetches.in_progress,
            Self::CompletedWaiting => &mut fetches.completed_waiting,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drafts {
    /// Tokens that the next step may check.
    pub(super) waiting: usize,
    /// Tokens that this step checks.
    pub(super) scheduled: usize,
    /// Whether these only fill the step up, and none is accepted.
    pub(super) is_padding: bool,
}

impl Request {
    pub(super) fn check(&self, max_model_len: usize) -> Result<(), Rejection> {
        let (prompt, output) = match &self.counted {
            Some(counted) => (counted.prompt_tokens, counted.output_tokens),
            None => (self.prompt.len(), self.output.len()),
        };
        match prompt {
            0 => Err(Rejection::EmptyPrompt),
            tokens if tokens >= max_model_len => Err(Rejection::LongPrompt { tokens, max_model_len }),
            _ if output == 0 => Err(Rejection::EmptyOutput),
            _ => Ok(()),
        }
    }

    pub(super) fn into_state(self, arrival: u64) -> RequestState {
        let mut sequence = match self.counted {
            Some(counted) => Sequence::counted(counted),
            None => Sequence::new(self.prompt, &self.output),
        };
        sequence.lora = self.lora;
        // An empty text is none.
        sequence.cache_salt = self.cache_salt.filter(|salt| !salt.is_empty());
        sequence.session_id = self.session_id.filter(|session| !session.is_empty());
        RequestState {
            id: self.id,
            sequence,
            reports_cached_blocks: self.reports_cached_blocks,
            ends_with: self.ends_with,
            stop_token_ids: self.stop_token_ids,
            skips_cache: self.skip_reading_prefix_cache,
            priority: self.priority,
            transfer: self.kv_transfer,
            burst_ends: self.burst_ends,
            arrival,
            ..RequestState::default()
        }
    }
}

impl RequestState {
    pub(super) fn is_finished(&self) -> bool {
        self.status == RequestStatus::Finished
    }

    /// Tokens that its prefill computes in all, where one of its steps begins at a token; 0 behind it.
    pub(super) fn prefill_tokens(&self, at: usize) -> usize {
        if self.prefill.contains(&at) { self.prefill.len() } else { 0 }
    }

    /// Whether another engine has computed its prompt, and it may be used.
    pub(super) fn is_to_receive(&self) -> bool {
        self.transfer.receives && !self.skips_cache
    }

    /// Whether it has blocks while it waits.
    pub(super) fn holds_blocks(&self) -> bool {
        self.num_computed_tokens > 0 || self.status == RequestStatus::WaitingForRemoteKvs
    }

    /// The number of its adapter.
    pub(super) fn lora(&self) -> Option<u32> {
        self.sequence.lora.as_ref().map(|lora| lora.lora_int_id)
    }
}
