//! Arguments of `play` about the KV connector of the simulated engine.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::base::units::parse_duration;

/// Disaggregated serving: engines that prefill, and engines that decode.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "KV transfers")]
pub(in crate::cli) struct KvTransferArgs {
    /// Gives the engine vLLM's NixlConnector, with vLLM's fields in JSON: kv_connector, kv_role (kv_producer, kv_consumer or kv_both),
    /// engine_id, kv_connector_extra_config (kv_lease_duration in seconds; peers, hosts beside this one that requests may name). Other engines reach it at VLLM_NIXL_SIDE_CHANNEL_HOST and
    /// VLLM_NIXL_SIDE_CHANNEL_PORT. Needs --engine.
    #[arg(long, value_name = "JSON", value_parser = fields)]
    pub(in crate::cli) kv_transfer_config: Option<KvTransferFields>,
    /// Time of a transfer of a prompt's blocks from the engine that has computed them.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_latency: Option<Duration>,
    /// Time of each token of a transfer, beside that.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_time_per_token: Option<Duration>,
    /// Standard deviation of --kv-cache-transfer-latency; times are log-normal.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_latency_std_dev: Option<Duration>,
    /// Standard deviation of --kv-cache-transfer-time-per-token.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_time_std_dev: Option<Duration>,
}

/// Ids of these flags.
pub(in crate::cli) const IDS: [&str; 5] = [
    "kv_transfer_config",
    "kv_cache_transfer_latency",
    "kv_cache_transfer_time_per_token",
    "kv_cache_transfer_latency_std_dev",
    "kv_cache_transfer_time_std_dev",
];

/// vLLM's fields, with those of earlier versions. Those that are not looked at change nothing without a GPU.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::cli) struct KvTransferFields {
    pub(in crate::cli) kv_connector: Option<String>,
    pub(in crate::cli) kv_role: Option<String>,
    pub(in crate::cli) engine_id: Option<String>,
    pub(in crate::cli) kv_connector_extra_config: Map<String, Value>,
    kv_ip: Value,
    kv_port: Value,
    kv_rank: Value,
    kv_parallel_size: Value,
    kv_buffer_device: Value,
    kv_buffer_size: Value,
    kv_connector_module_path: Value,
    enable_permute_local_kv: Value,
    kv_load_failure_policy: Value,
}

fn fields(text: &str) -> Result<KvTransferFields, String> {
    serde_json::from_str(text).map_err(|error| {
        format!(
            "{error}; an object of vLLM's KVTransferConfig is needed, such as \
             {{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}}"
        )
    })
}
