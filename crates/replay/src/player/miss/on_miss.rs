//! Handling of a request without a record.

use std::sync::Arc;

use http::{Response, StatusCode};
use tokio::time::Instant;

use crate::{
    account::http::plain,
    matching::requests::Lookup,
    player::{
        CassettePlayer, Decision, Mode,
        answer::{
            content::reply,
            fresh_ids::Renaming,
            response::{Served, stub},
        },
        config::forwarding::{self, Plan},
        miss::{Miss, Reason},
        receive::request::IncomingRequest,
        report::journal::MissCause,
    },
};
use net::server::ResponseBody;

impl CassettePlayer {
    /// Handles a request without a record.
    pub(in crate::player) async fn missed(
        self: &Arc<Self>,
        asked: IncomingRequest,
        lookup: Lookup,
        (plan, frozen): (Plan, forwarding::Frozen),
        at: Instant,
    ) -> Decision {
        let reason = match &lookup {
            Lookup::Exhausted { .. } => Reason::Exhausted,
            _ if frozen == forwarding::Frozen::Yes => Reason::Frozen,
            _ if !self.index.knows(&asked.identity.boundary) && !self.has_fixture_for(&asked) => Reason::NoRecords,
            Lookup::Nothing | Lookup::Found(_) => Reason::NoMatch,
        };
        match plan {
            Plan::Refuse => Decision::Answer(self.refuse(asked, reason, lookup).await),
            Plan::MakeUp => {
                self.count_miss(&asked, reason);
                let mut request = asked.into_request();
                request.extensions_mut().insert(MissCause(reason.name(), None));
                Decision::Pass(request)
            }
            Plan::Stub => {
                self.count_miss(&asked, reason);
                let (record, pacing) = (&stub(&asked), self.config.pacing);
                let served = Served { record, asked: &asked, counter: &self.counter, pacing, at };
                let mut response = served.response(reply(record, &asked, &self.counter), &Renaming::default());
                response.put("x-vcr-match", "stub");
                Decision::Replay(Box::new(response))
            }
            Plan::Forward | Plan::Record => {
                // Under new-episodes a new request is no miss.
                if self.config.mode == Mode::Replay {
                    self.count_miss(&asked, reason);
                }
                let mut forward = self.begin_forward(asked, plan, at);
                forward.request.extensions_mut().insert(MissCause(reason.name(), None));
                Decision::Forward(Box::new(forward))
            }
        }
    }

    /// Explains a miss. Looking for the closest record takes milliseconds that no other request should wait for.
    async fn refuse(
        self: &Arc<Self>,
        asked: IncomingRequest,
        reason: Reason,
        lookup: Lookup,
    ) -> Response<ResponseBody> {
        let cassette_player = Arc::clone(self);
        let explained = tokio::task::spawn_blocking(move || cassette_player.explain(&asked, reason, &lookup));
        let failed = |_| plain(StatusCode::INTERNAL_SERVER_ERROR, "the miss could not be explained");
        explained.await.unwrap_or_else(failed)
    }

    fn explain(&self, asked: &IncomingRequest, reason: Reason, lookup: &Lookup) -> Response<ResponseBody> {
        let keeps = self.lock().entry(asked.session.clone()).or_default().misses.has_room();
        let (number, address) = self.pages().next();
        let miss = Miss::new(self, asked, (reason, lookup), (number, address.as_deref().filter(|_| keeps)));
        tracing::warn!("{}", miss.log(self.config.brief_misses));
        miss.closest.into_iter().for_each(|closest| self.note_tools(asked, closest));
        let body = miss.body();
        let mut sessions = self.lock();
        let state = sessions.entry(asked.session.clone()).or_default();
        *state.missed.entry(reason.name()).or_default() += 1;
        state.misses.keep(body);
        drop(sessions);
        let mut response = miss.response(&self.config);
        response.extensions_mut().insert(MissCause(reason.name(), Some(number).filter(|_| keeps)));
        response
    }

    pub(in crate::player) fn count_miss(&self, asked: &IncomingRequest, reason: Reason) {
        let mut sessions = self.lock();
        *sessions.entry(asked.session.clone()).or_default().missed.entry(reason.name()).or_default() += 1;
    }
}
