//! One record, packed by itself on its way into a [`Store`](super::Store).
//!
//! It is made from a line without the chunks between, by the same rules.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    Chunk, Endpoint, ErrorResponse, FinishReason, ItlSummary, Outcome, Record, error::Defect, exchange::Exchange,
    raw::RawRecord,
};
use base::units::Millis;
use text::prompt::media_block;

/// Stands for a gap that is kept aside: 4.3 s and longer.
pub(super) const LONG: u32 = u32::MAX;

/// A record without what no replay needs.
#[derive(Debug, PartialEq)]
pub(super) struct Packed {
    /// Nanoseconds, the TTFT first.
    pub(super) gaps: Vec<u32>,
    /// The gaps that are [`LONG`], by their place.
    pub(super) long_gaps: Vec<(usize, Duration)>,
    /// Tokens per chunk, where it is not always 1.
    pub(super) tokens: Option<Vec<u32>>,
    pub(super) ids: Option<Vec<u32>>,
    /// Shared by the choices of one request.
    pub(super) chain: Arc<[u64]>,
    /// The choice whose chain it shares, until the line is read.
    pub(super) prompt_of: Option<u32>,
    pub(super) model: Option<String>,
    /// As JSON: what is rarely there and rarely asked for stays packed.
    pub(super) logprobs: Option<Box<str>>,
    pub(super) prompt_logprobs: Option<Box<str>>,
    /// The request, where it was recorded and is short enough to be shown.
    pub(super) example: Option<Box<Example>>,
    pub(super) facts: Facts,
}

/// A recorded request that people can try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Path: `/v1/chat/completions` or `/v1/completions`.
    pub path: &'static str,
    /// Its body.
    pub body: Value,
}

/// Maximum length of an example, in characters: a longer one helps no reader.
const LONGEST_EXAMPLE: usize = 1000;

impl Example {
    /// None where the request is long, has another path, or has lost a secret.
    fn of(endpoint: Option<Endpoint>, body: &Value) -> Option<Box<Self>> {
        let path = endpoint.filter(|endpoint| endpoint.has_choices())?.path()?;
        let text = body.to_string();
        let is_fit = body.is_object() && text.len() <= LONGEST_EXAMPLE && !text.contains("[REDACTED");
        is_fit.then(|| Box::new(Self { path, body: body.clone() }))
    }
}

/// Facts of which every record has one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Facts {
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: Option<u32>,
    pub(super) output_tokens: u32,
    pub(super) itl_summary: Option<ItlSummary>,
    pub(super) ttft_without_tokens: Duration,
    pub(super) arrival: Option<Duration>,
    pub(super) e2e: Option<Duration>,
    pub(super) first_event: Option<Duration>,
    pub(super) prompt_hash: Option<u64>,
    pub(super) finish_reason: Option<FinishReason>,
    pub(super) stop_token: Option<u32>,
    pub(super) group: Option<Box<str>>,
    pub(super) choice: Option<u32>,
    pub(super) stream: Option<bool>,
    pub(super) status: Option<u16>,
    pub(super) outcome: Option<Outcome>,
    pub(super) error: Option<Box<ErrorResponse>>,
    /// It has generated tokens.
    pub(super) generates: bool,
    /// Content for a record that may be matched by its request.
    pub(super) exchange: Option<Box<Exchange>>,
    /// Its prompt had media.
    pub(super) has_media: bool,
    /// Its line was invalid.
    pub(super) is_lost: bool,
}

/// Returns the block hashes by which a record is matched, after a hash of its media if that is known. Two prompts of equal
/// text and different images share no block then.
fn chain(mm_hashes: &[String], block_hashes: Vec<u64>) -> Arc<[u64]> {
    match media_block(mm_hashes) {
        Some(first) => std::iter::once(first).chain(block_hashes).collect(),
        None => block_hashes.into(),
    }
}

impl Packed {
    /// Creates a placeholder for a record whose line was invalid.
    pub(super) fn lost(arrival: Option<Duration>) -> Self {
        let mut packed = Self::from(&Record { arrival, ..Record::default() });
        packed.facts.is_lost = true;
        packed
    }
}

impl RawRecord {
    /// The record, if the line keeps every rule.
    ///
    /// # Errors
    /// Every rule that the line breaks.
    pub(super) fn into_packed(mut self) -> Result<Packed, Vec<Defect>> {
        let defects = self.broken_rules();
        if !defects.is_empty() {
            return Err(defects);
        }
        let ttft = self.ttft();
        let first = self.first_chunk();
        let (gaps, long_gaps) = if first.is_some() { self.packed_gaps(ttft) } else { <_>::default() };
        let tokens = first.and_then(|first| self.packed_tokens(first));
        let duration = |ms: Option<f64>| ms.map(|ms| Millis(ms).duration().unwrap_or_default());
        let exchange = Exchange::of(&mut self);
        let facts = Facts {
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens.unwrap_or(0),
            itl_summary: self.itl_summary,
            ttft_without_tokens: if first.is_some() { Duration::ZERO } else { ttft },
            arrival: duration(self.arrival_ms),
            e2e: duration(self.e2e_ms),
            first_event: duration(self.first_event_ms),
            prompt_hash: self.prompt_hash,
            finish_reason: self.finish_reason,
            stop_token: self.stop_token,
            group: self.group.map(String::into_boxed_str),
            choice: self.choice,
            stream: self.stream,
            status: self.status,
            outcome: self.outcome,
            error: self.error.map(Box::new),
            generates: self.endpoint.is_none_or(Endpoint::generates),
            has_media: self.mm_hashes.as_ref().is_some_and(|hashes| !hashes.is_empty()),
            is_lost: false,
            exchange,
        };
        let example = self.request.as_ref().and_then(|request| Example::of(self.endpoint, request));
        let chain = chain(self.mm_hashes.as_deref().unwrap_or_default(), self.block_hashes.unwrap_or_default());
        let (ids, prompt_of, model) = (self.output_token_ids, self.prompt_of, self.model);
        let (logprobs, prompt_logprobs) = (json(self.logprobs.as_ref()), json(self.prompt_logprobs.as_ref()));
        Ok(Packed { gaps, long_gaps, tokens, ids, chain, prompt_of, model, logprobs, prompt_logprobs, example, facts })
    }

    fn packed_gaps(&self, ttft: Duration) -> (Vec<u32>, Vec<(usize, Duration)>) {
        let later = self.gaps();
        let mut gaps = Vec::with_capacity(1 + later.len());
        let mut long_gaps = Vec::new();
        let first = u64::try_from(ttft.as_nanos()).unwrap_or(u64::MAX);
        let nanos = later.iter().map(|gap| Millis(*gap).nanos().unwrap_or_default());
        for (at, nanos) in std::iter::once(first).chain(nanos).enumerate() {
            let short = u32::try_from(nanos).unwrap_or(LONG);
            if short == LONG {
                long_gaps.push((at, Duration::from_nanos(nanos)));
            }
            gaps.push(short);
        }
        (gaps, long_gaps)
    }

    fn packed_tokens(&self, first: u32) -> Option<Vec<u32>> {
        let later = self.itl_tokens.as_deref().unwrap_or_default();
        if first == 1 && later.iter().all(|count| *count == 1) {
            return None;
        }
        let spelled = later.iter().copied().chain(std::iter::repeat(1)).take(self.gaps().len());
        Some(std::iter::once(first).chain(spelled).collect())
    }
}

/// A value as JSON.
fn json<T: serde::Serialize>(value: Option<&T>) -> Option<Box<str>> {
    serde_json::to_string(value?).ok().map(String::into_boxed_str)
}

impl From<&Record> for Packed {
    fn from(record: &Record) -> Self {
        let nanos = |chunk: &Chunk| u32::try_from(chunk.gap.as_nanos()).unwrap_or(LONG);
        let gaps: Vec<u32> = record.chunks.iter().map(nanos).collect();
        let long = gaps.iter().zip(&record.chunks).enumerate().filter(|(_, (nanos, _))| **nanos == LONG);
        let long_gaps = long.map(|(at, (_, chunk))| (at, chunk.gap)).collect();
        let counts = record.chunks.iter().map(|chunk| chunk.tokens);
        Self {
            gaps,
            long_gaps,
            tokens: counts.clone().any(|count| count != 1).then(|| counts.collect()),
            ids: record.output_token_ids.clone(),
            chain: chain(&record.mm_hashes, record.block_hashes.to_vec()),
            prompt_of: None,
            model: record.model.clone(),
            logprobs: json(record.logprobs.as_ref()),
            prompt_logprobs: json(record.prompt_logprobs.as_ref()),
            example: record.request.as_ref().and_then(|request| Example::of(record.endpoint, request)),
            facts: Facts {
                prompt_tokens: record.prompt_tokens,
                cached_tokens: record.cached_tokens,
                output_tokens: record.output_tokens,
                itl_summary: record.itl_summary,
                ttft_without_tokens: record.ttft_without_tokens,
                arrival: record.arrival,
                e2e: record.e2e,
                first_event: record.first_event,
                prompt_hash: record.prompt_hash,
                finish_reason: record.finish_reason,
                stop_token: record.stop_token,
                group: record.group.as_deref().map(Box::from),
                choice: record.choice,
                stream: record.stream,
                status: record.status,
                outcome: record.outcome,
                error: record.error.clone().map(Box::new),
                generates: record.endpoint.is_none_or(Endpoint::generates),
                has_media: !record.mm_hashes.is_empty(),
                is_lost: false,
                exchange: Exchange::of_record(record),
            },
        }
    }
}
