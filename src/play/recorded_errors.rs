//! Recorded errors that are found by their requests: those whose prompt nobody tokenized, as an engine names no ids when it
//! fails.
//!
//! They are looked for once this server has accepted a request, beside the records of the same whole prompt: of both the
//! first that was not served yet in its session comes first. Where all were served [`OnExhausted`] decides, and without it
//! the last of them is served again. Limits: a request of several prompts is compared with the records of the first one.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use super::{State, blocking::off_the_loop, load::Replay};
use crate::{
    api::ApiError,
    recording::canonical as identity,
    recording::trace::Store,
    replay::matching::{Consumption, MatchBy, Miss, MissReason, OnExhausted, Query, Selection, WholePrompt},
};

/// The errors of a trace by the keys of their requests.
#[derive(Debug, Default)]
pub(super) struct RecordedErrors(HashMap<Box<str>, Vec<usize>>);

impl RecordedErrors {
    /// The errors among these records, which are in replay order.
    pub(super) fn of(records: &Store) -> Self {
        let mut errors = Self::default();
        let is_error = |status: Option<u16>| status.is_some_and(|status| status >= 400);
        for (record, kept) in records.iter().enumerate() {
            let is_found_otherwise = kept.response().is_some() || kept.prompt_hash().is_some();
            if let Some(key) = kept.request_key().filter(|_| !is_found_otherwise && is_error(kept.status())) {
                errors.0.entry(key.into()).or_default().push(record);
            }
        }
        errors
    }
}

/// Finds the recorded errors of a request, in replay order.
///
/// # Errors
/// 500 where that panicked.
pub(super) async fn errors_of(state: &State, target: &str, body: &Bytes) -> Result<Vec<usize>, ApiError> {
    let Some(replay) = state.replay.as_ref().filter(|replay| !replay.errors.0.is_empty()) else {
        return Ok(Vec::new());
    };
    let weight = body.len();
    let (replay, target, body) = (Arc::clone(replay), target.to_owned(), body.clone());
    let find = move || {
        let key = replay.hasher.request_key(identity::request_key(&target, &body).number());
        Ok(key.and_then(|key| replay.errors.0.get(key.as_str())).cloned().unwrap_or_default())
    };
    off_the_loop(weight, find).await
}

/// Selects one of a request's errors and consumes it; `None` where other records come first, or there are no errors.
pub(super) fn select(
    replay: &Replay,
    session: &Consumption,
    query: &Query<'_>,
    errors: &[usize],
) -> Option<Result<Selection, Miss>> {
    let rules = replay.matcher.rules();
    let by_request = rules.order.iter().any(|by| matches!(by, MatchBy::Prefix | MatchBy::Auto));
    let last = *errors.last().filter(|_| by_request && replay.matcher.index_of(query.request_id).is_none())?;
    let others = replay.matcher.whole_prompt(session, query);
    let fresh = errors.iter().copied().find(|error| session.times(*error) == 0);
    let record = match (fresh, others) {
        (Some(error), Some(WholePrompt { fresh: Some(other), .. })) if other < error => return None,
        (Some(error), _) => error,
        (None, Some(WholePrompt { fresh: Some(_), .. })) => return None,
        (None, others) => match rules.on_exhausted {
            Some(OnExhausted::Error) => {
                return Some(Err(Miss { reason: MissReason::Exhausted, nearest: None, total_blocks: 0 }));
            }
            Some(OnExhausted::Cycle) => *errors.iter().min_by_key(|error| session.times(**error))?,
            Some(OnExhausted::Last) | None if others.is_some_and(|others| others.last > last) => return None,
            Some(OnExhausted::Last) | None => last,
        },
    };
    let again = !replay.matcher.consume(session, record);
    let selection = Selection {
        records: vec![record],
        by: MatchBy::Prefix,
        matched_blocks: 0,
        total_blocks: 0,
        whole: true,
        again,
    };
    Some(Ok(selection))
}
