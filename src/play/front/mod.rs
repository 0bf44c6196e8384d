//! Middleware before the routes: the API keys, the CORS policy, the path prefix and the request id.
//!
//! The order is the engine's: an answer to a refused key carries no CORS headers, a preflight needs no key, and every
//! answer carries the request id where answers do. Limits: paths whose decoded form is no URI path are matched as they were sent.

mod auth;
mod cors;
mod uvicorn;

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use axum::{body::Body, extract::Request, response::Response};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, uri::PathAndQuery};
use hyper::body::Incoming;
use tower::{ServiceBuilder, util::MapRequestLayer};

pub(super) use self::uvicorn::connection_options;
pub use self::{auth::ApiKeys, cors::Cors};
use crate::{
    net::{server::UntilStopping, wire::percent_decoded},
    play::{
        Player, ServerState,
        http::{empty, json as json_page},
        middleware::{Layered, Middleware, called},
        routes,
        simulator::{NamePod, SimulatorOptions},
    },
    replay::{
        account::{self, NetworkBlock},
        delivery::Clock,
    },
};
use serde_json::json;

/// Options of the server around the model, as vLLM's flags of the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// Keys of which a client needs one; empty for no check.
    pub api_keys: ApiKeys,
    /// Which web pages of other origins may call.
    pub cors: Cors,
    /// Path under which a proxy shows this server, such as `/llm`; empty for none.
    pub root_path: String,
    /// True where `/load` counts requests (vLLM's `--enable-server-load-tracking`); else it is zero.
    pub load_tracking: bool,
    /// True where every stream ends with usage and every event has it, requested or not.
    pub force_usage: bool,
    /// Time that a stream may be silent before a comment keeps its connection alive; `None` for ever.
    pub keep_alive: Option<Duration>,
    /// Time that a connection may be idle between requests (vLLM's `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`); `None` for 5 s.
    pub idle: Option<Duration>,
    /// Choices that may be in progress at a time; a request that would make more of them is refused with 503.
    pub max_queued: Option<u32>,
    /// True where the development endpoints are served (vLLM's `VLLM_SERVER_DEV_MODE`).
    pub dev_mode: bool,
    /// True where clients may load and unload adapters (vLLM's `VLLM_ALLOW_RUNTIME_LORA_UPDATING`).
    pub runtime_lora_updating: bool,
    /// True where `/metrics` has the families about single blocks of the cache (vLLM's `--kv-cache-metrics`).
    pub kv_cache_metrics: bool,
    /// True where `/metrics` has families of this program's own after the engine's.
    pub vcr_metrics: bool,
    /// True where there is `/tokenizer_info`.
    pub tokenizer_info: bool,
    /// True where the pages about the API are left out (vLLM's `--disable-fastapi-docs`).
    pub no_docs: bool,
    /// True where responses are kept (vLLM's `VLLM_ENABLE_RESPONSES_API_STORE`).
    pub responses_store: bool,
    /// Time for which requests are refused with 503 from the start, as if a model were loaded.
    pub startup: Duration,
    /// What llm-d-inference-sim serves beside vLLM's endpoints.
    pub simulator: SimulatorOptions,
}

/// The routes of a server behind its middleware, without the type, which has each layer twice for each optional layer above it.
pub(super) type App = Arc<dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// Builds the routes of a server behind its middleware.
pub(super) fn app(player: &Player) -> App {
    let state = &player.state;
    let options = &state.config.server;
    let root: Arc<str> = options.root_path.as_str().into();
    let request_id = state.config.request_id_headers.then(|| Layered(AddRequestId(Arc::clone(state))));
    let pod = options.simulator.endpoints.then(|| Layered(NamePod(Arc::clone(state))));
    let has_sessions = state.config.cassette_player.is_some() || state.replay.is_some();
    let sessions = has_sessions.then(|| MapRequestLayer::new(entered));
    let starting = (!options.startup.is_zero()).then(|| Layered(Starting(Arc::clone(state))));
    let keys = (!options.api_keys.is_empty()).then(|| Arc::new(options.api_keys.clone()));
    let keys = keys.map(|keys| Layered(auth::RequireKey { keys, root: Arc::clone(&root) }));
    let service = ServiceBuilder::new()
        .option_layer(request_id)
        .option_layer(pod)
        .option_layer(sessions)
        .option_layer(keys)
        .layer(Layered(cors::Share(Arc::new(options.cors.clone()))))
        .map_request(move |request: Request| rewrite(request, &root))
        .option_layer(starting)
        .service(routes::router(player));
    Arc::new(move |request| Box::pin(called(service.clone(), request)))
}

/// Answers one request: one for another server with a refusal, else as the engine's HTTP server where that is enough, else by the app.
pub(super) async fn answer(
    app: App,
    clock: Clock,
    block: Option<Arc<NetworkBlock>>,
    mut request: hyper::Request<UntilStopping<Incoming>>,
) -> Response {
    if let Some(refusal) = block.and_then(|block| block.check(&mut request)) {
        return refusal.map(Body::new);
    }
    if let Some(response) = uvicorn::answer(&request) {
        return response;
    }
    let is_old = uvicorn::is_old(&request);
    request.extensions_mut().insert(clock);
    let mut response = app(request.map(Body::new)).await;
    if is_old {
        uvicorn::close(&mut response);
    }
    response
}

/// The request without the session in its path.
fn entered(mut request: Request) -> Request {
    account::enter(&mut request);
    request
}

/// The middleware that adds a request's id to its answer.
#[derive(Debug, Clone)]
struct AddRequestId(Arc<ServerState>);

impl Middleware for AddRequestId {
    type Kept = Option<(HeaderName, HeaderValue)>;

    fn before(&self, request: &mut Request) -> ControlFlow<Response, Self::Kept> {
        ControlFlow::Continue(self.0.request_id_header(request.headers()))
    }

    fn after(id: Self::Kept, mut response: Response) -> Response {
        response.headers_mut().extend(id);
        response
    }
}

/// The middleware that refuses until the server is ready.
#[derive(Debug, Clone)]
pub(super) struct Starting(pub(super) Arc<ServerState>);

impl Middleware for Starting {
    type Kept = ();

    fn before(&self, request: &mut Request) -> ControlFlow<Response, ()> {
        let path = request.uri().path();
        if self.0.is_ready() || path.starts_with("/vcr/") || path.starts_with("/metrics") {
            return ControlFlow::Continue(());
        }
        let status = StatusCode::SERVICE_UNAVAILABLE;
        if ["/health", "/ping"].contains(&path) {
            return ControlFlow::Break(empty(status));
        }
        let message = "The model is still being loaded (--startup-duration).";
        let error = json!({"message": message, "type": "Service Unavailable", "param": null, "code": 503});
        ControlFlow::Break(json_page(status, json!({"error": error}).to_string(), HeaderMap::new()))
    }

    fn after((): (), response: Response) -> Response {
        response
    }
}

/// The path after the prefix as text, for the check of API keys.
pub(super) fn below<'a>(path: &'a str, root: &str) -> &'a str {
    path.strip_prefix(root).unwrap_or(path)
}

/// The path after the prefix where a path segment ends there, for the routes.
fn route<'a>(path: &'a str, root: &str) -> &'a str {
    match path.strip_prefix(root) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    }
}

/// In the extensions of a request whose path was rewritten: the decoded path as it was sent.
#[derive(Debug, Clone)]
pub(in super::super) struct SentPath(pub(in super::super) String);

/// Gives the request the path of its route.
pub(super) fn rewrite<B>(mut request: Request<B>, root: &str) -> Request<B> {
    let is_same = route(&percent_decoded(request.uri().path()), root) == request.uri().path();
    if is_same {
        return request;
    }
    let sent = percent_decoded(request.uri().path()).into_owned();
    let path = route(&sent, root);
    if !path.contains(['?', '#', '%']) {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = format!("{path}{query}").parse::<PathAndQuery>().ok();
        if let Some(uri) = parts.path_and_query.is_some().then(|| Uri::from_parts(parts).ok()).flatten() {
            *request.uri_mut() = uri;
        }
    }
    request.extensions_mut().insert(SentPath(sent));
    request
}

/// The path with its last `/` taken away or, where it has none, added.
pub(in super::super) fn other_ending(path: &str) -> String {
    path.strip_suffix('/').map_or_else(|| format!("{path}/"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use crate::play::front::*;

    #[test]
    fn the_guard_takes_the_prefix_as_text_the_routes_as_segments() {
        assert_eq!((below("/api/v1", "/api"), route("/api/v1", "/api")), ("/v1", "/v1"));
        assert_eq!((below("/apiv1", "/api"), route("/apiv1", "/api")), ("v1", "/apiv1"));
        assert_eq!((below("/v1", "/api"), route("/v1", "/api")), ("/v1", "/v1"));
        assert_eq!((below("/v1", ""), route("/v1", "")), ("/v1", "/v1"));
    }

    #[test]
    fn a_rewritten_request_keeps_its_query_and_its_authority() {
        for (uri, path) in
            [("/api/%761/x?a=%20", "/v1/x?a=%20"), ("http://h/api/x", "http://h/x"), ("/a%3Fb", "/a%3Fb")]
        {
            let request = rewrite(Request::builder().uri(uri).body(()).unwrap(), "/api");
            assert_eq!(request.uri().to_string(), path);
        }
    }
}
