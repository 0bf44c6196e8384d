//! Calls of a front end that are no requests: caches, sleep, pauses, adapters. Each is answered; one that is not known fails.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use engine_core::{msgpack::MsgpackValue, request::LoraName, utility::UtilityCall};

use super::request::load;
use crate::{
    ServerState,
    rare::dev::{WORKER_METHODS, awake, fall_asleep, go_on, pause_engine, release_cache_memory, reset_cache},
};
use api::development::PauseMode;
use base::lock::Lock;

/// Names of the adapters that a front end has added, by its numbers of them.
#[derive(Debug, Default)]
pub(super) struct AdapterNumbers(Lock<BTreeMap<u64, String>>);

/// Carries a call out; its `UtilityOutput`.
pub(super) async fn call(state: &ServerState, adapters: &AdapterNumbers, call: &UtilityCall) -> MsgpackValue {
    let nothing = MsgpackValue::Nil;
    let result = match call.method.as_str() {
        "get_supported_tasks" => Ok(vec!["generate"].into()),
        "reset_mm_cache" | "reset_encoder_cache" | "profile" | "execute_dummy_batch" => Ok(nothing),
        "reset_prefix_cache" => Ok(reset_cache(state, flag(call, 0)).await.into()),
        "sleep" => {
            fall_asleep(state, level(call), mode(call, 1)).await;
            Ok(nothing)
        }
        "wake_up" => {
            let tags = call.args.first().and_then(MsgpackValue::as_array).unwrap_or_default();
            let tags: Vec<&str> = tags.iter().filter_map(MsgpackValue::as_str).collect();
            Ok(awake(state, &tags).await.into())
        }
        "is_sleeping" => Ok(state.dev.is_asleep().into()),
        "pause_scheduler" | "pause_generation" => {
            if call.method == "pause_generation" {
                state.dev.refuses_requests.store(mode(call, 0) != PauseMode::Keep, Relaxed);
            }
            pause_engine(state, mode(call, 0), flag(call, 1)).await;
            Ok(nothing)
        }
        "resume_scheduler" => {
            go_on(state).await;
            Ok(nothing)
        }
        "is_scheduler_paused" => Ok(state.dev.is_paused().into()),
        "release_kv_cache_memory" => match release_cache_memory(state).await {
            Ok(()) => Ok(nothing),
            Err(needed) => Err(format!("release_kv_cache_memory() requires {needed}")),
        },
        "get_weight_version" => Ok(state.dev.weight_version().as_str().into()),
        "set_weight_version" => match call.args.first().and_then(MsgpackValue::as_str) {
            Some(version) => {
                state.dev.set_weight_version(version);
                Ok(nothing)
            }
            None => Err("the version is no text".to_owned()),
        },
        "add_lora" => add_lora(state, adapters, call),
        "remove_lora" => Ok(adapters.remove(state, number(call)).into()),
        "pin_lora" => Ok(adapters.0.lock().contains_key(&number(call)).into()),
        "list_loras" => Ok(adapters.0.lock().keys().copied().collect::<Vec<u64>>().into()),
        "collective_rpc" => collective_rpc(call),
        "compute_weight_checksums" | "get_kv_cache_group_metadata" => Ok(MsgpackValue::Array(Vec::new())),
        _ => Err("an engine without a model has no such method".to_owned()),
    };
    call.output(result)
}

impl AdapterNumbers {
    /// Forgets an adapter; false where there is none of that number.
    fn remove(&self, state: &ServerState, number: u64) -> bool {
        let Some(lora_name) = self.0.lock().remove(&number) else { return false };
        state.adapters.unload(&lora_name).is_ok()
    }
}

fn add_lora(state: &ServerState, adapters: &AdapterNumbers, call: &UtilityCall) -> Result<MsgpackValue, String> {
    let adapter = call.args.first().and_then(LoraName::read).ok_or("the adapter is no LoRARequest")?;
    load(state, &adapter).map_err(|error| error.message)?;
    adapters.0.lock().insert(adapter.lora_int_id, adapter.lora_name);
    Ok(true.into())
}

fn collective_rpc(call: &UtilityCall) -> Result<MsgpackValue, String> {
    match call.args.first().and_then(MsgpackValue::as_str) {
        // One worker, which answers nothing.
        Some(method) if WORKER_METHODS.contains(&method) => Ok(MsgpackValue::Array(vec![MsgpackValue::Nil])),
        Some(method) => Err(format!("Worker failed with error ''CPUWorker' object has no attribute '{method}''")),
        None => Err("the first argument must be callable".to_owned()),
    }
}

fn flag(call: &UtilityCall, at: usize) -> bool {
    call.args.get(at).and_then(MsgpackValue::as_bool).unwrap_or(false)
}

fn number(call: &UtilityCall) -> u64 {
    call.args.first().and_then(MsgpackValue::as_u64).unwrap_or(0)
}

fn level(call: &UtilityCall) -> u8 {
    let level = call.args.first().and_then(MsgpackValue::as_u64);
    level.and_then(|level| u8::try_from(level).ok()).unwrap_or(1)
}

fn mode(call: &UtilityCall, at: usize) -> PauseMode {
    match call.args.get(at).and_then(MsgpackValue::as_str) {
        Some("wait") => PauseMode::Wait,
        Some("keep") => PauseMode::Keep,
        _ => PauseMode::Abort,
    }
}
