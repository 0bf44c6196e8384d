//! Which path does what, and what the rest gets.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, uri::PathAndQuery};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    ServerOptions, State,
    account::Slot,
    delivery::Clock,
    derender,
    dev::{self, BodyOf, Endpoint},
    generate,
    http::{AnswerBody, empty, error, json, page, read_body, streamed_page},
    info, messages,
    metrics::{CONTENT_TYPE, MOUNTED_CONTENT_TYPE, Served},
    pages::Page,
    recorded,
    recorded_errors::errors_of,
    render, responses, tokenizer_info, tokens, variants,
};
use crate::{
    api::{Api, ApiError, Query, development},
    net::server::{RequestBody, media_type},
    replay::account::session_of,
    replay::player::Outcome,
};

/// What a path serves, with the methods as the `allow` header lists them. A path with one route per method lists the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Generate(Api),
    Batch,
    Invocations,
    Tokens,
    AbortTokens,
    Render(render::Family),
    Derender(Api),
    Messages,
    CountTokens,
    Responses,
    /// A response that was kept; with what is to be done to it.
    KeptResponse(&'static str),
    Models,
    Health,
    Ping,
    Version,
    Metrics,
    Load,
    Tokenize,
    Detokenize,
    KvEventSources,
    ScaleElasticEp,
    IsScalingElasticEp,
    /// What a model would be needed for.
    Unserved,
    Page(Page),
    Dev(Endpoint),
    TokenizerInfo,
}

impl Route {
    fn find(options: &ServerOptions, path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Generate(Api::Chat),
            "/v1/completions" => Self::Generate(Api::Completions),
            "/v1/chat/completions/batch" => Self::Batch,
            "/invocations" => Self::Invocations,
            "/inference/v1/generate" => Self::Tokens,
            "/inference/v1/abort_requests" => Self::AbortTokens,
            "/v1/chat/completions/render" => Self::Render(render::Family::Of(Api::Chat)),
            "/v1/completions/render" => Self::Render(render::Family::Of(Api::Completions)),
            "/v1/messages/render" => Self::Render(render::Family::Messages),
            "/v1/responses/render" => Self::Render(render::Family::Responses),
            "/v1/chat/completions/derender" => Self::Derender(Api::Chat),
            "/v1/completions/derender" => Self::Derender(Api::Completions),
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/responses" => Self::Responses,
            "/v1/models" => Self::Models,
            "/health" => Self::Health,
            "/ping" => Self::Ping,
            "/version" => Self::Version,
            "/load" => Self::Load,
            path if path.starts_with("/metrics") => Self::Metrics,
            "/kv_event_sources" => Self::KvEventSources,
            "/scale_elastic_ep" => Self::ScaleElasticEp,
            "/is_scaling_elastic_ep" => Self::IsScalingElasticEp,
            "/generative_scoring" | "/v1/systemone" => Self::Unserved,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/tokenizer_info" if options.tokenizer_info.is_some() => Self::TokenizerInfo,
            path => return Self::optional(options, path),
        })
    }

    /// What is served under a path where the options say so, and under paths with an id.
    fn optional(options: &ServerOptions, path: &str) -> Option<Self> {
        let page = Page::find(path).filter(|_| options.no_docs.is_none()).map(Self::Page);
        let endpoint = || Endpoint::find(path).filter(|_| options.dev_mode.is_some()).map(Self::Dev);
        let kept = || responses::kept(path).map(|(_, methods)| Self::KeptResponse(methods));
        page.or_else(endpoint).or_else(kept)
    }

    fn methods(self) -> &'static str {
        match self {
            Self::Models
            | Self::Health
            | Self::Version
            | Self::Ping
            | Self::Metrics
            | Self::Load
            | Self::KvEventSources
            | Self::TokenizerInfo => "GET",
            Self::KeptResponse(methods) => methods,
            Self::Page(_) => Page::METHODS,
            Self::Dev(endpoint) => endpoint.method(),
            Self::Generate(_)
            | Self::Batch
            | Self::Invocations
            | Self::Tokens
            | Self::AbortTokens
            | Self::Render(_)
            | Self::Derender(_)
            | Self::Messages
            | Self::CountTokens
            | Self::Responses
            | Self::Tokenize
            | Self::Detokenize
            | Self::ScaleElasticEp
            | Self::IsScalingElasticEp
            | Self::Unserved => "POST",
        }
    }

    fn takes(self, method: &Method) -> bool {
        let also_posted = self == Self::Ping && *method == Method::POST;
        self == Self::Metrics || also_posted || self.methods().split(", ").any(|allowed| allowed == method.as_str())
    }
}

/// Whether anything is served under a path, by whatever method.
pub(super) fn serves(options: &ServerOptions, path: &str) -> bool {
    Route::find(options, path).is_some()
}

/// Whether a route takes the request.
pub(super) fn served(options: &ServerOptions, path: &str, method: &Method) -> Served {
    if Route::find(options, path).is_some_and(|route| route.takes(method)) { Served::Yes } else { Served::No }
}

/// Answers one request.
pub(super) async fn answer(state: Arc<State>, clock: Clock, request: Request<RequestBody>) -> Response<AnswerBody> {
    let request = match recorded::answer(&state, &clock, request).await {
        Outcome::Answered(response) => return response,
        Outcome::Passed(request) => request,
    };
    let dialect = state.config.vllm_version.dialect();
    let path = request.uri().path();
    match Route::find(&state.config.server, path).filter(|_| dialect.has(path)) {
        None => json(StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#.to_owned(), HeaderMap::new()),
        Some(route) if !route.takes(request.method()) => {
            let allow = HeaderMap::from_iter([(header::ALLOW, HeaderValue::from_static(route.methods()))]);
            json(StatusCode::METHOD_NOT_ALLOWED, r#"{"detail":"Method Not Allowed"}"#.to_owned(), allow)
        }
        Some(route) => {
            let refused = |mut refused: ApiError| {
                dialect.message(&mut refused.message);
                error(&refused)
            };
            serve(&state, clock, route, request).await.unwrap_or_else(refused)
        }
    }
}

async fn serve(
    state: &Arc<State>,
    clock: Clock,
    route: Route,
    request: Request<RequestBody>,
) -> Result<Response<AnswerBody>, ApiError> {
    let ok = |body| json(StatusCode::OK, body, HeaderMap::new());
    match route {
        Route::Health | Route::Ping => Ok(empty(StatusCode::OK)),
        Route::Version => Ok(ok(info::version(state))),
        Route::Load => Ok(ok(info::load(state))),
        // Everything else that starts so is answered by an application of its own.
        Route::Metrics if request.uri().path() != "/metrics" || *request.method() != Method::GET => {
            Ok(streamed_page(MOUNTED_CONTENT_TYPE, info::metrics(state)))
        }
        Route::Metrics => Ok(page(CONTENT_TYPE, info::metrics(state))),
        Route::Models => Ok(ok(info::models(state))),
        Route::TokenizerInfo => Ok(ok(tokenizer_info::body(state))),
        Route::KvEventSources => Ok(ok("{}".to_owned())),
        Route::IsScalingElasticEp => Ok(ok(r#"{"is_scaling_elastic_ep":false}"#.to_owned())),
        Route::ScaleElasticEp => {
            let engines = development::engines(&json_body(state, request).await?.1)?;
            Ok(ok(format!(r#"{{"message":"Scaled to {engines} data parallel engines"}}"#)))
        }
        Route::Unserved => {
            json_body(state, request).await?;
            Err(variants::not_here())
        }
        Route::Page(page) => page.answer(state),
        Route::Dev(endpoint) => development_answer(state, endpoint, request).await,
        Route::Tokenize => {
            let body = json_body(state, request).await?.1;
            tokens::tokenize(state, body).await.map(ok)
        }
        Route::Detokenize => {
            let body = json_body(state, request).await?.1;
            tokens::detokenize(state, body).await.map(ok)
        }
        Route::Generate(api) => generate::generate(state, api, arrival(state, request, clock).await?).await,
        Route::Tokens | Route::AbortTokens | Route::Render(_) | Route::Derender(_) => {
            scale_out(state, clock, route, request).await
        }
        Route::Batch => variants::batch(state, arrival(state, request, clock).await?).await,
        Route::Invocations => variants::invoke(state, arrival(state, request, clock).await?).await,
        Route::Messages => messages::answer(state, arrival(state, request, clock).await?).await,
        Route::Responses => responses::answer(state, arrival(state, request, clock).await?).await,
        Route::KeptResponse(_) => {
            let query = Query::new(request.uri().query());
            responses::kept_answer(state, request.uri().path(), &query)
        }
        Route::CountTokens => {
            let body = json_body(state, request).await?.1;
            messages::count(state, body).await
        }
    }
}

/// The endpoints that a server has for routers, where it has them.
async fn scale_out(
    state: &Arc<State>,
    clock: Clock,
    route: Route,
    request: Request<RequestBody>,
) -> Result<Response<AnswerBody>, ApiError> {
    if state.config.scale_out.is_none() {
        return Err(variants::scale_out_disabled());
    }
    match route {
        Route::AbortTokens => {
            dev::abort_tokens(state, &read_body(request.into_body(), state.config.body_limit).await?)?;
            Ok(empty(StatusCode::OK))
        }
        Route::Render(family) => {
            let (headers, body) = json_body(state, request).await?;
            render::answer(state, family, &headers, body).await.map(|body| json(StatusCode::OK, body, HeaderMap::new()))
        }
        Route::Derender(api) => {
            let body = json_body(state, request).await?.1;
            derender::answer(state, api, body).await.map(|body| json(StatusCode::OK, body, HeaderMap::new()))
        }
        _ => variants::tokens(state, arrival(state, request, clock).await?).await,
    }
}

async fn development_answer(
    state: &State,
    endpoint: Endpoint,
    request: Request<RequestBody>,
) -> Result<Response<AnswerBody>, ApiError> {
    let query = Query::new(request.uri().query());
    let counts = endpoint.body() == BodyOf::Any || is_json(request.headers());
    let body = read_body(request.into_body(), state.config.body_limit).await?;
    dev::answer(state, endpoint, &query, &if counts { body } else { Bytes::new() }).await
}

/// A request for generated tokens, complete.
async fn arrival(state: &State, request: Request<RequestBody>, clock: Clock) -> Result<generate::Arrival, ApiError> {
    let session = session(state, &request)?;
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    let (headers, body) = json_body(state, request).await?;
    let at = Instant::now();
    let errors = errors_of(state, &target, &body).await?;
    Ok(generate::Arrival { headers, body, session, errors, at, clock })
}

/// The session of the trace that a request names; `None` for the default one.
pub(super) fn session(state: &State, request: &Request<RequestBody>) -> Result<Option<Arc<Slot>>, ApiError> {
    let Some(replay) = &state.replay else { return Ok(None) };
    let name = session_of(request.extensions(), request.headers(), &replay.secrets);
    let Some(name) = name.map_err(|wrong| ApiError::bad_request(wrong.to_string()))? else { return Ok(None) };
    let session = replay.account.named(&name, &replay.matcher);
    session.map(Some).map_err(|full| ApiError::bad_request(full.to_string()))
}

/// Reads a body that has to be announced as JSON.
async fn json_body(state: &State, request: Request<RequestBody>) -> Result<(HeaderMap, bytes::Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    let body = read_body(body, state.config.body_limit).await?;
    if is_json(&parts.headers) { Ok((parts.headers, body)) } else { Err(ApiError::unsupported_media_type()) }
}

fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).eq_ignore_ascii_case("application/json")
}

/// Work of up to this weight (bytes of a body, tokens to make up) is done where the request is; heavier work goes to a
/// thread of its own.
pub(super) const INLINE_BYTES: usize = 16 * 1024;

/// KiB of heavy work that are in hand at once: tokenizing takes some seventy bytes of memory for one of text.
const HEAVY_KIB: u32 = 16 * 1024;

/// The shares of [`HEAVY_KIB`]; work heavier than all of them has them alone.
static HEAVY: Semaphore = Semaphore::const_new(HEAVY_KIB as usize);

/// Runs work that grows with what was asked for without holding up other requests. Heavy work waits for its share of
/// the memory, and is not begun for a client that left meanwhile.
///
/// # Errors
/// Those of the work, and 500 where it panicked.
pub(super) async fn off_the_loop<T: Send + 'static>(
    weight: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let panicked = || Err(ApiError::internal("Internal server error"));
    if weight <= INLINE_BYTES {
        return catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panicked());
    }
    let share = u32::try_from(weight / 1024).unwrap_or(u32::MAX).clamp(1, HEAVY_KIB);
    let Ok(share) = HEAVY.acquire_many(share).await else { return panicked() };
    let done = tokio::task::spawn_blocking(move || {
        let _share = share;
        work()
    });
    done.await.unwrap_or_else(|_| panicked())
}
