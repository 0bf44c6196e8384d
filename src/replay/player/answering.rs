//! The decision for a request that was read: forward it, serve a record, or miss.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    CassettePlayer, Decision,
    cross::{self, Family},
    forwarding::{Forwarding, Frozen, Plan},
    fresh_ids::Renaming,
    generated,
    request::IncomingRequest,
    serve::{self, DeliveryOptions},
};
use crate::{
    net::{
        server::{BodyError, ResponseBody},
        upstream::{BodyObserver, Observed, Relayed},
    },
    recording::{canonical::Key, cassette::Fault},
    replay::account::http::{plain, put},
    replay::matching::requests::{Again, Found, Lookup, LookupRequest},
    replay::timing::Pacer,
};

impl CassettePlayer {
    /// Decides what is to become of a request that was read.
    pub(super) async fn decide_read(self: &Arc<Self>, asked: IncomingRequest, at: Instant, pacer: &Pacer) -> Decision {
        let leave =
            self.config.selection.decide(self.config.mode, self.config.on_miss, &asked.identity.boundary, asked.path());
        match leave {
            Forwarding::Now(plan) => Decision::Forward(Box::new(self.begin_forward(asked, plan, at))),
            Forwarding::OnMiss { plan, frozen } => {
                let lookup = self.select(&asked);
                let (asked, lookup) = match self.or_chosen(asked, lookup).await {
                    Ok(looked_up) => looked_up,
                    Err(response) => return Decision::Answer(*response),
                };
                self.decide_looked_up(asked, lookup, (plan, frozen), (at, pacer)).await
            }
        }
    }

    /// Decides what is to become of a request whose record was looked for.
    async fn decide_looked_up(
        self: &Arc<Self>,
        asked: IncomingRequest,
        lookup: Lookup,
        (plan, frozen): (Plan, Frozen),
        (at, pacer): (Instant, &Pacer),
    ) -> Decision {
        if let Lookup::Found(found) = lookup {
            let response = self.served(&asked, None, found, (at, pacer));
            return Decision::Answer(self.watched(response, &asked, found.record));
        }
        // Only what has no records of its own is looked up as a chat.
        let chat = if lookup == Lookup::Nothing { self.select_chat(&asked) } else { None };
        match chat {
            Some((chat, family, found)) => {
                let response = self.served(&chat, Some(&family), found, (at, pacer));
                Decision::Answer(self.watched(response, &chat, found.record))
            }
            None => self.missed(asked, lookup, (plan, frozen), (at, pacer)).await,
        }
    }

    /// Returns how the response to a request that came `at` is delivered.
    pub(super) fn delivery<'a>(&self, at: Instant, pacer: &'a Pacer) -> DeliveryOptions<'a> {
        DeliveryOptions { pacing: self.config.pacing, at, pacer }
    }

    /// Watches the delivery of a failure: once its client has it whole, another try gets the next record.
    fn watched(
        self: &Arc<Self>,
        response: Response<ResponseBody>,
        asked: &IncomingRequest,
        record: usize,
    ) -> Response<ResponseBody> {
        let Some((_, recorded)) = self.records.get(record).filter(|(_, record)| record.has_failed()) else {
            return response;
        };
        let (cassette_player, session) = (Arc::clone(self), asked.session.clone());
        let mut delivery = Delivery { cassette_player, session, key: asked.identity.key, record };
        // A stall never ends; an empty body is never polled.
        if matches!(recorded.answer.fault, Some(Fault::Stall { .. })) || response.body().is_end_stream() {
            delivery.end(None);
            return response;
        }
        response.map(|body| Observed::new(Relayed::untouched(body), delivery).boxed_unsync())
    }

    fn select(&self, asked: &IncomingRequest) -> Lookup {
        let lookup_request = lookup_request(asked);
        let mut sessions = self.lock();
        let state = sessions.entry(asked.session.clone()).or_default();
        state.session.select(&self.index, &self.config.matching, &lookup_request)
    }

    /// The record of a chat for a request of another family, as the chat that it stands for.
    fn select_chat(&self, asked: &IncomingRequest) -> Option<(IncomingRequest, Family, Found)> {
        let (index, rules) = self.across.as_ref()?;
        let (chat, family) = cross::as_chat(asked, &self.config, rules)?;
        let mut sessions = self.lock();
        let state = sessions.entry(asked.session.clone()).or_default();
        match state.session.select_also(index, &self.config.matching, &lookup_request(&chat)) {
            Lookup::Found(found) => Some((chat, family, found)),
            Lookup::Exhausted { .. } | Lookup::Nothing => None,
        }
    }

    /// Answers with a record, in the words of another family where one asked.
    fn served(
        &self,
        asked: &IncomingRequest,
        family: Option<&Family>,
        found: Found,
        (at, pacer): (Instant, &Pacer),
    ) -> Response<ResponseBody> {
        let Some((_, record)) = self.records.get(found.record) else {
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "no such record");
        };
        if let Some(recorder) = &self.recorder {
            recorder.copy(record);
        }
        self.used.get(found.record).into_iter().for_each(|used| used.store(true, Relaxed));
        self.note_tools(asked, found.record);
        let renaming = Renaming::next(self.config.ids, &self.fresh_ids, record, asked.path());
        let options = self.delivery(at, pacer);
        let reply = match family {
            Some(family) => family.answer(record, asked, &self.counter),
            None => serve::reply(record, asked, &self.counter),
        };
        let broken_off = record.plays_partly().then(|| record.broken_off());
        let mut response = serve::record(broken_off.as_ref().unwrap_or(record), reply, &renaming, options);
        if let Some(generated) = generated::of(record, asked, &self.counter) {
            response.extensions_mut().insert(generated);
        }
        let across = family.map_or("", |_| ";cross-api");
        let headers = response.headers_mut();
        let again = match found.again {
            Again::Fresh => "",
            Again::Retry => ";retry",
            Again::Exhausted => ";again",
        };
        put(headers, "x-vcr-record", &self.name_of(found.record));
        put(headers, "x-vcr-match", &format!("{}{across}{again}", found.by));
        response
    }
}

/// Observer of the delivery of a failure. One that is dropped before the end leaves no mark: its client did not get it.
#[derive(Debug)]
struct Delivery {
    cassette_player: Arc<CassettePlayer>,
    session: String,
    key: Key,
    record: usize,
}

impl BodyObserver for Delivery {
    fn data(&mut self, _: &Bytes) {}

    fn end(&mut self, _: Option<&BodyError>) {
        if let Some(state) = self.cassette_player.lock().get_mut(&self.session) {
            state.session.failed(self.key, self.record);
        }
    }
}

/// A request that looks for its record.
pub(super) fn lookup_request(asked: &IncomingRequest) -> LookupRequest<'_> {
    LookupRequest {
        identity: &asked.identity,
        request_id: asked.header("x-request-id").or_else(|| asked.body.get("request_id").and_then(Value::as_str)),
        retry: asked.retry(),
        idempotency_key: asked.header("idempotency-key"),
    }
}
