//! Records of one exchange, made one at a time: a few kilobytes of request may ask for a thousand choices, and each record repeats what all of
//! them share.
//!
//! See docs/decisions/0053-records-one-at-a-time.md.

use std::{collections::HashMap, vec};

use bytes::Bytes;
use http::uri::PathAndQuery;
use serde_json::{Value, json};

use super::{
    assemble::{Assembler, ScoredTokens},
    core_facts::{CoreFacts, as_completion},
    logprobs::{ObservedLogprobs, RecordedLogprobs, RequestedLogprobs},
    observed_choice::ObservedChoice,
    observed_exchange::ObservedExchange,
    redact::RecordRedactor,
};
use recording::{
    capture::Capture,
    trace::{Outcome, Record, RecordedErrorResponse, UNREAD_EVENTS, USAGE_OUTPUT_TOKENS, USAGE_PROMPT_TOKENS},
};
use text::prompt::{PromptHashes, SkipSpecial};

/// Records of one exchange in the order of their choices.
pub(super) struct ExchangeRecords<'a> {
    assembler: &'a Assembler,
    redactor: RecordRedactor<'a>,
    frame: Record,
    /// What the first record has for all of them; taken with it.
    first: Option<First>,
    choices: vec::IntoIter<ObservedChoice>,
    /// The response has choices; without any there is one record of the exchange.
    has_choices: bool,
    /// Prompt of the choices that name none of their own.
    prompt: Option<HashedPrompt>,
    /// Prompt of the last choice that named its own.
    own_prompt: Option<HashedPrompt>,
    /// Token counts of the choices by their log probabilities.
    scored: HashMap<u32, ScoredTokens>,
    /// The engine's count of output tokens, if it is that of the only choice.
    counted: Option<u32>,
    /// The observed ids are recorded.
    trusted: bool,
    requested: RequestedLogprobs,
    /// What only an engine core knows; its exchanges have one choice.
    core: Option<Box<CoreFacts>>,
    /// Token ids were left out because they were incomplete.
    pub(super) ids_dropped: bool,
    /// Content was to be recorded and was too long.
    pub(super) content_skipped: bool,
}

pub(super) struct SecretlessRecord {
    pub(super) record: Record,
    /// A secret was found in it.
    pub(super) had_secret: bool,
}

/// Fields that one record has for all choices of its exchange.
struct First {
    error: Option<RecordedErrorResponse>,
    request: Option<Value>,
    keyed: Option<(PathAndQuery, Bytes)>,
    capture: Option<Box<Capture>>,
    /// Ids of a tokenizer may stand for the response.
    may_have_ids: bool,
    choices_left_out: u64,
    unread_events: u64,
}

struct HashedPrompt {
    ids: Vec<u32>,
    hashes: PromptHashes,
    /// The engine or the client named the ids; else a tokenizer made them.
    is_named: bool,
}

impl Assembler {
    /// Begins the records of an exchange: one for each choice, missing ones included; one without tokens if there was no choice.
    pub(super) fn records(&self, mut observed: ObservedExchange) -> ExchangeRecords<'_> {
        let any_has_ids = observed.choices.any_has_ids();
        let complete = observed.ids_are_complete() || self.content.incomplete_ids && any_has_ids;
        let exceeds_ids = observed.facts.exceeds_ids;
        let trusted = complete && !(exceeds_ids && observed.capture.is_some());
        let stand_for_it = trusted && observed.facts.is_made_of_ids() && !observed.choices.is_empty();
        let capture = observed.capture.take().filter(|_| !stand_for_it);
        let ids_dropped = !complete && any_has_ids;
        let (scored, output_count) = (observed.scored(), observed.output_count());
        let choices_left_out = observed.choices_left_out();
        let missing: Vec<u32> = observed.missing_choices().collect();
        let mut choices = observed.choices.take();
        choices.extend(missing.into_iter().map(|index| ObservedChoice { index, ..ObservedChoice::default() }));
        choices.sort_by_key(|choice| choice.index);
        // Counts of events may be those of all choices together.
        let by_event: u64 = choices.iter().map(|choice| u64::from(choice.counts.so_far)).sum();
        if observed.output_count().is_some_and(|count| u64::from(count) != by_event) {
            choices.iter_mut().for_each(|choice| choice.counts.is_broken = true);
        }
        let alone = choices.len() == 1;
        let error = observed.refusal.take().map(|refusal| refusal.into_response(self.keeps_messages()));
        let frame = self.frame(&observed, choices.len());
        let named = observed.prompt_ids.take().or_else(|| observed.facts.prompt_ids.take());
        let is_named = named.is_some();
        let prompt_ids = named.or_else(|| self.own_prompt_ids(&observed));
        // Other APIs report usage cumulatively: only at the end it counts all tokens.
        let is_counted = observed.facts.has_choices() || observed.outcome == Some(Outcome::Finished);
        let first = First {
            error,
            request: observed.body.take().filter(|_| self.content.requests).map(|body| kept_request(&body)),
            keyed: observed.request.take(),
            may_have_ids: choices.len() < 2 && !exceeds_ids,
            choices_left_out,
            unread_events: observed.unread_events,
            capture,
        };
        let has_choices = !choices.is_empty();
        if !has_choices {
            choices.push(ObservedChoice::default());
        }
        let mut redactor = RecordRedactor::new(&self.content.rules);
        redactor.learn_choices(&choices);
        ExchangeRecords {
            redactor,
            content_skipped: first.capture.as_ref().is_some_and(|capture| capture.request().is_none()),
            first: Some(first),
            frame,
            choices: choices.into_iter(),
            has_choices,
            prompt: prompt_ids.map(|ids| self.prompt(ids, is_named)),
            own_prompt: None,
            scored,
            counted: output_count.filter(|_| alone && is_counted),
            trusted,
            requested: std::mem::take(&mut observed.facts.logprobs),
            core: observed.core.take(),
            ids_dropped,
            assembler: self,
        }
    }

    fn prompt(&self, ids: Vec<u32>, is_named: bool) -> HashedPrompt {
        HashedPrompt { hashes: self.hasher.hash(&ids), ids, is_named }
    }
}

impl Iterator for ExchangeRecords<'_> {
    type Item = SecretlessRecord;

    fn next(&mut self) -> Option<SecretlessRecord> {
        let mut choice = self.choices.next()?;
        let index = choice.index;
        let logprobs = std::mem::take(&mut choice.logprobs);
        let channels = std::mem::take(&mut choice.channels);
        let scored = self.scored.get(&choice.index).copied();
        let mut record = self.frame.clone();
        self.add_prompt(&mut record, choice.prompt_ids.take());
        let counted = self.counted.or(scored.map(|scored| scored.output));
        if self.has_choices {
            self.assembler.add_choice(&mut record, choice, self.trusted, counted);
            let differs =
                record.output_token_ids.is_some() && counted.is_some_and(|count| count != record.output_tokens);
            if differs && self.assembler.content.incomplete_ids {
                record.extra.insert(USAGE_OUTPUT_TOKENS.to_owned(), json!(counted));
            }
        }
        if let Some(prompt) = scored.and_then(|scored| scored.prompt).filter(|_| record.prompt_tokens == 0) {
            record.prompt_tokens = prompt;
        }
        add_logprobs(&mut record, logprobs, &self.requested);
        if let Some(first) = self.first.take() {
            self.add_first(&mut record, first);
        }
        if let Some(core) = self.core.take() {
            self.add_core_facts(&mut record, *core, index);
        }
        let had_secret = self.redactor.redact(&mut record, &channels);
        Some(SecretlessRecord { record, had_secret })
    }
}

impl ExchangeRecords<'_> {
    /// Returns true if the search for secrets took more work than it may, so that records have no content.
    pub(super) fn is_unsearched(&self) -> bool {
        self.redactor.is_exhausted()
    }

    /// Adds a prompt's length and hashes: the choice's own, or that of all. Equal prompts in a row are hashed once.
    fn add_prompt(&mut self, record: &mut Record, own: Option<Vec<u32>>) {
        let prompt = match own {
            Some(own) if self.own_prompt.as_ref().is_some_and(|last| last.ids == own) => self.own_prompt.as_ref(),
            Some(own) => Some(&*self.own_prompt.insert(self.assembler.prompt(own, true))),
            None => self.prompt.as_ref(),
        };
        let Some(HashedPrompt { ids, hashes, is_named }) = prompt else { return };
        let counted = std::mem::replace(&mut record.prompt_tokens, u32::try_from(ids.len()).unwrap_or(u32::MAX));
        // Only something between the engine and here makes the two differ.
        if *is_named && counted > 0 && counted != record.prompt_tokens {
            record.extra.insert(USAGE_PROMPT_TOKENS.to_owned(), json!(counted));
        }
        record.block_hashes = hashes.blocks.clone().into();
        // With media the hash is of the request's parts: a reader of the request cannot know the ids the engine made of an image.
        record.prompt_hash = record.prompt_hash.or(hashes.whole);
    }

    /// Adds what only an engine core knows, and the request where requests are recorded and it spells no secret.
    fn add_core_facts(&mut self, record: &mut Record, core: CoreFacts, index: u32) {
        let prompt = self.prompt.as_ref().filter(|_| self.assembler.content.requests);
        let request = prompt.and_then(|prompt| {
            if let Some(tokenizer) = &self.assembler.tokenizer {
                let text = tokenizer.decode(&prompt.ids, SkipSpecial::Keep).ok()?;
                if self.redactor.is_secret_request(&text) {
                    return None;
                }
            }
            let ids: Vec<u32> = prompt.ids.iter().map(|id| self.assembler.permuted(*id)).collect();
            Some(as_completion(&ids, record.model.as_deref(), &record.params))
        });
        core.complete(record, index, request);
    }

    fn add_first(&self, record: &mut Record, first: First) {
        record.error = first.error;
        record.request = first.request;
        if first.choices_left_out > 0 {
            record.extra.insert("choices_left_out".to_owned(), json!(first.choices_left_out));
        }
        if first.unread_events > 0 {
            record.extra.insert(UNREAD_EVENTS.to_owned(), json!(first.unread_events));
        }
        if let Some((target, body)) = &first.keyed {
            self.assembler.with_request_key(record, target.as_str(), body);
        }
        if let Some(mut capture) = first.capture {
            let may_have_ids = first.may_have_ids && record.output_token_ids.is_none();
            self.assembler.with_response(record, &mut capture, may_have_ids);
        }
    }
}

fn add_logprobs(record: &mut Record, seen: ObservedLogprobs, requested: &RequestedLogprobs) {
    let RecordedLogprobs { output, prompt, is_dropped } = seen.record(record.output_tokens, requested);
    (record.logprobs, record.prompt_logprobs) = (output, prompt);
    if is_dropped {
        record.extra.insert("logprobs_dropped".to_owned(), json!(true));
    }
}

/// Converts a request's body for the record: JSON if it is JSON, else text.
fn kept_request(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()))
}

#[cfg(test)]
mod tests;
