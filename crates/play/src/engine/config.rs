//! Configuration of an engine, and what becomes of it once the trace and the model are known.

use std::io;

use super::{KvEventsConfig, KvEventsError, KvTransferConfig};
use crate::load::pace::TracePace;
use ::engine::kv_cache::KvCacheConfig;
use ::engine::scheduler::SchedulerConfig;
use ::engine::step_clock::{Knobs, StepTimes};

base::with_defaults! {
    /// Configuration of the simulated engine.
    ///
    /// The default is an engine whose steps take the times of the trace, or none.
    #[derive(Debug, Clone)]
    pub struct EngineConfig {
        /// Limits of steps. `max_model_len` is the server's.
        pub scheduler: SchedulerConfig,
        /// Tokens of a step; `None` for 2048, or the model's length where prompts may not be computed in parts.
        pub max_num_batched_tokens: Option<usize>,
        /// The cache. `block_size` is the server's.
        pub kv_cache: KvCacheConfig,
        /// Whether its number of blocks was given (vLLM's `--num-gpu-blocks-override`).
        pub overrides_blocks: bool,
        /// How long steps take.
        pub times: EngineTimes = EngineTimes::Trace(StepTimes::Instant),
        /// How many times faster than that.
        pub time_scale: f64 = 1.0,
        /// Whether `/metrics` has the names of earlier versions of vLLM too.
        pub legacy_metrics: bool,
        /// Where events about the cache are published; `None` for nowhere.
        pub kv_events: Option<KvEventsConfig>,
        /// Its part in transfers between engines; `None` without a KV connector.
        pub kv_transfer: Option<KvTransferConfig>,
    }
}

/// Source of the durations of steps.
#[derive(Debug, Clone)]
pub enum EngineTimes {
    /// These.
    Given(StepTimes),
    /// The median times of the trace that is served; without one, these.
    Trace(StepTimes),
    /// Each request has its recorded times, and waiting is added. They are the server's pacing, which has their scale.
    Recorded,
}

impl EngineConfig {
    /// The longest request that fits the cache, where that is shorter than the usual length.
    pub(in super::super) fn most_tokens(&self, block_size: u32, usual: u32) -> u32 {
        let fits = u64::from(self.kv_cache.num_gpu_blocks.saturating_sub(1)) * u64::from(block_size);
        u32::try_from(fits).unwrap_or(u32::MAX).min(usual)
    }

    /// Whether requests have steps of their own, by their recorded times.
    pub(in super::super) fn has_recorded_times(&self) -> bool {
        matches!(self.times, EngineTimes::Recorded)
    }

    /// How long steps take that are of all requests together.
    pub(super) fn step_times(&self) -> StepTimes {
        match &self.times {
            EngineTimes::Given(times) | EngineTimes::Trace(times) => times.clone(),
            EngineTimes::Recorded => StepTimes::Instant,
        }
    }

    /// The configuration for a model of this length, blocks of this size and a trace of this pace, which it does not ask for any more.
    /// Errors: when a request of the model's length does not fit the cache.
    pub(in super::super) fn resolved(
        &self,
        max_model_len: u32,
        block_size: u32,
        pace: Option<TracePace>,
    ) -> Result<Self, EngineError> {
        let (max_model_len, block_size) = (size(max_model_len), size(block_size));
        let blocks = self.kv_cache.num_gpu_blocks;
        let tokens = size(blocks.saturating_sub(1)).saturating_mul(block_size);
        if max_model_len > tokens {
            return Err(EngineError::SmallCache { max_model_len, tokens, blocks, block_size });
        }
        let mut resolved = self.clone();
        let scheduler = &mut resolved.scheduler;
        (scheduler.max_model_len, scheduler.kv_connector) = (max_model_len, self.kv_transfer.is_some());
        scheduler.max_num_batched_tokens =
            self.max_num_batched_tokens.unwrap_or_else(|| scheduler.usual_batched_tokens());
        // Recorded times are those of single tokens.
        scheduler.speculation.take_if(|_| self.has_recorded_times());
        resolved.kv_cache.block_size = block_size;
        resolved.kv_cache.enable_kv_cache_events = self.kv_events.is_some();
        if let (EngineTimes::Trace(_), Some(pace)) = (&self.times, pace) {
            resolved.times = EngineTimes::Given(StepTimes::Knobs(Knobs::constant(pace.ttft, pace.gap)));
        }
        Ok(resolved)
    }
}

fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A configuration that no engine can run with.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The scheduler refuses it.
    #[error("--engine: {0}")]
    Scheduler(#[from] ::engine::scheduler::SchedulerConfigError),
    /// The longest request would never be computed.
    #[error(
        "--engine: a request of --max-model-len {max_model_len} tokens does not fit the KV cache of {tokens} tokens \
         (--num-gpu-blocks-override {blocks}, of which one is never used, with --block-size {block_size}): make it larger, or the \
         model's length smaller"
    )]
    SmallCache {
        /// Prompt and output tokens of a request.
        max_model_len: usize,
        /// Tokens that the cache holds.
        tokens: usize,
        /// Its blocks.
        blocks: u32,
        /// Tokens of a block.
        block_size: usize,
    },
    /// There are no times to be had from the trace.
    #[error("--engine: {0}")]
    Times(String),
    /// Its KV events cannot be published.
    #[error("{0}")]
    KvEvents(#[from] KvEventsError),
    /// Other engines cannot reach it.
    #[error(
        "--kv-transfer-config: cannot listen on {host}:{port} for other engines ({source}); VLLM_NIXL_SIDE_CHANNEL_HOST and \
         VLLM_NIXL_SIDE_CHANNEL_PORT set another address"
    )]
    SideChannel {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// The system starts no thread.
    #[error("--engine: cannot start its thread")]
    Thread(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn config(blocks: u32) -> EngineConfig {
        let kv_cache = KvCacheConfig { num_gpu_blocks: blocks, ..KvCacheConfig::default() };
        EngineConfig { kv_cache, ..EngineConfig::default() }
    }

    #[test]
    fn the_longest_request_has_to_fit_the_cache() {
        let error = config(17).resolved(257, 16, None).unwrap_err().to_string();
        assert!(error.contains("257") && error.contains("256 tokens") && error.contains("--max-model-len"), "{error}");
        let resolved = config(17).resolved(256, 16, None).unwrap();
        assert_eq!((resolved.scheduler.max_model_len, resolved.kv_cache.block_size), (256, 16));
        assert_eq!((config(17).most_tokens(16, 32_768), config(17).most_tokens(16, 100)), (256, 100));
    }

    #[test]
    fn whole_prompts_fit_a_step_where_they_may_not_be_computed_in_parts() {
        let tokens = |config: EngineConfig| config.resolved(4096, 16, None).unwrap().scheduler.max_num_batched_tokens;
        assert_eq!(tokens(config(1000)), 2048);
        let whole = SchedulerConfig { enable_chunked_prefill: false, ..SchedulerConfig::default() };
        assert_eq!(tokens(EngineConfig { scheduler: whole, ..config(1000) }), 4096);
        assert_eq!(tokens(EngineConfig { max_num_batched_tokens: Some(300), ..config(1000) }), 300);
    }

    #[test]
    fn the_pace_of_the_trace_counts_unless_times_are_given() {
        let pace = TracePace { ttft: Duration::from_millis(50), gap: Duration::from_millis(9) };
        let times = |config: EngineConfig| config.resolved(4096, 16, Some(pace)).unwrap().step_times();
        assert_eq!(times(config(1000)), StepTimes::Knobs(Knobs::constant(pace.ttft, pace.gap)));
        let given = EngineConfig { times: EngineTimes::Given(StepTimes::Instant), ..config(1000) };
        assert_eq!(times(given), StepTimes::Instant);
    }
}
