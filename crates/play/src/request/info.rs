//! Facts about the server for its pages.

use ::http::{HeaderMap, StatusCode};
use axum::{extract::State, response::Response};
use serde_json::json;

use crate::{
    HandlerState, ServerState,
    http::{self, JsonText, empty, json as json_page, page as whole_page, streamed_page},
    load::adapters::Adapter,
    metrics::{CONTENT_TYPE, MOUNTED_CONTENT_TYPE, page},
};

/// `/version`.
pub(crate) async fn version(State(state): HandlerState) -> JsonText {
    JsonText(json!({"version": state.config.vllm_version.name()}).to_string())
}

/// `/health`: whether the server can answer: 503 once a simulated engine has ended by a defect, as where vLLM's has died.
pub(crate) async fn health(State(state): HandlerState) -> Response {
    let is_dead = state.engine.as_ref().is_some_and(|engine| engine.is_dead());
    empty(if is_dead { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK })
}

/// `/v1/models`: every served name, and the adapters.
pub(crate) async fn models(State(state): HandlerState) -> JsonText {
    let created = http::unix_seconds();
    let card = |name: &str, root: &str, parent: Option<&str>, max_model_len: Option<u32>| {
        let permission = json!({
                "id": format!("modelperm-{}", state.fresh_id()), "object": "model_permission", "created": created,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
                "organization": "*", "group": null, "is_blocking": false,
        });
        json!({
            "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": root, "parent": parent,
            "max_model_len": max_model_len, "permission": [permission],
        })
    };
    let model = &state.model;
    let of_model = model.names.iter().map(|name| card(name, &model.root, None, Some(model.max_model_len)));
    let adapters = state.adapters.all();
    let of_adapters = adapters.iter().map(|Adapter { lora, base_model_name }| {
        let parent = base_model_name.as_deref().unwrap_or_else(|| model.first_name());
        card(&lora.lora_name, &lora.lora_path, Some(parent), None)
    });
    let data: Vec<_> = of_model.chain(of_adapters).collect();
    JsonText(json!({"object": "list", "data": data}).to_string())
}

/// `/kv_event_sources`: what each data parallel rank publishes, and where.
pub(crate) async fn kv_event_sources(State(state): HandlerState) -> JsonText {
    let sources = state.engine.as_ref().map(|engine| engine.event_sources()).unwrap_or_default();
    JsonText(json!(sources).to_string())
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(state): HandlerState) -> Response {
    whole_page(CONTENT_TYPE, shown_metrics(&state))
}

/// Whatever else begins with `/metrics`, by any method.
pub(crate) async fn mounted_metrics(State(state): HandlerState) -> Response {
    streamed_page(MOUNTED_CONTENT_TYPE, shown_metrics(&state))
}

/// The page of metrics.
pub(crate) fn shown_metrics(state: &ServerState) -> String {
    state.overrides.apply(page(state))
}

/// `/vcr/engine`: the state of the simulated engine, and what of it does not add up.
pub(crate) async fn engine(State(state): HandlerState) -> Response {
    let Some(engine) = &state.engine else { return empty(StatusCode::NOT_FOUND) };
    match engine.snapshot().await.map(|snapshot| serde_json::to_string_pretty(&snapshot)) {
        Some(Ok(text)) => json_page(StatusCode::OK, text, HeaderMap::new()),
        _ => empty(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// `/load`: requests in progress, where they are tracked.
pub(crate) async fn load(State(state): HandlerState) -> JsonText {
    let load = if state.config.server.load_tracking { state.metrics.load() } else { 0 };
    JsonText(json!({"server_load": load}).to_string())
}
