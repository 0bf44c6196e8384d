//! What is observed of one exchange, of which the recorder makes records.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use http::uri::PathAndQuery;

use super::{
    core_facts::CoreFacts,
    event::{EngineUsage, StreamEvent, ids},
    observed_choice::KeptContent,
    observed_choices::ObservedChoices,
    other_apis::ApiEvent,
    pattern::Hit,
    refusal::Refusal,
    request::{MAX_NAME, RequestFacts},
};
use recording::{capture::Capture, trace::Outcome};

/// Observation of one exchange; the recorder makes records of it.
#[derive(Debug, Default)]
pub(super) struct ObservedExchange {
    pub(super) facts: RequestFacts,
    /// The request's body, if it is recorded or a tokenizer may have to hash its prompt.
    pub(super) body: Option<Bytes>,
    pub(super) arrival: Duration,
    pub(super) concurrency: u32,
    pub(super) status: Option<u16>,
    pub(super) outcome: Option<Outcome>,
    pub(super) e2e: Duration,
    pub(super) first_event: Option<Duration>,
    /// The response's id.
    pub(super) answer_id: Option<String>,
    pub(super) usage: Option<EngineUsage>,
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) choices: ObservedChoices,
    /// The engine is known to return every token id.
    pub(super) ids_are_exact: bool,
    /// Token ids were requested, by the tap or by the client.
    pub(super) ids_requested: bool,
    /// Number of events in a stream of another API.
    pub(super) stream_events: u64,
    /// Number of events in a stream that are no JSON objects of the API; one that is too long counts once, with all after it.
    pub(super) unread_events: u64,
    /// The error response, or the error event that ended the stream.
    pub(super) refusal: Option<Refusal>,
    /// The request, while its response may be an error.
    pub(super) request: Option<(PathAndQuery, Bytes)>,
    /// Copy of the response, unless token ids stand for it.
    pub(super) capture: Option<Box<Capture>>,
    /// What only an engine core knows of it; `None` where it passed as HTTP.
    pub(super) core: Option<Box<CoreFacts>>,
    /// Bytes that it holds while it waits for the recorder.
    pub(super) weight: usize,
    pub(super) keeps: KeptContent,
    pub(super) in_stream_error: bool,
    /// The response is complete, whatever the client does afterwards.
    pub(super) done: bool,
    /// The response was not decoded: it is complete when its bytes are.
    pub(super) unread: bool,
}

impl ObservedExchange {
    pub(super) fn observe_event(&mut self, event: &StreamEvent<'_>, at: Duration) {
        self.first_event.get_or_insert(at);
        if let Some(error) = event.error {
            self.in_stream_error = true;
            self.refusal.get_or_insert_with(|| Refusal::of_event(error.get()));
        }
        self.observe_common_fields(event);
        let (keeps, echo, so_far) = (self.keeps, self.facts.repeats_message, event.tokens_so_far());
        for part in &event.choices {
            self.choices.observe(part.index, echo, |choice| choice.observe_delta(part, so_far, at, keeps));
        }
    }

    /// Adds one event of a stream that fits a pattern.
    pub(super) fn observe_match(&mut self, index: u32, hit: &Hit<'_>, at: Duration) {
        self.first_event.get_or_insert(at);
        let (keeps, echo) = (self.keeps, self.facts.repeats_message);
        self.choices.observe(index, echo, |choice| choice.observe_match(hit, at, keeps));
    }

    /// Adds one event of another API's stream, or its whole response, whose tokens came at once.
    pub(super) fn observe_api_event(&mut self, mut event: ApiEvent, at: Duration) {
        self.first_event.get_or_insert(at);
        self.stream_events += 1;
        self.in_stream_error |= event.error;
        self.done |= event.done;
        if self.answer_id.is_none() {
            self.answer_id = event.id.take().filter(|id| id.len() <= MAX_NAME);
        }
        if let Some(usage) = event.usage {
            // Prompt tokens are reported once, output tokens cumulatively in several events.
            let known = self.usage.map_or(0, |known| known.prompt_tokens);
            let cached = usage.cached_tokens().or_else(|| self.usage.and_then(|known| known.cached_tokens()));
            let prompt = if usage.prompt_tokens == 0 { known } else { usage.prompt_tokens };
            self.usage = Some(EngineUsage::of(prompt, usage.completion_tokens, cached));
        }
        if event.text.is_none() && event.token_ids.is_none() && event.finish_reason.is_none() {
            return;
        }
        let (keeps, echo) = (self.keeps, self.facts.repeats_message);
        self.choices.observe(0, echo, |choice| choice.observe_api_event(event, at, keeps));
    }

    /// Adds a whole response, all of whose tokens came at once.
    pub(super) fn observe_response(&mut self, answer: &StreamEvent<'_>, at: Duration) {
        self.observe_common_fields(answer);
        let alone = answer.choices.len() == 1;
        let (keeps, echo) = (self.keeps, self.facts.repeats_message);
        for part in &answer.choices {
            let counted = answer.usage.filter(|_| alone).map(|usage| usage.completion_tokens);
            let prompt = part.prompt_logprobs.or(answer.prompt_logprobs.filter(|_| part.index == 0));
            self.choices.observe(part.index, echo, |choice| choice.observe_response(part, prompt, counted, at, keeps));
        }
        self.done = true;
    }

    /// Adds the whole response of another API.
    pub(super) fn observe_api_response(&mut self, event: ApiEvent, at: Duration) {
        self.observe_api_event(event, at);
        self.first_event = None;
        self.stream_events = 0;
    }

    fn observe_common_fields(&mut self, event: &StreamEvent<'_>) {
        if self.answer_id.is_none() {
            let id = event.id.as_deref().or(event.request_id.as_deref());
            self.answer_id = id.filter(|id| id.len() <= MAX_NAME).map(str::to_owned);
        }
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        if event.prompt_token_ids.is_some() {
            self.prompt_ids = ids(event.prompt_token_ids);
        }
    }

    /// Returns the indices of requested choices of which nothing came. A complete response has none, because not every engine
    /// supports `n`.
    pub(super) fn missing_choices(&self) -> impl Iterator<Item = u32> + '_ {
        let is_whole = self.outcome == Some(Outcome::Finished) && !self.choices.is_empty();
        let requested = if is_whole || self.facts.wants_one() { 0 } else { self.facts.choices() };
        let spoke: HashSet<u32> = self.choices.iter().map(|choice| choice.index).filter(|_| requested > 0).collect();
        (0..requested).filter(move |index| !spoke.contains(index))
    }

    /// Returns the number of records it makes: one for each choice.
    pub(super) fn records(&self) -> u64 {
        (self.choices.len() + self.missing_choices().count()).max(1) as u64
    }

    /// Returns the number of choices that get no record: those over the limits.
    pub(super) fn choices_left_out(&self) -> u64 {
        let is_whole = self.outcome == Some(Outcome::Finished) && !self.choices.is_empty();
        let silent =
            if is_whole { 0 } else { self.facts.requested_choices().saturating_sub(self.facts.choices().into()) };
        silent.max(self.choices.left_out() as u64)
    }

    /// Returns true if the engine's token count differs from the number of ids it returned.
    pub(super) fn is_miscounted(&self) -> bool {
        self.usage.is_some() && self.choices.any_has_ids() && !self.ids_are_complete()
    }

    pub(super) fn names_ids(&self) -> bool {
        self.prompt_ids.is_some()
            || self.choices.any_has_ids()
            || self.choices.iter().any(|choice| choice.prompt_ids.is_some())
    }

    pub(super) fn is_complete(&self) -> bool {
        let all_finished = !self.choices.is_empty() && self.choices.iter().all(|choice| choice.finish_reason.is_some());
        !self.in_stream_error && (self.done || (all_finished && self.facts.wants_one()))
    }

    pub(super) fn outcome_at_end(&self) -> Outcome {
        if self.status.is_some_and(|status| status >= 400) || self.in_stream_error {
            Outcome::Error
        } else if self.is_complete() || self.unread {
            Outcome::Finished
        } else {
            Outcome::UpstreamFailed
        }
    }
}
