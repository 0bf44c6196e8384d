//! Recorded errors that are found by their requests: those without a prompt hash, as an engine that fails sends no token ids.
//!
//! Beside them stands the record without a response that took its turn among the responses of its request.
//!
//! Errors are looked for once this server has accepted a request, beside the records of the same whole prompt: of both the
//! first that was not served yet in its session comes first. A request that this server refuses by itself consumes its
//! recorded error too. Where all were served [`OnExhausted`] decides, and without it
//! the last of them is served again. Limits: a request of several prompts is compared with the records of the first one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    ServerState,
    load::{account::TraceSession, trace::LoadedTrace},
    recorded::{failure::RecordedFailure, responses::RequestKey},
    request::blocking::off_the_loop,
    selection::query::{PromptScripts, RequestRecords, headers_of},
};
use api::{ApiError, RecordedError};
use recording::trace::WITHHELD;
use replay::matching::{
    Consumption, MatchBy, MatchQuery, MissReason, OnExhausted, PromptMiss, RecordSelection, WholePrompt,
};

/// Finds the recorded errors of a request, in replay order. `known` is the request's key where it was computed already.
pub(in super::super) async fn errors_of(
    state: &ServerState,
    known: Option<RequestKey>,
    target: String,
    body: &Bytes,
) -> Result<RequestRecords, ApiError> {
    let taken = known.as_ref().and_then(|known| known.taken);
    let Some(replay) = state.replay.as_ref().filter(|replay| taken.is_none() && !replay.errors.0.is_empty()) else {
        return Ok(RequestRecords { taken, ..RequestRecords::default() });
    };
    let weight = body.len();
    let (replay, body) = (Arc::clone(replay), body.clone());
    let find = move || {
        let key = known.unwrap_or_else(|| RequestKey::new(&replay, &target, &body));
        let errors = key.as_deref().and_then(|key| replay.errors.0.get(key)).cloned().unwrap_or_default();
        Ok(RequestRecords { errors, taken })
    };
    off_the_loop(weight, find).await
}

/// Gives the record that was consumed for a request, or selects one of its errors and consumes it; `None` where other records come
/// first, or there are no errors.
pub(in super::super) fn select(
    replay: &LoadedTrace,
    session: &Consumption,
    query: &MatchQuery<'_>,
    recorded: &RequestRecords,
) -> Option<Result<RecordSelection, PromptMiss>> {
    let RequestRecords { errors, taken } = recorded;
    if let Some(taken) = taken {
        return Some(Ok(replay.matcher.of_request(query, taken.record, taken.again)));
    }
    let rules = replay.matcher.rules();
    let by_request = MatchBy::any_by_prompt(&rules.order);
    let last = *errors.last().filter(|_| by_request && replay.matcher.index_of(query.request_id).is_none())?;
    let others = replay.matcher.whole_prompt(session, query);
    let fresh = errors.iter().copied().find(|error| session.times(*error) == 0);
    let record = match (fresh, others) {
        (Some(error), Some(WholePrompt { fresh: Some(other), .. })) if other < error => return None,
        (Some(error), _) => Some(error),
        (None, Some(WholePrompt { fresh: Some(_), .. })) => return None,
        (None, others) => {
            let on_exhausted = rules.on_exhausted.unwrap_or(OnExhausted::Last);
            if on_exhausted == OnExhausted::Last && others.is_some_and(|others| others.last > last) {
                return None;
            }
            on_exhausted.choose(errors.iter().copied(), |error| session.times(error))
        }
    };
    let exhausted = PromptMiss { reason: MissReason::Exhausted, nearest: None, total_blocks: 0 };
    Some(record.map(|record| consumed(replay, session, record, MatchBy::Prefix)).ok_or(exhausted))
}

fn consumed(replay: &LoadedTrace, session: &Consumption, record: usize, by: MatchBy) -> RecordSelection {
    let again = !replay.matcher.consume(session, record);
    let whole = by == MatchBy::Prefix;
    RecordSelection { records: vec![record], by, matched_blocks: 0, total_blocks: 0, whole, again }
}

/// A request that this server refuses by itself, as the engine did.
pub(in super::super) struct RefusedRequest<'a> {
    pub(in super::super) error: ApiError,
    pub(in super::super) request_id: Option<&'a str>,
    pub(in super::super) session: Option<&'a TraceSession>,
    pub(in super::super) recorded: &'a RequestRecords,
}

impl RefusedRequest<'_> {
    /// Consumes the record of the same error, where there is one. Gives the error that is sent, and when it is due: the
    /// recorded one, with this server's message where the recorded one was left out.
    pub(in super::super) fn replayed(self, state: &ServerState) -> (ApiError, Duration) {
        let own = (self.error.clone(), Duration::ZERO);
        let Some(replay) = state.replay.as_ref().filter(|_| self.error.status < 500) else { return own };
        let slot = self.session.unwrap_or(replay.account.default_session());
        let selected = slot.with(|session| {
            let selection = self.select(replay, &session.consumption)?;
            session.count(&Ok(selection.clone()));
            Some(selection)
        });
        let Some(selection) = selected else { return own };
        let record = selection.records.first().and_then(|record| replay.records.get(*record)).map(|kept| kept.record());
        let Some((record, failure)) =
            record.and_then(|record| RecordedFailure::of(&record, state.pacing()).map(|failure| (record, failure)))
        else {
            return own;
        };
        let chosen = PromptScripts {
            by: error_match(&selection).to_owned(),
            records: selection.records,
            ..PromptScripts::default()
        };
        let due = failure.due;
        let mut error = failure.into_error(&headers_of(&[chosen], self.session));
        let body = record.error.as_ref().and_then(|error| error.body.as_deref());
        if record.status == Some(self.error.status) && body.is_none_or(is_withheld) {
            let headers = error.recorded.take().map(|recorded| recorded.headers).unwrap_or_default();
            error = ApiError { recorded: Some(Box::new(RecordedError { headers, body: None })), ..self.error };
        }
        (error, due)
    }

    fn select(&self, replay: &LoadedTrace, session: &Consumption) -> Option<RecordSelection> {
        let is_error = |record: usize| {
            replay.records.get(record).and_then(|kept| kept.status()).is_some_and(|status| status >= 400)
        };
        if let Some(taken) = self.recorded.taken {
            let (records, by, again) = (vec![taken.record], MatchBy::Prefix, taken.again);
            let selection = RecordSelection { records, by, matched_blocks: 0, total_blocks: 0, whole: true, again };
            return is_error(taken.record).then_some(selection);
        }
        if let Some(index) = replay.matcher.index_of(self.request_id) {
            return is_error(index).then(|| consumed(replay, session, index, MatchBy::Index));
        }
        let rules = replay.matcher.rules();
        if !MatchBy::any_by_prompt(&rules.order) {
            return None;
        }
        let mut errors = self.recorded.errors.iter().copied();
        let fresh = errors.clone().find(|error| session.times(*error) == 0);
        // Where exhausted records give a miss, this server's own error is sent.
        let on_exhausted = rules.on_exhausted.unwrap_or(OnExhausted::Last);
        let record = fresh.or_else(|| on_exhausted.choose(&mut errors, |error| session.times(error)));
        record.map(|record| consumed(replay, session, record, MatchBy::Prefix))
    }
}

/// The way in which an error was found, for the response's headers.
pub(in super::super) fn error_match(selection: &RecordSelection) -> &'static str {
    match (selection.by, selection.again) {
        (MatchBy::Index, _) => "index",
        (_, true) => "request;again",
        (_, false) => "request",
    }
}

/// Checks whether words are left out of a recorded error: a client's, unless texts are recorded.
pub(super) fn is_withheld(body: &str) -> bool {
    body.contains(WITHHELD)
}
