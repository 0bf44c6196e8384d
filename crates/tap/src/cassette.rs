//! Exchanges of a cassette: the player matches each request first, and one without a record is forwarded as any
//! other request and recorded there.
//!
//! See docs/decisions/0036-cassettes-through-the-tap.md.

use std::{convert::Infallible, sync::Arc};

use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::{
    body::ProxyBody, exchange::OpenExchange, filter::Skipped, gather::ReceivedBody, observed_choice::ObservedChoice,
    observed_exchange::ObservedExchange, proxy::Proxy,
};
use net::{
    server::{LatenessTracker, RequestBody},
    upstream::{OutgoingBody, UpstreamError},
};
use recording::trace::Outcome;
use replay::{
    account,
    delivery::Clock,
    player::{CassettePlayer, Completions, Decided, Decision, Forward},
    timing::Pacer,
};

/// Cassette player and the clock of its responses, whose lateness is not measured here.
#[derive(Debug)]
pub(super) struct TapPlayer {
    pub(super) cassette_player: Arc<CassettePlayer>,
    clock: Clock,
}

impl TapPlayer {
    pub(super) fn new(cassette_player: Arc<CassettePlayer>) -> Self {
        Self { cassette_player, clock: Clock { pacer: Pacer::precise(), lateness: LatenessTracker::default() } }
    }

    /// Refuses a call of the wrapped command to another server.
    pub(super) fn block<B>(&self, request: &mut Request<B>) -> Option<Response<ProxyBody>> {
        let refusal = self.cassette_player.config().network_block.as_ref()?.check(request)?;
        Some(refusal.map(|body| ProxyBody::Played(Box::new(body))))
    }

    pub(super) fn may_relay<B>(&self, request: &Request<B>) -> bool {
        self.cassette_player.may_relay(request.method(), request.uri().path(), request.extensions())
    }
}

impl Proxy {
    /// Replays a request from the player's records, or forwards it and records it there.
    pub(super) async fn play(&self, player: &TapPlayer, mut request: Request<Incoming>) -> Response<ProxyBody> {
        account::enter(&mut request);
        let request = match player.cassette_player.administer(request).await {
            Ok(response) => return response.map(|body| ProxyBody::Played(Box::new(body))),
            Err(request) => request,
        };
        let request = match Box::pin(self.pass_mcp(*request)).await {
            Ok(response) => return response,
            Err(request) => request.map(RequestBody::Live),
        };
        let Decided { decision, session, cassette_player } = player.cassette_player.decide(request).await;
        let mut response = match decision {
            Decision::Answer(response) => response.map(|body| ProxyBody::Played(Box::new(body))),
            Decision::Replay(replayed) => {
                let response = replayed.deliver::<Infallible, ()>(player.clock.clone(), None, None, ()).await;
                response.map(|body| ProxyBody::Played(Box::new(body)))
            }
            Decision::Pass(request) => {
                self.metrics.skip(Skipped::Kind);
                match cassette_player.relayed(request) {
                    Ok(request) if self.sites.lacks(request.extensions()) => self.no_such_upstream(),
                    Ok(request) => self.pass(request.map(|body| OutgoingBody::from(body).within(self.idle))).await,
                    Err(refused) => refused.map(|body| ProxyBody::Played(Box::new(body))),
                }
            }
            Decision::Forward(forward) if self.sites.lacks(forward.request.extensions()) => self.no_such_upstream(),
            Decision::Forward(forward) => Box::pin(self.forward_for(*forward)).await,
        };
        if let Some(session) = session.and_then(|session| HeaderValue::from_str(&session).ok()) {
            response.headers_mut().insert("x-vcr-session", session);
        }
        response
    }

    /// Builds the error for a request that names an upstream which is not here.
    fn no_such_upstream(&self) -> Response<ProxyBody> {
        self.metrics.skip(Skipped::Kind);
        let known = self.sites.names().collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "none has a name".to_owned() } else { format!("there are: {known}") };
        let message =
            format!("no upstream has the name that this request asks for; {known}. Name it: --upstream NAME=URL");
        account::http::plain(StatusCode::NOT_FOUND, &message).map(|body| ProxyBody::Played(Box::new(body)))
    }

    /// Forwards a request that the player does not answer.
    async fn forward_for(&self, Forward { request, pending }: Forward) -> Response<ProxyBody> {
        let admitted = self.filter.admits_any(request.method(), request.uri().path(), request.headers());
        let (endpoint, pending) = match (admitted, pending) {
            (Ok(endpoint), Some(pending)) => (endpoint, pending),
            (admitted, _) => {
                self.metrics.skip(admitted.err().unwrap_or(Skipped::Kind));
                return self.pass(request.map(|body| OutgoingBody::from(body).within(self.idle))).await;
            }
        };
        let (parts, body) = request.into_parts();
        let RequestBody::Read(body) = body else {
            return self.pass(Request::from_parts(parts, OutgoingBody::from(body).within(self.idle))).await;
        };
        self.record_at(
            None,
            endpoint,
            parts,
            ReceivedBody { bytes: body.unwrap_or_default(), trailers: None },
            Some(pending),
        )
        .await
    }
}

impl OpenExchange {
    /// The completions of responses of its cassette; `None` for a trace, whose aborted requests stay aborted.
    pub(super) fn completions(&self) -> Option<Arc<Completions>> {
        self.cassette.as_ref().map(|pending| pending.completions())
    }

    /// Returns true if the exchange is recorded in a cassette.
    pub(super) fn is_for_cassette(&self) -> bool {
        self.cassette.is_some()
    }

    /// Returns true if the last event of a stream has come that is recorded in a cassette.
    pub(super) fn is_whole_stream(&self) -> bool {
        self.cassette.is_some() && self.observed.capture.as_ref().is_some_and(|capture| capture.is_whole_stream())
    }

    /// Leaves the exchange out of its cassette: there was no response. True if it would have been recorded there.
    pub(super) fn leave_out(&mut self, error: &UpstreamError) -> bool {
        self.cassette.take().map(|pending| pending.unanswered(error)).is_some()
    }

    pub(super) fn end_in_cassette(&mut self, outcome: Outcome) {
        // Without a status there was no response: the client left before it.
        let Some(pending) = self.cassette.take().filter(|pending| pending.status != 0) else { return };
        let is_exact = self.capabilities.ids_are_exact();
        if let Some(capture) = self.observed.capture.take() {
            let is_finished = outcome == Outcome::Finished;
            let output_ids = if is_finished { self.observed.output_ids(is_exact) } else { Vec::new() };
            pending.end(*capture, output_ids, outcome);
        }
    }
}

impl ObservedExchange {
    /// Returns the ids of every choice by its index; none if the engine did not return all of them.
    fn output_ids(&self, is_exact: bool) -> Vec<Vec<u32>> {
        let mut choices: Vec<&ObservedChoice> = self.choices.iter().collect();
        choices.sort_unstable_by_key(|choice| choice.index);
        let ids: Option<Vec<Vec<u32>>> = choices.into_iter().map(|choice| choice.ids.clone()).collect();
        let ids = ids.filter(|_| self.ids_requested).unwrap_or_default();
        let count = ids.iter().map(Vec::len).sum::<usize>();
        let is_all = self.output_count().map_or(is_exact, |all| usize::try_from(all).is_ok_and(|all| all == count));
        if is_all { ids } else { Vec::new() }
    }
}
