//! The error for a request without a record: the closest record and the differences.
//!
//! The status is 422 and no retry is asked for: client libraries repeat 408, 409, 429 and what the server is at fault for, and
//! agents read meanings into 400 and 404.

pub(crate) mod advice;
mod comparison;
mod message;

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use self::{advice::advice, comparison::compared, message::MissFacts};
use crate::{
    account::http::{plain, put, whole},
    matching::requests::Lookup,
    miss::{FOR_CLIENTS, FOR_LOG, edits, named},
    player::{
        CassettePlayer, Decision, MissDetail, Mode, OnMiss, PlayerConfig,
        answer::{fresh_ids::Renaming, response::stub},
        incoming::IncomingRequest,
        report::journal::MissCause,
    },
};
use base::one_line::clipped;
use net::server::ResponseBody;

/// Maximum number of characters of the place that an error names.
const LONGEST: usize = 200;

/// Maximum number of differences, and of characters of their values, in a brief error.
const BRIEF_DIFFERENCES: usize = 3;
const BRIEF: usize = 80;

base::named! {
    /// Reason for which no record answers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum NoRecordReason {
        NoMatch = "no_match",
        Exhausted = "exhausted",
        NoRecords = "no_records_for_boundary",
        Frozen = "frozen",
        MatcherFailed = "matcher_failed",
        /// The session's cassette does not exist.
        NoCassette = "no_cassette",
    }
}

/// A request without a record, with its explanation.
pub(crate) struct PlayerMiss {
    reason: NoRecordReason,
    /// Path of the request, which decides the form of the error.
    path: String,
    message: String,
    /// The message with all differences, for the log.
    log: String,
    param: Option<String>,
    detail: Map<String, Value>,
    /// The place of the closest record of the same boundary.
    pub(super) closest: Option<usize>,
}

impl PlayerMiss {
    /// Explains a miss; `address` is where it is kept, if it is.
    pub(super) fn new(
        player: &CassettePlayer,
        incoming: &IncomingRequest,
        (reason, lookup): (NoRecordReason, &Lookup),
        (number, address): (u64, Option<&str>),
    ) -> Self {
        // The search holds no lock.
        let served =
            player.sessions.lock().get(&incoming.session).map(|state| state.session.served()).unwrap_or_default();
        let near = match reason {
            NoRecordReason::Exhausted => Vec::new(),
            _ => player.index.closest(&incoming.identity, &served, 3),
        };
        let found = near.first().and_then(|at| compared(player, incoming, *at, served.contains(at)));
        let found = found.as_ref();
        let is_fixture = |at: &usize| player.records.get(*at).is_some_and(|(_, record)| record.is_fixture);
        let unserved = player.index.unserved(incoming.identity.key).filter(|_| reason != NoRecordReason::Exhausted);
        let unserved = unserved.filter(|at| !is_fixture(at));
        let by_hand = &*if reason == NoRecordReason::NoMatch { player.explain_fixtures(incoming) } else { Vec::new() };
        let consumed = served.len();
        let facts = MissFacts { player, incoming, reason, lookup, consumed, unserved, found, by_hand, address };
        let advice = advice(player, incoming, reason, found);
        let edits = found.map(|found| edits(&found.differences)).unwrap_or_default();
        let explanation = facts.explanation(&edits, &advice);
        let (message, log) = (explanation.text(FOR_CLIENTS), explanation.text(FOR_LOG));
        let mut detail = facts.detail(&near);
        detail.insert("hints".to_owned(), advice.hints.into());
        detail.insert("miss".to_owned(), number.into());
        let param = found.and_then(|found| found.differences.first()).map(|first| clipped(named(first), LONGEST));
        let is_of_boundary =
            |at: &usize| player.index.identity(*at).is_some_and(|it| it.boundary == incoming.identity.boundary);
        let closest = near.first().copied().filter(is_of_boundary);
        Self { reason, path: incoming.path().to_owned(), message, log, param, detail, closest }
    }

    /// Returns the message for the log, or its first line.
    pub(super) fn log(&self, is_brief: bool) -> &str {
        if is_brief { self.log.lines().next().unwrap_or_default() } else { &self.log }
    }

    pub(super) fn body(&self) -> Value {
        self.envelope(self.param.as_deref(), &self.message, Some(&self.detail))
    }

    fn envelope(&self, param: Option<&str>, message: &str, detail: Option<&Map<String, Value>>) -> Value {
        let mut error = if self.path.starts_with("/v1/messages") {
            json!({"type": "error", "error": {"type": "vcr_miss", "message": message}})
        } else {
            json!({"error": {"message": message, "type": "vcr_miss", "param": param, "code": self.reason.name()}})
        };
        if let (Some(detail), Some(inner)) = (detail, error.get_mut("error").and_then(Value::as_object_mut)) {
            inner.insert("vcr".to_owned(), detail.clone().into());
        }
        error
    }

    pub(super) fn response(&self, config: &PlayerConfig) -> Response<ResponseBody> {
        let body = match config.miss_detail {
            MissDetail::Brief => brief(self.body()),
            MissDetail::Full => self.body(),
            MissDetail::Summary => self.envelope(self.param.as_deref(), &self.message, None),
            MissDetail::None => self.envelope(None, "No recorded answer matched this request.", None),
        };
        let mut response = whole(config.miss_status, "application/json", body.to_string());
        put(response.headers_mut(), "x-should-retry", "false");
        put(response.headers_mut(), "x-vcr-miss", self.reason.name());
        response
    }
}

impl MissFacts<'_> {
    /// The facts as JSON, with both requests.
    fn detail(&self, near: &[usize]) -> Map<String, Value> {
        let (player, identity) = (self.player, &self.incoming.identity);
        let mut detail = Map::new();
        let mut put = |name: &str, value: Value| drop(detail.insert(name.to_owned(), value));
        put("reason", self.reason.name().into());
        put("boundary", identity.boundary.clone().into());
        put("session", self.incoming.session.clone().into());
        put("mode", player.config.mode.name().into());
        put("match", player.config.matching.chain.iter().map(|by| by.name()).collect());
        put("received", identity.body());
        put("received_key", identity.key.to_string().into());
        if let Lookup::Exhausted { records, served_to } = self.lookup {
            put("records", records.iter().map(|at| player.name_of(*at)).collect());
            put("served_to", served_to.clone().into());
        }
        if let Some(at) = self.unserved {
            put("unserved", player.name_of(at).into());
        }
        if !self.by_hand.is_empty() {
            put("by_hand", self.by_hand.iter().cloned().collect());
        }
        if let Some(found) = self.found {
            put("closest", found.record.clone());
            put("diffs", found.json());
            put("diffs_total", found.total.into());
            put("near_misses", near.iter().map(|at| player.name_of(*at)).collect());
        }
        detail
    }
}

/// Makes the miss of a request whose record could not be chosen.
pub(super) fn failed(message: &str, incoming: &IncomingRequest, number: u64) -> PlayerMiss {
    let reason = NoRecordReason::MatcherFailed;
    let mut detail = Map::new();
    let texts = [("reason", reason.name()), ("boundary", &incoming.identity.boundary), ("session", &incoming.session)];
    detail.extend(texts.map(|(name, text)| (name.to_owned(), text.into())));
    detail.insert("miss".to_owned(), number.into());
    let (message, path) = (message.to_owned(), incoming.path().to_owned());
    PlayerMiss { reason, path, log: message.clone(), message, param: None, detail, closest: None }
}

/// Takes out of an error what makes it long: both requests, and all but the first differences.
pub(super) fn brief(mut body: Value) -> Value {
    let Some(detail) = body.pointer_mut("/error/vcr").and_then(Value::as_object_mut) else { return body };
    for name in ["received", "received_key", "mode", "match", "near_misses"] {
        detail.shift_remove(name);
    }
    if let Some(closest) = detail.get_mut("closest").and_then(Value::as_object_mut) {
        closest.shift_remove("request");
    }
    if let Some(found) = detail.get_mut("diffs").and_then(Value::as_array_mut) {
        found.truncate(BRIEF_DIFFERENCES);
        let texts = found.iter_mut().filter_map(Value::as_object_mut).flat_map(|fields| fields.values_mut());
        for text in texts {
            if let Value::String(text) = text {
                *text = clipped(text, BRIEF);
            }
        }
    }
    for name in ["records", "served_to"] {
        if let Some(listed) = detail.get_mut(name).and_then(Value::as_array_mut) {
            listed.truncate(10);
        }
    }
    body
}

/// What a report has of an error: the first line of its message, the closest record and the first differences.
pub(super) fn explained(body: Value) -> Option<Value> {
    let mut error = brief(body).get_mut("error")?.take();
    let message = error.get("message")?.as_str()?.lines().next().unwrap_or_default().to_owned();
    let mut detail = error.get_mut("vcr")?.take();
    detail.as_object_mut()?.insert("message".to_owned(), message.into());
    Some(detail)
}

impl CassettePlayer {
    /// Handles a request without a record.
    pub(crate) async fn missed(
        self: &Arc<Self>,
        incoming: IncomingRequest,
        lookup: Lookup,
        (on_miss, is_frozen): (OnMiss, bool),
    ) -> Decision {
        let reason = match &lookup {
            _ if self.config.missing_cassette.is_some() => NoRecordReason::NoCassette,
            Lookup::Exhausted { .. } => NoRecordReason::Exhausted,
            _ if is_frozen => NoRecordReason::Frozen,
            _ if !self.index.knows(&incoming.identity.boundary) && !self.has_fixture_for(&incoming) => {
                NoRecordReason::NoRecords
            }
            Lookup::Nothing | Lookup::Found(_) => NoRecordReason::NoMatch,
        };
        match on_miss {
            OnMiss::Error => Decision::Answer(self.refuse(incoming, reason, lookup).await),
            // Rules alone have no records that a request could miss.
            OnMiss::Random if self.records.is_empty() && self.config.answers.is_some() => {
                Decision::Pass(incoming.into_request())
            }
            OnMiss::Random => {
                self.count_miss(&incoming, reason);
                let mut request = incoming.into_request();
                request.extensions_mut().insert(MissCause(reason.name(), None));
                Decision::Pass(request)
            }
            OnMiss::Stub => {
                self.count_miss(&incoming, reason);
                let record = &stub(&incoming);
                let mut response = self.paced((record, record), &incoming, None, &Renaming::default());
                response.put("x-vcr-match", "stub");
                Decision::Replay(Box::new(response))
            }
            OnMiss::Upstream | OnMiss::Record => {
                // Under new-episodes a new request is no miss.
                if self.config.mode == Mode::Replay {
                    self.count_miss(&incoming, reason);
                }
                let mut forward = self.begin_forward(incoming, on_miss == OnMiss::Record);
                forward.request.extensions_mut().insert(MissCause(reason.name(), None));
                Decision::Forward(Box::new(forward))
            }
        }
    }

    /// Explains a miss. Looking for the closest record takes milliseconds that no other request should wait for.
    async fn refuse(
        self: &Arc<Self>,
        incoming: IncomingRequest,
        reason: NoRecordReason,
        lookup: Lookup,
    ) -> Response<ResponseBody> {
        let cassette_player = Arc::clone(self);
        let explained = tokio::task::spawn_blocking(move || cassette_player.explain(&incoming, reason, &lookup));
        let failed = |_| plain(StatusCode::INTERNAL_SERVER_ERROR, "the miss could not be explained");
        explained.await.unwrap_or_else(failed)
    }

    fn explain(&self, incoming: &IncomingRequest, reason: NoRecordReason, lookup: &Lookup) -> Response<ResponseBody> {
        let keeps = self.in_session(&incoming.session, |state| state.misses.has_room());
        let (number, address) = self.shared.pages.next();
        let miss = PlayerMiss::new(self, incoming, (reason, lookup), (number, address.as_deref().filter(|_| keeps)));
        tracing::warn!("{}", miss.log(self.config.brief_misses));
        miss.closest.into_iter().for_each(|closest| self.note_tools(incoming, closest));
        self.answer_miss(incoming, &miss, Some(number).filter(|_| keeps))
    }

    /// Counts and keeps a miss, and answers with it; `number` is that of its page, where it has one.
    pub(crate) fn answer_miss(
        &self,
        incoming: &IncomingRequest,
        miss: &PlayerMiss,
        number: Option<u64>,
    ) -> Response<ResponseBody> {
        self.count_miss(incoming, miss.reason);
        let body = miss.body();
        self.in_session(&incoming.session, |state| state.misses.keep(body));
        let mut response = miss.response(&self.config);
        response.extensions_mut().insert(MissCause(miss.reason.name(), number));
        response
    }

    pub(crate) fn count_miss(&self, incoming: &IncomingRequest, reason: NoRecordReason) {
        self.in_session(&incoming.session, |state| *state.counts.misses.entry(reason.name()).or_default() += 1);
    }
}
