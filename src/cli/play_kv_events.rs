//! `play --engine`: where its KV events are published.

use std::env;

use super::{
    args::{KvEventsArgs, KvEventsFields, Publisher},
    failure::Failure,
    output,
};
use crate::{
    engine::kv_events::EventHashes,
    play::{EngineConfig, KvEventsConfig},
};

/// Batches that wait for a subscriber, which cannot be set otherwise.
const HIGH_WATER_MARK: u64 = 100_000;

/// The same engine with the events that the flags ask for.
///
/// # Errors
/// Flags that say where events go although none are enabled.
pub(super) fn with_events(engine: Option<EngineConfig>, args: &KvEventsArgs) -> Result<Option<EngineConfig>, Failure> {
    let Some(engine) = engine else { return Ok(None) };
    let kv_events = config(args)?;
    if kv_events.is_some() && !engine.kv_cache.enable_prefix_caching {
        output::note("KV events are enabled, and there will be none: --no-enable-prefix-caching caches nothing\n");
    }
    Ok(Some(EngineConfig { kv_events, ..engine }))
}

fn config(args: &KvEventsArgs) -> Result<Option<KvEventsConfig>, Failure> {
    let KvEventsFields {
        enable_kv_cache_events,
        publisher,
        endpoint,
        replay_endpoint,
        buffer_steps,
        hwm,
        max_queue_size,
        topic,
    } = args.kv_events_config.clone().unwrap_or_default();
    if !(enable_kv_cache_events || args.enable_kv_cache_events) {
        let given = [("endpoint", args.kv_events_endpoint.is_some()), ("topic", args.kv_events_topic.is_some())];
        if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let message = format!("--kv-events-{name} is about KV events, and they are not enabled");
            return Err(Failure::usage(message).hint("add --enable-kv-cache-events, or leave it out"));
        }
        if publisher == Some(Publisher::Zmq) {
            output::note("--kv-events-config: nothing is published without \"enable_kv_cache_events\": true\n");
        }
        return Ok(None);
    }
    if publisher == Some(Publisher::Null) {
        return Ok(None);
    }
    if hwm.is_some_and(|hwm| hwm != HIGH_WATER_MARK) {
        output::note("--kv-events-config: hwm is 100000 here, whatever it is set to\n");
    }
    let usual = KvEventsConfig::default();
    Ok(Some(KvEventsConfig {
        endpoint: args.kv_events_endpoint.clone().or(endpoint).unwrap_or(usual.endpoint),
        replay_endpoint,
        buffer_steps: buffer_steps.unwrap_or(usual.buffer_steps),
        max_queue_size: max_queue_size.unwrap_or(usual.max_queue_size),
        topic: args.kv_events_topic.clone().or(topic).unwrap_or(usual.topic),
        encoding: args.kv_events_encoding,
        hashes: args.kv_events_block_hashes.unwrap_or_else(of_environment),
        data_parallel_rank: usual.data_parallel_rank,
        port_offset: usual.port_offset,
    }))
}

/// vLLM's variable.
fn of_environment() -> EventHashes {
    match env::var("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES").as_deref().map(str::trim) {
        Ok("0") => EventHashes::Bytes,
        _ => EventHashes::Int,
    }
}
