//! One recorded exchange, from the request to the one outcome it ends in.
//!
//! An exchange that is dropped before it was ended explicitly ends at the drop: its client has gone, or the tap is being shut
//! down. Exactly one outcome reaches the recorder, whatever happens to the future or the body that owns the exchange.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::uri::PathAndQuery;
use tokio::time::Instant;

use super::{
    capabilities::Capabilities,
    event::{EngineUsage, StreamEvent, ids},
    gather::Bodies,
    observed_choices::ObservedChoices,
    other_apis::ApiEvent,
    pattern::Hit,
    refusal::Refusal,
    request::{MAX_NAME, RequestFacts},
    shared_state::{KeptContent, SharedState},
};
use recording::{capture::Capture, trace::Outcome};
use replay::player::PendingExchange;

/// An exchange in progress.
#[derive(Debug)]
pub(super) struct OpenExchange {
    shared: Arc<SharedState>,
    pub(super) capabilities: Arc<Capabilities>,
    started: Instant,
    /// Taken when the exchange ends.
    pub(super) observed: Option<Box<ObservedExchange>>,
    /// Its position in a cassette, if it is recorded there.
    pub(super) cassette: Option<Box<PendingExchange>>,
}

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
    /// The error response, or the error event that ended the stream.
    pub(super) refusal: Option<Refusal>,
    /// The request, while its response may be an error.
    pub(super) request: Option<(PathAndQuery, Bytes)>,
    /// Copy of the response, unless token ids stand for it.
    pub(super) capture: Option<Box<Capture>>,
    /// Bytes that it holds while it waits for the recorder.
    pub(super) weight: usize,
    keeps: KeptContent,
    in_stream_error: bool,
    done: bool,
    /// The response was not decoded: it is complete when its bytes are.
    unread: bool,
}

impl OpenExchange {
    /// Begins an exchange when its whole request was received and is about to be forwarded.
    pub(super) fn begin(
        shared: Arc<SharedState>,
        capabilities: Arc<Capabilities>,
        facts: RequestFacts,
        body: Option<Bytes>,
    ) -> Self {
        let started = Instant::now();
        let concurrency = shared.metrics.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        let arrival = started.saturating_duration_since(shared.zero);
        let keeps = shared.keeps;
        let observed = ObservedExchange { facts, body, arrival, concurrency, keeps, ..ObservedExchange::default() };
        Self { shared, capabilities, started, observed: Some(Box::new(observed)), cassette: None }
    }

    /// Keeps the request's path, query and body until its response is known to be no error.
    pub(super) fn keep_request(&mut self, target: Option<&PathAndQuery>, body: &Bytes) {
        if let Some(observed) = &mut self.observed {
            observed.request = target.map(|target| (target.clone(), body.clone()));
        }
    }

    /// Drops the request: its record is matched by other means.
    pub(super) fn forget_request(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.request = None;
        }
    }

    /// Begins a copy of the response, if responses are recorded, with the request's path, query and body.
    pub(super) fn copy(&mut self, target: &str, body: &Bytes) {
        if let Some(observed) = self.observed.as_mut().filter(|_| self.shared.keeps.responses) {
            let all = Arc::clone(&self.shared.captures);
            observed.capture = Some(Box::new(Capture::new(all, target.to_owned(), body.clone())));
        }
    }

    /// Drops the copy of the response, unless it goes to a cassette.
    pub(super) fn forget_copy(&mut self) {
        if let Some(observed) = self.observed.as_mut().filter(|_| self.cassette.is_none()) {
            observed.capture = None;
        }
    }

    /// Returns the copy of the response; `None` once complete token ids stand for it.
    pub(super) fn capture(&mut self) -> Option<&mut Capture> {
        let observed = self.observed.as_deref_mut()?;
        let is_long = observed.capture.as_ref()?.is_long();
        // The engine's count comes at the end only. So a short copy is kept until then, and any copy if this
        // engine's count has differed from its ids before.
        let is_due = observed.done || (is_long && !self.capabilities.miscounts());
        let stand_for_it = is_due
            && self.cassette.is_none()
            && self.capabilities.ids_are_exact()
            && !observed.facts.exceeds_ids
            && observed.facts.is_made_of_ids()
            && observed.choices.any_has_ids()
            && !observed.is_miscounted();
        if stand_for_it {
            observed.capture = None;
        }
        observed.capture.as_deref_mut()
    }

    /// Marks the response as a stream, requested or not.
    pub(super) fn streams(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.facts.stream = true;
        }
    }

    /// Marks that token ids were requested.
    pub(super) fn set_ids_requested(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.ids_requested = true;
        }
    }

    /// Restarts the clock: the amended request was refused and the client's own request is sent.
    pub(super) fn restart(&mut self) {
        self.started = Instant::now();
    }

    /// Marks the response as passing without being decoded.
    pub(super) fn unread(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.unread = true;
        }
    }

    /// Returns the count of bodies that are received whole.
    pub(super) fn bodies(&self) -> Arc<Bodies> {
        Arc::clone(&self.shared.bodies)
    }

    /// Returns the time since the request was sent.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sets the response's status.
    pub(super) fn status(&mut self, status: u16) {
        if let Some(observed) = &mut self.observed {
            observed.status = Some(status);
        }
        if let Some(pending) = &mut self.cassette {
            pending.status = status;
        }
    }

    /// Sets the error response.
    pub(super) fn refused(&mut self, refusal: Refusal) {
        if let Some(observed) = &mut self.observed {
            observed.refusal = Some(refusal);
        }
    }

    /// Returns the observation so far; `None` once the exchange has ended.
    pub(super) fn observed(&mut self) -> Option<&mut ObservedExchange> {
        self.observed.as_deref_mut()
    }

    /// Ends the exchange with the response's end: complete, an error, or truncated.
    pub(super) fn end_of_answer(&mut self) {
        let outcome = self.observed.as_ref().map_or(Outcome::Finished, |observed| observed.outcome_at_end());
        // A cassette records the bytes that came, whether a client can decode them or not.
        self.end_in_cassette(Outcome::Finished);
        self.end(outcome);
    }

    /// Ends the exchange. Only the first call counts.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.end_in_cassette(outcome);
        let Some(mut observed) = self.observed.take() else { return };
        observed.e2e = self.started.elapsed();
        observed.outcome = Some(outcome);
        observed.ids_are_exact = self.capabilities.ids_are_exact();
        if outcome == Outcome::Finished && observed.ids_requested && !observed.choices.is_empty() {
            self.capabilities.observe_response(observed.names_ids());
        }
        if observed.is_miscounted() {
            self.capabilities.miscounted();
        }
        self.shared.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.shared.metrics.ended(&observed);
        self.shared.submit(observed);
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        if self.observed.is_none() {
            return;
        }
        let is_whole_stream = self.is_whole_stream();
        let gone = if self.shared.is_cutting() { Outcome::Cut } else { Outcome::ClientGone };
        // A cassette replays the events themselves, so that its exchange is finished only if the last one came.
        self.end_in_cassette(if is_whole_stream { Outcome::Finished } else { gone });
        let Some(observed) = &self.observed else { return };
        let outcome = if observed.done || observed.is_complete() { observed.outcome_at_end() } else { gone };
        self.end(outcome);
    }
}

impl ObservedExchange {
    /// Adds one event of a stream.
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

    /// Marks the response as complete (`[DONE]`), whatever the client does afterwards.
    pub(super) fn observe_done(&mut self) {
        self.done = true;
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
    fn is_miscounted(&self) -> bool {
        self.usage.is_some() && self.choices.any_has_ids() && !self.ids_are_complete()
    }

    fn names_ids(&self) -> bool {
        self.prompt_ids.is_some()
            || self.choices.any_has_ids()
            || self.choices.iter().any(|choice| choice.prompt_ids.is_some())
    }

    fn is_complete(&self) -> bool {
        let all_finished = !self.choices.is_empty() && self.choices.iter().all(|choice| choice.finish_reason.is_some());
        !self.in_stream_error && (self.done || (all_finished && self.facts.wants_one()))
    }

    fn outcome_at_end(&self) -> Outcome {
        if self.status.is_some_and(|status| status >= 400) || self.in_stream_error {
            Outcome::Error
        } else if self.is_complete() || self.unread {
            Outcome::Finished
        } else {
            Outcome::UpstreamFailed
        }
    }
}
