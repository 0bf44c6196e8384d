//! One record, packed by itself on its way into a [`Store`](super::Store).
//!
//! It is made from a line without the chunks between, by the same rules.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    Endpoint, FinishReason, ItlSummary, Outcome, Record, RecordRef, RecordedErrorResponse, Response, error::Defect,
    raw::RawRecord,
};
use base::units::Millis;
use text::prompt::media_block;

/// Stands for a gap that is kept aside: 4.3 s and longer.
pub(super) const LONG: u32 = u32::MAX;

/// A record without what no replay needs.
#[derive(Debug, PartialEq)]
pub(super) struct Packed {
    pub(super) gaps: PackedGaps,
    /// Tokens per chunk, where it is not always 1.
    pub(super) tokens: Option<Vec<u32>>,
    pub(super) ids: Option<Vec<u32>>,
    /// Shared by the choices of one request.
    pub(super) chain: Arc<[u64]>,
    pub(super) model: Option<String>,
    /// As JSON: what is rarely there and rarely asked for stays packed.
    pub(super) logprobs: Option<Box<str>>,
    pub(super) prompt_logprobs: Option<Box<str>>,
    /// The request, where it was recorded and is short enough to be shown.
    pub(super) example: Option<Box<Example>>,
    pub(super) facts: RecordFacts,
}

/// Gaps between chunks, the TTFT first.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PackedGaps {
    pub(super) short: Vec<u32>,
    /// The gaps that are [`LONG`], by their place.
    pub(super) long: Vec<(usize, Duration)>,
}

impl PackedGaps {
    fn of(nanos: impl ExactSizeIterator<Item = u64>, first: Option<u64>) -> Self {
        let mut gaps = Self { short: Vec::with_capacity(1 + nanos.len()), long: Vec::new() };
        for (at, nanos) in first.into_iter().chain(nanos).enumerate() {
            let short = u32::try_from(nanos).unwrap_or(LONG);
            if short == LONG {
                gaps.long.push((at, Duration::from_nanos(nanos)));
            }
            gaps.short.push(short);
        }
        gaps
    }
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

/// Facts of which every record has one: those that a record has under the same name, and some more.
macro_rules! facts {
    ($($(#[$doc:meta])+ $field:ident: $type:ty,)+) => {
        #[derive(Debug, Clone, PartialEq)]
        pub(super) struct RecordFacts {
            $(pub(super) $field: $type,)+
            pub(super) group: Option<Box<str>>,
            pub(super) error: Option<Box<RecordedErrorResponse>>,
            pub(super) generates: bool,
            pub(super) by_request: Option<Box<ByRequest>>,
            pub(super) has_media: bool,
            pub(super) is_lost: bool,
        }

        impl RecordFacts {
            fn take(record: &mut Record) -> Self {
                Self {
                    by_request: ByRequest::take(record),
                    group: record.group.take().map(String::into_boxed_str),
                    error: record.error.take().map(Box::new),
                    generates: record.endpoint.is_none_or(Endpoint::generates),
                    has_media: !record.mm_hashes.is_empty(),
                    is_lost: false,
                    $($field: record.$field,)+
                }
            }

            /// A record of the facts and nothing else.
            pub(super) fn record(&self) -> Record {
                let by_request = self.by_request.as_deref();
                let text = |text: Option<&Box<str>>| text.map(|text| str::to_owned(text));
                Record {
                    $($field: self.$field,)+
                    group: text(self.group.as_ref()),
                    error: self.error.as_deref().cloned(),
                    response: by_request.and_then(|content| content.response.clone()),
                    endpoint: by_request.and_then(|content| content.endpoint),
                    request_key: text(by_request.and_then(|content| content.request_key.as_ref())),
                    request_id: text(by_request.and_then(|content| content.request_id.as_ref())),
                    ..Record::default()
                }
            }
        }

        impl RecordRef<'_> {
            $($(#[$doc])+
            #[must_use]
            pub fn $field(&self) -> $type {
                self.entry.facts.$field
            })+
        }
    };
}

facts! {
    /// Returns the prompt's length in tokens.
    prompt_tokens: u32,
    /// Returns the number of prompt tokens that the engine found in its prefix cache.
    cached_tokens: Option<u32>,
    /// Returns the number of output tokens.
    output_tokens: u32,
    /// Returns what stands for the gaps after the first chunk.
    itl_summary: Option<ItlSummary>,
    /// Returns the TTFT of a record without chunks.
    ttft_without_tokens: Duration,
    /// Returns the arrival, from the capture's zero.
    arrival: Option<Duration>,
    /// Returns the time from the request to the last byte of the response.
    e2e: Option<Duration>,
    /// Returns the time from the request to the first event of any kind.
    first_event: Option<Duration>,
    /// Returns the chained hash of the whole prompt.
    prompt_hash: Option<u64>,
    /// Returns the reason why generation ended.
    finish_reason: Option<FinishReason>,
    /// Returns the stop token that ended the output.
    stop_token: Option<u32>,
    /// Returns the choice's index in its request.
    choice: Option<u32>,
    /// Returns true if the client requested a stream.
    stream: Option<bool>,
    /// Returns the HTTP status of the response.
    status: Option<u16>,
    /// Returns the outcome of its exchange.
    outcome: Option<Outcome>,
}

/// Content of a record that is matched by its request: a response, or nothing for an error and for token ids, and what it is found by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ByRequest {
    pub(super) response: Option<Arc<Response>>,
    endpoint: Option<Endpoint>,
    pub(super) path: Option<Box<str>>,
    pub(super) request_key: Option<Box<str>>,
    request_id: Option<Box<str>>,
}

impl ByRequest {
    /// `None` where the record has neither a response nor a key.
    fn take(record: &mut Record) -> Option<Box<Self>> {
        (record.response.is_some() || record.request_key.is_some()).then(|| {
            Box::new(Self {
                response: record.response.take(),
                endpoint: record.endpoint,
                path: record.path().map(Box::from),
                request_key: record.request_key.take().map(String::into_boxed_str),
                request_id: record.request_id.take().map(String::into_boxed_str),
            })
        })
    }
}

impl Packed {
    /// Creates a placeholder for a record whose line was invalid.
    pub(super) fn lost(arrival: Option<Duration>) -> Self {
        let mut packed = Self::from(Record { arrival, ..Record::default() });
        packed.facts.is_lost = true;
        packed
    }

    /// Packs a record, whose chunks are given apart.
    fn of(mut record: Record, gaps: PackedGaps, tokens: Option<Vec<u32>>) -> Self {
        // Two prompts of equal text and different images share no block.
        let chain = match media_block(&record.mm_hashes) {
            Some(first) => std::iter::once(first).chain(record.block_hashes.iter().copied()).collect(),
            None => record.block_hashes.as_slice().into(),
        };
        Self {
            gaps,
            tokens,
            chain,
            ids: record.output_token_ids.take(),
            model: record.model.take(),
            logprobs: json(record.logprobs.as_ref()),
            prompt_logprobs: json(record.prompt_logprobs.as_ref()),
            example: record.request.as_ref().and_then(|request| Example::of(record.endpoint, request)),
            facts: RecordFacts::take(&mut record),
        }
    }
}

fn json<T: serde::Serialize>(value: Option<&T>) -> Option<Box<str>> {
    serde_json::to_string(value?).ok().map(String::into_boxed_str)
}

impl From<Record> for Packed {
    fn from(mut record: Record) -> Self {
        let chunks = std::mem::take(&mut record.chunks);
        let gaps = chunks.iter().map(|chunk| u64::try_from(chunk.gap.as_nanos()).unwrap_or(u64::MAX));
        let counts = chunks.iter().map(|chunk| chunk.tokens);
        let tokens = counts.clone().any(|count| count != 1).then(|| counts.collect());
        Self::of(record, PackedGaps::of(gaps, None), tokens)
    }
}

impl RawRecord {
    /// The record, if the line keeps every rule.
    pub(super) fn into_packed(self) -> Result<Packed, Vec<Defect>> {
        let defects = self.broken_rules();
        if !defects.is_empty() {
            return Err(defects);
        }
        let ttft = self.ttft();
        let Some(first) = self.first_chunk() else {
            return Ok(Packed::of(self.with_chunks(Vec::new(), ttft), PackedGaps::default(), None));
        };
        let nanos = self.gaps().iter().map(|gap| Millis(*gap).nanos().unwrap_or_default());
        let gaps = PackedGaps::of(nanos, Some(u64::try_from(ttft.as_nanos()).unwrap_or(u64::MAX)));
        let tokens = self.packed_tokens(first);
        Ok(Packed::of(self.with_chunks(Vec::new(), Duration::ZERO), gaps, tokens))
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
