//! Forwards requests, and decides which of them are recorded.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts, uri::PathAndQuery,
};
use hyper::body::Incoming;

use super::{
    Filter, RecorderReport, Setup, TapError,
    amend::{Added, amend, amended_request, is_refusal, is_signed},
    answer::{Gathered, broken_off, gather, passed, recorded, refusal},
    assemble::Assembler,
    body::{Answer, BodyError, Received, Relayed, Sent},
    cassette::Player,
    exchange::Exchange,
    filter::Skipped,
    metrics::Metrics,
    recorder::{RecorderConfig, TraceRecorder},
    request::{Asked, Called, RequestFacts},
    shared_state::{KeptContent, SharedState},
    tunnel,
    upstreams::{UpstreamSite, Upstreams},
};
use crate::{
    net::server::Informational,
    net::upstream::{self, UpstreamError},
    recording::recorder::RateLimitedLog,
    recording::trace::{Endpoint, Outcome},
    replay::player::{CassettePlayer, PendingExchange},
    text::prompt::BlockHasher,
};

/// The tap behind its listener.
#[derive(Debug)]
pub(super) struct Proxy {
    sites: Upstreams,
    pub(super) filter: Filter,
    pub(super) idle: Option<Duration>,
    room: Arc<SharedState>,
    keeps_bodies: bool,
    hasher: BlockHasher,
    pub(super) metrics: Arc<Metrics>,
    failing: Arc<RateLimitedLog>,
    /// What answers requests from a cassette and records them there; `None` for a trace.
    player: Option<Player>,
}

impl Proxy {
    /// Begins to record in the player's cassette, or creates the trace and starts its recorder. Upstreams that are up already
    /// are asked what they are first.
    pub(super) async fn start(setup: Setup, player: Option<Arc<CassettePlayer>>) -> Result<Self, TapError> {
        let sites = Upstreams::new(&setup);
        futures_util::future::join_all(sites.all().map(UpstreamSite::ask_facts)).await;
        let metrics = Arc::new(Metrics::new(sites.all().map(|site| site.upstream.url().to_string()).collect()));
        let engine = Arc::clone(&sites.main().learned);
        let mut meta = setup.meta();
        engine.facts().into_iter().for_each(|facts| facts.complete(&mut meta));
        let keeps_bodies = setup.config.tokenizer.is_some() || setup.content.requests;
        let responses = setup.config.record_tokens && setup.permutation.is_none();
        let keeps = KeptContent { text: setup.content.text, logprobs: setup.content.logprobs, responses };
        let config = setup.config;
        let hasher = match setup.hash_key {
            Some(key) => BlockHasher::keyed(key, config.block_size),
            None => BlockHasher::new(config.block_hash, config.block_size),
        };
        let assembler = Assembler {
            hasher: hasher.clone(),
            record_tokens: config.record_tokens,
            tokenizer: config.tokenizer,
            content: setup.content,
            permutation: setup.permutation,
        };
        let recorder = RecorderConfig {
            path: config.trace_out,
            create: config.create,
            limits: setup.limits,
            starting: setup.starting,
            meta,
            engine,
            assembler,
        };
        let recorder = match player {
            Some(_) => None,
            None => Some(TraceRecorder::start(recorder, Arc::clone(&metrics))?),
        };
        Ok(Self {
            sites,
            filter: setup.filter,
            idle: setup.idle,
            room: Arc::new(SharedState::new(recorder, Arc::clone(&metrics), keeps)),
            keeps_bodies,
            hasher,
            metrics,
            failing: Arc::default(),
            player: player.map(Player::new),
        })
    }

    /// The same tap for another runtime: everything is shared but the connections to upstreams.
    pub(super) fn apart(&self) -> Self {
        Self {
            sites: self.sites.apart(),
            filter: self.filter.clone(),
            idle: self.idle,
            room: Arc::clone(&self.room),
            keeps_bodies: self.keeps_bodies,
            hasher: self.hasher.clone(),
            metrics: Arc::clone(&self.metrics),
            failing: Arc::clone(&self.failing),
            player: self.player.as_ref().map(|player| Player::new(Arc::clone(&player.cassette_player))),
        }
    }

    /// Asks upstreams that are not up yet what they are in the background, until they answer.
    pub(super) fn learn_facts(&self) {
        self.sites.all().for_each(UpstreamSite::learn_facts);
    }

    /// Requests that are cut from now on are cut by us.
    pub(super) fn begin_cutting(&self) {
        self.room.begin_cutting();
    }

    /// Requests forwarded so far.
    pub(super) fn forwarded(&self) -> u64 {
        self.metrics.requests.load(Relaxed)
    }

    /// Everything that is counted.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The next record goes to a new file.
    pub(super) fn rotate(&self) {
        if let Some(recorder) = &self.room.recorder {
            recorder.rotate();
        }
    }

    /// Closes the trace; blocks until it is written.
    pub(super) fn finish(&self) -> Result<RecorderReport, TapError> {
        self.room.recorder.as_ref().map_or_else(|| Ok(RecorderReport::default()), TraceRecorder::finish)
    }

    /// Answers one request with the upstream's answer, and its informational responses before it.
    pub(super) async fn forward(
        &self,
        mut request: Request<Incoming>,
        informational: Informational,
    ) -> Response<Answer> {
        self.metrics.requests.fetch_add(1, Relaxed);
        if request.version() != Version::HTTP_11 {
            return self.answer_to(request).await;
        }
        let passed_on = informational.clone();
        upstream::on_informational(&mut request, move |status, headers| passed_on.send(status, headers));
        informational.send_before(pin!(self.answer_to(request))).await
    }

    async fn answer_to(&self, mut request: Request<Incoming>) -> Response<Answer> {
        // A request with a body is answered before anything else can be spoken; WebSockets begin without one.
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
                self.pass(request.map(|body| Relayed::untouched(body).within(idle))).await
            }
        }
    }

    /// Forwards a request that is not recorded. Where its model may decide who gets it, its body is read first.
    pub(super) async fn pass(&self, request: Request<Sent>) -> Response<Answer> {
        let path = request.uri().path();
        let by_model =
            self.sites.are_by_model() && request.method() == Method::POST && self.sites.of_path(path).is_none();
        if !by_model {
            let site = self.sites.of(path, None);
            return self.pass_to(site, request).await;
        }
        let (parts, body) = request.into_parts();
        let (body, trailers) = match gather(body).await {
            Gathered::Whole(body, trailers) => (body, trailers),
            Gathered::TooLarge(body) => {
                return self.pass_to(self.sites.main(), Request::from_parts(parts, body)).await;
            }
            Gathered::Broken(error) => return broken_off(&error),
        };
        let site = self.site_of(&parts, Asked::read(&body).as_ref());
        self.pass_to(site, as_is(parts, (body, trailers))).await
    }

    async fn pass_to(&self, site: &UpstreamSite, request: Request<Sent>) -> Response<Answer> {
        match self.send(site, request).await {
            Ok(response) => passed(response, self.idle),
            Err(error) => self.unanswered(&error),
        }
    }

    /// Forwards a request to become another protocol, and joins both connections where the upstream agrees.
    async fn tunnel(&self, request: Request<Incoming>) -> Response<Answer> {
        let site = self.sites.of(request.uri().path(), None);
        match self.send(site, request.map(Relayed::untouched)).await {
            Ok(mut response) => {
                if tunnel::join(&mut response) {
                    self.metrics.upgraded.fetch_add(1, Relaxed);
                    return response.map(|_| Answer::Empty);
                }
                passed(response, self.idle)
            }
            Err(error) => self.unanswered(&error),
        }
    }

    async fn record(&self, endpoint: Endpoint, request: Request<Incoming>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let called = Called { endpoint, path: parts.uri.path() };
        let awaited = self.metrics.awaits_body();
        let gathered = gather(Relayed::untouched(body).within(self.idle)).await;
        awaited.came();
        let (body, trailers) = match gathered {
            Gathered::Whole(body, trailers) => (body, trailers),
            Gathered::TooLarge(body) => {
                let facts = RequestFacts::new(called, &parts.headers, &[], None);
                return self.record_unread(facts, Request::from_parts(parts, body)).await;
            }
            Gathered::Broken(error) => {
                self.incomplete(&error, RequestFacts::new(called, &parts.headers, &[], None));
                return broken_off(&error);
            }
        };
        self.record_read(endpoint, parts, (body, trailers), None).await
    }

    /// Forwards a request that is recorded: in a cassette where it has a place there.
    pub(super) async fn record_read(
        &self,
        endpoint: Endpoint,
        parts: Parts,
        (body, trailers): Whole,
        pending: Option<PendingExchange>,
    ) -> Response<Answer> {
        let called = Called { endpoint, path: parts.uri.path() };
        let asked = Asked::read(&body);
        let site = self.site_of(&parts, asked.as_ref());
        if !self.filter.admits_model(asked.as_ref().and_then(|asked| asked.model.as_deref())) {
            self.metrics.skip(Skipped::Model);
            return self.pass_to(site, as_is(parts, (body, trailers))).await;
        }
        let mut facts = RequestFacts::new(called, &parts.headers, &body, asked.as_ref());
        let chat = asked.as_ref().filter(|_| endpoint == Endpoint::Chat);
        facts.media = chat.and_then(|asked| asked.media(&self.hasher));
        let may_be_amended = facts.may_be_amended() && trailers.is_none() && !is_signed(&parts.headers);
        let amended = asked.as_ref().filter(|_| may_be_amended).and_then(|asked| amend(&body, asked, &site.learned));
        let kept = self.keeps_bodies.then(|| body.clone());
        let mut exchange = Exchange::begin(Arc::clone(&self.room), Arc::clone(&site.learned), facts, kept);
        exchange.asked(parts.uri.path_and_query(), &body);
        if let Some(pending) = pending {
            exchange.record_in(pending);
        } else {
            exchange.copy(parts.uri.path_and_query().map_or("/", PathAndQuery::as_str), &body);
        }
        let (mut added, mut own, mut request) = match amended {
            Some((amended, added)) => {
                let request = amended_request(&parts, amended);
                (added, Some((parts, (body, trailers))), request)
            }
            None => (Added::default(), None, as_is(parts, (body, trailers))),
        };
        let mut was_refused = false;
        let response = loop {
            let response = self.send(site, request).await;
            let is_refused = response.as_ref().is_ok_and(|response| is_refusal(response.status()));
            let Some((parts, whole)) = own.take().filter(|_| is_refused) else { break response };
            exchange.restart();
            (was_refused, added, request) = (true, Added::default(), as_is(parts, whole));
        };
        if added.ids {
            exchange.asked_ids();
        }
        let is_taken = was_refused && response.as_ref().is_ok_and(|response| response.status().is_success());
        if is_taken && site.learned.refused_amendments() {
            tracing::info!(upstream = %site.upstream.url(), "the upstream refuses return_token_ids: {}", self.fallback());
        }
        self.answer(site, response, exchange, added).await
    }

    /// A request whose body did not arrive whole: one that took too long is recorded, one that its client left is not.
    fn incomplete(&self, error: &BodyError, facts: RequestFacts) {
        if !matches!(error, BodyError::Idle(_)) || !self.filter.admits_model(None) {
            return self.metrics.skip(Skipped::Incomplete);
        }
        let learned = Arc::clone(&self.sites.main().learned);
        let mut exchange = Exchange::begin(Arc::clone(&self.room), learned, facts, None);
        exchange.status(StatusCode::REQUEST_TIMEOUT.as_u16());
        exchange.end(Outcome::TimedOut);
    }

    async fn record_unread(&self, facts: RequestFacts, request: Request<Sent>) -> Response<Answer> {
        let site = self.sites.of(request.uri().path(), None);
        let exchange = Exchange::begin(Arc::clone(&self.room), Arc::clone(&site.learned), facts, None);
        let response = self.send(site, request).await;
        self.answer(site, response, exchange, Added::default()).await
    }

    async fn answer(
        &self,
        site: &UpstreamSite,
        response: Result<Response<Received>, UpstreamError>,
        mut exchange: Exchange,
        added: Added,
    ) -> Response<Answer> {
        match response {
            Ok(response) => recorded(response, exchange, added, (Arc::clone(&site.learned), self.idle)).await,
            Err(error) => {
                let mut answer = self.unanswered(&error);
                if exchange.leave_out() {
                    let why = HeaderValue::from_static("upstream_unreachable");
                    answer.headers_mut().insert("x-vcr-miss", why);
                }
                exchange.status(answer.status().as_u16());
                exchange.end(match error.caused_by::<BodyError>() {
                    Some(broken) => broken.outcome(),
                    None if error.is_timeout() => Outcome::TimedOut,
                    None => Outcome::UpstreamFailed,
                });
                answer
            }
        }
    }

    async fn send(&self, site: &UpstreamSite, request: Request<Sent>) -> Result<Response<Received>, UpstreamError> {
        self.metrics.sent(site.place);
        let sent = site.upstream.send(request).await;
        if let Err(error) = &sent {
            self.metrics.unanswered(site.place);
            if error.is_connect() {
                // It may be another engine that comes back.
                site.learned.forget();
            }
        }
        sent
    }

    fn site_of(&self, parts: &Parts, asked: Option<&Asked<'_>>) -> &UpstreamSite {
        self.sites.of(parts.uri.path(), asked.and_then(|asked| asked.model.as_deref()))
    }

    /// What is recorded of an engine that does not tell ids.
    fn fallback(&self) -> &'static str {
        if self.keeps_bodies { "prompts are hashed by the local tokenizer" } else { "shapes and times are recorded" }
    }

    fn unanswered(&self, error: &UpstreamError) -> Response<Answer> {
        if let Some(idle @ BodyError::Idle(_)) = error.caused_by::<BodyError>() {
            return broken_off(idle);
        }
        let what = if error.is_timeout() {
            "took too long"
        } else if error.is_connect() {
            "cannot be reached"
        } else {
            "broke off without an answer"
        };
        if let Some(held) = self.failing.due() {
            tracing::warn!(%error, cause = error.cause(), held, "upstream failed");
        }
        let status = if error.is_timeout() { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY };
        refusal(status, &format!("vllm-vcr tap: the upstream {what}: {}", error.cause()))
    }
}

/// A request's body that was received, and its trailers.
pub(super) type Whole = (Bytes, Option<Box<HeaderMap>>);

fn as_is(parts: Parts, (body, trailers): Whole) -> Request<Sent> {
    Request::from_parts(parts, Relayed::whole(body).with_trailers(trailers))
}
