//! Configuration of the scheduler, by the names of vLLM's flags.

use serde::Deserialize;

use super::Speculation;
use crate::kv_cache::KvCacheConfig;

base::with_defaults! {
    /// Limits of a step and of the queue.
    #[derive(Debug, Clone)]
    pub struct SchedulerConfig {
        /// Requests that run at once.
        pub max_num_seqs: usize = 128,
        /// Tokens of one step.
        pub max_num_batched_tokens: usize = 2048,
        /// Tokens of a prompt and its output.
        pub max_model_len: usize = 8192,
        /// Tokens of one request in one step while others are there; 0 is no limit.
        pub long_prefill_token_threshold: usize,
        /// Whether a prompt may be computed over several steps.
        pub enable_chunked_prefill: bool = true,
        /// The order of the queue.
        pub policy: SchedulingPolicy = SchedulingPolicy::Fcfs,
        /// Adapters that may run at once; 0 is no limit.
        pub max_loras: usize,
        /// Requests that may wait and run; `None` is no limit.
        pub max_num_queued_reqs: Option<usize>,
        /// Whether there is a KV connector, so that lookups count as asking it too.
        pub kv_connector: bool,
        /// Speculative decoding; `None` for a token of each request per step.
        pub speculation: Option<Speculation>,
    }
}

/// Value of `--scheduling-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulingPolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The lowest priority first, and of equal ones the oldest. It also is preempted last.
    Priority,
}

/// A configuration that contradicts itself. It names fields of [`SchedulerConfig`] and [`KvCacheConfig`]; [`SchedulerConfigError::text`] has the
/// names of a front.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text(str::to_owned))]
pub enum SchedulerConfigError {
    /// A size that must not be 0 is.
    Zero(&'static str),
    /// Not every running request could have a token: `max_num_batched_tokens`, and `max_num_seqs`.
    FewTokens(usize, usize),
    /// The longest prompt would never be computed: `max_num_batched_tokens`, and `max_model_len`.
    ShortStep(usize, usize),
    /// The limit of long prompts would limit none: `long_prefill_token_threshold`, and `max_model_len`.
    HighThreshold(usize, usize),
}

impl SchedulerConfigError {
    /// The message with `name` of each field; that of `enable_chunked_prefill` is one for the field that is off.
    #[must_use]
    pub fn text(&self, name: impl Fn(&str) -> String) -> String {
        let [tokens_name, length_name] = ["max_num_batched_tokens", "max_model_len"].map(&name);
        match self {
            Self::Zero(field) => format!("{} must be at least 1", name(field)),
            Self::FewTokens(tokens, seqs) => {
                format!("{tokens_name} ({tokens}) must be at least {} ({seqs})", name("max_num_seqs"))
            }
            Self::ShortStep(tokens, length) => format!(
                "{tokens_name} ({tokens}) must be at least {length_name} ({length}) with {}",
                name("enable_chunked_prefill")
            ),
            Self::HighThreshold(threshold, length) => {
                let threshold_name = name("long_prefill_token_threshold");
                format!("{threshold_name} ({threshold}) must be at most {length_name} ({length})")
            }
        }
    }
}

/// Tokens of a step by default.
const BATCHED_TOKENS: usize = 2048;

impl SchedulerConfig {
    /// Tokens of a step where no flag gives them: 2048, and enough for every running request, and for whole prompts where they may
    /// not be computed in parts.
    #[must_use]
    pub fn usual_batched_tokens(&self) -> usize {
        let whole = if self.enable_chunked_prefill { 0 } else { self.max_model_len };
        BATCHED_TOKENS.max(whole).max(self.max_num_seqs)
    }

    /// Checks that the values go together, as vLLM does.
    ///
    /// # Errors
    /// When they do not.
    pub fn check(&self, kv_cache: &KvCacheConfig) -> Result<(), SchedulerConfigError> {
        let (tokens, length) = (self.max_num_batched_tokens, self.max_model_len);
        let sizes = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", tokens),
            ("max_model_len", length),
            ("block_size", kv_cache.block_size),
            ("num_gpu_blocks", kv_cache.num_gpu_blocks as usize),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(SchedulerConfigError::Zero(name));
        }
        if tokens < self.max_num_seqs {
            return Err(SchedulerConfigError::FewTokens(tokens, self.max_num_seqs));
        }
        if tokens < length && !self.enable_chunked_prefill {
            return Err(SchedulerConfigError::ShortStep(tokens, length));
        }
        if self.long_prefill_token_threshold > length {
            return Err(SchedulerConfigError::HighThreshold(self.long_prefill_token_threshold, length));
        }
        Ok(())
    }
}
