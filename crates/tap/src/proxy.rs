//! The tap's proxy: receives requests and forwards those that are recorded, as exchanges.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts, uri::PathAndQuery};
use hyper::body::Incoming;

use super::{
    Filter, Setup, TapError,
    amend::{Added, Amendable, amended_request, is_refusal, is_signed},
    body::ProxyBody,
    cassette::TapPlayer,
    exchange::OpenExchange,
    filter::Skipped,
    gather::{Gathered, ReceivedBody, gather},
    mcp::McpServers,
    metrics::{Awaited, TapMetrics},
    request::{RequestFacts, RequestFields, RequestTarget},
    response::{broken_off, recorded, refusal},
    shared_state::SharedState,
    upstreams::{UpstreamSite, Upstreams},
};
use base::rate_limited_log::RateLimitedLog;
use net::{
    server::{BodyError, Informational},
    upstream::{self, OutgoingBody, Relayed, UpstreamBody, UpstreamError},
    wire::body_as_utf8,
};
use recording::{
    exchange::outcome_of,
    trace::{Endpoint, Outcome},
};
use replay::player::{CassettePlayer, PendingExchange};
use text::prompt::BlockHasher;

#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) sites: Upstreams,
    pub(super) filter: Filter,
    pub(super) idle: Option<Duration>,
    pub(super) shared: Arc<SharedState>,
    pub(super) keeps_bodies: bool,
    hasher: BlockHasher,
    pub(super) metrics: Arc<TapMetrics>,
    pub(super) failing: Arc<RateLimitedLog>,
    /// Player of the cassette that is recorded; `None` for a trace.
    player: Option<TapPlayer>,
    /// MCP servers beside the engine.
    pub(super) mcp: McpServers,
}

impl Proxy {
    /// Starts to record in the player's cassette, or creates the trace and starts its recorder. Requests the facts of upstreams
    /// first, if they are up.
    pub(super) async fn start(setup: Setup, player: Option<Arc<CassettePlayer>>) -> Result<Self, TapError> {
        let sites = Upstreams::new(&setup);
        futures_util::future::join_all(sites.all().map(UpstreamSite::ask_facts)).await;
        let upstreams = sites.all().map(|site| site.upstream.url().to_string()).collect();
        let metrics = Arc::new(TapMetrics::new(upstreams, setup.disk_timeout));
        let keeps_bodies = setup.config.tokenizer.is_some() || setup.content.requests;
        let hasher = setup.hasher();
        let engine = Arc::clone(&sites.main.capabilities);
        let shared = SharedState::start(&setup, (player.is_none(), engine), Arc::clone(&metrics))?;
        let mcp =
            McpServers::start((setup.mcp, setup.mcp_commands), &setup.reach, (player.as_ref(), setup.mcp_playback))
                .map_err(|error| TapError::Recorder(error.to_string()))?;
        Ok(Self {
            sites,
            mcp,
            filter: setup.filter,
            idle: setup.idle,
            shared: Arc::new(shared),
            keeps_bodies,
            hasher,
            metrics,
            failing: Arc::default(),
            player: player.map(TapPlayer::new),
        })
    }

    /// Clones the proxy for another runtime. Everything is shared but the connections to upstreams.
    pub(super) fn apart(&self) -> Self {
        Self {
            sites: self.sites.apart(),
            mcp: self.mcp.apart(),
            filter: self.filter.clone(),
            idle: self.idle,
            shared: Arc::clone(&self.shared),
            keeps_bodies: self.keeps_bodies,
            hasher: self.hasher.clone(),
            metrics: Arc::clone(&self.metrics),
            failing: Arc::clone(&self.failing),
            player: self.player.as_ref().map(|player| TapPlayer::new(Arc::clone(&player.cassette_player))),
        }
    }

    /// Requests the facts of upstreams that are not up yet in the background, until they answer.
    pub(super) fn learn_facts(&self) {
        self.sites.all().for_each(UpstreamSite::learn_facts);
    }

    /// Marks exchanges dropped from now on as cut by the tap.
    pub(super) fn begin_cutting(&self) {
        self.player.iter().for_each(|player| player.cassette_player.stop_completing());
        self.shared.begin_cutting();
    }

    /// Waits for responses whose clients have left and that are received for a cassette.
    pub(super) async fn completed(&self) {
        if let Some(player) = &self.player {
            player.cassette_player.completed().await;
        }
    }

    /// Returns the player of the cassette; `None` for a trace.
    pub(super) fn cassette_player(&self) -> Option<&Arc<CassettePlayer>> {
        self.player.as_ref().map(|player| &player.cassette_player)
    }

    /// Forwards a request and returns its response; informational responses go to `informational`.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        informational: Informational,
    ) -> Response<ProxyBody> {
        self.metrics.requests.fetch_add(1, Relaxed);
        let metrics = Arc::clone(&self.metrics);
        let dropped = move || _ = metrics.informational_dropped.fetch_add(1, Relaxed);
        upstream::pass_informational(request, &informational, dropped, |request| self.answer_to(request)).await
    }

    async fn answer_to(&self, mut request: Request<Incoming>) -> Response<ProxyBody> {
        if let Some(refusal) = self.player.as_ref().and_then(|player| player.block(&mut request)) {
            return refusal;
        }
        // A request with a body keeps HTTP: protocols that are upgraded to, such as WebSocket, begin without one.
        if request.method() == Method::POST {
            upstream::remove(request.headers_mut(), |name| name == header::UPGRADE);
        }
        let may_leave = self.player.as_ref().is_none_or(|player| player.may_relay(&request));
        if may_leave && upstream::requested_upgrade(request.headers()).is_some() {
            self.metrics.skip(Skipped::Upgrade);
            return Box::pin(self.tunnel(request)).await;
        }
        if request.method() == Method::CONNECT {
            self.metrics.skip(Skipped::Kind);
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "this is a tap before one engine and no proxy for others");
        }
        if let Some(player) = &self.player {
            return self.play(player, request).await;
        }
        let admitted = self.filter.admits(request.method(), request.uri().path(), request.headers());
        match admitted {
            Ok(endpoint) => self.record(endpoint, request).await,
            Err(reason) => {
                self.metrics.skip(reason);
                let idle = self.idle;
                self.pass(request.map(|body| Relayed::untouched(body.into()).within(idle))).await
            }
        }
    }

    async fn record(&self, endpoint: Endpoint, request: Request<Incoming>) -> Response<ProxyBody> {
        let (parts, body) = request.into_parts();
        let target = RequestTarget { endpoint, path: parts.uri.path() };
        let awaited = Awaited(Some(&self.metrics));
        let gathered = gather(Relayed::untouched(body.into()).within(self.idle), &self.shared.bodies).await;
        awaited.came();
        let body = match gathered {
            Gathered::Whole(body) => body,
            Gathered::TooLarge { body, is_together } => {
                self.metrics.recorder.content_skipped.fetch_add(is_together.into(), Relaxed);
                let facts = RequestFacts::new(target, &parts.headers, &[], None);
                return self.record_unread(facts, Request::from_parts(parts, body)).await;
            }
            Gathered::Broken(error) => {
                self.incomplete(&error, RequestFacts::new(target, &parts.headers, &[], None));
                return broken_off(&error);
            }
        };
        self.record_at(None, endpoint, parts, body, None).await
    }

    /// Forwards a request that is recorded; with `pending` in a cassette. It goes to the upstream of this index, where one is chosen already.
    pub(super) async fn record_at(
        &self,
        upstream: Option<usize>,
        endpoint: Endpoint,
        mut parts: Parts,
        body: ReceivedBody,
        pending: Option<PendingExchange>,
    ) -> Response<ProxyBody> {
        let target = RequestTarget { endpoint, path: parts.uri.path() };
        let read = body_as_utf8(&body.bytes);
        let requested = RequestFields::read(&read);
        let chosen = upstream.and_then(|upstream| self.sites.all().nth(upstream));
        let site = chosen.unwrap_or_else(|| self.site_of(&parts, requested.as_ref()));
        if !self.filter.admits_model(requested.as_ref().and_then(|requested| requested.model.as_deref())) {
            self.metrics.skip(Skipped::Model);
            return self.pass_to(site, body.into_request(parts)).await;
        }
        let mut facts = RequestFacts::new(target, &parts.headers, &read, requested.as_ref());
        let chat = requested.as_ref().filter(|_| endpoint == Endpoint::Chat);
        facts.media = chat.and_then(|requested| requested.media(&self.hasher));
        let is_plain = read == body.bytes && body.trailers.is_none();
        let is_signed = is_signed(&parts.headers);
        let may_be_amended = facts.may_be_amended() && is_plain && !is_signed;
        let kept = self.keeps_bodies.then(|| read.clone());
        let mut exchange = OpenExchange::begin(Arc::clone(&self.shared), Arc::clone(&site.capabilities), facts, kept);
        exchange.observed.request = parts.uri.path_and_query().map(|target| (target.clone(), read.clone()));
        if let Some(pending) = pending {
            exchange.observed.capture = Some(Box::new(pending.capture()));
            exchange.cassette = Some(Box::new(pending));
        } else {
            exchange.copy(parts.uri.path_and_query().map_or("/", PathAndQuery::as_str), &read);
        }
        if exchange.reads_content() && !is_signed && site.capabilities.may_be_amended() {
            // A compressed response could not be read.
            upstream::remove(&mut parts.headers, |name| name == header::ACCEPT_ENCODING);
        }
        let amendable = Amendable::new(&body.bytes, requested.as_ref().filter(|_| may_be_amended));
        let (response, added) = self.send_amended(site, &mut exchange, (parts, body), &amendable).await;
        self.respond(site, response, exchange, added).await
    }

    /// Sends a request with the fields that the upstream is to be asked for. Where it refuses them the request is sent again with fewer, at last as the
    /// client wrote it.
    async fn send_amended(
        &self,
        site: &UpstreamSite,
        exchange: &mut OpenExchange,
        (parts, body): (Parts, ReceivedBody),
        amendable: &Amendable<'_>,
    ) -> (Result<Response<UpstreamBody>, UpstreamError>, Added) {
        let capabilities = &site.capabilities;
        let (mut wanted, mut own, mut was_refused) = (capabilities.wanted(), (parts, body), false);
        let (response, added) = loop {
            let (parts, body) = own;
            let Some((amended, added)) = amendable.amend(wanted) else {
                break (self.send(site, body.into_request(parts)).await, Added::default());
            };
            let response = self.send(site, amended_request(&parts, amended)).await;
            if !response.as_ref().is_ok_and(|response| is_refusal(response.status())) {
                break (response, added);
            }
            exchange.restart();
            was_refused = true;
            wanted = wanted.and_then(|wanted| capabilities.wanted_instead(wanted));
            own = (parts, body);
        };
        exchange.observed.ids_requested = added.ids;
        if response.as_ref().is_ok_and(|response| response.status().is_success()) {
            if amendable.streams() {
                capabilities.accepted(wanted);
            }
            if was_refused && !added.any() && capabilities.refused_amendments() {
                tracing::info!(upstream = %site.upstream.url(), "the upstream refuses return_token_ids: {}", self.fallback());
            }
        }
        (response, added)
    }

    /// Handles a request whose body did not arrive whole: a timeout is recorded, a request that its client abandoned is not.
    fn incomplete(&self, error: &BodyError, facts: RequestFacts) {
        if !matches!(error, BodyError::Idle(_)) || !self.filter.admits_model(None) {
            return self.metrics.skip(Skipped::Incomplete);
        }
        let capabilities = Arc::clone(&self.sites.main.capabilities);
        let mut exchange = OpenExchange::begin(Arc::clone(&self.shared), capabilities, facts, None);
        exchange.status(StatusCode::REQUEST_TIMEOUT.as_u16());
        exchange.end(Outcome::TimedOut);
    }

    async fn record_unread(&self, facts: RequestFacts, request: Request<OutgoingBody>) -> Response<ProxyBody> {
        let site = self.sites.of(request.uri().path(), None);
        let exchange = OpenExchange::begin(Arc::clone(&self.shared), Arc::clone(&site.capabilities), facts, None);
        let response = self.send(site, request).await;
        self.respond(site, response, exchange, Added::default()).await
    }

    /// Records the exchange's response, or the error of an upstream that did not answer.
    async fn respond(
        &self,
        site: &UpstreamSite,
        response: Result<Response<UpstreamBody>, UpstreamError>,
        mut exchange: OpenExchange,
        added: Added,
    ) -> Response<ProxyBody> {
        match response {
            Ok(response) => recorded(response, exchange, added, Arc::clone(&site.capabilities), self.idle).await,
            Err(error) => {
                let mut response = self.unanswered(&error);
                if exchange.leave_out(&error) {
                    let why = HeaderValue::from_static("upstream_unreachable");
                    response.headers_mut().insert("x-vcr-miss", why);
                }
                exchange.status(response.status().as_u16());
                exchange.end(match error.caused_by::<BodyError>() {
                    Some(broken) => outcome_of(broken),
                    None if error.is_timeout() => Outcome::TimedOut,
                    None => Outcome::UpstreamFailed,
                });
                response
            }
        }
    }
}
