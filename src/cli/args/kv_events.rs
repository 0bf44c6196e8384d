//! Arguments of `play` about the KV events of the simulated engine.

use std::num::NonZeroUsize;

use clap::Args;
use serde::Deserialize;

use super::values::one_of;
use crate::engine::kv_events::{EventEncoding, EventHashes};

/// KV events of the simulated engine.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "KV events")]
pub(in crate::cli) struct KvEventsArgs {
    /// Publishes KV events over ZeroMQ as vLLM does, with its fields in JSON: enable_kv_cache_events, publisher (zmq or null), endpoint,
    /// replay_endpoint, buffer_steps, hwm, max_queue_size, topic. Needs --engine.
    #[arg(long, value_name = "JSON", value_parser = fields)]
    pub(in crate::cli) kv_events_config: Option<KvEventsFields>,
    /// Publishes KV events, without JSON.
    #[arg(long)]
    pub(in crate::cli) enable_kv_cache_events: bool,
    /// Where events go: listened on where it has a * or ::, else connected to. Without it tcp://*:5557.
    #[arg(long, value_name = "ENDPOINT")]
    pub(in crate::cli) kv_events_endpoint: Option<String>,
    /// The topic of events; {ip} and {port} are the server's, {model} its first model's name.
    #[arg(long, value_name = "TOPIC")]
    pub(in crate::cli) kv_events_topic: Option<String>,
    /// Form of events.
    #[arg(long, value_name = "FORM", default_value = "map", value_parser = one_of::<EventEncoding>())]
    pub(in crate::cli) kv_events_encoding: EventEncoding,
    /// Form of block hashes; without it that of VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES, which is int.
    #[arg(long, value_name = "FORM", value_parser = one_of::<EventHashes>())]
    pub(in crate::cli) kv_events_block_hashes: Option<EventHashes>,
}

/// Ids of these flags.
pub(in crate::cli) const IDS: [&str; 6] = [
    "kv_events_config",
    "enable_kv_cache_events",
    "kv_events_endpoint",
    "kv_events_topic",
    "kv_events_encoding",
    "kv_events_block_hashes",
];

/// vLLM's fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::cli) struct KvEventsFields {
    pub(in crate::cli) enable_kv_cache_events: bool,
    pub(in crate::cli) publisher: Option<Publisher>,
    pub(in crate::cli) endpoint: Option<String>,
    pub(in crate::cli) replay_endpoint: Option<String>,
    pub(in crate::cli) buffer_steps: Option<usize>,
    pub(in crate::cli) hwm: Option<u64>,
    pub(in crate::cli) max_queue_size: Option<NonZeroUsize>,
    pub(in crate::cli) topic: Option<String>,
}

/// Where events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Publisher {
    /// Nowhere.
    Null,
    /// Over ZeroMQ.
    Zmq,
}

fn fields(text: &str) -> Result<KvEventsFields, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("{error}; an object of vLLM's KVEventsConfig is needed, such as {{\"enable_kv_cache_events\":true}}")
    })
}
