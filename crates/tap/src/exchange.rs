//! One recorded exchange, from the request to the one outcome it ends in.
//!
//! An exchange that is dropped before it was ended explicitly ends at the drop: its client has gone, or the tap is being shut
//! down. Exactly one outcome reaches the recorder, whatever happens to the future or the body that owns the exchange.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    capabilities::Capabilities, observed_exchange::ObservedExchange, request::RequestFacts, shared_state::SharedState,
};
use recording::{capture::Capture, trace::Outcome};
use replay::player::PendingExchange;

#[derive(Debug)]
pub(super) struct OpenExchange {
    pub(super) shared: Arc<SharedState>,
    pub(super) capabilities: Arc<Capabilities>,
    started: Instant,
    /// What is observed so far; taken when the exchange ends.
    pub(super) observed: Box<ObservedExchange>,
    has_ended: bool,
    /// Its position in a cassette, if it is recorded there.
    pub(super) cassette: Option<Box<PendingExchange>>,
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
        Self { shared, capabilities, started, observed: Box::new(observed), has_ended: false, cassette: None }
    }

    /// Begins a copy of the response, if responses are recorded, with the request's path, query and body.
    pub(super) fn copy(&mut self, target: &str, body: &Bytes) {
        if self.shared.keeps.responses {
            let capture = Capture::new(&self.shared.captures, target.to_owned(), body.clone());
            self.observed.capture = Some(Box::new(capture));
        }
    }

    /// Returns true if tokens are read from the response, or it is recorded itself.
    pub(super) fn reads_content(&self) -> bool {
        self.observed.facts.is_made_of_ids() || self.observed.capture.is_some()
    }

    /// Returns the copy of the response; `None` once complete token ids stand for it.
    pub(super) fn capture(&mut self) -> Option<&mut Capture> {
        let observed = &mut self.observed;
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

    /// Restarts the clock: the amended request was refused and the client's own request is sent.
    pub(super) fn restart(&mut self) {
        self.started = Instant::now();
    }

    /// Returns the time since the request was sent.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sets the response's status.
    pub(super) fn status(&mut self, status: u16) {
        self.observed.status = Some(status);
        if let Some(pending) = &mut self.cassette {
            pending.status = status;
        }
    }

    /// Ends the exchange with the response's end: complete, an error, or truncated.
    pub(super) fn end_of_answer(&mut self) {
        let outcome = self.observed.outcome_at_end();
        // A cassette records the bytes that came, whether a client can decode them or not.
        self.end_in_cassette(Outcome::Finished);
        self.end(outcome);
    }

    /// Ends the exchange. Only the first call counts.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.end_in_cassette(outcome);
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let mut observed = std::mem::take(&mut self.observed);
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
        if self.has_ended {
            return;
        }
        let is_whole_stream = self.is_whole_stream();
        let gone = if self.shared.is_cutting() { Outcome::Cut } else { Outcome::ClientGone };
        // A cassette replays the events themselves, so that its exchange is finished only if the last one came.
        self.end_in_cassette(if is_whole_stream { Outcome::Finished } else { gone });
        let is_whole = self.observed.done || self.observed.is_complete();
        self.end(if is_whole { self.observed.outcome_at_end() } else { gone });
    }
}
