//! `play --engine`: its flags, and the configuration of the simulated engine.

use std::{env, num::NonZeroU32, path::PathBuf};

use clap::Args;

use crate::{
    base::units::TimeScale,
    cli::{
        failure::Failure,
        output,
        play::{args::PlayArgs, kv_events, kv_transfer, speculative},
        stepping::{self, KNOBS, OwnTimes, SteppingArgs, size},
        values::host_and_port,
    },
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{PROFILES, StepTimes},
    },
    play::{DEFAULT_GPU_BLOCKS, EngineConfig, EngineTimes, LoraConfig},
};

/// The simulated engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(in crate::cli) struct SimulatedArgs {
    /// Simulates the engine: vLLM's scheduler and KV cache decide in which step each token comes, so requests wait, share steps and find
    /// their prefixes cached as in vLLM. The content still comes from the source. The other flags of this topic have an effect only with
    /// it.
    #[arg(long, group = "@any")]
    pub(in crate::cli) engine: bool,
    /// Serves as the engine core behind vLLM's own front end instead of as a server: the address at which `vllm serve` or `vllm-rs serve`
    /// waits for engines, with --data-parallel-size-local 0 --data-parallel-rpc-port PORT. Implies --engine.
    #[arg(long, group = "@tokens", value_name = "ADDRESS", value_parser = front_end)]
    pub(in crate::cli) engine_core: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) stepping: SteppingArgs,
    /// Serves each request at its recorded times, as without --engine, plus the time that it waits for a slot, for blocks and for tokens of
    /// a step if more requests are running than when it was recorded.
    #[arg(long, group = "@times", group = "@engine", conflicts_with_all = ["instant", "pace", "latency_trace", "latency_profile"], conflicts_with_all = KNOBS)]
    pub(in crate::cli) latency_recorded: bool,
    /// Serves the metric names of earlier versions of vLLM too.
    #[arg(long, group = "@engine")]
    pub(in crate::cli) legacy_metrics: bool,
    /// Seed of the hash before a prompt's first block, from which all block hashes and KV events follow. Default: PYTHONHASHSEED, else
    /// vLLM's own.
    #[arg(long, value_name = "SEED", group = "@engine")]
    pub(in crate::cli) hash_seed: Option<String>,
    /// Number of engines, each on its own port from --port on, with its own cache and metrics. All serve the same records.
    #[arg(long, value_name = "N", groups = ["@engine", "@http"], default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(in crate::cli) replicas: u32,
    /// Addresses of replicas in place of --replicas, --host and --port: HOST:PORT,HOST:PORT. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESSES", groups = ["@engine", "@http"], value_delimiter = ',', value_parser = host_and_port, conflicts_with_all = ["replicas", "host", "port", "uds"])]
    pub(in crate::cli) replica_addresses: Vec<String>,
    /// Engines behind each server, each with its own queue, cache and metrics; a request goes to the least loaded one, or to the one that
    /// its header X-data-parallel-rank names. -dp N means the same.
    #[arg(long, value_name = "N", group = "@vllm_engine", default_value = "1", value_parser = ranks)]
    pub(in crate::cli) data_parallel_size: NonZeroU32,
    /// A script for the replicas, a YAML list of events: {at: 30s, replica: 2, do: die}, {at: 60s, replica: 2, do: start}, {at: 40s,
    /// replica: 1, slower: 3}. Replicas are numbered from 0, times are from the start of the server.
    #[arg(long, value_name = "FILE", group = "@engine")]
    pub(in crate::cli) script: Option<PathBuf>,
}

impl SimulatedArgs {
    pub(in crate::cli) fn replicas(&self) -> u32 {
        let addresses = u32::try_from(self.replica_addresses.len()).unwrap_or(u32::MAX);
        if addresses > 0 { addresses } else { self.replicas }
    }

    pub(in crate::cli) fn engines(&self) -> u32 {
        self.replicas().saturating_mul(self.data_parallel_size.get())
    }
}

/// Reads the value of `--engine-core`.
fn front_end(typed: &str) -> Result<String, String> {
    let scheme = "tcp://";
    host_and_port(typed.strip_prefix(scheme).unwrap_or(typed)).map(|address| format!("{scheme}{address}"))
}

fn ranks(text: &str) -> Result<NonZeroU32, String> {
    let ranks = text.parse().ok().filter(|ranks: &NonZeroU32| ranks.get() <= 256);
    ranks.ok_or_else(|| "a number from 1 to 256 is needed".to_owned())
}

/// Reads the configuration of the engine, with places for these adapters; `None` without one.
pub(in crate::cli) fn config(args: &PlayArgs, lora: Option<&LoraConfig>) -> Result<Option<EngineConfig>, Failure> {
    let simulated = &args.simulated;
    if !simulated.engine {
        return Ok(None);
    }
    let stepping = &simulated.stepping;
    let own = OwnTimes {
        instant: args.instant,
        time_to_first_token: args.time_to_first_token,
        inter_token_latency: args.inter_token_latency,
    };
    let times = match simulated.latency_recorded {
        true => EngineTimes::Recorded,
        false => {
            let [profile, ..] = PROFILES;
            let usual = || EngineTimes::Trace(StepTimes::Profile(profile));
            stepping::times(stepping, &own)?.map_or_else(usual, EngineTimes::Given)
        }
    };
    let kv_cache_metrics_sample = args.server.kv_cache_metrics.then_some(args.server.kv_cache_metrics_sample);
    let of_environment = || env::var("PYTHONHASHSEED").ok();
    let seed = simulated.hash_seed.clone().or_else(of_environment).filter(|seed| !seed.is_empty() && seed != "random");
    let usual = stepping::kv_cache(stepping, DEFAULT_GPU_BLOCKS);
    let none_hash_seed = seed.unwrap_or_else(|| usual.none_hash_seed.clone());
    let kv_cache = KvCacheConfig { kv_cache_metrics_sample, none_hash_seed, ..usual };
    let kv_events = kv_events::config(&args.kv_events)?;
    if kv_events.is_some() && !kv_cache.enable_prefix_caching {
        output::note("KV events are enabled, and there will be none: --no-enable-prefix-caching caches nothing\n");
    }
    Ok(Some(EngineConfig {
        kv_transfer: kv_transfer::config(&args.kv_transfer, &|name| env::var(name).ok(), simulated.engines())?,
        kv_events,
        scheduler: SchedulerConfig {
            speculation: speculative::config(&args.speculative)?,
            max_loras: lora.map_or(0, |lora| lora.max_loras),
            ..stepping::scheduler(stepping)
        },
        max_num_batched_tokens: stepping.max_num_batched_tokens.map(size),
        kv_cache,
        overrides_blocks: stepping.num_gpu_blocks_override.is_some(),
        times,
        time_scale: args.time_scale.map_or(1.0, TimeScale::factor),
        legacy_metrics: simulated.legacy_metrics,
    }))
}
