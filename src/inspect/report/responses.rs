//! The slowest responses, and the requests that failed.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    base::{one_line::clipped, units::Millis},
    inspect::compare::ChoiceOutcome,
    recording::trace::Record,
    replay::meter,
};

/// Responses that are listed, at most.
const MOST: usize = 20;

/// Failed requests that are listed, at most.
const MOST_FAILED: usize = 50;

/// Characters of a name, at most.
const NAME: usize = 200;

/// Characters of an error, at most.
const MESSAGE: usize = 400;

/// One response: what it was and how long it took. `None` for what the trace does not have.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SlowResponse {
    /// Arrival, in seconds from the first one.
    pub at_s: Option<f64>,
    /// Request id; names have at most 200 characters.
    pub request_id: Option<String>,
    /// Session.
    pub session: Option<String>,
    /// The model that the request asked for.
    pub model: Option<String>,
    /// The endpoint, as in a trace.
    pub endpoint: Option<String>,
    /// HTTP status.
    pub status: Option<u16>,
    /// How the exchange ended, as in a trace.
    pub outcome: Option<String>,
    /// Why the engine stopped, as in a trace.
    pub finish_reason: Option<String>,
    /// Prompt length.
    pub prompt_tokens: u32,
    /// Prompt tokens found in the engine's cache.
    pub cached_tokens: Option<u32>,
    /// Output length.
    pub output_tokens: u32,
    /// Request to first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Longest gap between two tokens, in milliseconds.
    pub longest_gap_ms: Option<f64>,
    /// Mean time per token after the first, in milliseconds.
    pub tpot_ms: Option<f64>,
    /// Request to last byte, in milliseconds.
    pub e2e_ms: Option<f64>,
    /// The error, at most 400 characters of it.
    pub error: Option<String>,
}

impl SlowResponse {
    fn of(record: &Record) -> Self {
        let millis = |duration: Duration| Millis::from(duration).0;
        let name = |name: &Option<String>| name.as_ref().map(|name| clipped(name, NAME));
        let error = record.error.as_ref().and_then(|error| error.body.as_ref());
        Self {
            at_s: record.arrival.map(|arrival| arrival.as_secs_f64()),
            request_id: name(&record.request_id),
            session: name(&record.session),
            model: name(&record.model),
            endpoint: record.endpoint.map(|endpoint| endpoint.to_string()),
            status: record.status,
            outcome: record.outcome.map(|outcome| outcome.to_string()),
            finish_reason: record.finish_reason.map(|reason| reason.to_string()),
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.cached_tokens,
            output_tokens: record.output_tokens,
            ttft_ms: meter::ttft(record).map(millis),
            longest_gap_ms: meter::chunk_gaps(record).max().map(millis),
            tpot_ms: meter::tpot(record).map(millis),
            e2e_ms: meter::e2e(record).map(millis),
            error: error.map(|body| clipped(body, MESSAGE)),
        }
    }

    /// The same with its arrival from that of the first request.
    fn from(self, begin: Duration) -> Self {
        Self { at_s: self.at_s.map(|at| at - begin.as_secs_f64()), ..self }
    }
}

/// The responses that took longest.
#[derive(Debug, Default)]
pub(super) struct Slowest(Vec<(Duration, SlowResponse)>);

impl Slowest {
    pub(super) fn add(&mut self, record: &Record, took: Option<Duration>) {
        let Some(took) = took else { return };
        if self.0.len() >= MOST && self.0.last().is_some_and(|(shortest, _)| took <= *shortest) {
            return;
        }
        let place = self.0.partition_point(|(longer, _)| *longer >= took);
        self.0.insert(place, (took, SlowResponse::of(record)));
        self.0.truncate(MOST);
    }

    /// The responses of a run that began then, the slowest first.
    pub(super) fn responses(self, begin: Duration) -> Vec<SlowResponse> {
        self.0.into_iter().map(|(_, response)| response.from(begin)).collect()
    }
}

/// Requests that failed: an error, a broken connection, a timeout. A client that left and a recording that was stopped are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FailedRequests {
    /// How many there are.
    pub count: u64,
    /// The same by status and outcome, the most frequent first.
    pub by_kind: Vec<FailureKind>,
    /// The first of them in the order of the file, 50 at most.
    pub first: Vec<SlowResponse>,
}

/// Failed requests of one status and outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailureKind {
    /// HTTP status.
    pub status: Option<u16>,
    /// How the exchange ended, as in a trace.
    pub outcome: Option<String>,
    /// How many there are.
    pub count: u64,
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u64,
    by_kind: BTreeMap<(Option<u16>, Option<String>), u64>,
    first: Vec<SlowResponse>,
}

impl Failures {
    pub(super) fn add(&mut self, record: &Record) {
        if record.choice.unwrap_or_default() > 0 || ChoiceOutcome::of(record) != ChoiceOutcome::Failed {
            return;
        }
        self.count += 1;
        let outcome = record.outcome.map(|outcome| outcome.to_string());
        *self.by_kind.entry((record.status, outcome)).or_default() += 1;
        if self.first.len() < MOST_FAILED {
            self.first.push(SlowResponse::of(record));
        }
    }

    pub(super) fn report(self, begin: Duration) -> FailedRequests {
        let kind = |((status, outcome), count)| FailureKind { status, outcome, count };
        let mut by_kind: Vec<FailureKind> = self.by_kind.into_iter().map(kind).collect();
        by_kind.sort_by_key(|kind| Reverse(kind.count));
        let first = self.first.into_iter().map(|response| response.from(begin)).collect();
        FailedRequests { count: self.count, by_kind, first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::trace::{Outcome, RecordedErrorResponse};

    #[test]
    fn the_slowest_responses_are_kept_in_order() {
        let mut slowest = Slowest::default();
        let took = |number: u32| Duration::from_millis(u64::from(number * 37 % 101));
        for number in 0..101 {
            let record = Record { arrival: Some(Duration::from_secs(9)), prompt_tokens: number, ..Record::default() };
            slowest.add(&Record { e2e: Some(took(number)), ..record }, Some(took(number)));
        }
        slowest.add(&Record::default(), None);
        let listed = slowest.responses(Duration::from_secs(4));
        let millis: Vec<f64> = listed.iter().map(|response| response.e2e_ms.unwrap()).collect();
        assert_eq!(millis, (81..=100).rev().map(f64::from).collect::<Vec<_>>());
        assert!(listed.iter().all(|response| response.at_s == Some(5.0)));
    }

    #[test]
    fn failures_are_requests_and_bounded() {
        let mut failures = Failures::default();
        let error = Some(RecordedErrorResponse { body: Some("x".repeat(10_000)), ..RecordedErrorResponse::default() });
        for _ in 0..70 {
            failures.add(&Record { status: Some(500), error: error.clone(), ..Record::default() });
        }
        for outcome in [Outcome::Finished, Outcome::ClientGone, Outcome::Cut, Outcome::TimedOut] {
            failures.add(&Record { outcome: Some(outcome), ..Record::default() });
        }
        failures.add(&Record { status: Some(500), choice: Some(1), ..Record::default() });
        let failed = failures.report(Duration::ZERO);
        assert_eq!((failed.count, failed.first.len()), (71, MOST_FAILED));
        let kinds: Vec<_> = failed.by_kind.iter().map(|kind| (kind.status, kind.count)).collect();
        assert_eq!(kinds, [(Some(500), 70), (None, 1)]);
        assert_eq!(failed.by_kind[1].outcome.as_deref(), Some("timed_out"));
        assert_eq!(failed.first[0].error.as_ref().unwrap().chars().count(), MESSAGE + 1);
    }
}
