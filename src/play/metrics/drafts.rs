//! Figures of speculative decoding.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    Metrics,
    engine::EngineMetrics,
    histogram::{float, number},
};
use crate::engine::scheduler::{SpecDecodingStats, Speculation};

/// Families that are there with speculative decoding only.
const OF_DRAFTS: &str = "vllm:spec_decode_";

/// What stands for the place of a draft token in the list of families: such a line is one for each place.
pub(super) const DRAFT_POSITION: &str = "{position}";

/// Draft tokens, and those that were accepted.
#[derive(Debug)]
pub(super) struct DraftCounts {
    drafts: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    by_place: Vec<AtomicU64>,
}

impl DraftCounts {
    pub(super) fn new(speculation: &Speculation) -> Self {
        let by_place = (0..speculation.num_speculative_tokens).map(|_| AtomicU64::new(0)).collect();
        let count = AtomicU64::default;
        Self { drafts: count(), drafted: count(), accepted: count(), by_place }
    }

    /// The value of a sample that is not by place.
    pub(super) fn value(&self, name: &str) -> Option<f64> {
        let counter = match name {
            "vllm:spec_decode_num_drafts_total" => &self.drafts,
            "vllm:spec_decode_num_draft_tokens_total" => &self.drafted,
            "vllm:spec_decode_num_accepted_tokens_total" => &self.accepted,
            _ => return None,
        };
        Some(float(counter.load(Relaxed)))
    }
}

impl EngineMetrics {
    fn drafts(&self) -> Option<&DraftCounts> {
        self.scheduled.as_ref()?.drafts.as_ref()
    }

    /// Whether a line of the list of families is shown as far as speculative decoding goes.
    pub(super) fn shows_drafts(&self, line: &str) -> bool {
        self.drafts().is_some() || !line.contains(OF_DRAFTS)
    }
}

impl Metrics {
    /// Counts the draft tokens of a step.
    pub(in super::super) fn drafted(&self, rank: usize, stats: &SpecDecodingStats) {
        let Some(drafts) = self.of_rank(rank).drafts().filter(|_| stats.num_drafts > 0) else { return };
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Relaxed);
        };
        add(&drafts.drafts, stats.num_drafts);
        add(&drafts.drafted, stats.num_draft_tokens);
        add(&drafts.accepted, stats.num_accepted_tokens);
        drafts
            .by_place
            .iter()
            .zip(&stats.num_accepted_tokens_per_pos)
            .for_each(|(counter, count)| add(counter, *count));
    }

    /// Appends a sample for each place of a draft token.
    pub(super) fn put_positions(&self, line: &str, rank: usize, page: &mut String) {
        for (at, counter) in self.of_rank(rank).drafts().into_iter().flat_map(|drafts| &drafts.by_place).enumerate() {
            let sample = line.replace(DRAFT_POSITION, &at.to_string());
            let value = if line.contains("_created") { self.started } else { float(counter.load(Relaxed)) };
            let _ = writeln!(page, "{sample} {}", number(value));
        }
    }
}
