//! What stands before the routes: the path prefix, the API keys, the CORS policy and the request id.
//!
//! The order is the engine's: an answer to a refused key carries no CORS headers, a preflight needs no key, and every
//! answer carries the request id where answers do. A path that is served only with or without its last `/` is redirected.
//! Limits: paths whose decoded form is no URI path are matched as they were sent.

mod auth;
mod cors;
mod path;
mod uvicorn;

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::Instant;
use tower_service::Service;

pub(super) use self::uvicorn::connection_options;
pub use self::{
    auth::ApiKeys,
    cors::{Cors, Credentials},
};
use super::{
    State,
    delivery::Clock,
    http::{AnswerBody, empty_with},
    metrics::{count_played, watch},
    routes,
};
use crate::{
    net::server::{BodyError, OverTls, RequestBody},
    net::wire::percent_decoded,
    replay::account::{self, Admin},
    replay::player::{Outcome, Unanswered},
};

/// What an operator says about the server around the model, as vLLM's flags of the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// Keys of which a client needs one; empty asks for none.
    pub api_keys: ApiKeys,
    /// Which web pages of other origins may call.
    pub cors: Cors,
    /// Path under which a proxy shows this server, such as `/llm`; empty for none.
    pub root_path: String,
    /// Whether `/load` counts requests (vLLM's `--enable-server-load-tracking`); else it tells zero.
    pub load_tracking: Option<LoadTracking>,
    /// Whether every stream ends with usage and every event tells it, asked for or not.
    pub force_usage: Option<ForceUsage>,
    /// How long a stream may be silent before a comment keeps its connection alive; `None` for ever.
    pub keep_alive: Option<Duration>,
    /// How long a connection may be idle between requests (vLLM's `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`); `None` for 5 s.
    pub idle: Option<Duration>,
    /// Choices that may be in progress at a time; a request that would make more of them is refused with 503.
    pub max_queued: Option<u32>,
    /// Whether the development endpoints are served (vLLM's `VLLM_SERVER_DEV_MODE`).
    pub dev_mode: Option<DevMode>,
    /// Whether `/metrics` has the families about single blocks of the cache (vLLM's `--kv-cache-metrics`).
    pub kv_cache_metrics: Option<KvCacheMetrics>,
    /// Whether `/metrics` has families of this program's own after the engine's.
    pub vcr_metrics: Option<VcrMetrics>,
    /// Whether there is `/tokenizer_info`.
    pub tokenizer_info: Option<TokenizerInfo>,
    /// Whether the pages about the API are left out (vLLM's `--disable-fastapi-docs`).
    pub no_docs: Option<NoDocs>,
    /// Whether responses are kept (vLLM's `VLLM_ENABLE_RESPONSES_API_STORE`).
    pub responses_store: Option<ResponsesStore>,
}

/// The development endpoints are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevMode;

/// Responses are kept: they can be retrieved, cancelled, followed and made in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponsesStore;

/// There is `/tokenizer_info` (vLLM's `--enable-tokenizer-info-endpoint`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenizerInfo;

/// `/metrics` has the families about single blocks of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCacheMetrics;

/// `/metrics` has families of this program's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VcrMetrics;

/// No pages about the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDocs;

/// Every stream tells usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForceUsage;

/// `/load` tells how many requests are in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadTracking;

/// Answers one request.
pub(super) async fn answer(state: Arc<State>, clock: Clock, mut request: Request<Incoming>) -> Response<AnswerBody> {
    if let Some(response) = uvicorn::answer(&request) {
        return response;
    }
    let old = uvicorn::is_old(&request);
    let id_header = state.request_id_header(request.headers());
    let options = &state.config.server;
    if state.config.deck.is_some() || state.replay.is_some() {
        account::enter(&mut request);
    }
    let sent = percent_decoded(request.uri().path()).into_owned();
    let mut response =
        if options.api_keys.refuse(request.method(), path::below(&sent, &options.root_path), request.headers()) {
            auth::unauthorized()
        } else if let Some(preflight) = options.cors.preflight(&request) {
            preflight
        } else {
            path::rewrite(&mut request, &sent, &options.root_path);
            let origin = request.headers().get(header::ORIGIN).cloned();
            let is_served = routes::served(options, request.uri().path(), request.method());
            let metrics = Arc::clone(&state.metrics);
            let routed = Arc::clone(&state);
            let answering = async move |request| played(routed, clock, request, &sent).await;
            let answered = watch(&metrics, request, is_served, answering).await;
            options.cors.dress(answered, origin.as_ref())
        };
    if let Some((name, value)) = id_header {
        response.headers_mut().insert(name, value);
    }
    uvicorn::close_for(old, &mut response);
    response
}

/// Answers from a cassette where there are any, else as the engine would.
async fn played(state: Arc<State>, clock: Clock, mut request: Request<Incoming>, sent: &str) -> Response<AnswerBody> {
    if state.config.admin == Admin::Here
        && request.uri().path().starts_with("/vcr/")
        && let Some(account) = state.ledger()
    {
        let answering = account::router(account).call(request);
        let response = answering.await.unwrap_or_else(|never: Infallible| match never {});
        return response.map(|body| body.map_err(BodyError::broken).boxed_unsync());
    }
    let request = match &state.config.deck {
        None => request.map(RequestBody::Live),
        Some(deck) => {
            let (options, path) = (&state.config.server, request.uri().path());
            if !routes::serves(options, path) && !routes::serves(options, &path::other_ending(path)) {
                request.extensions_mut().insert(Unanswered);
            }
            let at = Instant::now();
            match Box::pin(deck.answer(request, &clock.pacer)).await {
                Outcome::Answered(response) => return count_played(&state.metrics, response, at),
                Outcome::Passed(request) => request,
            }
        }
    };
    match redirect(&state.config.server, &request, sent) {
        Some(redirect) => redirect,
        // On the heap: it takes kilobytes, which would be copied from call to call and kept while the answer is sent.
        None => Box::pin(routes::answer(state, clock, request)).await,
    }
}

/// The way to the path that was meant, where only a `/` at its end is too much or missing.
fn redirect<B>(options: &ServerOptions, request: &Request<B>, sent: &str) -> Option<Response<AnswerBody>> {
    let path = request.uri().path();
    if path == "/" || routes::serves(options, path) {
        return None;
    }
    let other = path::other_ending(path);
    if !routes::serves(options, &other) {
        return None;
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()))?;
    let scheme = if request.extensions().get::<OverTls>().is_some() { "https" } else { "http" };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = format!("{scheme}://{host}{}{query}", path::other_ending(sent));
    let location = HeaderValue::from_str(&location).ok()?;
    Some(empty_with(StatusCode::TEMPORARY_REDIRECT, HeaderMap::from_iter([(header::LOCATION, location)])))
}
