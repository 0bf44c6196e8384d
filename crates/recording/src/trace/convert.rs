//! Line ↔ record: the one place where the file's parallel arrays become chunks and back, and where its rules live.
//!
//! Deviations: `null` for a key counts as absent, and so do empty `block_hashes`, `mm_hashes` and `params`. The step of
//! the first chunk has no place in the public schema and is not written.

use std::{sync::Arc, time::Duration};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::error::Defect;
use super::raw::RawRecord;
use super::{Chunk, Record, StepContext};
use base::units::Millis;

/// Most output tokens of a record: far more than any engine's limit, and few enough to be worked with.
pub(super) const MOST_TOKENS: u32 = 1 << 22;

impl RawRecord {
    /// The record, if the line keeps every rule.
    ///
    /// # Errors
    /// Every rule that the line breaks.
    pub(super) fn into_record(self) -> Result<Record, Vec<Defect>> {
        let defects = self.broken_rules();
        if !defects.is_empty() {
            return Err(defects);
        }
        let ttft = self.ttft();
        let chunks = self.chunks(ttft);
        let prompt_of = self.prompt_of;
        let mut record = Record {
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens.unwrap_or(0),
            ttft_without_tokens: if chunks.is_empty() { ttft } else { Duration::ZERO },
            chunks,
            itl_summary: self.itl_summary,
            concurrency: self.concurrency,
            arrival: self.arrival_ms.map(|ms| duration(Some(ms))),
            block_hashes: self.block_hashes.unwrap_or_default().into(),
            prompt_hash: self.prompt_hash,
            mm_hashes: self.mm_hashes.unwrap_or_default().into(),
            output_token_ids: self.output_token_ids,
            finish_reason: self.finish_reason,
            stop_token: self.stop_token,
            request_id: self.request_id,
            group: self.group,
            choice: self.choice,
            endpoint: self.endpoint,
            model: self.model,
            stream: self.stream,
            status: self.status,
            outcome: self.outcome,
            error: self.error,
            request_key: self.request_key,
            params: self.params.unwrap_or_default(),
            e2e: self.e2e_ms.map(|ms| duration(Some(ms))),
            first_event: self.first_event_ms.map(|ms| duration(Some(ms))),
            session: self.session,
            request: self.request,
            text: self.text,
            events: self.events,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            response: self.response.map(Arc::new),
            content_source: self.content_source,
            extra: self.extra,
        };
        record.set_prompt_of(prompt_of);
        Ok(record)
    }

    /// Zero where there is none.
    pub(super) fn ttft(&self) -> Duration {
        duration(self.ttft_ms)
    }

    /// Milliseconds between chunks.
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

    /// Every rule that the line breaks.
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

/// A number for people: not three hundred digits.
fn brief(number: f64) -> String {
    if number.abs() < 1e15 { number.to_string() } else { format!("{number:e}") }
}

fn duration(ms: Option<f64>) -> Duration {
    ms.and_then(|ms| Millis(ms).duration()).unwrap_or_default()
}

fn millis(duration: Duration) -> f64 {
    Millis::from(duration).0
}

/// A sequence that is written as it is walked.
struct Each<I>(I);

impl<I: Iterator + Clone> Serialize for Each<I>
where
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// `itl_ctx`, from the chunks after the first.
struct Context<'a>(&'a [Chunk]);

impl Serialize for Context<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let steps = self.0.iter().filter_map(|chunk| chunk.step);
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("num_running", &Each(steps.clone().map(|step| step.num_running)))?;
        map.serialize_entry("prefill_tokens", &Each(steps.map(|step| step.prefill_tokens)))?;
        map.end()
    }
}

/// A record in the file's spelling: public keys in the public order, then ours, then the unknown ones.
pub(super) struct Spelled<'a> {
    pub(super) record: &'a Record,
    /// The choice that was written with the hashes of its prompt.
    pub(super) prompt_of: Option<u32>,
}

impl Serialize for Spelled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        write_shape(self.record, &mut map)?;
        write_public(self.record, self.prompt_of, &mut map)?;
        write_ours(self.record, self.prompt_of, &mut map)?;
        write_content(self.record, &mut map)?;
        for (key, value) in &self.record.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

fn optional<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, value: Option<&T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(key, value))
}

/// Token counts and gaps.
fn write_shape<M: SerializeMap>(record: &Record, map: &mut M) -> Result<(), M::Error> {
    let later = record.chunks.get(1..).unwrap_or_default();
    map.serialize_entry("prompt_tokens", &record.prompt_tokens)?;
    optional(map, "cached_tokens", record.cached_tokens.as_ref())?;
    map.serialize_entry("output_tokens", &record.output_tokens)?;
    map.serialize_entry("ttft_ms", &millis(record.ttft().unwrap_or(record.ttft_without_tokens)))?;
    let summarised = record.itl_summary.is_some() && later.is_empty();
    if !summarised && (record.output_tokens > 1 || !later.is_empty()) {
        map.serialize_entry("itl_ms", &Each(later.iter().map(|chunk| millis(chunk.gap))))?;
    }
    if later.iter().any(|chunk| chunk.tokens != 1) {
        map.serialize_entry("itl_tokens", &Each(later.iter().map(|chunk| chunk.tokens)))?;
    }
    optional(map, "itl_summary", record.itl_summary.as_ref())
}

/// The rest of the public schema.
fn write_public<M: SerializeMap>(record: &Record, prompt_of: Option<u32>, map: &mut M) -> Result<(), M::Error> {
    let later = record.chunks.get(1..).unwrap_or_default();
    optional(map, "concurrency", record.concurrency.as_ref())?;
    optional(map, "arrival_ms", record.arrival.map(millis).as_ref())?;
    if !later.is_empty() && later.iter().all(|chunk| chunk.step.is_some()) {
        map.serialize_entry("itl_ctx", &Context(later))?;
    }
    if prompt_of.is_none() {
        optional(map, "block_hashes", Some(&*record.block_hashes).filter(|hashes| !hashes.is_empty()))?;
        optional(map, "mm_hashes", Some(&*record.mm_hashes).filter(|hashes| !hashes.is_empty()))?;
    }
    optional(map, "output_token_ids", record.output_token_ids.as_ref())?;
    optional(map, "finish_reason", record.finish_reason.as_ref())
}

/// This project's additions.
fn write_ours<M: SerializeMap>(record: &Record, prompt_of: Option<u32>, map: &mut M) -> Result<(), M::Error> {
    optional(map, "prompt_hash", record.prompt_hash.as_ref().filter(|_| prompt_of.is_none()))?;
    optional(map, "prompt_of", prompt_of.as_ref())?;
    optional(map, "stop_token", record.stop_token.as_ref())?;
    optional(map, "request_id", record.request_id.as_ref())?;
    optional(map, "group", record.group.as_ref())?;
    optional(map, "choice", record.choice.as_ref())?;
    optional(map, "endpoint", record.endpoint.as_ref())?;
    optional(map, "model", record.model.as_ref())?;
    optional(map, "stream", record.stream.as_ref())?;
    optional(map, "status", record.status.as_ref())?;
    optional(map, "outcome", record.outcome.as_ref())?;
    optional(map, "error", record.error.as_ref())?;
    optional(map, "request_key", record.request_key.as_ref())?;
    optional(map, "params", Some(&record.params).filter(|params| !params.is_empty()))?;
    optional(map, "e2e_ms", record.e2e.map(millis).as_ref())?;
    optional(map, "first_event_ms", record.first_event.map(millis).as_ref())?;
    optional(map, "session", record.session.as_ref())
}

/// Writes the fields that are recorded on opt-in only.
fn write_content<M: SerializeMap>(record: &Record, map: &mut M) -> Result<(), M::Error> {
    optional(map, "request", record.request.as_ref())?;
    optional(map, "text", record.text.as_ref())?;
    optional(map, "events", record.events.as_ref())?;
    optional(map, "logprobs", record.logprobs.as_ref())?;
    optional(map, "prompt_logprobs", record.prompt_logprobs.as_ref())?;
    optional(map, "response", record.response.as_deref())?;
    optional(map, "content_source", record.content_source.as_ref())
}
