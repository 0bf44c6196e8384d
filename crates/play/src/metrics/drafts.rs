//! Figures of speculative decoding.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ::engine::scheduler::{SpecDecodingStats, Speculation};
use base::stats::exposition::{MetricFamily, counter, counter_by, labelled, read};

/// Draft tokens, and those that were accepted.
#[derive(Debug, Default)]
pub(super) struct DraftCounts {
    drafts: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    /// Those that were accepted by their place in the draft.
    by_place: Vec<AtomicU64>,
}

/// Families that are there with speculative decoding only.
pub(super) const FAMILIES: [MetricFamily<DraftCounts>; 4] = [
    counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", |counts| read(&counts.drafts)),
    counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", |counts| read(&counts.drafted)),
    counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", |counts| read(&counts.accepted)),
    counter_by(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted tokens per draft position.",
        "position",
        |counts: &DraftCounts| {
            labelled(counts.by_place.iter().enumerate().map(|(at, count)| (at.to_string(), read(count))))
        },
    )
    .by_source(),
];

impl DraftCounts {
    pub(super) fn new(speculation: &Speculation) -> Self {
        let by_place = (0..speculation.num_speculative_tokens).map(|_| AtomicU64::new(0)).collect();
        Self { by_place, ..Self::default() }
    }

    pub(super) fn step(&self, stats: &SpecDecodingStats) {
        if stats.num_drafts == 0 {
            return;
        }
        let totals = [stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens];
        let counters = [&self.drafts, &self.drafted, &self.accepted].into_iter().chain(&self.by_place);
        for (counter, count) in counters.zip(totals.iter().chain(&stats.num_accepted_tokens_per_pos)) {
            counter.fetch_add(u64::try_from(*count).unwrap_or(u64::MAX), Relaxed);
        }
    }
}
