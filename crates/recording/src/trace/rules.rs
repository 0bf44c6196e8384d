//! The rules of a record's line, and how its parallel arrays become chunks.
//!
//! Deviations: `null` for a key counts as absent, and so do empty `block_hashes`, `mm_hashes` and `params`.

use std::time::Duration;

use serde_json::Value;

use super::error::Defect;
use super::raw::{RawRecord, duration};
use super::record::{INTENDED_MS, THINK_MS};
use super::{Chunk, Record, StepContext};
use base::units::Millis;

/// Times of keys without a field of their own.
pub(super) const OTHER_TIMES: [&str; 4] = [THINK_MS, INTENDED_MS, "queue_ms", "prefill_ms"];

/// Key of a count without a field of its own.
pub(super) const PREEMPTIONS: &str = "preemptions";

/// Maximum number of output tokens of a record: far more than any engine's limit, and few enough to be worked with.
pub(super) const MOST_TOKENS: u32 = 1 << 22;

impl RawRecord {
    /// The record, if the line keeps every rule.
    pub(super) fn into_record(self) -> Result<Record, Vec<Defect>> {
        let defects = self.broken_rules();
        if !defects.is_empty() {
            return Err(defects);
        }
        let ttft = self.ttft();
        let chunks = self.chunks(ttft);
        let ttft_without_tokens = if chunks.is_empty() { ttft } else { Duration::ZERO };
        Ok(self.with_chunks(chunks, ttft_without_tokens))
    }

    pub(super) fn ttft(&self) -> Duration {
        duration(self.ttft_ms)
    }

    pub(super) fn gaps(&self) -> &[f64] {
        self.itl_ms.as_deref().unwrap_or_default()
    }

    /// Returns the number of tokens in the first chunk; `None` if no token came.
    pub(super) fn first_chunk(&self) -> Option<u32> {
        let output = self.output_tokens.filter(|count| *count > 0)?;
        let later: u32 = match (&self.itl_tokens, &self.itl_summary) {
            (Some(counts), _) => counts.iter().sum(),
            (None, Some(summary)) if self.gaps().is_empty() => summary.count.min(output - 1),
            (None, _) => u32::try_from(self.gaps().len()).unwrap_or(u32::MAX),
        };
        Some(output.saturating_sub(later))
    }

    fn chunks(&self, ttft: Duration) -> Vec<Chunk> {
        let Some(first) = self.first_chunk() else { return Vec::new() };
        let gaps = self.gaps();
        let mut chunks = Vec::with_capacity(1 + gaps.len());
        chunks.push(Chunk { gap: ttft, tokens: first, step: None });
        chunks.extend(gaps.iter().enumerate().map(|(index, gap)| Chunk {
            gap: duration(Some(*gap)),
            tokens: self.itl_tokens.as_ref().map_or(1, |counts| counts.get(index).copied().unwrap_or(1)),
            step: self.step(index),
        }));
        chunks
    }

    fn step(&self, index: usize) -> Option<StepContext> {
        let context = self.itl_ctx.as_ref()?;
        Some(StepContext {
            num_running: *context.num_running.get(index)?,
            prefill_tokens: *context.prefill_tokens.get(index)?,
        })
    }

    pub(super) fn broken_rules(&self) -> Vec<Defect> {
        let mut defects = Vec::new();
        self.check_presence(&mut defects);
        self.check_counts(&mut defects);
        self.check_times(&mut defects);
        self.check_chunks(&mut defects);
        self.check_ids(&mut defects);
        defects
    }

    fn check_presence(&self, defects: &mut Vec<Defect>) {
        for (field, absent) in [
            ("prompt_tokens", self.prompt_tokens.is_none()),
            ("output_tokens", self.output_tokens.is_none()),
            ("ttft_ms", self.ttft_ms.is_none()),
        ] {
            if absent {
                defects.push(Defect::field(field, "is missing; every record needs it"));
            }
        }
        if self.output_tokens > Some(MOST_TOKENS) {
            defects.push(Defect::field("output_tokens", format!("is more than {MOST_TOKENS}; no answer is that long")));
        }
        if self.output_tokens > Some(1) && self.itl_ms.is_none() && self.itl_summary.is_none() {
            let text =
                "more than 1 output token needs itl_ms or itl_summary; add one (itl_ms may be [] if all came at once)";
            defects.push(Defect::field("output_tokens", text));
        }
    }

    fn check_counts(&self, defects: &mut Vec<Defect>) {
        if let (Some(cached), Some(prompt)) = (self.cached_tokens, self.prompt_tokens)
            && cached > prompt
        {
            let text = format!("is {cached}, but the prompt has {prompt} tokens");
            defects.push(Defect::field("cached_tokens", text));
        }
        let later = self.output_tokens.unwrap_or(0).saturating_sub(1);
        if let Some(summary) = self.itl_summary.filter(|summary| summary.count > later) {
            let text = format!("counts {} gaps, but {later} tokens came after the first", summary.count);
            defects.push(Defect::field("itl_summary", text));
        }
        if let Some(count) = self.other(PREEMPTIONS).filter(|count| !count.is_u64()) {
            defects.push(Defect::field(PREEMPTIONS, format!("{count} is not a whole number (0 or more)")));
        }
    }

    /// Returns the value of a key without a field of its own; null counts as absent.
    fn other(&self, key: &str) -> Option<&Value> {
        self.extra.get(key).filter(|value| !value.is_null())
    }

    fn check_times(&self, defects: &mut Vec<Defect>) {
        let mean = self.itl_summary.map(|summary| summary.mean_ms);
        for (field, value) in [
            ("ttft_ms", self.ttft_ms),
            ("arrival_ms", self.arrival_ms),
            ("e2e_ms", self.e2e_ms),
            ("first_event_ms", self.first_event_ms),
            ("itl_summary", mean),
        ] {
            if let Some(ms) = value.filter(|ms| Millis(*ms).duration().is_none()) {
                defects.push(Defect::field(field, format!("{} is not a time in milliseconds (0 or more)", brief(ms))));
            }
        }
        for field in OTHER_TIMES {
            let value = self.other(field);
            if let Some(value) = value.filter(|value| value.as_f64().is_none_or(|ms| Millis(ms).duration().is_none())) {
                let shown = value.as_f64().map_or_else(|| value.to_string(), brief);
                defects.push(Defect::field(field, format!("{shown} is not a time in milliseconds (0 or more)")));
            }
        }
        if let Some((index, ms)) = self.gaps().iter().enumerate().find(|(_, ms)| Millis(**ms).duration().is_none()) {
            let text = format!("value {index} is {}, not a time in milliseconds (0 or more)", brief(*ms));
            defects.push(Defect::field("itl_ms", text));
        }
    }

    fn check_chunks(&self, defects: &mut Vec<Defect>) {
        let gaps = self.gaps().len();
        let output = u64::from(self.output_tokens.unwrap_or(0));
        let mut same_length = |field, found: usize| {
            if found != gaps {
                let text = format!("has {found} values, itl_ms has {gaps}; they must be equally long");
                defects.push(Defect::field(field, text));
            }
        };
        if let Some(counts) = &self.itl_tokens {
            same_length("itl_tokens", counts.len());
        }
        if let Some(context) = &self.itl_ctx {
            same_length("itl_ctx.num_running", context.num_running.len());
            same_length("itl_ctx.prefill_tokens", context.prefill_tokens.len());
        }
        if let Some(index) = self.itl_tokens.iter().flatten().position(|count| *count == 0) {
            defects.push(Defect::field("itl_tokens", format!("value {index} is 0; a chunk holds at least 1 token")));
        }
        let (field, later) = match &self.itl_tokens {
            Some(counts) => ("itl_tokens", counts.iter().copied().map(u64::from).sum()),
            None => ("itl_ms", gaps as u64),
        };
        if later > 0 && later >= output {
            let text = format!(
                "the chunks after the first hold {later} tokens, but output_tokens is {output}; \
                 the first chunk would hold none"
            );
            defects.push(Defect::field(field, text));
        }
    }

    fn check_ids(&self, defects: &mut Vec<Defect>) {
        if let (Some(ids), Some(output)) = (&self.output_token_ids, self.output_tokens)
            && ids.len() as u64 != u64::from(output)
        {
            let text = format!("has {} ids, but output_tokens is {output}; they must agree", ids.len());
            defects.push(Defect::field("output_token_ids", text));
        }
        if let (Some(logprobs), Some(output)) = (&self.logprobs, self.output_tokens)
            && logprobs.tokens.len() as u64 != u64::from(output)
        {
            let text =
                format!("are of {} tokens, but output_tokens is {output}; they must agree", logprobs.tokens.len());
            defects.push(Defect::field("logprobs", text));
        }
    }
}

/// Formats a number, a very large one with an exponent.
pub(crate) fn brief(number: f64) -> String {
    if number.abs() < 1e15 { number.to_string() } else { format!("{number:e}") }
}
