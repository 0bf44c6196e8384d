//! One recorded exchange, from the request to the one outcome it ends in.
//!
//! An exchange that is dropped before it was ended explicitly ends there: its client has gone, or the tap is being shut
//! down. So whatever happens to the future or the body that owns it, exactly one outcome reaches the recorder.

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
    event::{StreamEvent, Usage, ids},
    observed_choice::ObservedChoice,
    other_answers::Said,
    pattern::Hit,
    refusal::Refusal,
    request::RequestFacts,
    shared_state::{KeptContent, SharedState},
};
use crate::{
    recording::{capture::Capture, trace::Outcome},
    replay::player::PendingExchange,
};

/// An exchange in progress.
#[derive(Debug)]
pub(super) struct Exchange {
    room: Arc<SharedState>,
    pub(super) learned: Arc<Capabilities>,
    started: Instant,
    /// Taken when the exchange ends.
    pub(super) observed: Option<Box<ObservedExchange>>,
    /// Its place in a cassette, where it is recorded there.
    pub(super) cassette: Option<Box<PendingExchange>>,
}

/// What was found out about one exchange; the recorder makes records of it.
#[derive(Debug, Default)]
pub(super) struct ObservedExchange {
    pub(super) facts: RequestFacts,
    /// The request's body, kept only where a tokenizer may have to hash its prompt.
    pub(super) body: Option<Bytes>,
    pub(super) arrival: Duration,
    pub(super) concurrency: u32,
    pub(super) status: Option<u16>,
    pub(super) outcome: Option<Outcome>,
    pub(super) e2e: Duration,
    pub(super) first_event: Option<Duration>,
    /// The answer's own id.
    pub(super) answer_id: Option<String>,
    pub(super) usage: Option<Usage>,
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) choices: Vec<ObservedChoice>,
    /// Whether the engine is known to name every id.
    pub(super) ids_are_exact: bool,
    /// Whether the engine was asked for ids, by us or by the client.
    pub(super) asked_ids: bool,
    /// Events of a stream whose tokens nobody can tell.
    pub(super) stream_events: u64,
    /// The error that was the answer, or that ended the stream.
    pub(super) refusal: Option<Refusal>,
    /// The request, while its answer may be an error.
    pub(super) request: Option<(PathAndQuery, Bytes)>,
    /// The response, while no ids stand for it.
    pub(super) capture: Option<Box<Capture>>,
    keeps: KeptContent,
    in_stream_error: bool,
    done: bool,
    /// Nobody could read the answer: it is complete when its bytes are.
    unread: bool,
}

impl Exchange {
    /// Begins when the whole request is there and is about to be sent.
    pub(super) fn begin(
        room: Arc<SharedState>,
        learned: Arc<Capabilities>,
        facts: RequestFacts,
        body: Option<Bytes>,
    ) -> Self {
        let started = Instant::now();
        let concurrency = room.metrics.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        let arrival = started.saturating_duration_since(room.zero);
        let keeps = room.keeps;
        let observed = ObservedExchange { facts, body, arrival, concurrency, keeps, ..ObservedExchange::default() };
        Self { room, learned, started, observed: Some(Box::new(observed)), cassette: None }
    }

    /// KeptContent the request's path, query and body until its answer is known to be no error.
    pub(super) fn asked(&mut self, target: Option<&PathAndQuery>, body: &Bytes) {
        if let Some(observed) = &mut self.observed {
            observed.request = target.map(|target| (target.clone(), body.clone()));
        }
    }

    /// Drops the request: its record is found otherwise.
    pub(super) fn forget_request(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.request = None;
        }
    }

    /// A copy of the response is to be kept, where such copies are; with the request's path, query and body.
    pub(super) fn copy(&mut self, target: &str, body: &Bytes) {
        if let Some(observed) = self.observed.as_mut().filter(|_| self.room.keeps.responses) {
            let all = Arc::clone(&self.room.captures);
            observed.capture = Some(Box::new(Capture::new(all, target.to_owned(), body.clone())));
        }
    }

    /// The response is recorded otherwise, but in a cassette.
    pub(super) fn forget_copy(&mut self) {
        if let Some(observed) = self.observed.as_mut().filter(|_| self.cassette.is_none()) {
            observed.capture = None;
        }
    }

    /// The copy of the response, where it is still wanted: not where an engine that names every id has named them.
    pub(super) fn capture(&mut self) -> Option<&mut Capture> {
        let observed = self.observed.as_deref_mut()?;
        let is_long = observed.capture.as_ref()?.is_long();
        let stand_for_it = self.cassette.is_none()
            && self.learned.ids_are_exact()
            && !observed.facts.exceeds_ids
            && observed.facts.is_made_of_ids()
            && observed.choices.iter().any(|choice| choice.ids.is_some())
            && !observed.is_miscounted();
        // What the engine counts is known at the end only, so that a short copy is kept until then, and all of it where the
        // engine once counted otherwise.
        if stand_for_it && (observed.done || (is_long && !self.learned.miscounts())) {
            observed.capture = None;
        }
        observed.capture.as_deref_mut()
    }

    /// The answer is a stream, asked for or not.
    pub(super) fn streams(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.facts.stream = true;
        }
    }

    /// Ids were asked for.
    pub(super) fn asked_ids(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.asked_ids = true;
        }
    }

    /// Begins anew: what was sent before was refused, and the client's own request follows.
    pub(super) fn restart(&mut self) {
        self.started = Instant::now();
    }

    /// The answer passes without being read.
    pub(super) fn unread(&mut self) {
        if let Some(observed) = &mut self.observed {
            observed.unread = true;
        }
    }

    /// Time since the request was sent.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The answer's status is known.
    pub(super) fn status(&mut self, status: u16) {
        if let Some(observed) = &mut self.observed {
            observed.status = Some(status);
        }
        if let Some(pending) = &mut self.cassette {
            pending.status = status;
        }
    }

    /// The answer was an error.
    pub(super) fn refused(&mut self, refusal: Refusal) {
        if let Some(observed) = &mut self.observed {
            observed.refusal = Some(refusal);
        }
    }

    /// What the client asked for and what was found so far.
    pub(super) fn observed(&mut self) -> Option<&mut ObservedExchange> {
        self.observed.as_deref_mut()
    }

    /// The answer ended by itself: complete, an error, or short of its end.
    pub(super) fn end_of_answer(&mut self) {
        let outcome = self.observed.as_ref().map_or(Outcome::Finished, |observed| observed.outcome_at_end());
        // A cassette has what came, whether a client could make something of it or not.
        self.end_in_cassette(Outcome::Finished);
        self.end(outcome);
    }

    /// The exchange is over. Only the first call counts.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.end_in_cassette(outcome);
        let Some(mut observed) = self.observed.take() else { return };
        observed.e2e = self.started.elapsed();
        observed.outcome = Some(outcome);
        observed.ids_are_exact = self.learned.ids_are_exact();
        if outcome == Outcome::Finished && observed.asked_ids && !observed.choices.is_empty() {
            self.learned.answered(observed.names_ids());
        }
        if observed.is_miscounted() {
            self.learned.miscounted();
        }
        self.room.metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.room.metrics.ended(&observed);
        self.room.submit(observed);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(observed) = &self.observed else { return };
        let is_whole_stream =
            self.cassette.is_some() && observed.capture.as_ref().is_some_and(|capture| capture.is_whole_stream());
        let gone = if self.room.is_cutting() { Outcome::Cut } else { Outcome::ClientGone };
        // A cassette replays the events that came: it is whole with the last one of them only.
        self.end_in_cassette(if is_whole_stream { Outcome::Finished } else { gone });
        let Some(observed) = &self.observed else { return };
        let outcome = if observed.done || observed.is_complete() { observed.outcome_at_end() } else { gone };
        self.end(outcome);
    }
}

impl ObservedExchange {
    /// One event of a stream was read.
    pub(super) fn saw_event(&mut self, event: &StreamEvent<'_>, at: Duration) {
        self.first_event.get_or_insert(at);
        if let Some(error) = event.error {
            self.in_stream_error = true;
            self.refusal.get_or_insert_with(|| Refusal::of_event(error.get()));
        }
        self.saw_parts(event);
        let keeps = self.keeps;
        for part in &event.choices {
            self.choice(part.index).saw_part(part, at, keeps);
        }
    }

    /// One event of a stream was recognised.
    pub(super) fn saw_hit(&mut self, index: u32, hit: &Hit<'_>, at: Duration) {
        self.first_event.get_or_insert(at);
        let keeps = self.keeps;
        let choice = self.choice(index);
        match &hit.ids {
            Some((named, _)) => {
                choice.meter.chunk(at, u32::try_from(named.len()).unwrap_or(u32::MAX), hit.weight);
                choice.ids.get_or_insert_default().extend_from_slice(named);
            }
            None => choice.meter.chunk(at, 1, hit.weight),
        }
        if keeps.text {
            choice.heard(hit.words.to_owned());
        }
    }

    /// One event of another API's stream, or its whole answer, was read; all of a whole answer's tokens came at once.
    pub(super) fn saw_said(&mut self, said: Said, at: Duration) {
        self.first_event.get_or_insert(at);
        self.stream_events += 1;
        self.in_stream_error |= said.error;
        self.done |= said.done;
        if self.answer_id.is_none() {
            self.answer_id = said.id;
        }
        if let Some(usage) = said.usage {
            // A count of the prompt is told once; one of the answer grows.
            let known = self.usage.map_or(0, |known| known.prompt_tokens);
            let cached = usage.cached_tokens().or_else(|| self.usage.and_then(|known| known.cached_tokens()));
            let prompt = if usage.prompt_tokens == 0 { known } else { usage.prompt_tokens };
            self.usage = Some(Usage::of(prompt, usage.completion_tokens, cached));
        }
        if said.words.is_none() && said.ids.is_none() && said.finish.is_none() {
            return;
        }
        let keeps = self.keeps;
        let choice = self.choice(0);
        if let Some(finish) = said.finish {
            choice.finish_reason = Some(finish);
        }
        let tokens = said.ids.as_ref().map_or(1, |ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        if said.ids.is_some() || said.words.is_some() {
            choice.meter.chunk(at, tokens, said.words.as_ref().map_or(0, String::len));
        }
        if let Some(ids) = said.ids {
            choice.ids.get_or_insert_default().extend(ids);
        }
        if let Some(words) = said.words.filter(|_| keeps.text) {
            choice.heard(serde_json::from_str(&words).unwrap_or(words));
        }
    }

    /// A whole answer was read: all of its tokens came `at` once.
    pub(super) fn saw_answer(&mut self, answer: &StreamEvent<'_>, at: Duration) {
        self.saw_parts(answer);
        let alone = answer.choices.len() == 1;
        let keeps = self.keeps;
        for part in &answer.choices {
            let counted = answer.usage.filter(|_| alone).map(|usage| usage.completion_tokens);
            let choice = self.choice(part.index);
            choice.saw_whole(part, counted, at);
            if keeps.logprobs {
                choice.logprobs.saw(part.logprobs);
                choice.logprobs.saw_prompt(part.prompt_logprobs.or(answer.prompt_logprobs.filter(|_| part.index == 0)));
            }
            if keeps.text {
                choice.heard(part.spoken());
            }
        }
        self.done = true;
    }

    /// The whole answer of another API was read.
    pub(super) fn saw_whole(&mut self, said: Said, at: Duration) {
        self.saw_said(said, at);
        self.first_event = None;
        self.stream_events = 0;
    }

    /// `[DONE]` was read: whatever the client does now, the answer was complete.
    pub(super) fn saw_done(&mut self) {
        self.done = true;
    }

    fn saw_parts(&mut self, event: &StreamEvent<'_>) {
        if self.answer_id.is_none() {
            self.answer_id = event.id.as_deref().or(event.request_id.as_deref()).map(str::to_owned);
        }
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        if event.prompt_token_ids.is_some() {
            self.prompt_ids = ids(event.prompt_token_ids);
        }
    }

    fn choice(&mut self, index: u32) -> &mut ObservedChoice {
        let place = self.choices.iter().position(|choice| choice.index == index).unwrap_or_else(|| {
            let awaits_echo = self.facts.repeats_message;
            self.choices.push(ObservedChoice { index, awaits_echo, ..ObservedChoice::default() });
            self.choices.len() - 1
        });
        #[allow(clippy::indexing_slicing)] // found or pushed just above
        &mut self.choices[place]
    }

    /// The choices that were asked for and never spoke, by their indices. An answer that is complete has those that it has:
    /// not every engine makes several.
    pub(super) fn silent(&self) -> impl Iterator<Item = u32> + '_ {
        let is_whole = self.outcome == Some(Outcome::Finished) && !self.choices.is_empty();
        let asked = if is_whole || self.facts.wants_one() { 0 } else { self.facts.choices() };
        let spoke: HashSet<u32> = self.choices.iter().map(|choice| choice.index).filter(|_| asked > 0).collect();
        (0..asked).filter(move |index| !spoke.contains(index))
    }

    /// How many records it makes: one for each choice.
    pub(super) fn records(&self) -> u64 {
        (self.choices.len() + self.silent().count()).max(1) as u64
    }

    /// Whether the engine counted another number of tokens than it named ids.
    fn is_miscounted(&self) -> bool {
        self.usage.is_some() && self.choices.iter().any(|choice| choice.ids.is_some()) && !self.ids_are_complete()
    }

    fn names_ids(&self) -> bool {
        self.prompt_ids.is_some()
            || self.choices.iter().any(|choice| choice.ids.is_some() || choice.prompt_ids.is_some())
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
