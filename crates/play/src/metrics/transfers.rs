//! Figures of a KV connector, by the names of vLLM's `NixlConnector`.
//!
//! Limits: bytes and descriptors are those of the cache of Llama 3.1 8B; transfers never fail, and are posted in no time.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::Metrics;
use crate::engine::KvRole;
use ::engine::scheduler::SchedulerStats;
use base::stats::{
    exposition::{MetricFamily, counter, gauge_by, histogram, labelled, read},
    histogram::Histogram,
};

const SECONDS: [f64; 13] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];
const DESCRIPTORS: [f64; 14] =
    [10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10_000.0, 20_000.0, 50_000.0];

/// Stages of waiting requests, in vLLM's order.
const STAGES: [&str; 3] = ["waiting_to_start", "in_progress", "completed_waiting"];

/// Of Llama 3.1 8B, with keys and values of BF16: 32 layers, each with 8 heads of 128 numbers.
const BYTES_OF_TOKEN: usize = 2 * 32 * 8 * 128 * 2;
const DESCRIPTORS_OF_BLOCK: usize = 2 * 32;

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Transferred {
    pub(in super::super) took: Duration,
    pub(in super::super) tokens: usize,
    pub(in super::super) blocks: usize,
}

/// Counters of a connector.
#[derive(Debug, Default)]
pub(super) struct KvTransfers {
    pub(super) is_consumer: bool,
    /// Waiting requests by stage, in the order of [`STAGES`].
    stages: [AtomicU64; STAGES.len()],
    pub(super) queries: AtomicU64,
    pub(super) hits: AtomicU64,
    took: Histogram,
    posted: Histogram,
    bytes: Histogram,
    descriptors: Histogram,
    failed_notices: AtomicU64,
    expired: AtomicU64,
    after_expiry: AtomicU64,
}

/// Families that are there with a connector only.
pub(super) const FAMILIES: [MetricFamily<KvTransfers>; 8] = [
    histogram("vllm:nixl_xfer_time_seconds", "Histogram of transfer duration for NIXL KV Cache transfers.", |t| {
        &t.took
    }),
    histogram("vllm:nixl_post_time_seconds", "Histogram of transfer post time for NIXL KV Cache transfers.", |t| {
        &t.posted
    }),
    histogram("vllm:nixl_bytes_transferred", "Histogram of bytes transferred per NIXL KV Cache transfers.", |t| {
        &t.bytes
    }),
    histogram("vllm:nixl_num_descriptors", "Histogram of number of descriptors per NIXL  KV Cache transfers.", |t| {
        &t.descriptors
    }),
    counter(
        "vllm:nixl_num_failed_transfers",
        "Number of failed NIXL KV Cache transfers, including handshake and notification failures. NOTE: KV expiry is \
         tracked separately in vllm:nixl_num_kv_expired_reqs.",
        |t| read(&t.failed_notices),
    ),
    counter(
        "vllm:nixl_num_failed_notifications",
        "Number of failed NIXL KV Cache notifications. Retained for compatibility; these failures are also included in \
         vllm:nixl_num_failed_transfers.",
        |t| read(&t.failed_notices),
    ),
    counter(
        "vllm:nixl_num_kv_expired_reqs",
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.",
        |t| read(&t.expired),
    ),
    counter(
        "vllm:nixl_num_notifications_after_expiry",
        "Number of completion notifications for requests that were no longer tracked, usually because their KV lease \
         expired. The KV blocks may have been reused before the transfer finished. Counted per notification (one per \
         remote rank), not per request.",
        |t| read(&t.after_expiry),
    ),
];

/// The family that is there with a connector that decodes.
pub(super) const FETCHES: [MetricFamily<KvTransfers>; 1] = [gauge_by(
    "vllm:num_requests_kv_fetch_by_stage",
    "Number of waiting requests by async KV load stage. Stage labels: 'waiting_to_start' = needs an async KV load that \
     has not started; 'in_progress' = load started and not yet reported finished; 'completed_waiting' = load finished, \
     request not running yet.",
    "stage",
    |t| labelled(STAGES.iter().zip(&t.stages).map(|(stage, count)| (*stage, read(count)))),
)];

impl KvTransfers {
    pub(super) fn new(role: KvRole) -> Self {
        let powers = (1..25).step_by(2).map(|power| 2_f64.powi(10 + power)).collect();
        Self {
            is_consumer: role.is_consumer(),
            took: Histogram::seconds(SECONDS.get(1..).unwrap_or_default()),
            posted: Histogram::seconds(&SECONDS),
            bytes: Histogram::counts(powers),
            descriptors: Histogram::counts(DESCRIPTORS.to_vec()),
            ..Self::default()
        }
    }

    pub(super) fn step(&self, stats: &SchedulerStats) {
        let of = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let fetches = stats.kv_fetches;
        let counts = [fetches.waiting_to_start, fetches.in_progress, fetches.completed_waiting];
        self.stages.iter().zip(counts).for_each(|(stage, count)| stage.store(of(count), Relaxed));
        self.queries.fetch_add(of(stats.connector_prefix_cache_stats.queries), Relaxed);
        self.hits.fetch_add(of(stats.connector_prefix_cache_stats.hits), Relaxed);
    }

    fn end(&self, transferred: Transferred) {
        let Transferred { took, tokens, blocks } = transferred;
        let of = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.took.time(took);
        self.posted.time(Duration::ZERO);
        self.bytes.count(of(tokens.saturating_mul(BYTES_OF_TOKEN)));
        self.descriptors.count(of(blocks.saturating_mul(DESCRIPTORS_OF_BLOCK)));
    }
}

impl Metrics {
    fn transfers(&self) -> Option<&KvTransfers> {
        self.engine.transfers.as_ref()
    }

    /// Counts a transfer that has ended.
    pub(in super::super) fn transferred(&self, transferred: Transferred) {
        self.transfers().into_iter().for_each(|transfers| transfers.end(transferred));
    }

    /// Counts a request whose blocks were released, since no engine has read them.
    pub(in super::super) fn lease_expired(&self) {
        self.count_transfer(|transfers| &transfers.expired);
    }

    /// Counts a message about blocks that are not kept any more.
    pub(in super::super) fn notice_after_expiry(&self) {
        self.count_transfer(|transfers| &transfers.after_expiry);
    }

    /// Counts a message that does not reach its engine.
    pub(in super::super) fn notice_failed(&self) {
        self.count_transfer(|transfers| &transfers.failed_notices);
    }

    fn count_transfer(&self, counter: impl Fn(&KvTransfers) -> &AtomicU64) {
        self.transfers().into_iter().for_each(|transfers| {
            counter(transfers).fetch_add(1, Relaxed);
        });
    }
}
