//! Assembly of records from observed exchanges. Runs on the recorder's thread, off every request's path.
//!
//! See docs/decisions/0007-only-complete-ids.md and
//! docs/decisions/0008-whole-answers-end-at-once.md.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    Content,
    exchange::ObservedExchange,
    logprobs::{ObservedLogprobs, RecordedLogprobs, RequestedLogprobs},
    observed_choice::ObservedChoice,
    retokenize::{prompt_ids, with_ids},
};
use crate::{
    api::template_kwargs,
    recording::canonical,
    recording::capture::Capture,
    recording::redaction::Redactor,
    recording::trace::{ContentSource, Endpoint, ErrorResponse, FinishReason, Outcome, Record},
    replay::player::redact_response,
    text::prompt::{BlockHasher, IdPermutation, Tokenizer},
};

/// Settings for making records.
#[derive(Debug)]
pub(super) struct Assembler {
    pub(super) hasher: BlockHasher,
    pub(super) record_tokens: bool,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) content: Content,
    pub(super) permutation: Option<IdPermutation>,
}

/// Records of one exchange.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) records: Vec<Record>,
    /// Its token ids were left out because they were incomplete.
    pub(super) ids_dropped: bool,
    /// Its content was to be recorded and was too long.
    pub(super) content_skipped: bool,
    /// Number of records in which a secret was redacted.
    pub(super) redacted: u64,
}

impl Assembler {
    /// Makes one record per choice, missing ones included; one without tokens if there was no choice.
    pub(super) fn assemble(&self, mut observed: ObservedExchange) -> Assembled {
        let complete = observed.ids_are_complete();
        let exceeds_ids = observed.facts.exceeds_ids;
        let trusted = complete && !(exceeds_ids && observed.capture.is_some());
        let stand_for_it = trusted && observed.facts.is_made_of_ids() && !observed.choices.is_empty();
        let mut capture = observed.capture.take().filter(|_| !stand_for_it);
        let ids_dropped = !complete && observed.choices.iter().any(|choice| choice.ids.is_some());
        let scored = observed.scored();
        let missing_choices: Vec<u32> = observed.missing_choices().collect();
        let mut choices = std::mem::take(&mut observed.choices);
        choices.extend(missing_choices.into_iter().map(|index| ObservedChoice { index, ..ObservedChoice::default() }));
        choices.sort_by_key(|choice| choice.index);
        let keeps_content = self.content.text || self.content.requests;
        let error = observed.refusal.take().map(|refusal| refusal.into_response(keeps_content));
        let frame = Record { error, ..self.frame(&observed, choices.len()) };
        let sent_ids = observed.facts.prompt_ids.take();
        let prompt_ids = observed.prompt_ids.take().or(sent_ids).or_else(|| self.own_prompt_ids(&observed));
        let alone = choices.len() == 1;
        // Other APIs report usage cumulatively: only at the end it counts all tokens.
        let is_counted = observed.facts.has_choices() || observed.outcome == Some(Outcome::Finished);
        let mut records: Vec<Record> = if choices.is_empty() {
            vec![self.with_prompt(frame, prompt_ids.as_deref())]
        } else {
            choices
                .into_iter()
                .map(|mut choice| {
                    let logprobs = std::mem::take(&mut choice.logprobs);
                    let record =
                        self.with_prompt(frame.clone(), choice.prompt_ids.as_deref().or(prompt_ids.as_deref()));
                    let counted = observed.usage.filter(|_| alone && is_counted).map(|usage| usage.completion_tokens);
                    let scored = scored.get(&choice.index);
                    let counted = counted.or(scored.map(|scored| scored.output));
                    let mut record = self.with_choice(record, choice, trusted, counted);
                    if let Some(prompt) = scored.and_then(|scored| scored.prompt).filter(|_| record.prompt_tokens == 0)
                    {
                        record.prompt_tokens = prompt;
                    }
                    with_logprobs(record, logprobs, &observed.facts.logprobs)
                })
                .collect()
        };
        // One record has the error for all choices of a request.
        records.iter_mut().skip(1).for_each(|record| record.error = None);
        if self.content.requests
            && let Some(first) = records.first_mut()
        {
            first.request = observed.body.as_ref().map(kept_request);
        }
        if let (Some((target, body)), Some(first)) = (&observed.request, records.first_mut()) {
            self.with_request_key(first, target.as_str(), body);
        }
        let content_skipped = capture.as_ref().is_some_and(|capture| capture.request().is_none());
        if let (Some(capture), [first, others @ ..]) = (&mut capture, records.as_mut_slice()) {
            let may_have_ids = others.is_empty() && !exceeds_ids && first.output_token_ids.is_none();
            self.with_response(first, capture, may_have_ids);
        }
        let redacted = self.redact(&mut records);
        Assembled { records, ids_dropped, content_skipped, redacted }
    }

    /// Adds the key by which an error is matched if its prompt has no hash.
    fn with_request_key(&self, record: &mut Record, target: &str, body: &[u8]) {
        if record.is_error() && record.prompt_hash.is_none() {
            record.request_key = self.request_key(target, body);
        }
    }

    fn request_key(&self, target: &str, body: &[u8]) -> Option<String> {
        self.hasher.request_key(canonical::request_key(target, body).number())
    }

    /// Adds the response, as ids if the tokenizer gives them with certainty, and the request's key.
    fn with_response(&self, record: &mut Record, capture: &mut Capture, may_have_ids: bool) {
        record.request_key = capture.request().and_then(|(target, body)| self.request_key(target, body));
        let Some(response) = capture.response() else { return };
        let tokenizer = self.tokenizer.as_ref().filter(|_| may_have_ids && record.prompt_hash.is_some());
        if tokenizer.is_some_and(|tokenizer| with_ids(record, &response, tokenizer)) {
            return;
        }
        record.content_source = Some(response.source());
        record.response = Some(Arc::new(response));
    }

    /// Redacts secrets in texts that clients can put into a record, and drops ids and hashes that would reveal them.
    fn redact(&self, records: &mut [Record]) -> u64 {
        let mut redactor = Redactor::new(&self.content.rules);
        let mut request_had_any = false;
        let mut redacted = 0;
        for record in records {
            let mut any = record.request.as_mut().is_some_and(|request| redactor.json(request));
            request_had_any |= any;
            for text in [&mut record.request_id, &mut record.group, &mut record.model].into_iter().flatten() {
                any |= redactor.text(text).map(|clean| *text = clean).is_some();
            }
            if let Some(Value::String(path)) = record.extra.get_mut("path") {
                any |= redactor.text(path).map(|clean| *path = clean).is_some();
            }
            if let Some(text) = &mut record.text
                && redactor.json_pieces(text)
            {
                any = true;
                record.output_token_ids = None;
            }
            if spells_a_secret(record, &mut redactor) {
                any = true;
                (record.logprobs, record.prompt_logprobs) = (None, None);
                record.output_token_ids = None;
            }
            any |= record.error.as_mut().is_some_and(|error| redact_error(error, &mut redactor));
            if let Some(response) = &mut record.response {
                any |= redact_response(&mut redactor, Arc::make_mut(response));
            }
            if request_had_any {
                record.block_hashes.clear();
                record.mm_hashes.clear();
                record.prompt_hash = None;
                record.request_key = None;
            }
            redacted += u64::from(any);
        }
        redacted
    }

    /// Makes the part that all records of the exchange have in common.
    fn frame(&self, observed: &ObservedExchange, choices: usize) -> Record {
        let facts = &observed.facts;
        let id = facts.client_id.clone().or_else(|| observed.answer_id.clone());
        Record {
            prompt_tokens: observed.usage.filter(|_| facts.prompts == 1).map_or(0, |usage| usage.prompt_tokens),
            cached_tokens: observed.usage.filter(|_| facts.prompts == 1).and_then(|usage| usage.cached_tokens()),
            concurrency: Some(observed.concurrency),
            arrival: Some(observed.arrival),
            group: (choices > 1)
                .then(|| format!("{}@{}", id.as_deref().unwrap_or_default(), observed.arrival.as_nanos())),
            request_id: id,
            endpoint: facts.endpoint,
            model: facts.model.clone(),
            stream: Some(facts.stream),
            status: observed.status,
            outcome: observed.outcome,
            params: facts.params.clone(),
            e2e: Some(observed.e2e),
            first_event: observed.first_event,
            // Readers take it for a time to the first token, and no token came before the end.
            ttft_without_tokens: observed.e2e,
            extra: self.extra(observed),
            mm_hashes: facts.media.as_ref().map(|media| media.parts.clone()).unwrap_or_default(),
            prompt_hash: facts.media.as_ref().map(|media| media.whole),
            ..Record::default()
        }
    }

    /// Makes the fields that only records of other endpoints have.
    fn extra(&self, observed: &ObservedExchange) -> Map<String, Value> {
        let mut extra = Map::new();
        if let Some(path) = &observed.facts.path {
            extra.insert("path".to_owned(), json!(path));
        }
        let is_shapeless = observed.facts.endpoint == Some(Endpoint::Other) && observed.choices.is_empty();
        if is_shapeless && observed.stream_events > 0 {
            extra.insert("stream_events".to_owned(), json!(observed.stream_events));
        }
        extra
    }

    fn with_prompt(&self, mut record: Record, ids: Option<&[u32]>) -> Record {
        if let Some(ids) = ids {
            let hashes = self.hasher.hash(ids);
            record.prompt_tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            record.block_hashes = hashes.blocks;
            // With media the hash is of the request's parts: a reader of the request cannot know the ids the engine made of an image.
            record.prompt_hash = record.prompt_hash.or(hashes.whole);
        }
        record
    }

    fn with_choice(&self, mut record: Record, choice: ObservedChoice, trusted: bool, counted: Option<u32>) -> Record {
        let ids = choice.ids.filter(|_| trusted);
        record.output_tokens = ids
            .as_ref()
            .map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX))
            .or(counted)
            .unwrap_or_else(|| choice.meter.tokens());
        if record.stream == Some(true) {
            record.chunks = match &ids {
                Some(_) => choice.meter.into_chunks(),
                None => choice.meter.into_chunks_of(record.output_tokens),
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
            _ => choice.finish_reason.as_deref().and_then(finish_reason),
        };
        let permuted = |id: u32| self.permutation.as_ref().map_or(id, |permutation| permutation.apply(id));
        record.stop_token = choice.stop_token.map(permuted);
        record.output_token_ids = ids.filter(|_| self.record_tokens).map(|ids| ids.into_iter().map(permuted).collect());
        record.content_source = record.output_token_ids.as_ref().map(|_| ContentSource::Engine);
        if self.content.text {
            record.text = Some(distributed(choice.text, record.chunks.len()));
        }
        record
    }

    /// Tokenizes the prompt, for engines that do not return its ids.
    fn own_prompt_ids(&self, observed: &ObservedExchange) -> Option<Vec<u32>> {
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

/// Number of tokens of one choice that have log probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scored {
    output: u32,
    prompt: Option<u32>,
}

impl ObservedExchange {
    /// Counts the tokens of each choice of a whole response by their log probabilities; empty unless the sum over all
    /// choices is the engine's count.
    fn scored(&self) -> HashMap<u32, Scored> {
        let Some(usage) = self.usage.filter(|_| self.choices.len() > 1 && !self.facts.stream) else {
            return HashMap::new();
        };
        let count = |choice: &ObservedChoice| {
            let repeated = if self.facts.logprobs.echoes { choice.scored_prompt? } else { 0 };
            let output = choice.scored?.checked_sub(repeated)?;
            Some((choice.index, Scored { output, prompt: choice.scored_prompt }))
        };
        let mut counts: HashMap<u32, Scored> = self.choices.iter().filter_map(count).collect();
        let sum = |of: &dyn Fn(&Scored) -> u32| counts.values().map(|scored| u64::from(of(scored))).sum::<u64>();
        if counts.len() != self.choices.len() || sum(&|scored| scored.output) != u64::from(usage.completion_tokens) {
            return HashMap::new();
        }
        let prompts = u64::from(usage.prompt_tokens) * u64::from(self.facts.choices_per_prompt);
        if sum(&|scored| scored.prompt.unwrap_or(0)) != prompts {
            counts.values_mut().for_each(|scored| scored.prompt = None);
        }
        counts
    }
}

/// Adds log probabilities to a record.
fn with_logprobs(mut record: Record, seen: ObservedLogprobs, requested: &RequestedLogprobs) -> Record {
    let RecordedLogprobs { output, prompt, is_dropped } = seen.record(record.output_tokens, requested);
    (record.logprobs, record.prompt_logprobs) = (output, prompt);
    if is_dropped {
        record.extra.insert("logprobs_dropped".to_owned(), json!(true));
    }
    record
}

/// Returns true if the texts of tokens with log probabilities make up a secret.
fn spells_a_secret(record: &Record, redactor: &mut Redactor<'_>) -> bool {
    let output = record.logprobs.iter().map(|logprobs| {
        let tokens = logprobs.prompt.iter().chain(&logprobs.tokens);
        tokens.map(|token| token.text.clone().unwrap_or_default()).collect::<Vec<_>>()
    });
    let prompt = record.prompt_logprobs.iter().map(|logprobs| {
        let own = logprobs.tokens.iter().map(|place| place.0.first().and_then(|own| own.text.clone()));
        own.map(Option::unwrap_or_default).collect()
    });
    output.chain(prompt).any(|mut texts: Vec<String>| redactor.json_pieces(&mut texts))
}

impl ObservedExchange {
    /// Returns true if the observed ids are complete. vLLM before 0.20 loses some while a parser buffers, so they
    /// must be as many as the engine counted; without a count, no parser may have been at work.
    pub(super) fn ids_are_complete(&self) -> bool {
        let named = |choice: &ObservedChoice| choice.ids.as_ref().map_or(0, Vec::len);
        if !self.choices.iter().all(|choice| choice.ids.is_some()) {
            return false;
        }
        match self.usage {
            Some(usage) => {
                let seen: usize = self.choices.iter().map(named).sum();
                u32::try_from(seen) == Ok(usage.completion_tokens)
            }
            None => self.ids_are_exact || !self.choices.iter().any(|choice| choice.parsed),
        }
    }
}

/// Redacts the headers and the body of an error. True where anything was found.
fn redact_error(error: &mut ErrorResponse, redactor: &mut Redactor<'_>) -> bool {
    let mut any = false;
    for (name, value) in &mut error.headers {
        any |= redactor.header(name, value).map(|clean| *value = clean).is_some();
    }
    let clean = error.body.as_ref().and_then(|body| redactor.body(body.as_bytes()));
    any | clean.map(|clean| error.body = Some(String::from_utf8_lossy(&clean).into_owned())).is_some()
}

/// Maps an API's finish reason to a trace's. A tool call is an end that the model chose.
fn finish_reason(reason: &str) -> Option<FinishReason> {
    Some(match reason {
        "stop" | "tool_calls" | "function_call" | "end_turn" | "stop_sequence" | "tool_use" | "completed"
        | "eos_token" | "eos" | "word" => FinishReason::Stop,
        "length" | "max_tokens" | "incomplete" | "limit" => FinishReason::Length,
        "abort" | "cancelled" => FinishReason::Abort,
        "error" | "failed" => FinishReason::Error,
        "repetition" => FinishReason::Repetition,
        _ => return None,
    })
}

/// Converts a request's body for the record: JSON if it is JSON, else text.
fn kept_request(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()))
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
