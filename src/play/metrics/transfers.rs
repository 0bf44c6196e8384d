//! Figures of a KV connector, by the names of vLLM's `NixlConnector`.
//!
//! Limits: bytes and descriptors are those of the cache of Llama 3.1 8B; transfers never fail, and are posted in no time.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{
    Metrics,
    engine::EngineMetrics,
    histogram::{Histogram, float},
};
use crate::{engine::scheduler::SchedulerStats, play::engine::KvRole};

/// Families that are there with a connector only, and one that is there with one that decodes.
const OF_CONNECTOR: &str = "vllm:nixl_";
const OF_CONSUMER: &str = "vllm:num_requests_kv_fetch_by_stage";

const SECONDS: [f64; 13] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];
const DESCRIPTORS: [f64; 14] =
    [10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10_000.0, 20_000.0, 50_000.0];

/// Of Llama 3.1 8B, with keys and values of BF16: 32 layers, each with 8 heads of 128 numbers.
const BYTES_OF_TOKEN: usize = 2 * 32 * 8 * 128 * 2;
const DESCRIPTORS_OF_BLOCK: usize = 2 * 32;

/// A transfer that has ended.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Transferred {
    pub(in super::super) took: Duration,
    pub(in super::super) tokens: usize,
    pub(in super::super) blocks: usize,
}

/// Counters of a connector.
#[derive(Debug)]
pub(super) struct KvTransfers {
    is_consumer: bool,
    /// Waiting requests by stage, in the order of vLLM's.
    stages: [AtomicU64; 3],
    queries: AtomicU64,
    hits: AtomicU64,
    took: Histogram,
    posted: Histogram,
    bytes: Histogram,
    descriptors: Histogram,
    failed_notices: AtomicU64,
    expired: AtomicU64,
    after_expiry: AtomicU64,
}

impl KvTransfers {
    pub(super) fn new(role: KvRole) -> Self {
        let powers = (1..25).step_by(2).map(|power| 2_f64.powi(10 + power)).collect();
        Self {
            is_consumer: role.is_consumer(),
            stages: Default::default(),
            queries: AtomicU64::default(),
            hits: AtomicU64::default(),
            took: Histogram::seconds(SECONDS.get(1..).unwrap_or_default()),
            posted: Histogram::seconds(&SECONDS),
            bytes: Histogram::counts(powers),
            descriptors: Histogram::counts(DESCRIPTORS.to_vec()),
            failed_notices: AtomicU64::default(),
            expired: AtomicU64::default(),
            after_expiry: AtomicU64::default(),
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

    /// The distribution of a family.
    pub(super) fn histogram(&self, family: &str) -> Option<&Histogram> {
        Some(match family {
            "vllm:nixl_xfer_time_seconds" => &self.took,
            "vllm:nixl_post_time_seconds" => &self.posted,
            "vllm:nixl_bytes_transferred" => &self.bytes,
            "vllm:nixl_num_descriptors" => &self.descriptors,
            _ => return None,
        })
    }

    /// The value of a sample of which the connector knows.
    pub(super) fn value(&self, name: &str, labels: &str) -> Option<f64> {
        let stages = ["waiting_to_start", "in_progress", "completed_waiting"];
        let stage = || stages.iter().position(|stage| labels.contains(&format!("stage=\"{stage}\"")));
        let counter = match name {
            OF_CONSUMER => self.stages.get(stage()?)?,
            "vllm:external_prefix_cache_queries_total" => &self.queries,
            "vllm:external_prefix_cache_hits_total" => &self.hits,
            "vllm:prompt_tokens_cached_by_source_total" if labels.contains("\"p2p\"") => &self.hits,
            "vllm:nixl_num_failed_transfers_total" | "vllm:nixl_num_failed_notifications_total" => &self.failed_notices,
            "vllm:nixl_num_kv_expired_reqs_total" => &self.expired,
            "vllm:nixl_num_notifications_after_expiry_total" => &self.after_expiry,
            _ => return None,
        };
        Some(float(counter.load(Relaxed)))
    }
}

impl EngineMetrics {
    /// Whether a line of the list of families is shown as far as connectors go.
    pub(super) fn shows_transfers(&self, line: &str) -> bool {
        let transfers = self.scheduled.as_ref().and_then(|scheduled| scheduled.transfers.as_ref());
        (transfers.is_some() || !line.contains(OF_CONNECTOR))
            && (transfers.is_some_and(|transfers| transfers.is_consumer) || !line.contains(OF_CONSUMER))
    }
}

impl Metrics {
    fn transfers(&self) -> Option<&KvTransfers> {
        self.engine.scheduled.as_ref()?.transfers.as_ref()
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
