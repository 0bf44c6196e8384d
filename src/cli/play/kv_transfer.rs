//! Flags of `play` about the KV connector of the simulated engine, and what they mean.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    base::units::parse_duration,
    cli::{
        failure::Failure,
        output,
        stepping::spread,
        values::{json, uuid},
    },
    engine::step_clock::TransferTimes,
    net::wire::value_text,
    play::{KvRole, KvTransferConfig},
};

/// Disaggregated serving: engines that prefill, and engines that decode.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "KV transfers")]
pub(in crate::cli) struct KvTransferArgs {
    /// Gives the engine vLLM's NixlConnector, with vLLM's fields in JSON: kv_connector, kv_role (kv_producer, kv_consumer or kv_both),
    /// engine_id, kv_connector_extra_config (kv_lease_duration in seconds; peers, hosts beside this one that requests may name; side_channel_host and side_channel_port where the variables are not set, 0 for a free port). Other engines reach it at VLLM_NIXL_SIDE_CHANNEL_HOST and
    /// VLLM_NIXL_SIDE_CHANNEL_PORT. Needs --engine.
    #[arg(long, value_name = "JSON", value_parser = json::<KvTransferFields>(NEEDED))]
    pub(in crate::cli) kv_transfer_config: Option<KvTransferFields>,
    /// Fixed time of a transfer of a prompt's blocks from the engine that computed them.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_latency: Option<Duration>,
    /// Time per token of a transfer, in addition.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_time_per_token: Option<Duration>,
    /// Standard deviation of --kv-cache-transfer-latency; times are log-normal.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_latency_std_dev: Option<Duration>,
    /// Standard deviation of --kv-cache-transfer-time-per-token.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) kv_cache_transfer_time_std_dev: Option<Duration>,
}

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

/// An example for those who write something else.
const NEEDED: &str = "; an object of vLLM's KVTransferConfig is needed, such as \
    {\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}";

/// The connectors that are simulated: both are the same in vLLM.
const CONNECTORS: [&str; 2] = ["NixlConnector", "NixlPullConnector"];

const ROLES: [(&str, KvRole); 3] =
    [("kv_producer", KvRole::Producer), ("kv_consumer", KvRole::Consumer), ("kv_both", KvRole::Both)];

/// How long blocks are kept in vLLM, in seconds.
const LEASE: f64 = 30.0;

/// Longest time for which blocks may be kept, in seconds.
const LONGEST_LEASE: f64 = 86_400.0;

/// vLLM's address.
const HOST: &str = "localhost";
const PORT: u16 = 5600;

/// The connector that the flags give the engine.
pub(in crate::cli) fn config(
    args: &KvTransferArgs,
    variable: &dyn Fn(&str) -> Option<String>,
    replicas: u32,
) -> Result<Option<KvTransferConfig>, Failure> {
    let fields = args.kv_transfer_config.as_ref();
    let Some((fields, connector)) = fields.and_then(|fields| Some((fields, fields.kv_connector.as_ref()?))) else {
        return without(args).map(|()| None);
    };
    if !CONNECTORS.contains(&connector.as_str()) {
        let message = format!("--kv-transfer-config: {connector} is not simulated");
        return Err(Failure::usage(message).hint("use \"kv_connector\": \"NixlConnector\""));
    }
    let own = |name: &str| fields.kv_connector_extra_config.get(name).map(|value| value_text(value).into_owned());
    let of_variable = variable("VLLM_NIXL_SIDE_CHANNEL_PORT").filter(|port| !port.is_empty());
    let port = port(of_variable.or_else(|| own("side_channel_port")), replicas)?;
    Ok(Some(KvTransferConfig {
        engine_id: fields.engine_id.clone().unwrap_or_else(|| uuid(rand::random())),
        role: role(fields)?,
        host: variable("VLLM_NIXL_SIDE_CHANNEL_HOST")
            .filter(|host| !host.is_empty())
            .or_else(|| own("side_channel_host"))
            .unwrap_or_else(|| HOST.to_owned()),
        port,
        peers: peers(fields)?,
        lease: lease(fields)?,
        times: TransferTimes {
            latency: spread(args.kv_cache_transfer_latency, args.kv_cache_transfer_latency_std_dev),
            per_token: spread(args.kv_cache_transfer_time_per_token, args.kv_cache_transfer_time_std_dev),
        },
    }))
}

/// No connector: no times of transfers either.
fn without(args: &KvTransferArgs) -> Result<(), Failure> {
    let times = [
        ("latency", args.kv_cache_transfer_latency),
        ("time-per-token", args.kv_cache_transfer_time_per_token),
        ("latency-std-dev", args.kv_cache_transfer_latency_std_dev),
        ("time-std-dev", args.kv_cache_transfer_time_std_dev),
    ];
    if let Some((name, _)) = times.iter().find(|(_, time)| time.is_some()) {
        let message = format!("--kv-cache-transfer-{name} has no effect without a KV connector");
        let hint =
            "add --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}', or leave it out";
        return Err(Failure::usage(message).hint(hint));
    }
    if args.kv_transfer_config.is_some() {
        output::note("--kv-transfer-config: nothing is transferred without a \"kv_connector\"\n");
    }
    Ok(())
}

fn role(fields: &KvTransferFields) -> Result<KvRole, Failure> {
    let names = "supported roles are kv_producer, kv_consumer and kv_both";
    let Some(requested) = &fields.kv_role else {
        let message = "--kv-transfer-config: kv_connector needs a kv_role";
        return Err(Failure::usage(message).hint(names));
    };
    let known = ROLES.iter().find(|(name, _)| name == requested).map(|(_, role)| *role);
    known.ok_or_else(|| Failure::usage(format!("--kv-transfer-config: {requested} is not a kv_role")).hint(names))
}

fn lease(fields: &KvTransferFields) -> Result<Duration, Failure> {
    let Some(given) = fields.kv_connector_extra_config.get("kv_lease_duration") else {
        return Ok(Duration::from_secs_f64(LEASE));
    };
    let seconds = given.as_f64().filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST_LEASE);
    let message = || format!("--kv-transfer-config: kv_lease_duration is {given}");
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| Failure::usage(message()).hint("it is a number of seconds, above 0 and up to 86400"))
}

fn peers(fields: &KvTransferFields) -> Result<Vec<String>, Failure> {
    let Some(given) = fields.kv_connector_extra_config.get("peers") else { return Ok(Vec::new()) };
    let host = |host: &Value| host.as_str().filter(|host| !host.is_empty()).map(str::to_owned);
    let hosts = given.as_array().and_then(|hosts| hosts.iter().map(host).collect());
    let message = || format!("--kv-transfer-config: peers is {given}");
    let hint = "the hosts of other engines are needed, as requests name them: [\"10.0.0.2\"], or [\"*\"] for any";
    hosts.ok_or_else(|| Failure::usage(message()).hint(hint))
}

/// The port of the first engine; the others count up.
fn port(given: Option<String>, replicas: u32) -> Result<u16, Failure> {
    let Some(given) = given.filter(|given| !given.is_empty()) else { return Ok(PORT) };
    let fits = |port: &u16| u32::from(*port).saturating_add(replicas.saturating_sub(1)) <= u32::from(u16::MAX);
    let message = || format!("VLLM_NIXL_SIDE_CHANNEL_PORT (or side_channel_port) is {given}");
    let hint = "a port is needed, and with --replicas and --data-parallel-size as many from it on";
    given.parse().ok().filter(fits).ok_or_else(|| Failure::usage(message()).hint(hint))
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn read(words: &[&str], port: &str, replicas: u32) -> Result<Option<KvTransferConfig>, String> {
        let command = KvTransferArgs::augment_args(Command::new("play"));
        let words = std::iter::once("play").chain(words.iter().copied());
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        let args = KvTransferArgs::from_arg_matches(&matches).unwrap();
        let variable = |name: &str| name.ends_with("PORT").then(|| port.to_owned());
        config(&args, &variable, replicas).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn the_connector_has_vllms_fields_and_defaults() {
        let json = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cuda","kv_port":1}"#;
        let found =
            read(&["--kv-transfer-config", json, "--kv-cache-transfer-latency", "5ms"], "", 1).unwrap().unwrap();
        assert_eq!((found.role, found.host.as_str(), found.port), (KvRole::Both, "localhost", 5600));
        assert_eq!((found.lease, found.times.latency.mean), (Duration::from_secs(30), Duration::from_millis(5)));
        assert!(found.peers.is_empty(), "only the loopback");
        assert_eq!((found.engine_id.len(), found.engine_id.get(14..15)), (36, Some("4")));
        assert!(read(&["--kv-transfer-config", "{}"], "", 1).unwrap().is_none());
        assert!(read(&[], "", 1).unwrap().is_none());
    }

    #[test]
    fn mistakes_are_named() {
        let nixl = |more: &str| format!(r#"{{"kv_connector":"NixlConnector","kv_role":"kv_consumer"{more}}}"#);
        for (json, port, replicas, part) in [
            (r#"{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}"#.to_owned(), "", 1, "LMCacheConnectorV1"),
            (r#"{"kv_connector":"NixlConnector"}"#.to_owned(), "", 1, "needs a kv_role"),
            (r#"{"kv_connector":"NixlConnector","kv_role":"both"}"#.to_owned(), "", 1, "both is not a kv_role"),
            (r#"{"kv_conector":"NixlConnector"}"#.to_owned(), "", 1, "KVTransferConfig"),
            (nixl(r#","kv_connector_extra_config":{"kv_lease_duration":0}"#), "", 1, "kv_lease_duration is 0"),
            (nixl(r#","kv_connector_extra_config":{"peers":"10.0.0.2"}"#), "", 1, "[\\\"*\\\"] for any"),
            (nixl(""), "many", 1, "VLLM_NIXL_SIDE_CHANNEL_PORT (or side_channel_port) is many"),
            (nixl(""), "65535", 2, "as many from it on"),
        ] {
            let refused = read(&["--kv-transfer-config", &json], port, replicas).unwrap_err();
            assert!(refused.contains(part), "{part}: {refused}");
        }
        let refused = read(&["--kv-cache-transfer-time-per-token", "1ms"], "", 1).unwrap_err();
        assert!(refused.contains("--kv-cache-transfer-time-per-token has no effect"), "{refused}");
    }
}
