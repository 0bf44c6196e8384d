//! The engine's counters of requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{
    histogram::{Histogram, float, one_two_five},
    scheduled::Scheduled,
    steps::Steps,
};

/// Ways to finish, in the engine's order.
pub(super) const REASONS: [&str; 5] = ["stop", "length", "abort", "error", "repetition"];

const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const STEP_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];
const RESIDENCY: [f64; 21] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1200.0, 1800.0,
];
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Counters and distributions over all requests.
#[derive(Debug)]
pub(super) struct EngineMetrics {
    pub(super) running: AtomicU64,
    pub(super) waiting: AtomicU64,
    /// Choices that were admitted and have not ended.
    pub(super) admitted: AtomicU64,
    /// 0 awake, else one more than the level of sleep.
    pub(super) sleep: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    /// Those of them that another engine has computed for the same request.
    pub(super) external_tokens: AtomicU64,
    pub(super) generation_tokens: AtomicU64,
    pub(super) finished: [AtomicU64; REASONS.len()],
    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) per_token: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queue: Histogram,
    pub(super) inference: Histogram,
    pub(super) prefill: Histogram,
    pub(super) decode: Histogram,
    pub(super) step_tokens: Histogram,
    /// The steps that are counted there.
    pub(super) steps: Steps,
    pub(super) request_prompt: Histogram,
    pub(super) request_generation: Histogram,
    pub(super) longest_generation: Histogram,
    pub(super) choices: Histogram,
    pub(super) max_tokens: Histogram,
    pub(super) computed: Histogram,
    pub(super) preemptions: Histogram,
    pub(super) block_lifetime: Histogram,
    pub(super) block_idle: Histogram,
    pub(super) block_reuse_gap: Histogram,
    /// Figures of the simulated engine, where there is one.
    pub(super) scheduled: Option<Scheduled>,
}

impl EngineMetrics {
    /// Counters of an engine for prompts and outputs of up to `max_model_len` tokens together.
    pub(super) fn new(max_model_len: u32) -> Self {
        let tokens = || Histogram::counts(one_two_five(max_model_len));
        let request = || Histogram::seconds(&REQUEST);
        Self {
            running: AtomicU64::default(),
            waiting: AtomicU64::default(),
            admitted: AtomicU64::default(),
            sleep: AtomicU64::default(),
            rejected: AtomicU64::default(),
            prompt_tokens: AtomicU64::default(),
            cached_tokens: AtomicU64::default(),
            external_tokens: AtomicU64::default(),
            generation_tokens: AtomicU64::default(),
            finished: Default::default(),
            first_token: Histogram::seconds(&FIRST_TOKEN),
            inter_token: Histogram::seconds(&TOKEN),
            per_token: Histogram::seconds(&TOKEN),
            e2e: request(),
            queue: request(),
            inference: request(),
            prefill: request(),
            decode: request(),
            step_tokens: Histogram::counts(STEP_TOKENS.to_vec()),
            steps: Steps::default(),
            request_prompt: tokens(),
            request_generation: tokens(),
            longest_generation: tokens(),
            choices: Histogram::counts(one_two_five(20)),
            max_tokens: tokens(),
            computed: tokens(),
            preemptions: Histogram::counts(PREEMPTIONS.to_vec()),
            block_lifetime: Histogram::seconds(&RESIDENCY),
            block_idle: Histogram::seconds(&RESIDENCY),
            block_reuse_gap: Histogram::seconds(&RESIDENCY),
            scheduled: None,
        }
    }

    /// The distribution of a family.
    pub(super) fn histogram(&self, family: &str) -> Option<&Histogram> {
        Some(match family {
            "vllm:time_to_first_token_seconds" => &self.first_token,
            "vllm:inter_token_latency_seconds" => &self.inter_token,
            "vllm:request_time_per_output_token_seconds" => &self.per_token,
            "vllm:e2e_request_latency_seconds" => &self.e2e,
            "vllm:request_queue_time_seconds" => &self.queue,
            "vllm:request_inference_time_seconds" => &self.inference,
            "vllm:request_prefill_time_seconds" => &self.prefill,
            "vllm:request_decode_time_seconds" => &self.decode,
            "vllm:iteration_tokens_total" => &self.step_tokens,
            "vllm:request_prompt_tokens" => &self.request_prompt,
            "vllm:request_generation_tokens" => &self.request_generation,
            "vllm:request_max_num_generation_tokens" => &self.longest_generation,
            "vllm:request_params_n" => &self.choices,
            "vllm:request_params_max_tokens" => &self.max_tokens,
            "vllm:request_prefill_kv_computed_tokens" => &self.computed,
            "vllm:request_num_preemptions" => &self.preemptions,
            "vllm:kv_block_lifetime_seconds" => &self.block_lifetime,
            "vllm:kv_block_idle_before_evict_seconds" => &self.block_idle,
            "vllm:kv_block_reuse_gap_seconds" => &self.block_reuse_gap,
            _ => return self.scheduled.as_ref()?.transfers.as_ref()?.histogram(family),
        })
    }

    /// The value of a sample that is no distribution; `None` where nothing is counted.
    pub(super) fn value(&self, name: &str, labels: &str) -> Option<f64> {
        if let Some(value) = self.scheduled.as_ref().and_then(|scheduled| scheduled.value(name, labels)) {
            return Some(value);
        }
        let (cached, external) = (self.cached_tokens.load(Relaxed), self.external_tokens.load(Relaxed));
        let prompt = self.prompt_tokens.load(Relaxed);
        let source = |word: &str| labels.contains(&format!("source=\"{word}\""));
        Some(float(match name {
            "vllm:num_requests_running" => self.running.load(Relaxed),
            "vllm:prefix_cache_queries_total" | "vllm:prompt_tokens_total" => prompt,
            "vllm:prefix_cache_hits_total" | "vllm:prompt_tokens_cached_total" => cached,
            "vllm:prompt_tokens_by_source_total" if source("local_compute") => prompt.saturating_sub(cached),
            "vllm:prompt_tokens_by_source_total" if source("local_cache_hit") => cached.saturating_sub(external),
            "vllm:prompt_tokens_by_source_total" if source("external_kv_transfer") => external,
            "vllm:prompt_tokens_cached_by_source_total" if source("device") => cached,
            "vllm:generation_tokens_total" => self.generation_tokens.load(Relaxed),
            "vllm:admission_rejections_total" if labels.contains("\"max_num_queued_reqs\"") => {
                self.rejected.load(Relaxed)
            }
            "vllm:engine_sleep_state" => {
                let states = ["\"awake\"", "\"weights_offloaded\"", "\"discard_all\""];
                let state = match self.sleep.load(Relaxed) {
                    0 => Some(0),
                    2 => Some(1),
                    3 => Some(2),
                    _ => None,
                };
                u64::from(state.and_then(|at| states.get(at)).is_some_and(|state| labels.contains(state)))
            }
            "vllm:request_success_total" => {
                let at = REASONS.iter().position(|reason| labels.contains(&format!("finished_reason=\"{reason}\"")));
                at.and_then(|at| self.finished.get(at))?.load(Relaxed)
            }
            _ => return None,
        }))
    }
}
