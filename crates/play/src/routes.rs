//! The endpoint table: which path is served by which handler, and what every other request gets.
//!
//! Paths, methods, `allow` and words are the engine's. A path with a `/` too much at its end is redirected.
//!
//! See docs/decisions/0035-axum-routes.md.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    response::Response,
    routing::{MethodFilter, any, get},
};
use http::Request;
use tower::ServiceBuilder;

use crate::{
    Player, ServerState,
    admin_calls::guarded,
    cassettes::{Cassettes, SemanticAnswers, refusal},
    dialect::Reword,
    endpoints::{Endpoints, not_found},
    faults::{self, FaultLayer, MetricsPages, PageSource},
    mcp::RecordedMcpServers,
    metrics::Watch,
    middleware::{InterceptLayer, Layered},
    page,
    rare::{
        derender, dev, pages,
        render::{self, RequestFamily},
        tokenizer_info, variants,
    },
    recorded::responses::count_unserved,
    request::{
        info, messages, model,
        pipeline::{RecordedResponses, generate},
        responses, tokens,
    },
    settings, simulator,
};
use api::Api;
use replay::account::{self, Access, Admin};

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
            it.serve("/v1/load_lora_adapter", model::load_adapter)
                .serve("/v1/unload_lora_adapter", model::unload_adapter)
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
    if !dialect.cut_messages.is_empty() {
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
        router = router.merge(simulator::probes()).merge(guarded(simulator::routes(state), &Access::of_anyone()));
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
        pages: MetricsPages::sampled(Arc::clone(&state.config.faults), page_source(state)),
    };
    router.layer(ServiceBuilder::new().layer(Layered(Watch::new(&state.metrics, &paths))).layer(InterceptLayer(faults)))
}

/// Makes the page of metrics as long as the server is there.
fn page_source(state: &Arc<ServerState>) -> PageSource {
    let state = Arc::downgrade(state);
    Arc::new(move || Some(info::shown_metrics(&*state.upgrade()?)))
}

/// The pages of `/vcr/…`, `/admin/config` and `/fake_metrics`.
pub(super) fn admin_pages(player: &Player, access: &Access) -> Router {
    vcr_pages(player, access).merge(guarded(simulator::routes(&player.state), access))
}

fn vcr_pages(player: &Player, access: &Access) -> Router {
    let state = &player.state;
    let mut pages = faults::routes(Arc::clone(&state.config.faults), state.replica).merge(settings::routes(state));
    if state.engine.is_some() {
        pages = pages.route("/vcr/engine", get(info::engine).with_state(Arc::clone(state)));
    }
    pages = guarded(pages, access);
    if let Some(ledger) = state.ledger() {
        pages = pages.merge(account::router(ledger, access.clone()));
    }
    pages.merge(page::routes(Arc::clone(&state.metrics), access))
}

/// Answers a request of a path without an endpoint, which a trace that is served misses.
async fn unserved(State(player): State<Player>, request: Request<Body>) -> Response {
    count_unserved(&player.state, &request);
    not_found().await
}
