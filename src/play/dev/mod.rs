//! The endpoints of a server in development mode (`VLLM_SERVER_DEV_MODE=1`), as far as a server without a model has
//! something to do for them.
//!
//! True: pausing, sleeping and resuming hold requests back or end them, aborting ends them, the weights' version is kept.
//! Said only: caches are reset (nothing is cached here; recorded figures stay), memory is released, workers are called
//! (the known methods do nothing), weights are summed up (there are none). A transfer of weights is refused as by an engine
//! that was started without one. `/server_info` tells what this server knows of its configuration.

mod route;
mod server_info;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::sleep;

pub(super) use self::route::{BodyOf, Endpoint};
use super::{
    State,
    gate::{Gate, Hold, Pause},
    http::{AnswerBody, empty, json as json_answer},
};
use crate::api::{
    ApiError, Query,
    development::{self, Abort, PauseMode, Reset, WeightCheck},
};

/// How long the engine lets last outputs leave before it says that it is paused.
const SETTLING: Duration = Duration::from_millis(20);

/// How often a pause looks whether requests are still in progress.
const LOOK: Duration = Duration::from_millis(5);

/// Methods of workers that do nothing here and answer nothing there.
const WORKER_METHODS: [&str; 8] = [
    "execute_dummy_batch",
    "reset_encoder_cache",
    "reset_mm_cache",
    "reset_weights",
    "shutdown_weight_transfer_engine",
    "sleep",
    "synchronize_device",
    "wake_up",
];

/// What the development endpoints change.
#[derive(Debug)]
pub(super) struct Development {
    gate: Arc<Gate>,
    engine: Mutex<Engine>,
}

#[derive(Debug)]
struct Engine {
    /// What of the memory is given away.
    asleep: Vec<&'static str>,
    weight_version: String,
}

/// What memory can be given away.
const MEMORY: [&str; 2] = ["weights", "kv_cache"];

impl Development {
    pub(super) fn new() -> Self {
        let engine = Engine { asleep: Vec::new(), weight_version: "default".to_owned() };
        Self { gate: Arc::new(Gate::new()), engine: Mutex::new(engine) }
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // Nothing panics while it is held.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_paused(&self) -> bool {
        self.gate.pause() != Pause::None
    }
}

impl State {
    /// What an answer of some choices has to ask before it goes on; nothing where no endpoint could hold or end it.
    pub(super) fn hold(&self, id: String, choices: u32) -> Option<Hold> {
        if self.config.server.dev_mode.is_none() && self.config.scale_out.is_none() {
            return None;
        }
        Some(self.dev.gate.enter(id, choices, &self.metrics))
    }
}

/// Ends token requests by the ids that their answers tell.
///
/// # Errors
/// Not JSON, or no ids.
pub(super) fn abort_tokens(state: &State, body: &[u8]) -> Result<(), ApiError> {
    let engine_id = |id: String| match id.strip_prefix("generate-tokens-") {
        Some(id) => format!("cmpl-{id}-0"),
        None => id,
    };
    let ids: Vec<String> = development::abort_tokens(body)?.into_iter().map(engine_id).collect();
    state.dev.gate.abort_named(&ids);
    Ok(())
}

/// Answers a request to one of the endpoints.
///
/// # Errors
/// What does not fit.
pub(super) async fn answer(
    state: &State,
    endpoint: Endpoint,
    query: &Query,
    body: &Bytes,
) -> Result<Response<AnswerBody>, ApiError> {
    let dev = &state.dev;
    let told = match endpoint {
        Endpoint::ResetPrefixCache => json!({"success": is_reset(state, development::reset(query)?)}),
        Endpoint::ResetMmCache | Endpoint::ResetEncoderCache => return Ok(empty(StatusCode::OK)),
        Endpoint::CollectiveRpc => return Ok(called(&development::collective_rpc(body)?)),
        Endpoint::ServerInfo => {
            development::server_info(query)?;
            server_info::told(state)
        }
        Endpoint::Sleep => {
            let (level, mode) = development::sleep(query)?;
            fall_asleep(state, level, mode).await;
            json!({"status": "sleeping", "level": level})
        }
        Endpoint::ReleaseKvCacheMemory => return Ok(released(state)),
        Endpoint::WakeUp => wake_up(state, &query.all("tags")),
        Endpoint::IsSleeping => json!({"is_sleeping": dev.is_paused() || !dev.engine().asleep.is_empty()}),
        Endpoint::Pause => {
            pause(state, development::pause(query)?).await;
            json!({"status": "paused"})
        }
        Endpoint::Resume => {
            dev.gate.set(Pause::None);
            json!({"status": "resumed"})
        }
        Endpoint::IsPaused => json!({"is_paused": dev.is_paused()}),
        Endpoint::AbortRequests => return Ok(aborted(state, development::abort_requests(body)?)),
        Endpoint::GetWorldSize => {
            development::world_size(query)?;
            json!({"world_size": 1})
        }
        Endpoint::Weights(weights) => return self::weights(dev, weights, body),
    };
    Ok(ok(&told))
}

/// Something about the weights.
fn weights(dev: &Development, endpoint: route::Weights, body: &[u8]) -> Result<Response<AnswerBody>, ApiError> {
    use route::Weights;
    let told = match endpoint {
        Weights::Version => json!({"weight_version": dev.engine().weight_version}),
        Weights::SetVersion => {
            let version = development::new_version(body)?;
            dev.engine().weight_version.clone_from(&version);
            json!({"success": true, "new_version": version})
        }
        Weights::Check => match development::weight_check(body)? {
            WeightCheck::Reset => json!({"status": "reset"}),
            WeightCheck::Checksum => json!({"checksums": {}}),
            WeightCheck::Compare(baseline) => {
                let mut mismatches: Vec<&String> = baseline.keys().collect();
                mismatches.sort();
                json!({"match": mismatches.is_empty(), "mismatches": mismatches})
            }
        },
        Weights::Shutdown => json!({"message": "Weight transfer shut down"}),
        Weights::Init => {
            development::init_info(body)?;
            return Ok(no_transfer());
        }
        Weights::Update => {
            development::update_info(body)?;
            return Ok(no_transfer());
        }
        Weights::Finish => {
            development::finished_version(body)?;
            return Ok(no_transfer());
        }
        Weights::Start | Weights::StartDraft => return Ok(no_transfer()),
    };
    Ok(ok(&told))
}

/// Whether the prefix cache could be reset: no running request holds a block of it.
fn is_reset(state: &State, reset: Reset) -> bool {
    // A pause that holds everything took the blocks from those who wait.
    reset == Reset::Forced || state.dev.gate.pause() == Pause::All || state.metrics.running() == 0
}

async fn pause(state: &State, mode: PauseMode) {
    let gate = &state.dev.gate;
    gate.set(if mode == PauseMode::Keep { Pause::All } else { Pause::New });
    match mode {
        PauseMode::Abort => {
            gate.abort_all();
        }
        PauseMode::Wait => {
            while state.metrics.running() > 0 && gate.pause() == Pause::New {
                sleep(LOOK).await;
            }
        }
        PauseMode::Keep => {}
    }
    sleep(SETTLING).await;
}

async fn fall_asleep(state: &State, level: u8, mode: PauseMode) {
    pause(state, mode).await;
    if level > 0 {
        state.dev.engine().asleep = MEMORY.to_vec();
    }
    state.metrics.set_sleep(Some(level));
}

fn wake_up(state: &State, tags: &[&str]) -> Value {
    let memory: Vec<&str> = tags.iter().copied().filter(|tag| *tag != "scheduling").collect();
    let is_awake = {
        let mut engine = state.dev.engine();
        if tags.is_empty() {
            engine.asleep.clear();
        } else if memory.iter().all(|tag| engine.asleep.contains(tag)) {
            engine.asleep.retain(|part| !memory.contains(part));
        }
        engine.asleep.is_empty()
    };
    if is_awake {
        state.dev.gate.set(Pause::None);
        state.metrics.set_sleep(None);
    }
    let tags = if tags.is_empty() { Value::Null } else { json!(tags) };
    json!({"status": if is_awake { "awake" } else { "sleeping" }, "tags": tags})
}

fn released(state: &State) -> Response<AnswerBody> {
    const CALL: &str = "Call to release_kv_cache_memory method failed: release_kv_cache_memory() requires";
    let dev = &state.dev;
    if !dev.is_paused() || state.metrics.running() > 0 {
        return failed(&format!("{CALL} a completed pause first"));
    }
    let mut engine = dev.engine();
    if !engine.asleep.is_empty() {
        return failed(&format!("{CALL} all executor memory to be resident"));
    }
    engine.asleep.push("kv_cache");
    state.metrics.set_sleep(Some(0));
    ok(&json!({"status": "kv_cache_released"}))
}

/// What the workers say to a call.
fn called(method: &Value) -> Response<AnswerBody> {
    match method.as_str() {
        Some(method) if WORKER_METHODS.contains(&method) => ok(&json!({"results": [null]})),
        Some(method) => workers_failed(&format!("'CPUWorker' object has no attribute '{method}'")),
        None => workers_failed("the first argument must be callable"),
    }
}

fn aborted(state: &State, abort: Abort) -> Response<AnswerBody> {
    let gate = &state.dev.gate;
    let count = match abort {
        Abort::All => usize::try_from(gate.abort_all()).unwrap_or(usize::MAX),
        Abort::Named(ids) => {
            gate.abort_named(&ids);
            ids.len()
        }
        Abort::Failing(error) => {
            let body = json!({"error": error}).to_string();
            return json_answer(StatusCode::INTERNAL_SERVER_ERROR, body, HeaderMap::new());
        }
    };
    ok(&json!({"status": "aborted", "aborted": count}))
}

fn no_transfer() -> Response<AnswerBody> {
    workers_failed("Weight transfer not configured. Please set weight_transfer_config to enable weight transfer.")
}

fn workers_failed(error: &str) -> Response<AnswerBody> {
    failed(&format!(
        "Call to collective_rpc method failed: Worker failed with error '{error}', please check the stack trace above for \
         the root cause"
    ))
}

/// A failure that the framework itself tells, outside of the CORS policy.
fn failed(message: &str) -> Response<AnswerBody> {
    let body = ApiError::internal(message).body();
    let mut response = json_answer(StatusCode::INTERNAL_SERVER_ERROR, body, HeaderMap::new());
    response.headers_mut().remove(header::VARY);
    response
}

fn ok(told: &Value) -> Response<AnswerBody> {
    json_answer(StatusCode::OK, told.to_string(), HeaderMap::new())
}
