//! Recorded responses, found by their requests: those of records that no token ids stand for.
//!
//! A record is found by its index, where the request's id names one, or by its request in canonical form: the first that was
//! not served yet in its session, else the one that [`OnExhausted`] gives, by default the last. A request for a stream gets a
//! recorded stream first.
//! The records of the other choices of its request have no content of their own: they are served with it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use http::{Method, Request};

use crate::{
    api::ApiError,
    play::{
        ServerState, Source,
        load::{LoadedTrace, config::Unmatched},
        request::extract,
        selection::{account::TraceSession, miss::MissExplanation},
    },
    recording::{
        canonical,
        trace::{RecordRef, Store},
    },
    replay::matching::{Keys, MatchBy, MissReason, OnExhausted, PromptMiss, RecordSelection},
};

/// The responses of a trace.
#[derive(Debug, Default)]
pub(in super::super) struct Recordings {
    paths: HashSet<Box<str>>,
    /// The records of one request, in replay order.
    by_request: HashMap<Box<str>, Vec<ServableRecord>>,
    /// All records with a response, and the others of their requests, in replay order.
    all: Vec<u32>,
    /// Records of further choices, whose content is in the response of the first: by that.
    further: HashMap<usize, Vec<usize>>,
    /// The record with the response of each of those.
    response_of: HashMap<usize, usize>,
}

#[derive(Debug)]
struct ServableRecord {
    record: usize,
    stream: bool,
}

/// Number of times that each response was served in one session.
#[derive(Debug, Default)]
pub(in super::super) struct ServedResponses(Mutex<HashMap<usize, u64>>);

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

    /// Counts the times that a record was served.
    pub(in super::super) fn times(&self, record: usize) -> u64 {
        self.lock().get(&record).copied().unwrap_or(0)
    }

    /// Counts the records that were served at least once.
    pub(in super::super) fn consumed(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of a search by the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum ResponseSearch {
    /// This record, which was served before or not.
    Record { record: usize, again: bool },
    /// Records that were all served and must not be served again.
    Exhausted,
    /// None.
    Nothing,
}

impl Recordings {
    /// The responses among these records, which are in replay order.
    pub(in super::super) fn of(records: &Store) -> Self {
        let mut recordings = Self::default();
        for (record, kept) in records.iter().enumerate().filter(|(_, kept)| kept.response().is_some()) {
            recordings.paths.extend(kept.path().map(Box::from));
            recordings.all.extend(u32::try_from(record));
            let Some(key) = kept.request_key() else { continue };
            let recording = ServableRecord { record, stream: kept.stream() == Some(true) };
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
    pub(in super::super) fn first(&self) -> Option<usize> {
        self.all.iter().map(|record| *record as usize).find(|record| !self.response_of.contains_key(record))
    }

    /// Checks whether the content of a record is in a response.
    pub(in super::super) fn serves(&self, record: usize) -> bool {
        u32::try_from(record).is_ok_and(|record| self.all.binary_search(&record).is_ok())
    }

    /// Keys of a record, servable where its prompt or its index finds it.
    pub(in super::super) fn keys<'a>(&self, record: usize, kept: RecordRef<'a>) -> Keys<'a> {
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

    /// Checks whether there are any of this path.
    pub(in super::super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// The records whose content is in a response, in replay order.
    pub(in super::super) fn all(&self) -> &[u32] {
        &self.all
    }

    /// Finds the record of a request by its key and consumes it.
    fn by_request(
        &self,
        served: &ServedResponses,
        key: &RequestKey,
        wants_stream: bool,
        on_exhausted: Option<OnExhausted>,
    ) -> ResponseSearch {
        let Some(same) = key.0.as_deref().and_then(|key| self.by_request.get(key)) else {
            return ResponseSearch::Nothing;
        };
        let (alike, others): (Vec<&ServableRecord>, Vec<&ServableRecord>) =
            same.iter().partition(|recording| recording.stream == wants_stream);
        let mut served = served.lock();
        let fresh = alike.iter().chain(&others).find(|recording| !served.contains_key(&recording.record));
        let record = fresh.map(|recording| recording.record).or_else(|| {
            let choices = if alike.is_empty() { &others } else { &alike };
            let choices = choices.iter().map(|recording| recording.record);
            on_exhausted
                .unwrap_or(OnExhausted::Last)
                .choose(choices, |record| served.get(&record).copied().unwrap_or(0))
        });
        let Some(record) = record else { return ResponseSearch::Exhausted };
        let again = fresh.is_none();
        self.take_of(&mut served, record);
        ResponseSearch::Record { record, again }
    }
}

/// Key of a request in canonical form, `None` where the trace's hashes cannot be made here. Computed once: it is kept in the
/// request's extensions.
#[derive(Debug, Clone)]
pub(in super::super) struct RequestKey(Option<String>);

impl RequestKey {
    pub(in super::super) fn new(replay: &LoadedTrace, target: &str, body: &[u8]) -> Self {
        Self(replay.hasher.request_key(canonical::request_key(target, body).number()))
    }

    pub(in super::super) fn as_deref(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// A recorded response that is about to be served; it is consumed and not counted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct SelectedResponse {
    pub(in super::super) record: usize,
    pub(in super::super) by: MatchBy,
    again: bool,
}

impl SelectedResponse {
    /// Counts it as found.
    pub(in super::super) fn count(self, slot: &TraceSession) {
        let Self { record, by, again } = self;
        let whole = by == MatchBy::Prefix;
        let selection = RecordSelection { records: vec![record], by, matched_blocks: 0, total_blocks: 0, whole, again };
        slot.with(|session| session.count(&Ok(selection)));
    }

    /// Counts it as a miss, for this reason: it cannot be served, and is not consumed.
    pub(in super::super) fn miss(
        self,
        state: &ServerState,
        replay: &LoadedTrace,
        slot: &TraceSession,
        path: &str,
        message: String,
    ) -> ApiError {
        slot.with(|session| session.responses.give_back(self.record, replay.recordings.further(self.record)));
        missed(state, replay, slot, path, MissReason::NoMatch, message)
    }
}

/// A request that looks for its recorded response.
pub(in super::super) struct ResponseQuery<'a> {
    pub(in super::super) path: &'a str,
    /// True where an endpoint would answer without a recorded response.
    pub(in super::super) is_served: bool,
    pub(in super::super) request_id: Option<&'a str>,
    /// `None` where requests are not found by their content.
    pub(in super::super) key: Option<&'a RequestKey>,
    pub(in super::super) wants_stream: bool,
}

/// Finds the record of a request and consumes it; `None` where something else answers it.
///
/// # Errors
/// A miss, where nothing else can.
pub(in super::super) fn found(
    state: &ServerState,
    replay: &LoadedTrace,
    slot: &TraceSession,
    query: &ResponseQuery<'_>,
) -> Result<Option<SelectedResponse>, ApiError> {
    let ResponseQuery { path, is_served, request_id, key, wants_stream } = *query;
    // Tokens are made up where that is allowed.
    let is_made_up = state.config.unmatched == Unmatched::Random && is_served;
    let missed =
        |reason, message| if is_made_up { Ok(None) } else { Err(missed(state, replay, slot, path, reason, message)) };
    if let Some(record) = replay.matcher.index_of(request_id).map(|record| replay.recordings.holder(record))
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
    let on_exhausted = replay.matcher.rules().on_exhausted;
    let found = key.map_or(ResponseSearch::Nothing, |key| {
        slot.with(|session| replay.recordings.by_request(&session.responses, key, wants_stream, on_exhausted))
    });
    match found {
        ResponseSearch::Record { record, again } => Ok(Some(SelectedResponse { record, by: MatchBy::Prefix, again })),
        ResponseSearch::Exhausted => {
            missed(MissReason::Exhausted, "Every recorded response of this request was served.".to_owned())
        }
        ResponseSearch::Nothing if is_served => Ok(None),
        ResponseSearch::Nothing => {
            let message = format!("No recorded response of {path} matched this request ({}).", replay.describe());
            missed(MissReason::NoMatch, message)
        }
    }
}

/// The error of a request that has no recorded response; it is counted.
fn missed(
    state: &ServerState,
    replay: &LoadedTrace,
    slot: &TraceSession,
    path: &str,
    reason: MissReason,
    message: String,
) -> ApiError {
    let explanation = MissExplanation::of_response(replay, path, reason, message);
    slot.with(|session| {
        session.count(&Err(PromptMiss { reason, nearest: None, total_blocks: 0 }));
        session.keep_miss(|| explanation.entry());
    });
    explanation.error(state.config.miss_status, state.config.miss_detail)
}

/// Counts a request of a path that this server does not have, and of which nothing was recorded, as a miss of its trace.
pub(in super::super) fn count_unserved<B>(state: &ServerState, request: &Request<B>) {
    let is_recording = matches!(state.config.source, Source::Files(_) | Source::Trace { .. });
    let Some(replay) = state.replay.as_ref().filter(|_| is_recording && *request.method() == Method::POST) else {
        return;
    };
    let Ok(session) = extract::session(state, request.extensions(), request.headers()) else { return };
    let path = request.uri().path();
    let message =
        format!("No response of {path} was recorded, and this server does not have it ({}).", replay.describe());
    let slot = session.as_deref().unwrap_or(replay.account.default_session());
    drop(missed(state, replay, slot, path, MissReason::NoMatch, message));
}
