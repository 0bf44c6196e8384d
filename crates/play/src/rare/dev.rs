//! The endpoints of a server in development mode (`VLLM_SERVER_DEV_MODE=1`), as far as a server without a model has
//! something to do for them.
//!
//! True: pausing, sleeping and resuming hold requests back or end them, aborting ends them, the weights' version is kept. With a
//! simulated engine they are its scheduler's, and its prefix cache is reset.
//! Without effect: caches are reset without an engine (recorded figures stay), memory is released, workers are called
//! (the known methods do nothing), weights are summed up (there are none). A transfer of weights is refused as by an engine
//! that was started without one. `/server_info` has what this server has of the settings that the engine prints there, as an object always.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use axum::{extract::State, response::Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::sleep as rest;

use crate::{
    HandlerState, ServerState,
    dialect::ENGINE_VERSION,
    endpoints::Endpoints,
    engine::Control,
    http::{ErrorResponse, JsonText, empty, json as json_answer},
    request::extract::{AnyBody, JsonBody, OptionalJson, ScaleOutEnabled},
};
use ::engine::scheduler::PauseState;
use api::{
    ApiError, Query,
    development::{self, Abort, PauseMode, WeightCheck},
};
use replay::delivery::AbortedBy;

/// Time that the engine leaves to last outputs before it counts as paused.
const SETTLING: Duration = Duration::from_millis(20);

/// Interval at which a pause looks for requests in progress.
const LOOK: Duration = Duration::from_millis(5);

/// Methods of workers that do nothing here and answer nothing there.
pub(in super::super) const WORKER_METHODS: [&str; 8] = [
    "execute_dummy_batch",
    "reset_encoder_cache",
    "reset_mm_cache",
    "reset_weights",
    "shutdown_weight_transfer_engine",
    "sleep",
    "synchronize_device",
    "wake_up",
];

/// Kinds of memory that can be given away.
const MEMORY: [&str; 2] = ["weights", "kv_cache"];

pub(in super::super) fn endpoints(endpoints: Endpoints) -> Endpoints {
    endpoints
        .serve("/reset_prefix_cache", reset_prefix_cache)
        .serve("/reset_mm_cache", || async { empty(StatusCode::OK) })
        .serve("/reset_encoder_cache", || async { empty(StatusCode::OK) })
        .serve("/collective_rpc", collective_rpc)
        .serve("/server_info", server_info)
        .serve("/sleep", sleep)
        .serve("/release_kv_cache_memory", release_kv_cache_memory)
        .serve("/wake_up", wake_up)
        .serve("/is_sleeping", is_sleeping)
        .serve("/pause", pause)
        .serve("/resume", resume)
        .serve("/abort_requests", abort_requests)
        .serve("/is_paused", is_paused)
        .serve("/get_world_size", get_world_size)
        .serve("/init_weight_transfer_engine", init_weight_transfer)
        .serve("/shutdown_weight_transfer_engine", || async { ok(&json!({"message": "Weight transfer shut down"})) })
        .serve("/start_weight_update", || async { no_transfer() })
        .serve("/start_draft_weight_update", || async { no_transfer() })
        .serve("/update_weights", update_weights)
        .serve("/finish_weight_update", finish_weight_update)
        .serve("/update_weight_version", update_weight_version)
        .serve("/weight_info", weight_info)
        .serve("/weight_checker", weight_checker)
}

/// `/inference/v1/abort_requests`: ends token requests by the ids that their answers have.
pub(in super::super) async fn abort_tokens(
    State(state): HandlerState,
    _: ScaleOutEnabled,
    AnyBody(body): AnyBody,
) -> Result<Response, ErrorResponse> {
    let engine_id = |id: String| match id.strip_prefix("generate-tokens-") {
        Some(id) => format!("cmpl-{id}-0"),
        None => id,
    };
    let ids: Vec<String> = development::abort_tokens(&body)?.into_iter().map(engine_id).collect();
    state.dev.gate.abort_named(&ids);
    Ok(empty(StatusCode::OK))
}

/// `/scale_elastic_ep`, of which the known number of engines is accepted and nothing else happens.
pub(in super::super) async fn scale_elastic_ep(JsonBody { bytes, .. }: JsonBody) -> Result<JsonText, ErrorResponse> {
    let engines = development::engines(&bytes)?;
    Ok(JsonText(format!(r#"{{"message":"Scaled to {engines} data parallel engines"}}"#)))
}

/// `/is_scaling_elastic_ep`: it never is.
pub(in super::super) async fn is_scaling_elastic_ep() -> JsonText {
    JsonText(r#"{"is_scaling_elastic_ep":false}"#.to_owned())
}

async fn reset_prefix_cache(State(state): HandlerState, query: Query) -> Result<Response, ErrorResponse> {
    let is_reset = reset_cache(&state, development::reset(&query)?).await;
    Ok(ok(&json!({"success": is_reset})))
}

async fn collective_rpc(AnyBody(body): AnyBody) -> Result<Response, ErrorResponse> {
    Ok(called(&development::collective_rpc(&body)?))
}

async fn server_info(State(state): HandlerState, query: Query) -> Result<Response, ErrorResponse> {
    development::server_info(&query)?;
    Ok(ok(&json!({
        "vllm_config": {
            "model_config": {
                "model": state.model.first_name(),
                "served_model_name": state.model.names,
                "tokenizer": state.model.tokenizer.name(),
                "max_model_len": state.model.max_model_len,
                "seed": state.config.seed,
            },
            "cache_config": {"block_size": state.block_size},
            "parallel_config": {"world_size": 1},
        },
        "vllm_env": {"VLLM_SERVER_DEV_MODE": true},
        "system_env": {"vllm_version": ENGINE_VERSION, "os": std::env::consts::OS},
    })))
}

async fn sleep(State(state): HandlerState, query: Query) -> Result<Response, ErrorResponse> {
    let (level, mode) = development::sleep(&query)?;
    fall_asleep(&state, level, mode).await;
    Ok(ok(&json!({"status": "sleeping", "level": level})))
}

async fn is_sleeping(State(state): HandlerState) -> Response {
    ok(&json!({"is_sleeping": state.dev.is_asleep()}))
}

async fn pause(State(state): HandlerState, query: Query) -> Result<Response, ErrorResponse> {
    let (mode, clears) = development::pause(&query)?;
    pause_engine(&state, mode, clears).await;
    Ok(ok(&json!({"status": "paused"})))
}

async fn resume(State(state): HandlerState) -> Response {
    go_on(&state).await;
    ok(&json!({"status": "resumed"}))
}

async fn is_paused(State(state): HandlerState) -> Response {
    ok(&json!({"is_paused": state.dev.is_paused()}))
}

async fn get_world_size(State(state): HandlerState, query: Query) -> Result<Response, ErrorResponse> {
    let counts_ranks = development::world_size(&query)?;
    let world_size = if counts_ranks { state.metrics.ranks() } else { 1 };
    Ok(ok(&json!({"world_size": world_size})))
}

async fn weight_info(State(state): HandlerState) -> Response {
    ok(&json!({"weight_version": state.dev.weight_version()}))
}

async fn update_weight_version(
    State(state): HandlerState,
    OptionalJson(body): OptionalJson,
) -> Result<Response, ErrorResponse> {
    let version = development::new_version(&body)?;
    state.dev.set_weight_version(&version);
    Ok(ok(&json!({"success": true, "new_version": version})))
}

async fn weight_checker(OptionalJson(body): OptionalJson) -> Result<Response, ErrorResponse> {
    Ok(ok(&match development::weight_check(&body)? {
        WeightCheck::Reset => json!({"status": "reset"}),
        WeightCheck::Checksum => json!({"checksums": {}}),
        WeightCheck::Compare(baseline) => {
            let mut mismatches: Vec<&String> = baseline.keys().collect();
            mismatches.sort();
            json!({"match": mismatches.is_empty(), "mismatches": mismatches})
        }
    }))
}

async fn init_weight_transfer(OptionalJson(body): OptionalJson) -> Result<Response, ErrorResponse> {
    development::init_info(&body)?;
    Ok(no_transfer())
}

async fn update_weights(OptionalJson(body): OptionalJson) -> Result<Response, ErrorResponse> {
    development::update_info(&body)?;
    Ok(no_transfer())
}

async fn finish_weight_update(OptionalJson(body): OptionalJson) -> Result<Response, ErrorResponse> {
    development::finished_version(&body)?;
    Ok(no_transfer())
}

/// Resets the prefix cache; false where a running request holds a block of it, and may keep it.
pub(in super::super) async fn reset_cache(state: &ServerState, preempts_running: bool) -> bool {
    match &state.engine {
        Some(engine) => engine.order(Control::Reset { preempts_running }).await,
        // A pause that holds everything took the blocks from those who wait.
        None => preempts_running || state.dev.gate.pause() == PauseState::All || state.metrics.running() == 0,
    }
}

/// Pauses the engine, and gives its memory away from level 1 on.
pub(in super::super) async fn fall_asleep(state: &ServerState, level: u8, mode: PauseMode) {
    pause_engine(state, mode, level > 0).await;
    if level > 0 {
        state.dev.engine.lock().asleep = MEMORY.to_vec();
    }
    state.metrics.set_sleep(Some(level));
}

/// Pauses the engine; returns once it rests.
pub(in super::super) async fn pause_engine(state: &ServerState, mode: PauseMode, clears: bool) {
    let gate = &state.dev.gate;
    let state_of_pause = if mode == PauseMode::Keep { PauseState::All } else { PauseState::New };
    gate.set(state_of_pause);
    if mode == PauseMode::Abort {
        gate.abort_all(AbortedBy::Engine);
    }
    if let Some(engine) = &state.engine {
        engine.order(Control::Pause { state: state_of_pause, aborts: mode == PauseMode::Abort, clears }).await;
    }
    if mode == PauseMode::Wait {
        while state.metrics.running() > 0 && gate.pause() == PauseState::New {
            rest(LOOK).await;
        }
    }
    rest(SETTLING).await;
}

/// Lets requests through again.
pub(in super::super) async fn go_on(state: &ServerState) {
    state.dev.gate.set(PauseState::None);
    state.dev.refuses_requests.store(false, Relaxed);
    if let Some(engine) = &state.engine {
        engine.order(Control::Resume).await;
    }
}

async fn wake_up(State(state): HandlerState, query: Query) -> Response {
    let tags = query.all("tags");
    let is_awake = awake(&state, &tags).await;
    let tags = if tags.is_empty() { Value::Null } else { json!(tags) };
    ok(&json!({"status": if is_awake { "awake" } else { "sleeping" }, "tags": tags}))
}

/// Takes memory back, all where no tag names a part; whether the engine is awake then.
pub(in super::super) async fn awake(state: &ServerState, tags: &[&str]) -> bool {
    let memory: Vec<&str> = tags.iter().copied().filter(|tag| *tag != "scheduling").collect();
    let is_awake = {
        let mut engine = state.dev.engine.lock();
        if tags.is_empty() {
            engine.asleep.clear();
        } else if memory.iter().all(|tag| engine.asleep.contains(tag)) {
            engine.asleep.retain(|part| !memory.contains(part));
        }
        engine.asleep.is_empty()
    };
    if is_awake {
        go_on(state).await;
        state.metrics.set_sleep(None);
    }
    is_awake
}

async fn release_kv_cache_memory(State(state): HandlerState) -> Response {
    match release_cache_memory(&state).await {
        Ok(()) => ok(&json!({"status": "kv_cache_released"})),
        Err(needed) => failed(&format!(
            "Call to release_kv_cache_memory method failed: release_kv_cache_memory() requires {needed}"
        )),
    }
}

/// Gives the memory of the cache away.
/// Errors: what has to be done before.
pub(in super::super) async fn release_cache_memory(state: &ServerState) -> Result<(), &'static str> {
    let (dev, metrics) = (&state.dev, &state.metrics);
    // A pause that keeps requests is complete, whatever runs: they are recomputed.
    let is_settled = dev.gate.pause() == PauseState::All || metrics.running() == 0;
    if !dev.is_paused() || !is_settled {
        return Err("a completed pause first");
    }
    if !dev.engine.lock().asleep.is_empty() {
        return Err("all executor memory to be resident");
    }
    if let Some(engine) = &state.engine {
        engine.order(Control::Reset { preempts_running: true }).await;
    }
    dev.engine.lock().asleep.push("kv_cache");
    metrics.set_sleep(Some(0));
    Ok(())
}

/// Results of the workers of a call.
fn called(method: &Value) -> Response {
    match method.as_str() {
        Some(method) if WORKER_METHODS.contains(&method) => ok(&json!({"results": [null]})),
        Some(method) => workers_failed(&format!("'CPUWorker' object has no attribute '{method}'")),
        None => workers_failed("the first argument must be callable"),
    }
}

async fn abort_requests(State(state): HandlerState, AnyBody(body): AnyBody) -> Result<Response, ErrorResponse> {
    let gate = &state.dev.gate;
    let count = match development::abort_requests(&body)? {
        Abort::All => usize::try_from(gate.abort_all(AbortedBy::Server)).unwrap_or(usize::MAX),
        Abort::Named(ids) => {
            gate.abort_named(&ids);
            ids.len()
        }
        Abort::Failing(error) => {
            let body = json!({"error": error}).to_string();
            return Ok(json_answer(StatusCode::INTERNAL_SERVER_ERROR, body, HeaderMap::new()));
        }
    };
    Ok(ok(&json!({"status": "aborted", "aborted": count})))
}

fn no_transfer() -> Response {
    workers_failed("Weight transfer not configured. Please set weight_transfer_config to enable weight transfer.")
}

fn workers_failed(error: &str) -> Response {
    failed(&format!(
        "Call to collective_rpc method failed: Worker failed with error '{error}', please check the stack trace above for \
         the root cause"
    ))
}

/// A failure of the framework itself, outside of the CORS policy.
fn failed(message: &str) -> Response {
    let body = ApiError::internal(message).body();
    let mut response = json_answer(StatusCode::INTERNAL_SERVER_ERROR, body, HeaderMap::new());
    response.headers_mut().remove(header::VARY);
    response
}

fn ok(body: &Value) -> Response {
    json_answer(StatusCode::OK, body.to_string(), HeaderMap::new())
}
