//! An engine's counters, and the families that show them. A new family is a field here, and a row in the table at whose place vLLM has it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{drafts::DraftCounts, steps::EngineSteps, transfers::KvTransfers};
use base::stats::{
    exposition::{MetricFamily, counter, counter_by, gauge, gauge_by, histogram, labelled, read},
    histogram::{Histogram, float, one_two_five},
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

/// Counters and distributions over all requests of an engine.
#[derive(Debug, Default)]
pub(super) struct EngineMetrics {
    /// True where a simulated engine's scheduler sets the gauges, and counts its steps.
    pub(super) is_scheduled: bool,
    pub(super) running: AtomicU64,
    /// Requests that wait for capacity, and those that are deferred.
    pub(super) waiting: AtomicU64,
    pub(super) deferred: AtomicU64,
    /// Share of blocks in use, as the bits of a float.
    pub(super) kv_cache_usage: AtomicU64,
    pub(super) prefix_queries: AtomicU64,
    pub(super) prefix_hits: AtomicU64,
    pub(super) preemptions: AtomicU64,
    /// Choices that did not pass through the simulated engine: those sent as they were recorded, or without tokens.
    pub(super) others: AtomicU64,
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
    pub(super) steps: EngineSteps,
    pub(super) request_prompt: Histogram,
    pub(super) request_generation: Histogram,
    pub(super) longest_generation: Histogram,
    pub(super) choices: Histogram,
    pub(super) max_tokens: Histogram,
    pub(super) computed: Histogram,
    pub(super) request_preemptions: Histogram,
    pub(super) block_lifetime: Histogram,
    pub(super) block_idle: Histogram,
    pub(super) block_reuse_gap: Histogram,
    /// Those of a KV connector, where there is one.
    pub(super) transfers: Option<KvTransfers>,
    /// Those of speculative decoding, where there is any.
    pub(super) drafts: Option<DraftCounts>,
}

impl EngineMetrics {
    /// Counters of an engine for prompts and outputs of up to `max_model_len` tokens together.
    pub(super) fn new(max_model_len: u32) -> Self {
        let tokens = || Histogram::counts(one_two_five(max_model_len));
        let request = || Histogram::seconds(&REQUEST);
        Self {
            first_token: Histogram::seconds(&FIRST_TOKEN),
            inter_token: Histogram::seconds(&TOKEN),
            per_token: Histogram::seconds(&TOKEN),
            e2e: request(),
            queue: request(),
            inference: request(),
            prefill: request(),
            decode: request(),
            step_tokens: Histogram::counts(STEP_TOKENS.to_vec()),
            request_prompt: tokens(),
            request_generation: tokens(),
            longest_generation: tokens(),
            choices: Histogram::counts(one_two_five(20)),
            max_tokens: tokens(),
            computed: tokens(),
            request_preemptions: Histogram::counts(PREEMPTIONS.to_vec()),
            block_lifetime: Histogram::seconds(&RESIDENCY),
            block_idle: Histogram::seconds(&RESIDENCY),
            block_reuse_gap: Histogram::seconds(&RESIDENCY),
            ..Self::default()
        }
    }

    /// Queries and hits of the prefix cache: the scheduler's, else what was recorded of prompts.
    fn prefix_cache(&self) -> (f64, f64) {
        if self.is_scheduled {
            (read(&self.prefix_queries), read(&self.prefix_hits))
        } else {
            (read(&self.prompt_tokens), read(&self.cached_tokens))
        }
    }

    /// A counter of the KV connector, where there is one.
    fn of_connector(&self, counter: fn(&KvTransfers) -> &AtomicU64) -> f64 {
        self.transfers.as_ref().map_or(0.0, |transfers| read(counter(transfers)))
    }
}

/// What this engine does not count.
fn none(_: &EngineMetrics) -> f64 {
    0.0
}

const KV_CACHE_USAGE: MetricFamily<EngineMetrics> =
    gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", |e| {
        f64::from_bits(e.kv_cache_usage.load(Relaxed))
    });
const PREFIX_QUERIES: MetricFamily<EngineMetrics> =
    counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", |e| {
        e.prefix_cache().0
    });
const PREFIX_HITS: MetricFamily<EngineMetrics> =
    counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", |e| {
        e.prefix_cache().1
    });
const INTER_TOKEN: MetricFamily<EngineMetrics> =
    histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", |e| &e.inter_token);

/// Families under the names that earlier versions of vLLM had for them.
pub(super) const LEGACY: [MetricFamily<EngineMetrics>; 4] = [
    KV_CACHE_USAGE.renamed("vllm:gpu_cache_usage_perc"),
    PREFIX_QUERIES.renamed("vllm:gpu_prefix_cache_queries"),
    PREFIX_HITS.renamed("vllm:gpu_prefix_cache_hits"),
    INTER_TOKEN.renamed("vllm:time_per_output_token_seconds"),
];

/// Families before those about the loading of blocks.
pub(super) const QUEUES: [MetricFamily<EngineMetrics>; 6] = [
    counter(
        "vllm:estimated_flops_per_gpu",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        none,
    ),
    counter(
        "vllm:estimated_read_bytes_per_gpu",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        none,
    ),
    counter(
        "vllm:estimated_write_bytes_per_gpu",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        none,
    ),
    gauge("vllm:num_requests_running", "Number of requests in model execution batches.", |e| read(&e.running)),
    gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", |e| {
        read(&e.waiting) + read(&e.deferred)
    }),
    gauge_by(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; \
         'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons \
         equals vllm:num_requests_waiting.",
        "reason",
        |e| labelled([("capacity", read(&e.waiting)), ("deferred", read(&e.deferred))]),
    ),
];

pub(super) const TOKENS: [MetricFamily<EngineMetrics>; 15] = [
    gauge_by(
        "vllm:engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
         weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        "sleep_state",
        |e| {
            let is = |state: u64| f64::from(u8::from(e.sleep.load(Relaxed) == state));
            labelled([("awake", is(0)), ("weights_offloaded", is(2)), ("discard_all", is(3))])
        },
    ),
    KV_CACHE_USAGE,
    PREFIX_QUERIES,
    PREFIX_HITS,
    counter(
        "vllm:external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried \
         tokens.",
        |e| e.of_connector(|transfers| &transfers.queries),
    ),
    counter(
        "vllm:external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
        |e| e.of_connector(|transfers| &transfers.hits),
    ),
    counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", none),
    counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", none),
    counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", |e| read(&e.preemptions)),
    counter("vllm:prompt_tokens", "Number of prefill tokens processed.", |e| read(&e.prompt_tokens)),
    counter_by("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source", |e| {
        let [prompt, cached, external] =
            [&e.prompt_tokens, &e.cached_tokens, &e.external_tokens].map(|count| count.load(Relaxed));
        labelled([
            ("local_compute", float(prompt.saturating_sub(cached))),
            ("local_cache_hit", float(cached.saturating_sub(external))),
            ("external_kv_transfer", float(external)),
        ])
    }),
    counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", |e| {
        read(&e.cached_tokens)
    }),
    counter_by(
        "vllm:prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), \
         disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to \
         vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        "source",
        |e| {
            let hits = [
                ("device", e.prefix_cache().1),
                ("host", 0.0),
                ("p2p", e.of_connector(|transfers| &transfers.hits)),
                ("disk", 0.0),
                ("external_unspecified", 0.0),
            ];
            labelled(hits)
        },
    ),
    counter("vllm:generation_tokens", "Number of generation tokens processed.", |e| read(&e.generation_tokens)),
    counter_by("vllm:request_success", "Count of successfully processed requests.", "finished_reason", |e| {
        labelled(REASONS.iter().zip(&e.finished).map(|(reason, count)| (*reason, read(count))))
    }),
];

/// The family of requests that no engine got.
pub(super) const REJECTIONS: [MetricFamily<EngineMetrics>; 1] = [counter_by(
    "vllm:admission_rejections",
    "Number of admission attempts rejected by a queue limit, by reason.",
    "reason",
    |e| labelled([("max_num_queued_reqs", read(&e.rejected)), ("max_num_queued_tokens", 0.0)]),
)];

pub(super) const REQUESTS: [MetricFamily<EngineMetrics>; 16] = [
    histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", |e| &e.request_prompt),
    histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", |e| &e.request_generation),
    histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", |e| &e.step_tokens),
    histogram(
        "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        |e| &e.longest_generation,
    ),
    histogram("vllm:request_params_n", "Histogram of the n request parameter.", |e| &e.choices),
    histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", |e| &e.max_tokens),
    histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", |e| &e.first_token),
    INTER_TOKEN,
    histogram(
        "vllm:request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        |e| &e.per_token,
    ),
    histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", |e| &e.e2e),
    histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", |e| &e.queue),
    histogram("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", |e| {
        &e.inference
    }),
    histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", |e| {
        &e.prefill
    }),
    histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", |e| {
        &e.decode
    }),
    histogram("vllm:request_num_preemptions", "Histogram of the number of times a request was preempted.", |e| {
        &e.request_preemptions
    }),
    histogram(
        "vllm:request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        |e| &e.computed,
    ),
];

/// Families about single blocks of the cache.
pub(super) const BLOCKS: [MetricFamily<EngineMetrics>; 3] = [
    histogram(
        "vllm:kv_block_lifetime_seconds",
        "Histogram of KV cache block lifetime from allocation to eviction. Sampled metrics (controlled by \
         --kv-cache-metrics-sample).",
        |e| &e.block_lifetime,
    ),
    histogram(
        "vllm:kv_block_idle_before_evict_seconds",
        "Histogram of idle time before KV cache block eviction. Sampled metrics (controlled by \
         --kv-cache-metrics-sample).",
        |e| &e.block_idle,
    ),
    histogram(
        "vllm:kv_block_reuse_gap_seconds",
        "Histogram of time gaps between consecutive KV cache block accesses. Only the most recent accesses are \
         recorded (ring buffer). Sampled metrics (controlled by --kv-cache-metrics-sample).",
        |e| &e.block_reuse_gap,
    ),
];
