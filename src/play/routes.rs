//! The endpoint table: which path is served by which handler, and what every other request gets.
//!
//! Paths, methods, `allow` and words are the engine's. A path with a `/` too much at its end is redirected.
//!
//! See docs/decisions/0035-axum-routes.md.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, State},
    handler::Handler,
    response::Response,
    routing::{MethodFilter, MethodRouter, any, get, on, post},
};
use futures_util::future::BoxFuture;
use http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, header};
use tower::ServiceBuilder;

use crate::{
    api::{Api, endpoints::route},
    net::server::OverTls,
    play::{
        Player, ServerState,
        cassettes::{Cassettes, SemanticAnswers, refusal},
        dialect::{Dialect, Reword},
        faults::{self, FaultLayer, MetricsPages, PageSource},
        front::{SentPath, other_ending},
        http::{empty_with, json},
        load::adapters,
        mcp::RecordedMcpServers,
        metrics::{NotServed, Watch},
        middleware::{InterceptLayer, Layered},
        page,
        rare::{
            derender, dev, pages,
            render::{self, RequestFamily},
            tokenizer_info, variants,
        },
        recorded::responses::count_unserved,
        request::{
            info, messages,
            pipeline::{RecordedResponses, generate},
            responses, tokens,
        },
        settings::{self, Settings},
        simulator,
    },
    replay::account::{self, Access, Admin},
};

/// A handler without its type: what axum builds around a handler is compiled once for all of them, and what a server holds is proven to go
/// from thread to thread less often. See docs/src/internals/performance.md.
#[derive(Clone)]
struct AnyHandler(Arc<dyn Fn(Request<Body>, Player) -> BoxFuture<'static, Response> + Send + Sync>);

impl AnyHandler {
    fn new<H, T>(handler: H) -> Self
    where
        H: Handler<T, Player, Future = BoxFuture<'static, Response>>,
    {
        Self(Arc::new(move |request, player| handler.clone().call(request, player)))
    }
}

impl Handler<(), Player> for AnyHandler {
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request<Body>, player: Player) -> BoxFuture<'static, Response> {
        (self.0)(request, player)
    }
}

/// The endpoints of a server, as far as its options have them.
pub(super) struct Endpoints {
    router: Router<Player>,
    paths: Vec<&'static str>,
    dialect: &'static Dialect,
}

impl Endpoints {
    pub(super) fn new(dialect: &'static Dialect) -> Self {
        Self { router: Router::new(), paths: Vec::new(), dialect }
    }

    /// Adds an endpoint, which takes the methods that the API's table has for its path.
    pub(super) fn serve<H, T>(self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Player, Future = BoxFuture<'static, Response>>,
    {
        let methods = route(path).map_or("", |route| route.methods);
        debug_assert!(!methods.is_empty(), "{path} is not in the table of endpoints");
        self.on(methods, path, handler)
    }

    /// Adds an endpoint that takes some methods; to others the answer is 405.
    fn on<H, T>(self, methods: &'static str, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Player, Future = BoxFuture<'static, Response>>,
    {
        self.on_any(methods, path, AnyHandler::new(handler))
    }

    fn on_any(self, methods: &'static str, path: &'static str, handler: AnyHandler) -> Self {
        // Where the engine has a route for each method, it names the first one.
        let allow = if methods == "GET, POST" { "GET" } else { methods };
        let refuse = move || async move { not_allowed(allow) };
        let endpoint = match methods {
            // A handler for GET would take HEAD too.
            "GET" => on(MethodFilter::GET, handler).head(refuse),
            "GET, HEAD" => get(handler),
            "GET, POST" => on(MethodFilter::GET.or(MethodFilter::POST), handler).head(refuse),
            _ => post(handler),
        };
        self.route(path, endpoint.fallback(refuse))
    }

    /// Adds an endpoint unless the imitated version lacks it.
    fn route(mut self, path: &'static str, methods: MethodRouter<Player>) -> Self {
        if self.dialect.has(path) {
            self.router = self.router.route(path, methods).route(&format!("{path}/"), any(redirect));
            self.paths.push(path);
        }
        self
    }

    fn add(self, is_served: bool, endpoints: impl FnOnce(Self) -> Self) -> Self {
        if is_served { endpoints(self) } else { self }
    }

    /// The paths of the endpoints.
    pub(super) fn paths(&self) -> &[&'static str] {
        &self.paths
    }
}

fn endpoints(player: &Player) -> Endpoints {
    let options = &player.state.config.server;
    let endpoints = Endpoints::new(player.state.config.vllm_version.dialect())
        .serve("/v1/chat/completions", |state, arrival| generate(state, arrival, Api::Chat))
        .serve("/v1/completions", |state, arrival| generate(state, arrival, Api::Completions))
        .serve("/v1/messages", messages::answer)
        .serve("/v1/messages/count_tokens", messages::count)
        .serve("/v1/responses", responses::answer)
        .on("GET", "/v1/responses/{response_id}", responses::retrieve)
        .on("POST", "/v1/responses/{response_id}/cancel", responses::cancel)
        .serve("/v1/chat/completions/batch", variants::batch)
        .serve("/invocations", variants::invoke)
        .serve("/inference/v1/generate", variants::tokens)
        .serve("/inference/v1/abort_requests", dev::abort_tokens)
        .serve("/v1/chat/completions/render", |state, enabled, body| {
            render::answer(state, enabled, body, RequestFamily::Of(Api::Chat))
        })
        .serve("/v1/completions/render", |state, enabled, body| {
            render::answer(state, enabled, body, RequestFamily::Of(Api::Completions))
        })
        .serve("/v1/messages/render", |state, enabled, body| {
            render::answer(state, enabled, body, RequestFamily::Messages)
        })
        .serve("/v1/responses/render", |state, enabled, body| {
            render::answer(state, enabled, body, RequestFamily::Responses)
        })
        .serve("/v1/chat/completions/derender", |state, enabled, body| {
            derender::answer(state, enabled, body, Api::Chat)
        })
        .serve("/v1/completions/derender", |state, enabled, body| {
            derender::answer(state, enabled, body, Api::Completions)
        })
        .serve("/tokenize", tokens::tokenize)
        .serve("/detokenize", tokens::detokenize)
        .serve("/v1/models", info::models)
        .serve("/version", info::version)
        .serve("/load", info::load)
        .serve("/health", info::health)
        .serve("/ping", info::health)
        .serve("/kv_event_sources", info::kv_event_sources)
        .serve("/scale_elastic_ep", dev::scale_elastic_ep)
        .serve("/is_scaling_elastic_ep", dev::is_scaling_elastic_ep)
        .serve("/generative_scoring", variants::unserved)
        .serve("/v1/systemone", variants::unserved)
        .add(options.tokenizer_info, |it| it.serve("/tokenizer_info", tokenizer_info::answer))
        .add(options.runtime_lora_updating, |it| {
            it.serve("/v1/load_lora_adapter", adapters::load).serve("/v1/unload_lora_adapter", adapters::unload)
        })
        .add(!options.no_docs, pages::endpoints)
        .add(options.dev_mode, dev::endpoints);
    // All that begins so is an application of its own in the engine, but for a GET of the path itself. `any` comes first:
    // a fallback would get an `allow` header from axum.
    let metrics = any(info::mounted_metrics).on(MethodFilter::GET, info::metrics).head(info::mounted_metrics);
    let router = endpoints.router.route("/metrics", metrics).route("/metrics{*rest}", any(info::mounted_metrics));
    let mut paths = endpoints.paths;
    paths.push("/metrics");
    Endpoints { router, paths, ..endpoints }
}

/// The router of a server: its endpoints, and what answers before them.
pub(super) fn router(player: &Player) -> Router {
    let state = &player.state;
    let Endpoints { mut router, paths, dialect } = endpoints(player);
    router = router.fallback(unserved);
    if dialect.rewords() {
        router = router.layer(Layered(Reword(dialect)));
    }
    if state.replay.as_ref().is_some_and(|replay| !replay.recordings.all().is_empty()) {
        router = router.layer(InterceptLayer(RecordedResponses(Arc::clone(state))));
    }
    router = router.layer(InterceptLayer(SemanticAnswers(Arc::clone(state))));
    if let Some(player) = &state.config.cassette_player {
        router = router.layer(InterceptLayer(Cassettes { player: Arc::clone(player), state: Arc::clone(state) }));
    }
    if let Some(service) = &state.mcp {
        router = router.layer(InterceptLayer(RecordedMcpServers(Arc::clone(service))));
    }
    let mut router = router.with_state(player.clone());
    if state.config.server.simulator.endpoints {
        router = router.merge(simulator::probes()).merge(simulator::routes(state, Access::of_anyone()));
    }
    router = match &state.config.admin {
        Admin::Here(access) if state.config.server.simulator.endpoints => router.merge(vcr_pages(player, access)),
        Admin::Here(access) => router.merge(admin_pages(player, access)),
        Admin::Off => router,
    };
    let (max_model_len, names) = (state.model.max_model_len, state.model.names.clone().into());
    let faults = FaultLayer {
        faults: Arc::clone(&state.config.faults),
        body_limit: state.config.body_limit,
        max_model_len,
        names,
        refusal,
        replica: state.replica,
        pages: MetricsPages::sampled(Arc::clone(&state.config.faults), page_source(state, true)),
    };
    router.layer(ServiceBuilder::new().layer(Layered(Watch::new(&state.metrics, &paths))).layer(InterceptLayer(faults)))
}

/// Makes the page of metrics, with or without the values that were set from outside, as long as the server is there.
fn page_source(state: &Arc<ServerState>, is_overridden: bool) -> PageSource {
    let state = Arc::downgrade(state);
    Arc::new(move || {
        let state = state.upgrade()?;
        let page = info::metrics_page(&state);
        Some(if is_overridden { state.overrides.apply(page) } else { page })
    })
}

/// The pages of `/vcr/…`, `/admin/config` and `/fake_metrics`.
pub(super) fn admin_pages(player: &Player, access: &Access) -> Router {
    vcr_pages(player, access).merge(simulator::routes(&player.state, access.clone()))
}

fn vcr_pages(player: &Player, access: &Access) -> Router {
    let state = &player.state;
    let mut pages = faults::routes(Arc::clone(&state.config.faults), access.clone());
    let overrides = Arc::clone(&state.overrides);
    pages = pages.merge(faults::metrics_routes(overrides, page_source(state, false), access.clone()));
    pages = pages.merge(settings::routes(Settings {
        faults: Arc::clone(&state.config.faults),
        pacing: state.config.pacing,
        changed_pacing: Arc::clone(&state.config.changed_pacing),
        answers: state.config.cassette_player.as_ref().and_then(|player| player.answers().cloned()),
        access: access.clone(),
    }));
    if let Some(ledger) = state.ledger() {
        pages = pages.merge(account::router(ledger, access.clone()));
    }
    if state.engine.is_some() {
        pages = pages.route("/vcr/engine", get(info::engine).with_state((player.clone(), access.clone())));
    }
    pages.merge(page::routes(Arc::clone(&state.metrics), access.clone()))
}

/// Checks whether an endpoint serves the path of a request, by whatever method.
pub(super) fn is_served(extensions: &Extensions) -> bool {
    is_routed(extensions) && !is_redirected(extensions)
}

/// Checks whether an endpoint serves the path of a request, or redirects it.
pub(super) fn is_routed(extensions: &Extensions) -> bool {
    extensions.get::<MatchedPath>().is_some()
}

/// Checks whether a request is redirected.
pub(super) fn is_redirected(extensions: &Extensions) -> bool {
    extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().ends_with('/'))
}

/// Answers a request of a path without an endpoint, which a trace that is served misses.
async fn unserved(State(player): State<Player>, request: Request<Body>) -> Response {
    count_unserved(&player.state, &request);
    not_found().await
}

async fn not_found() -> Response {
    json(StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#.to_owned(), HeaderMap::new())
}

fn not_allowed(allow: &'static str) -> Response {
    let allow = HeaderMap::from_iter([(header::ALLOW, HeaderValue::from_static(allow))]);
    let body = r#"{"detail":"Method Not Allowed"}"#.to_owned();
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, body, allow);
    response.extensions_mut().insert(NotServed);
    response
}

/// The way to the path that was meant, where only a `/` at its end is too much.
async fn redirect<B>(request: Request<B>) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host.or_else(|| request.uri().authority().map(|authority| authority.as_str())) else {
        return not_found().await;
    };
    let sent = request.extensions().get::<SentPath>().map_or(request.uri().path(), |SentPath(sent)| sent);
    let scheme = if request.extensions().get::<OverTls>().is_some() { "https" } else { "http" };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    match HeaderValue::from_str(&format!("{scheme}://{host}{}{query}", other_ending(sent))) {
        Ok(location) => {
            empty_with(StatusCode::TEMPORARY_REDIRECT, HeaderMap::from_iter([(header::LOCATION, location)]))
        }
        Err(_) => not_found().await,
    }
}
