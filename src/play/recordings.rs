//! Recorded responses, found by their requests: those of records that no token ids stand for.
//!
//! A record is found by its index, where the request's id names one, or by its request in canonical form: the first that was
//! not served yet in its session, else what [`OnExhausted`] says, the last one without it. Who asks for a stream gets a recorded stream first.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    State,
    account::{Session, Slot},
    config::Unmatched,
    load::Replay,
    miss::Explanation,
    recorded::Asked,
};
use crate::{
    api::ApiError,
    recording::canonical,
    recording::trace::Store,
    replay::matching::{MatchBy, Miss, MissReason, OnExhausted, Selection},
    text::prompt::BlockHasher,
};

/// The responses of a trace.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    paths: HashSet<Box<str>>,
    /// The records of one request, in replay order.
    by_request: HashMap<Box<str>, Vec<Recording>>,
    /// All records with a response, in replay order.
    all: Vec<u32>,
}

#[derive(Debug)]
struct Recording {
    record: usize,
    stream: bool,
}

/// How often each response was served in one session.
#[derive(Debug, Default)]
pub(super) struct ServedResponses(Mutex<HashMap<usize, u64>>);

impl ServedResponses {
    /// Notes that a record was served.
    pub(super) fn take(&self, record: usize) {
        *self.lock().entry(record).or_default() += 1;
    }

    /// How often a record was served.
    pub(super) fn times(&self, record: usize) -> u64 {
        self.lock().get(&record).copied().unwrap_or(0)
    }

    /// How many records were served at least once.
    pub(super) fn consumed(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// This record, which was served before or not.
    Record { record: usize, again: bool },
    /// Records that were all served and must not be served again.
    Exhausted,
    /// None.
    Nothing,
}

impl Recordings {
    /// The responses among these records, which are in replay order.
    pub(super) fn of(records: &Store) -> Self {
        let mut recordings = Self::default();
        for (record, kept) in records.iter().enumerate().filter(|(_, kept)| kept.response().is_some()) {
            recordings.paths.extend(kept.path().map(Box::from));
            recordings.all.extend(u32::try_from(record));
            let Some(key) = kept.request_key() else { continue };
            let recording = Recording { record, stream: kept.stream() == Some(true) };
            recordings.by_request.entry(key.into()).or_default().push(recording);
        }
        recordings
    }

    /// Whether there are any of this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The records with a response, in replay order.
    pub(super) fn all(&self) -> &[u32] {
        &self.all
    }

    /// The record of a request by what it asks for, which is served now.
    pub(super) fn by_request(
        &self,
        served: &ServedResponses,
        hasher: &BlockHasher,
        (target, body): (&str, &[u8]),
        on_exhausted: Option<OnExhausted>,
    ) -> Found {
        let key = hasher.request_key(canonical::request_key(target, body).number());
        let Some(same) = key.and_then(|key| self.by_request.get(key.as_str())) else { return Found::Nothing };
        let wants_stream = asks_for_stream(body);
        let (alike, others): (Vec<&Recording>, Vec<&Recording>) =
            same.iter().partition(|recording| recording.stream == wants_stream);
        let mut served = served.lock();
        let mut all = alike.iter().chain(&others);
        let fresh = all.find(|recording| !served.contains_key(&recording.record));
        let choices = if alike.is_empty() { &others } else { &alike };
        let found = match (fresh, on_exhausted) {
            (Some(fresh), _) => Some(fresh),
            (None, Some(OnExhausted::Error)) => return Found::Exhausted,
            (None, Some(OnExhausted::Cycle)) => choices.iter().min_by_key(|recording| served.get(&recording.record)),
            (None, Some(OnExhausted::Last) | None) => choices.last(),
        };
        let Some(record) = found.map(|recording| recording.record) else { return Found::Nothing };
        *served.entry(record).or_default() += 1;
        Found::Record { record, again: fresh.is_none() }
    }
}

/// The record of a request, and how it was found; `None` where something else answers it.
///
/// # Errors
/// A miss, where nothing else can.
pub(super) fn found(
    state: &State,
    (replay, slot): (&Replay, &Slot),
    sent_id: Option<&str>,
    asked: &Asked<'_>,
) -> Result<Option<(usize, MatchBy)>, ApiError> {
    let (path, target, body) = (asked.path, asked.target, asked.body);
    // What generates is made up where that is allowed.
    let is_made_up = state.config.unmatched == Unmatched::Random && asked.is_served;
    let missed =
        |reason, message| if is_made_up { Ok(None) } else { Err(missed(state, (replay, slot), path, reason, message)) };
    if let Some(record) = replay.matcher.index_of(sent_id)
        && let Some(kept) = replay.records.get(record)
    {
        return match kept.path().filter(|_| kept.response().is_some()) {
            Some(recorded) if recorded == path => {
                let again = slot.with(|session| session.responses.times(record) > 0);
                slot.with(|session| session.responses.take(record));
                Ok(Some(selected(slot, record, MatchBy::Index, again)))
            }
            Some(recorded) => missed(MissReason::NoMatch, format!("Record {record} is of {recorded}, not of {path}.")),
            None => Ok(None),
        };
    }
    let rules = replay.matcher.rules();
    let by_request = rules.order.iter().any(|by| matches!(by, MatchBy::Prefix | MatchBy::Auto));
    let found = || {
        let select = |session: &Session| {
            replay.recordings.by_request(&session.responses, &replay.hasher, (target, body), rules.on_exhausted)
        };
        slot.with(select)
    };
    match if by_request { found() } else { Found::Nothing } {
        Found::Record { record, again } => Ok(Some(selected(slot, record, MatchBy::Prefix, again))),
        Found::Exhausted => {
            missed(MissReason::Exhausted, "Every recorded response of this request was served.".to_owned())
        }
        Found::Nothing if asked.is_served => Ok(None),
        Found::Nothing => {
            let message = format!("No recorded response of {path} matched this request ({}).", replay.describe());
            missed(MissReason::NoMatch, message)
        }
    }
}

/// The error of a request that has no recorded response; it is counted.
fn missed(
    state: &State,
    (replay, slot): (&Replay, &Slot),
    path: &str,
    reason: MissReason,
    message: String,
) -> ApiError {
    let explanation = Explanation::of_response(replay, path, reason, message);
    slot.with(|session| {
        session.count(&Err(Miss { reason, nearest: None, total_blocks: 0 }));
        session.keep_miss(|| explanation.entry());
    });
    explanation.error(state.config.miss_status, state.config.miss_detail)
}

/// Counts a record that was found.
fn selected(slot: &Slot, record: usize, by: MatchBy, again: bool) -> (usize, MatchBy) {
    let whole = by == MatchBy::Prefix;
    let selection = Selection { records: vec![record], by, matched_blocks: 0, total_blocks: 0, whole, again };
    slot.with(|session| session.count(&Ok(selection)));
    (record, by)
}

/// Whether a request wants a stream.
pub(super) fn asks_for_stream(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Asked {
        #[serde(default)]
        stream: Option<bool>,
    }
    serde_json::from_slice::<Asked>(body).is_ok_and(|asked| asked.stream == Some(true))
}
