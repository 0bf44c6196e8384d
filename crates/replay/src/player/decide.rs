//! The decision for a request that was read: forward it, serve a record, or miss.

mod chosen;
mod continuation;
pub(crate) mod cross;
pub(crate) mod fixtures;
pub(crate) mod match_command;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use http::StatusCode;
use tokio::task::spawn_blocking;

use crate::{
    account::http::plain,
    matching::requests::{Again, FoundRecord, Lookup, LookupRequest},
    player::{
        CassettePlayer, Decided, Decision, ModeExceptions, ReplacedRecords, SemanticReplies, SessionState,
        answer::{
            content,
            fresh_ids::Renaming,
            response::{FailureDelivery, ReplayedResponse, ServedRecord},
        },
        config::forwarding::{Forwarding, OnMiss},
        decide::cross::ChatFamily,
        incoming::IncomingRequest,
        record::recorder::route_of,
    },
};
use api::Endpoint;
use recording::cassette::{CassetteRecord, Moment};

/// Largest recorded stream whose response is made where its request is, in bytes; others are made on a thread of their own.
const INLINE: usize = 64 * 1024;

/// A request that was read, before its record is looked for.
#[derive(Debug)]
pub struct ReceivedRequest {
    pub(crate) request: IncomingRequest,
    pub(crate) cassette_player: Arc<CassettePlayer>,
}

impl ReceivedRequest {
    /// Counts the choices that an engine would generate for it; 0 where it is no such request, or goes upstream in any case.
    pub fn choices(&self) -> u32 {
        let request = &self.request;
        let goes_upstream = matches!(self.cassette_player.leaves(request), Forwarding::Now { .. });
        if goes_upstream || !Endpoint::of_path(request.path()).generates() {
            return 0;
        }
        u32::try_from(request.choices()).unwrap_or(u32::MAX)
    }

    /// The endpoint that it is for.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::of_path(self.request.path())
    }

    /// Its session.
    pub fn session(&self) -> &str {
        &self.request.session
    }

    /// Decides how it is handled: a record answers it, it goes upstream, or it is passed on.
    pub async fn decide(self) -> Decided {
        let Self { request, cassette_player } = self;
        let session = Some(request.session.clone());
        let entry = cassette_player.begin_entry(&request);
        let replies =
            request.parts.extensions.get().cloned().map(|replies: SemanticReplies| (request.clone(), replies));
        let mut decision = cassette_player.decide_read(request).await;
        if let Some(replies) = replies {
            decision = Box::pin(cassette_player.with_semantic(decision, replies)).await;
        }
        cassette_player.end_entry(entry, &decision);
        Decided { decision, session, cassette_player }
    }
}

impl CassettePlayer {
    fn leaves(&self, request: &IncomingRequest) -> Forwarding {
        self.config.selection.decide(self.config.mode, self.config.on_miss, &request.identity.boundary, request.path())
    }

    /// Decides how a request is handled that was read.
    async fn decide_read(self: &Arc<Self>, request: IncomingRequest) -> Decision {
        let request = match self.answer_rules() {
            Some(rules) => match self.by_hand(rules, request).await {
                Ok(decision) => return decision,
                Err(request) => *request,
            },
            None => request,
        };
        match self.leaves(&request) {
            Forwarding::Now { is_recorded } => {
                if self.config.selection != ModeExceptions::None {
                    self.in_session(&request.session, |state| state.counts.requests += 1);
                }
                Decision::Forward(Box::new(self.begin_forward(request, is_recorded)))
            }
            Forwarding::OnMiss { on_miss, is_frozen } => {
                if let Some((request, found)) = self.continued(&request) {
                    return self.replay(request, None, found).await;
                }
                let lookup = self.select(&request);
                let (request, lookup) = match self.or_named_later(request, lookup).await {
                    Ok(looked_up) => looked_up,
                    Err(why) => return Decision::Answer(plain(StatusCode::INTERNAL_SERVER_ERROR, why)),
                };
                match self.or_chosen(request, lookup).await {
                    Ok((request, lookup)) => self.decide_looked_up(request, lookup, (on_miss, is_frozen)).await,
                    Err(response) => Decision::Answer(*response),
                }
            }
        }
    }

    /// Decides how a request is handled whose record was looked for.
    async fn decide_looked_up(
        self: &Arc<Self>,
        request: IncomingRequest,
        lookup: Lookup,
        (on_miss, is_frozen): (OnMiss, bool),
    ) -> Decision {
        if let Lookup::Found(found) = lookup {
            return self.replay(request, None, found).await;
        }
        // Only what has no records of its own is looked up as a chat.
        let chat = if lookup == Lookup::Nothing { self.select_chat(&request) } else { None };
        match chat {
            Some((chat, family, found)) => self.replay(chat, Some(family), found).await,
            None if self.tries_fixtures(&lookup) => match self.by_hand(Arc::clone(&self.fixtures), request).await {
                Ok(decision) => decision,
                Err(request) => self.missed(*request, lookup, (on_miss, is_frozen)).await,
            },
            None => {
                let on_miss = self.unless_before_fork(&request, on_miss);
                self.missed(request, lookup, (on_miss, is_frozen)).await
            }
        }
    }

    /// A request that comes before the fork of its session is a miss, unless its record comes after it.
    fn unless_before_fork(&self, request: &IncomingRequest, on_miss: OnMiss) -> OnMiss {
        let ModeExceptions::Fork(fork) = &self.config.selection else { return on_miss };
        let played = self.in_session(&request.session, |state| state.session.consumed());
        let is_live = played >= fork.played || self.index.comes_later(request.identity.key);
        if is_live { on_miss } else { OnMiss::Error }
    }

    pub(crate) fn select(&self, request: &IncomingRequest) -> Lookup {
        let (index, matching) = (&self.index, &self.config.matching);
        self.in_session(&request.session, |state| state.session.select(index, matching, &lookup_request(request)))
    }

    /// The record of a chat for a request of another family, as the chat that it stands for.
    fn select_chat(&self, request: &IncomingRequest) -> Option<(IncomingRequest, ChatFamily, FoundRecord)> {
        let (index, rules) = self.across.as_ref()?;
        let (chat, family) = cross::as_chat(request, &self.config, rules)?;
        let select =
            |state: &mut SessionState| state.session.select_also(index, &self.config.matching, &lookup_request(&chat));
        match self.in_session(&request.session, select) {
            Lookup::Found(found) => Some((chat, family, found)),
            Lookup::Exhausted { .. } | Lookup::Nothing => None,
        }
    }

    /// Answers with a record, in the words of another family where one asked.
    async fn replay(
        self: &Arc<Self>,
        request: IncomingRequest,
        family: Option<ChatFamily>,
        found: FoundRecord,
    ) -> Decision {
        let Some((_, record)) = self.records.get(found.record) else {
            return Decision::Answer(plain(StatusCode::INTERNAL_SERVER_ERROR, "no such record"));
        };
        if let Some(replaced) = ReplacedRecords::response(&request, &self.name_of(found.record)) {
            // What goes on with a record takes none.
            if request.delivered.is_none() {
                self.in_session(&request.session, |state| {
                    state.session.give_back(&self.index, &lookup_request(&request), &found)
                });
            }
            return Decision::Answer(replaced);
        }
        // What was served before is there already, where playing it serves it again too.
        let is_there = match found.again {
            Again::Fresh => false,
            Again::Retry => true,
            Again::Exhausted => self.config.matching.on_exhausted.is_none(),
        };
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !is_there) {
            recorder.copy(record);
        }
        self.used.get(found.record).into_iter().for_each(|used| used.store(true, Relaxed));
        self.note_tools(&request, found.record);
        let (request, family) = match family {
            None if cross::is_written_as_chat(record, &request) => match cross::stands_for(&request, &self.config) {
                // Placeholders are those of the request as it came.
                Some((chat, family)) => (IncomingRequest { seen: request.seen, ..chat }, Some(family)),
                None => (request, None),
            },
            family => (request, family),
        };
        self.keep_values(&request, found.record);
        let renaming = Renaming::next(self.config.ids, &self.fresh_ids, record, request.path());
        let with_values = self.plan_of(found.record).map_or(0, |plan| plan.bytes);
        if self.weight(record, &request).max(with_values) <= INLINE {
            return Decision::Replay(Box::new(self.response(record, &request, family.as_ref(), &renaming, &found)));
        }
        let player = Arc::clone(self);
        let made = spawn_blocking(move || {
            let (_, record) = player.records.get(found.record)?;
            Some(Box::new(player.response(record, &request, family.as_ref(), &renaming, &found)))
        });
        match made.await {
            Ok(Some(response)) => Decision::Replay(response),
            Ok(None) | Err(_) => Decision::Answer(plain(StatusCode::INTERNAL_SERVER_ERROR, "the response failed")),
        }
    }

    /// Bytes that are read to make a response: those of a recorded stream, and where token ids are made those of the request, which are
    /// unknown of one that stands for another.
    fn weight(&self, record: &CassetteRecord, request: &IncomingRequest) -> usize {
        let of_request = if request.bytes.is_empty() { usize::MAX } else { request.bytes.len() };
        if self.shared.counter.makes_engine_inputs() { size(record).max(of_request) } else { size(record) }
    }

    pub(crate) fn response(
        self: &Arc<Self>,
        record: &CassetteRecord,
        request: &IncomingRequest,
        family: Option<&ChatFamily>,
        renaming: &Renaming,
        found: &FoundRecord,
    ) -> ReplayedResponse {
        let with_values = self.with_values(found.record, record, request);
        let record = with_values.as_ref().unwrap_or(record);
        let continued = request.delivered.as_deref().and_then(|delivered| continuation::rest_of(record, delivered));
        let from = continued.as_ref().map(|(_, from)| format!(";from={from}")).unwrap_or_default();
        let record = continued.as_ref().map_or(record, |(rest, _)| rest);
        let broken_off = record.plays_partly().then(|| record.broken_off());
        let played = broken_off.as_ref().unwrap_or(record);
        let mut response = self.paced((record, played), request, family, renaming);
        if record.has_failed() {
            let (cassette_player, session) = (Arc::clone(self), request.session.clone());
            let (key, record) = (request.identity.key, found.record);
            response.failure = Some(FailureDelivery { cassette_player, session, key, record });
        }
        // An answer that was written as a chat's for this family is its own.
        let own = Endpoint::of_path(route_of(&record.path));
        let across = family.filter(|family| family.endpoint() != own).map_or("", |_| ";cross-api");
        let again = match found.again {
            Again::Fresh => "",
            Again::Retry => ";retry",
            Again::Exhausted => ";again",
        };
        response.put("x-vcr-record", &self.name_of(found.record));
        response.put("x-vcr-match", &format!("{}{across}{again}{from}", found.by));
        response
    }

    /// The answer of a record as far as it is played, in the words of a family where one asked, with its deadlines.
    pub(crate) fn paced(
        &self,
        (record, played): (&CassetteRecord, &CassetteRecord),
        request: &IncomingRequest,
        family: Option<&ChatFamily>,
        renaming: &Renaming,
    ) -> ReplayedResponse {
        let pacing = self.config.changed_pacing.or(self.config.pacing);
        let served = ServedRecord { record: played, incoming: request, counter: &self.shared.counter, pacing };
        let reply = match family {
            Some(family) => family.answer(record, request, &self.shared.counter),
            None => content::reply(record, request, &self.shared.counter),
        };
        let mut response = served.response(reply, renaming);
        if let Some(family) = family {
            response.request.endpoint = family.endpoint();
        }
        response
    }
}

/// The size of a recorded stream, in bytes.
fn size(record: &CassetteRecord) -> usize {
    let events = record.side.as_ref().map(|side| &*side.events).unwrap_or_default();
    events.iter().map(|Moment(_, data, _)| data.as_ref().map_or(0, String::len)).sum()
}

pub(crate) fn lookup_request(request: &IncomingRequest) -> LookupRequest<'_> {
    LookupRequest {
        identity: &request.identity,
        request_id: request.request_id(),
        is_retry: request.is_retry(),
        idempotency_key: request.header("idempotency-key"),
    }
}
