//! Flags of `play` about the KV events of the simulated engine, and what they mean.

use std::{env, num::NonZeroUsize};

use clap::Args;
use serde::Deserialize;

use crate::{
    cli::{
        failure::Failure,
        output,
        values::{json, one_of},
    },
    engine::kv_events::{EventEncoding, EventHashes},
    play::KvEventsConfig,
};

/// KV events of the simulated engine.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "KV events")]
pub(in crate::cli) struct KvEventsArgs {
    /// Publishes KV events over ZeroMQ as vLLM does, with its fields in JSON: enable_kv_cache_events, publisher (zmq or null), endpoint,
    /// replay_endpoint, buffer_steps, hwm, max_queue_size, topic. Needs --engine.
    #[arg(long, value_name = "JSON", value_parser = json::<KvEventsFields>(NEEDED))]
    pub(in crate::cli) kv_events_config: Option<KvEventsFields>,
    /// Publishes KV events, without JSON.
    #[arg(long)]
    pub(in crate::cli) enable_kv_cache_events: bool,
    /// Address of the KV events: listened on if it has a * or ::, else connected to. Default: tcp://*:5557.
    #[arg(long, value_name = "ENDPOINT")]
    pub(in crate::cli) kv_events_endpoint: Option<String>,
    /// Topic of the events; {ip} and {port} are the server's, {model} is its first model's name.
    #[arg(long, value_name = "TOPIC")]
    pub(in crate::cli) kv_events_topic: Option<String>,
    /// Form of events.
    #[arg(long, value_name = "FORM", default_value = "map", value_parser = one_of::<EventEncoding>())]
    pub(in crate::cli) kv_events_encoding: EventEncoding,
    /// Form of block hashes. Default: that of VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES, else int.
    #[arg(long, value_name = "FORM", value_parser = one_of::<EventHashes>())]
    pub(in crate::cli) kv_events_block_hashes: Option<EventHashes>,
}

/// vLLM's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::cli) struct KvEventsFields {
    pub(in crate::cli) enable_kv_cache_events: bool,
    pub(in crate::cli) publisher: Option<PublisherKind>,
    pub(in crate::cli) endpoint: Option<String>,
    pub(in crate::cli) replay_endpoint: Option<String>,
    pub(in crate::cli) buffer_steps: Option<usize>,
    pub(in crate::cli) hwm: Option<u64>,
    pub(in crate::cli) max_queue_size: Option<NonZeroUsize>,
    pub(in crate::cli) topic: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum PublisherKind {
    /// Nowhere.
    Null,
    /// Over ZeroMQ.
    Zmq,
}

/// An example for those who write something else.
const NEEDED: &str = "; an object of vLLM's KVEventsConfig is needed, such as {\"enable_kv_cache_events\":true}";

/// Where events are published; `None` where they are not enabled.
pub(in crate::cli) fn config(args: &KvEventsArgs) -> Result<Option<KvEventsConfig>, Failure> {
    let fields = args.kv_events_config.clone().unwrap_or_default();
    if !(fields.enable_kv_cache_events || args.enable_kv_cache_events) {
        let given = [("endpoint", args.kv_events_endpoint.is_some()), ("topic", args.kv_events_topic.is_some())];
        if let Some((name, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let message = format!("--kv-events-{name} has no effect: KV events are not enabled");
            return Err(Failure::usage(message).hint("add --enable-kv-cache-events, or leave it out"));
        }
        if fields.publisher == Some(PublisherKind::Zmq) {
            output::note("--kv-events-config: nothing is published without \"enable_kv_cache_events\": true\n");
        }
        return Ok(None);
    }
    if fields.publisher == Some(PublisherKind::Null) {
        return Ok(None);
    }
    if fields.hwm.is_some_and(|hwm| hwm != KvEventsConfig::HIGH_WATER_MARK) {
        output::note("--kv-events-config: hwm is always 100000 here\n");
    }
    let usual = KvEventsConfig::default();
    let of_environment = || match env::var("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES").as_deref().map(str::trim) {
        Ok("0") => EventHashes::Bytes,
        _ => EventHashes::Int,
    };
    Ok(Some(KvEventsConfig {
        endpoint: args.kv_events_endpoint.clone().or(fields.endpoint).unwrap_or(usual.endpoint),
        replay_endpoint: fields.replay_endpoint,
        buffer_steps: fields.buffer_steps.unwrap_or(usual.buffer_steps),
        max_queue_size: fields.max_queue_size.unwrap_or(usual.max_queue_size),
        topic: args.kv_events_topic.clone().or(fields.topic).unwrap_or(usual.topic),
        encoding: args.kv_events_encoding,
        hashes: args.kv_events_block_hashes.unwrap_or_else(of_environment),
        ..usual
    }))
}
