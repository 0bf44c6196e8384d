//! Recorded responses, found by their requests: those of records that no token ids stand for.
//!
//! A record is found by its index, where the request's id names one, or by its request in canonical form: the first that was
//! not served yet in its session, else what [`OnExhausted`] says, the last one without it. Who asks for a stream gets a recorded stream first.
//! The records of the other choices of its request have no content of their own: they are served with it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use http::{Method, Request};

use super::{
    Source, State,
    account::{Session, Slot},
    config::Unmatched,
    extract,
    load::Replay,
    miss::Explanation,
    recorded::Asked,
};
use crate::{
    api::ApiError,
    recording::canonical,
    recording::trace::{Kept, Store},
    replay::matching::{Keys, MatchBy, Miss, MissReason, OnExhausted, Selection},
    text::prompt::BlockHasher,
};

/// The responses of a trace.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    paths: HashSet<Box<str>>,
    /// The records of one request, in replay order.
    by_request: HashMap<Box<str>, Vec<Recording>>,
    /// All records with a response, and the others of their requests, in replay order.
    all: Vec<u32>,
    /// Records of further choices, whose content is in the response of the first: by that.
    further: HashMap<usize, Vec<usize>>,
    /// The record with the response of each of those.
    response_of: HashMap<usize, usize>,
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
    /// Notes that a record was served not so often after all.
    fn give_back(&self, record: usize, further: &[usize]) {
        let mut served = self.lock();
        for record in std::iter::once(record).chain(further.iter().copied()) {
            if let Some(times) = served.get_mut(&record) {
                *times -= 1;
            }
            if served.get(&record) == Some(&0) {
                served.remove(&record);
            }
        }
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
        recordings.add_further_choices(records);
        recordings
    }

    /// Finds the records whose content is in the response of another choice of their request.
    fn add_further_choices(&mut self, records: &Store) {
        let group_of = |record: &u32| Some((records.get(*record as usize)?.group()?, *record as usize));
        let groups: HashMap<&str, usize> = self.all.iter().filter_map(group_of).collect();
        if groups.is_empty() {
            return;
        }
        for (record, kept) in records.iter().enumerate() {
            let holder = kept.group().and_then(|group| groups.get(group)).copied();
            if let Some(holder) = holder.filter(|_| kept.response().is_none() && kept.ids().is_none()) {
                self.further.entry(holder).or_default().push(record);
                self.response_of.insert(record, holder);
                self.all.extend(u32::try_from(record));
            }
        }
        self.all.sort_unstable();
    }

    /// The first record with a response.
    pub(super) fn first(&self) -> Option<usize> {
        self.all.iter().map(|record| *record as usize).find(|record| !self.response_of.contains_key(record))
    }

    /// Whether the content of a record is in a response.
    pub(super) fn serves(&self, record: usize) -> bool {
        u32::try_from(record).is_ok_and(|record| self.all.binary_search(&record).is_ok())
    }

    /// What a record is found by, where it is one that its prompt or its index finds.
    pub(super) fn keys<'a>(&self, record: usize, kept: Kept<'a>) -> Keys<'a> {
        let keys = Keys::from(kept);
        Keys { servable: keys.servable && !self.response_of.contains_key(&record), ..keys }
    }

    /// The record with the response that a record is of; most are of their own.
    fn holder(&self, record: usize) -> usize {
        self.response_of.get(&record).copied().unwrap_or(record)
    }

    /// The further records of a response.
    fn further(&self, record: usize) -> &[usize] {
        self.further.get(&record).map_or(&[], Vec::as_slice)
    }

    /// Notes that a response was served. True when it was served before.
    fn take(&self, served: &ServedResponses, record: usize) -> bool {
        self.take_of(&mut served.lock(), record)
    }

    fn take_of(&self, served: &mut HashMap<usize, u64>, record: usize) -> bool {
        let times = served.entry(record).or_default();
        *times += 1;
        let again = *times > 1;
        self.further(record).iter().for_each(|further| *served.entry(*further).or_default() += 1);
        again
    }

    /// Whether there are any of this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The records whose content is in a response, in replay order.
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
        self.take_of(&mut served, record);
        Found::Record { record, again: fresh.is_none() }
    }
}

/// A recorded response that is about to be served; it is consumed and not counted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SelectedResponse {
    pub(super) record: usize,
    pub(super) by: MatchBy,
    again: bool,
}

impl SelectedResponse {
    /// Counts it as found.
    pub(super) fn count(self, slot: &Slot) {
        let Self { record, by, again } = self;
        let whole = by == MatchBy::Prefix;
        let selection = Selection { records: vec![record], by, matched_blocks: 0, total_blocks: 0, whole, again };
        slot.with(|session| session.count(&Ok(selection)));
    }

    /// Counts it as a miss, for this reason: it cannot be served, and is not consumed.
    pub(super) fn miss(self, state: &State, (replay, slot): (&Replay, &Slot), path: &str, message: String) -> ApiError {
        slot.with(|session| session.responses.give_back(self.record, replay.recordings.further(self.record)));
        missed(state, (replay, slot), path, MissReason::NoMatch, message)
    }
}

/// The record of a request; `None` where something else answers it.
///
/// # Errors
/// A miss, where nothing else can.
pub(super) fn found(
    state: &State,
    (replay, slot): (&Replay, &Slot),
    sent_id: Option<&str>,
    asked: &Asked<'_>,
) -> Result<Option<SelectedResponse>, ApiError> {
    let (path, target, body) = (asked.path, asked.target, asked.body);
    // What generates is made up where that is allowed.
    let is_made_up = state.config.unmatched == Unmatched::Random && asked.is_served;
    let missed =
        |reason, message| if is_made_up { Ok(None) } else { Err(missed(state, (replay, slot), path, reason, message)) };
    if let Some(record) = replay.matcher.index_of(sent_id).map(|record| replay.recordings.holder(record))
        && let Some(kept) = replay.records.get(record)
    {
        return match kept.path().filter(|_| kept.response().is_some()) {
            Some(recorded) if recorded == path => {
                let again = slot.with(|session| replay.recordings.take(&session.responses, record));
                Ok(Some(SelectedResponse { record, by: MatchBy::Index, again }))
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
        Found::Record { record, again } => Ok(Some(SelectedResponse { record, by: MatchBy::Prefix, again })),
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

/// Counts a request of a path that this server does not have, and of which nothing was recorded, as a miss of its trace.
pub(super) fn count_unserved<B>(state: &State, request: &Request<B>) {
    let is_recording = matches!(state.config.source, Source::Files(_) | Source::Trace { .. });
    let Some(replay) = state.replay.as_ref().filter(|_| is_recording && *request.method() == Method::POST) else {
        return;
    };
    let Ok(session) = extract::session(state, request.extensions(), request.headers()) else { return };
    let path = request.uri().path();
    let message =
        format!("No response of {path} was recorded, and this server does not have it ({}).", replay.describe());
    let slot = session.as_deref().unwrap_or(replay.account.default_session());
    drop(missed(state, (replay, slot), path, MissReason::NoMatch, message));
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
