//! Recorded responses, found by their requests: those of records that no token ids stand for.
//!
//! A record is found by its index, where the request's id names one, or by its request in canonical form: the first that was
//! not served yet in its session, among them those of the same request that an endpoint serves, else the one that [`OnExhausted`](replay::matching::OnExhausted) gives, by default the last. A request for a stream gets a
//! recorded stream first.
//! The records of the other choices of its request have no content of their own: they are served with it.

use http::{Method, Request};

use crate::{
    ServerState, Source,
    config::Unmatched,
    load::{account::TraceSession, recordings::ResponseSearch, trace::LoadedTrace},
    selection::{miss::MissExplanation, query::TakenRecord},
};
use api::ApiError;
use recording::canonical;
use replay::matching::{MatchBy, MissReason, PromptMiss, RecordSelection};

/// Key of a request in canonical form, `None` where the trace's hashes cannot be made here. Computed once: it is kept in the
/// request's extensions.
#[derive(Debug, Clone)]
pub(in super::super) struct RequestKey {
    pub(super) key: Option<String>,
    /// The record that was consumed for it and has no response of its own.
    pub(super) taken: Option<TakenRecord>,
}

impl RequestKey {
    pub(in super::super) fn new(replay: &LoadedTrace, target: &str, body: &[u8]) -> Self {
        Self { key: replay.hasher.request_key(canonical::request_key(target, body).number()), taken: None }
    }

    pub(in super::super) fn as_deref(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

/// A recorded response that is about to be served, or another record of its request, which an endpoint is to serve; it is consumed and
/// not counted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct SelectedResponse {
    pub(in super::super) record: usize,
    pub(in super::super) by: MatchBy,
    again: bool,
}

impl SelectedResponse {
    /// The record for an endpoint to serve.
    pub(in super::super) fn taken(self) -> TakenRecord {
        TakenRecord { record: self.record, again: self.again }
    }

    pub(in super::super) fn count(self, slot: &TraceSession) {
        let Self { record, by, again } = self;
        let whole = by == MatchBy::Prefix;
        let selection = RecordSelection { records: vec![record], by, matched_blocks: 0, total_blocks: 0, whole, again };
        slot.with(|session| session.count(&Ok(selection)));
    }
}

/// A request that looks for its recorded response.
pub(in super::super) struct ResponseQuery<'a> {
    pub(in super::super) state: &'a ServerState,
    pub(in super::super) replay: &'a LoadedTrace,
    pub(in super::super) session: &'a TraceSession,
    pub(in super::super) path: &'a str,
    /// True where an endpoint would answer without a recorded response.
    pub(in super::super) is_served: bool,
    pub(in super::super) request_id: Option<&'a str>,
    /// `None` where requests are not found by their content.
    pub(in super::super) key: Option<&'a RequestKey>,
    pub(in super::super) wants_stream: bool,
}

impl ResponseQuery<'_> {
    /// Finds the record of the request and consumes it; `None` where something else answers it.
    /// Errors: a miss, where nothing else can.
    pub(in super::super) fn found(&self) -> Result<Option<SelectedResponse>, ApiError> {
        let Self { replay, session, path, is_served, .. } = *self;
        // Tokens are made up where that is allowed.
        let is_made_up = self.state.config.unmatched == Unmatched::Random && is_served;
        let missed = |reason, message| if is_made_up { Ok(None) } else { Err(self.missed(reason, message)) };
        if let Some(record) = replay.matcher.index_of(self.request_id).map(|record| replay.recordings.holder(record))
            && let Some(kept) = replay.records.get(record)
        {
            return match kept.path().filter(|_| kept.response().is_some()) {
                Some(recorded) if recorded == path => {
                    let again = session.with(|session| replay.recordings.take(&session.responses, record));
                    Ok(Some(SelectedResponse { record, by: MatchBy::Index, again }))
                }
                Some(recorded) => {
                    missed(MissReason::NoMatch, format!("Record {record} is of {recorded}, not of {path}."))
                }
                None => Ok(None),
            };
        }
        let found = self.key.map_or(ResponseSearch::Nothing, |key| {
            session.with(|session| {
                replay.recordings.by_request(session, &replay.matcher, key.as_deref(), self.wants_stream)
            })
        });
        match found {
            ResponseSearch::Record { record, again } => {
                Ok(Some(SelectedResponse { record, by: MatchBy::Prefix, again }))
            }
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

    /// The error of a request whose recorded response cannot be served, and is not consumed after all.
    pub(in super::super) fn unservable(&self, selected: SelectedResponse, message: &str) -> ApiError {
        let further = self.replay.recordings.further(selected.record);
        self.session.with(|session| session.responses.give_back(selected.record, further));
        self.missed(MissReason::NoMatch, message.to_owned())
    }

    /// The error of a request that has no recorded response; it is counted.
    fn missed(&self, reason: MissReason, message: String) -> ApiError {
        let explanation = MissExplanation::of_response(self.replay, self.path, reason, message);
        self.session.with(|session| {
            session.count(&Err(PromptMiss { reason, nearest: None, total_blocks: 0 }));
            session.keep_miss(|| explanation.entry());
        });
        explanation.error(self.state.config.miss_status, self.state.config.miss_detail)
    }
}

/// Counts a request of a path that this server does not have, and of which nothing was recorded, as a miss of its trace.
pub(in super::super) fn count_unserved<B>(state: &ServerState, request: &Request<B>) {
    let is_recording = matches!(state.config.source, Source::Files(_) | Source::Trace { .. });
    let Some(replay) = state.replay.as_ref().filter(|_| is_recording && *request.method() == Method::POST) else {
        return;
    };
    let Ok(session) = state.session(request.extensions(), request.headers()) else { return };
    let path = request.uri().path();
    let message =
        format!("No response of {path} was recorded, and this server does not have it ({}).", replay.describe());
    let session = session.as_deref().unwrap_or(replay.account.default_session());
    let (is_served, request_id, key, wants_stream) = (false, None, None, false);
    let query = ResponseQuery { state, replay, session, path, is_served, request_id, key, wants_stream };
    drop(query.missed(MissReason::NoMatch, message));
}
