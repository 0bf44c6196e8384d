//! Makes records of what was found out about an exchange. Runs on the recorder's thread, off every request's path.
//!
//! See docs/decisions/0007-only-complete-ids.md and
//! docs/decisions/0008-whole-answers-end-at-once.md.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    Content,
    exchange::ObservedExchange,
    logprobs::{AskedLogprobs, ObservedLogprobs, RecordedLogprobs},
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

/// How records are made.
#[derive(Debug)]
pub(super) struct Assembler {
    pub(super) hasher: BlockHasher,
    pub(super) record_tokens: bool,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) content: Content,
    pub(super) permutation: Option<IdPermutation>,
}

/// The records of one exchange, and whether its ids had to be left out because they were not all there.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) records: Vec<Record>,
    pub(super) ids_dropped: bool,
    /// Whether its content was to be recorded, and was too long for that.
    pub(super) content_skipped: bool,
    /// Records in which a secret was redacted.
    pub(super) redacted: u64,
}

impl Assembler {
    /// One record per choice, those that never spoke too; one without tokens when there was no choice.
    pub(super) fn assemble(&self, mut observed: ObservedExchange) -> Assembled {
        let complete = observed.ids_are_complete();
        let exceeds_ids = observed.facts.exceeds_ids;
        let trusted = complete && !(exceeds_ids && observed.capture.is_some());
        let stand_for_it = trusted && observed.facts.is_made_of_ids() && !observed.choices.is_empty();
        let mut capture = observed.capture.take().filter(|_| !stand_for_it);
        let ids_dropped = !complete && observed.choices.iter().any(|choice| choice.ids.is_some());
        let scored = observed.scored();
        let silent: Vec<u32> = observed.silent().collect();
        let mut choices = std::mem::take(&mut observed.choices);
        choices.extend(silent.into_iter().map(|index| ObservedChoice { index, ..ObservedChoice::default() }));
        choices.sort_by_key(|choice| choice.index);
        let keeps_content = self.content.text || self.content.requests;
        let error = observed.refusal.take().map(|refusal| refusal.into_response(keeps_content));
        let frame = Record { error, ..self.frame(&observed, choices.len()) };
        let sent_ids = observed.facts.prompt_ids.take();
        let prompt_ids = observed.prompt_ids.take().or(sent_ids).or_else(|| self.own_prompt_ids(&observed));
        let alone = choices.len() == 1;
        // Other APIs count as they go: a count is one of all tokens only at the end.
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
        // Once is enough for all choices of a request.
        records.iter_mut().skip(1).for_each(|record| record.error = None);
        if let (true, Some(first)) = (self.content.requests, records.first_mut()) {
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

    /// Adds what an error is found by whose prompt nobody tokenized.
    fn with_request_key(&self, record: &mut Record, target: &str, body: &[u8]) {
        if record.is_error() && record.prompt_hash.is_none() {
            record.request_key = self.request_key(target, body);
        }
    }

    fn request_key(&self, target: &str, body: &[u8]) -> Option<String> {
        self.hasher.request_key(canonical::request_key(target, body).number())
    }

    /// Adds what was answered, as ids where a tokenizer makes them of it, and what the request is known by.
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

    /// Takes secrets out of what clients can put into a record, and what else would spell them.
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

    /// What all records of the exchange have in common.
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
            // Readers take it for a time to the first token, so it is never less than one was waited for.
            ttft_without_tokens: observed.e2e,
            extra: self.extra(observed),
            mm_hashes: facts.media.as_ref().map(|media| media.parts.clone()).unwrap_or_default(),
            prompt_hash: facts.media.as_ref().map(|media| media.whole),
            ..Record::default()
        }
    }

    /// What only other endpoints have.
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
            // What the engine made of an image is not known to who looks for the record.
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
            // When the tokens of a whole answer came is unknown: they came together, at its end.
            record.chunks = choice.meter.into_chunks_of(record.output_tokens.min(1));
            record.chunks.iter_mut().for_each(|whole| whole.tokens = record.output_tokens);
        }
        record.choice = record.group.is_some().then_some(choice.index);
        record.finish_reason = match record.outcome {
            Some(Outcome::ClientGone | Outcome::Cut) if choice.finish_reason.is_none() => Some(FinishReason::Abort),
            // A stream that ended in an error event; a refusal has a status for that.
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
            record.text = Some(as_many(choice.text, record.chunks.len()));
        }
        record
    }

    /// The prompt's ids by our own tokenizer, for engines that do not tell theirs.
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

/// Tokens of one choice, as its log probabilities count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scored {
    output: u32,
    prompt: Option<u32>,
}

impl ObservedExchange {
    /// The tokens of each choice of a whole answer, where log probabilities tell of all of them and are as many as the engine
    /// counted together.
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

/// A record with what was told of its log probabilities.
fn with_logprobs(mut record: Record, seen: ObservedLogprobs, asked: &AskedLogprobs) -> Record {
    let RecordedLogprobs { output, prompt, is_dropped } = seen.record(record.output_tokens, asked);
    (record.logprobs, record.prompt_logprobs) = (output, prompt);
    if is_dropped {
        record.extra.insert("logprobs_dropped".to_owned(), json!(true));
    }
    record
}

/// Whether the tokens of which log probabilities are told put a secret together.
fn spells_a_secret(record: &Record, redactor: &mut Redactor<'_>) -> bool {
    let output = record.logprobs.iter().map(|told| {
        let tokens = told.prompt.iter().chain(&told.tokens);
        tokens.map(|token| token.text.clone().unwrap_or_default()).collect::<Vec<_>>()
    });
    let prompt = record.prompt_logprobs.iter().map(|told| {
        let own = told.tokens.iter().map(|place| place.0.first().and_then(|own| own.text.clone()));
        own.map(Option::unwrap_or_default).collect()
    });
    output.chain(prompt).any(|mut texts: Vec<String>| redactor.json_pieces(&mut texts))
}

impl ObservedExchange {
    /// Whether the ids that were seen are all there are. Engines before 0.20 lose some while a parser buffers, so they
    /// must be as many as the engine counted; where it did not count, a parser must not have been at work.
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

/// The engine's reason, in a trace's words. A tool call is an end the model chose.
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

/// A request's body as it is kept: JSON where it is that, else text.
fn kept_request(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()))
}

/// Pieces of text for so many chunks: what came without a chunk of its own joins the last one.
fn as_many(mut text: Vec<String>, chunks: usize) -> Vec<String> {
    let chunks = chunks.max(usize::from(!text.is_empty()));
    if text.len() > chunks {
        let rest = text.split_off(chunks).concat();
        text.last_mut().into_iter().for_each(|last| last.push_str(&rest));
    }
    text.resize(chunks, String::new());
    text
}
