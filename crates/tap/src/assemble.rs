//! Parts of a record, from an observed exchange. Runs on the recorder's thread, off every request's path; [`records`](super::records) puts them
//! together.
//!
//! See docs/decisions/0007-only-complete-ids.md and
//! docs/decisions/0008-whole-answers-end-at-once.md.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value, json};

use super::{
    ContentRecording, Setup,
    observed_choice::ObservedChoice,
    observed_exchange::ObservedExchange,
    refusal::withhold_error,
    request::RequestFacts,
    retokenize::{prompt_ids, with_ids},
};
use api::template_kwargs;
use recording::{
    canonical,
    capture::Capture,
    trace::{ContentSource, Endpoint, FinishReason, Outcome, Record},
};
use text::prompt::{BlockHasher, IdPermutation, Tokenizer};

/// The field of a record with how its tokens were counted where it has no ids.
pub const COUNTED_BY: &str = "counted_by";

/// Its value where the engine's count came with every event (`continuous_usage_stats`).
pub const CONTINUOUS_USAGE: &str = "continuous_usage";

/// Settings for making records.
#[derive(Debug)]
pub(super) struct Assembler {
    pub(super) hasher: BlockHasher,
    pub(super) record_tokens: bool,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) content: ContentRecording,
    pub(super) permutation: Option<IdPermutation>,
}

impl Assembler {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            hasher: setup.hasher(),
            record_tokens: setup.config.record_tokens,
            tokenizer: setup.config.tokenizer.clone(),
            content: setup.content.clone(),
            permutation: setup.permutation.clone(),
        }
    }

    /// Returns true if messages of errors are recorded, which may quote the request.
    pub(super) fn keeps_messages(&self) -> bool {
        self.content.errors || self.content.text || self.content.requests
    }

    /// Adds the key by which an error is matched if its prompt has no hash, and takes its turn among the responses of its request.
    pub(super) fn with_request_key(&self, record: &mut Record, target: &str, body: &[u8]) {
        if record.is_error() {
            record.request_key = self.request_key(target, body);
        }
    }

    fn request_key(&self, target: &str, body: &[u8]) -> Option<String> {
        self.hasher.request_key(canonical::request_key(target, body).number())
    }

    /// Adds the response, as ids if the tokenizer gives them with certainty, and the request's key.
    pub(super) fn with_response(&self, record: &mut Record, capture: &mut Capture, may_have_ids: bool) {
        record.request_key = capture.request().and_then(|(target, body)| self.request_key(target, body));
        let Some(mut response) = capture.response() else { return };
        if !self.keeps_messages() {
            withhold_error(&mut response, record.status);
        }
        let tokenizer = self.tokenizer.as_ref().filter(|_| may_have_ids && record.prompt_hash.is_some());
        if tokenizer.is_some_and(|tokenizer| with_ids(record, &response, tokenizer)) {
            return;
        }
        record.content_source = Some(response.source());
        record.response = Some(Arc::new(response));
    }

    /// Makes the part that all records of the exchange have in common.
    pub(super) fn frame(&self, observed: &ObservedExchange, choices: usize) -> Record {
        // Every fact is named, so that a new one has to be placed; text of clients and engines has to be redacted.
        let RequestFacts {
            endpoint,
            model,
            stream,
            prompts,
            params,
            client_id,
            path,
            media,
            long_names,
            wants_usage: _,
            choices_per_prompt: _,
            logprobs: _,
            prompt_ids: _,
            exceeds_ids: _,
            repeats_message: _,
        } = &observed.facts;
        let id = client_id.clone().or_else(|| observed.answer_id.clone());
        let usage = observed.usage.filter(|_| *prompts == 1);
        Record {
            prompt_tokens: usage.map_or(0, |usage| usage.prompt_tokens),
            cached_tokens: usage.and_then(|usage| usage.cached_tokens()),
            concurrency: Some(observed.concurrency),
            arrival: Some(observed.arrival),
            group: (choices > 1)
                .then(|| format!("{}@{}", id.as_deref().unwrap_or_default(), observed.arrival.as_nanos())),
            request_id: id,
            endpoint: *endpoint,
            model: model.clone(),
            stream: Some(*stream),
            status: observed.status,
            outcome: observed.outcome,
            params: params.clone(),
            e2e: Some(observed.e2e),
            first_event: observed.first_event,
            // Readers take it for a time to the first token, and no token came before the end.
            ttft_without_tokens: observed.e2e,
            extra: extra(observed, path.as_deref(), long_names),
            mm_hashes: media.as_ref().map(|media| media.parts.clone()).unwrap_or_default().into(),
            prompt_hash: media.as_ref().map(|media| media.whole),
            ..Record::default()
        }
    }

    /// Returns an id as it is recorded.
    pub(super) fn permuted(&self, id: u32) -> u32 {
        self.permutation.as_ref().map_or(id, |permutation| permutation.apply(id))
    }

    pub(super) fn add_choice(&self, record: &mut Record, choice: ObservedChoice, trusted: bool, counted: Option<u32>) {
        let ids = choice.ids.filter(|_| trusted);
        record.output_tokens =
            ids.as_ref().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX)).or(counted).unwrap_or_else(|| {
                match choice.counts.is_doubtful() {
                    true => u32::try_from(choice.meter.len()).unwrap_or(u32::MAX),
                    false => choice.meter.tokens(),
                }
            });
        if record.stream == Some(true) {
            let by_event = choice.counts.total(counted).filter(|_| ids.is_none());
            if by_event.is_some() {
                record.extra.insert(COUNTED_BY.to_owned(), json!(CONTINUOUS_USAGE));
            }
            record.chunks = match ids.is_some() || by_event.is_some() {
                true => choice.meter.into_chunks(),
                false => choice.meter.into_chunks_of(record.output_tokens),
            };
        } else {
            // A whole response does not show when its tokens came; they are recorded as one chunk at its end.
            record.chunks = choice.meter.into_chunks_of(record.output_tokens.min(1));
            record.chunks.iter_mut().for_each(|whole| whole.tokens = record.output_tokens);
        }
        record.choice = record.group.is_some().then_some(choice.index);
        record.finish_reason = match record.outcome {
            Some(Outcome::ClientGone | Outcome::Cut) if choice.finish_reason.is_none() => Some(FinishReason::Abort),
            // A stream that ended in an error event; an error response has its status instead.
            Some(Outcome::Error)
                if choice.finish_reason.is_none() && record.status.is_none_or(|status| status < 400) =>
            {
                Some(FinishReason::Error)
            }
            _ => choice.finish_reason.as_deref().and_then(FinishReason::of_api),
        };
        record.stop_token = choice.stop_token.map(|id| self.permuted(id));
        record.output_token_ids =
            ids.filter(|_| self.record_tokens).map(|ids| ids.into_iter().map(|id| self.permuted(id)).collect());
        record.content_source = record.output_token_ids.as_ref().map(|_| ContentSource::Engine);
        if self.content.text {
            record.text = Some(distributed(choice.text, record.chunks.len()));
        }
    }

    /// Tokenizes the prompt, for engines that do not return its ids.
    pub(super) fn own_prompt_ids(&self, observed: &ObservedExchange) -> Option<Vec<u32>> {
        let tokenizer = self.tokenizer.as_ref()?;
        let body: Map<String, Value> = serde_json::from_slice(observed.body.as_ref()?).ok()?;
        let ids = match observed.facts.endpoint? {
            Endpoint::Completions => tokenizer.ids_of_completion(body.get("prompt")?),
            Endpoint::Responses | Endpoint::Messages => {
                prompt_ids(tokenizer, observed.facts.endpoint?, observed.body.as_ref()?)
            }
            Endpoint::Embeddings | Endpoint::Other => None,
            Endpoint::Chat => tokenizer.ids_of_chat(&body, &template_kwargs(&body)),
        };
        if ids.is_none() && observed.facts.endpoint.is_some_and(|endpoint| endpoint.generates()) {
            tracing::debug!("a prompt could not be tokenized; its record has no hashes");
        }
        ids
    }
}

/// Makes the fields that only some records have.
fn extra(observed: &ObservedExchange, path: Option<&str>, long_names: &[&str]) -> Map<String, Value> {
    let mut extra = Map::new();
    extra.extend(path.map(|path| ("path".to_owned(), json!(path))));
    let is_shapeless = observed.facts.endpoint == Some(Endpoint::Other) && observed.choices.is_empty();
    if is_shapeless && observed.stream_events > 0 {
        extra.insert("stream_events".to_owned(), json!(observed.stream_events));
    }
    if !long_names.is_empty() {
        extra.insert("long_names".to_owned(), json!(long_names));
    }
    extra
}

/// Number of tokens of one choice that have log probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScoredTokens {
    pub(super) output: u32,
    pub(super) prompt: Option<u32>,
}

impl ObservedExchange {
    /// Counts the tokens of each choice of a whole response by their log probabilities; empty unless the sum over all
    /// choices is the engine's count.
    pub(super) fn scored(&self) -> HashMap<u32, ScoredTokens> {
        let Some(usage) = self.usage.filter(|_| self.choices.len() > 1 && !self.facts.stream) else {
            return HashMap::new();
        };
        let count = |choice: &ObservedChoice| {
            let repeated = if self.facts.logprobs.echoes { choice.scored_prompt? } else { 0 };
            let output = choice.scored?.checked_sub(repeated)?;
            Some((choice.index, ScoredTokens { output, prompt: choice.scored_prompt }))
        };
        let mut counts: HashMap<u32, ScoredTokens> = self.choices.iter().filter_map(count).collect();
        let sum = |of: &dyn Fn(&ScoredTokens) -> u32| counts.values().map(|scored| u64::from(of(scored))).sum::<u64>();
        if counts.len() != self.choices.len() || sum(&|scored| scored.output) != u64::from(usage.completion_tokens) {
            return HashMap::new();
        }
        let prompts = u64::from(usage.prompt_tokens) * u64::from(self.facts.choices_per_prompt);
        if sum(&|scored| scored.prompt.unwrap_or(0)) != prompts {
            counts.values_mut().for_each(|scored| scored.prompt = None);
        }
        counts
    }

    /// Returns the engine's count of all output tokens; `None` also where it counts none of those that it named.
    pub(super) fn output_count(&self) -> Option<u32> {
        self.usage.map(|usage| usage.completion_tokens).filter(|count| *count > 0 || self.choices.id_count() == 0)
    }

    /// Returns true if the observed ids are complete. vLLM before 0.20 loses some while a parser buffers, so they
    /// must be as many as the engine counted; without a count, no parser may have been at work.
    pub(super) fn ids_are_complete(&self) -> bool {
        if !self.choices.all_have_ids() || self.core.as_ref().is_some_and(|core| core.is_incomplete) {
            return false;
        }
        match self.output_count() {
            // The engine counts those of choices over the limit too.
            Some(_) if self.choices.left_out() > 0 => true,
            Some(count) => u32::try_from(self.choices.id_count()) == Ok(count),
            None => self.ids_are_exact || !self.choices.iter().any(|choice| choice.parsed),
        }
    }
}

/// Brings pieces of text to the number of chunks: text without a chunk of its own joins the last one.
fn distributed(mut text: Vec<String>, chunks: usize) -> Vec<String> {
    let chunks = chunks.max(usize::from(!text.is_empty()));
    if text.len() > chunks {
        let rest = text.split_off(chunks).concat();
        if let Some(last) = text.last_mut() {
            last.push_str(&rest);
        }
    }
    text.resize(chunks, String::new());
    text
}
