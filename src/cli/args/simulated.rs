//! Arguments of `play` about the simulated engine: vLLM's own about scheduling and the KV cache, and the times of its steps.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use clap::Args;

use super::values::one_of;
use super::{play::model_length, tap::host_and_port};
use crate::{
    base::units::parse_duration,
    engine::{kv_cache::HashAlgorithm, scheduler::SchedulingPolicy, step_clock::Profile},
};

/// The simulated engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Simulated engine")]
pub(in crate::cli) struct SimulatedArgs {
    /// Answers through a simulated engine: vLLM's scheduler and KV cache decide in which step each token comes, so requests wait, share
    /// steps and find their prefixes cached as in vLLM. Contents stay those of the source. The flags below count with it only.
    #[arg(long)]
    pub(in crate::cli) engine: bool,
    #[command(flatten)]
    pub(in crate::cli) stepping: SteppingArgs,
    /// Serves each request at its recorded times, as without --engine; the engine adds what it waits for a place, for blocks and for the
    /// tokens of a step where more requests are there than when it was recorded.
    #[arg(long, conflicts_with_all = TIMES, conflicts_with_all = KNOBS)]
    pub(in crate::cli) latency_recorded: bool,
    /// Shows at /metrics the names of earlier versions of vLLM too.
    #[arg(long)]
    pub(in crate::cli) legacy_metrics: bool,
    /// Number of engines, each on a port of its own from --port on, with its own cache and metrics. They answer from the same records.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(in crate::cli) replicas: u32,
    /// Addresses of replicas in place of --replicas, --host and --port: HOST:PORT,HOST:PORT. Each is one; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = host_and_port, conflicts_with_all = ["replicas", "host", "port", "uds"])]
    pub(in crate::cli) replica_addresses: Vec<String>,
    /// Engines behind each server, each with its own queue, cache and metrics; a request goes to the one with the least load, or to that of
    /// its header X-data-parallel-rank. -dp N means the same.
    #[arg(long, value_name = "N", default_value = "1", value_parser = ranks)]
    pub(in crate::cli) data_parallel_size: NonZeroU32,
    /// What happens to the replicas, a YAML list of events: {at: 30s, replica: 2, do: die}, {at: 60s, replica: 2, do: start},
    /// {at: 40s, replica: 1, slower: 3}. Replicas are numbered from 0, times are from the start of the server.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) script: Option<PathBuf>,
}

impl SimulatedArgs {
    /// Number of replicas.
    pub(in crate::cli) fn replicas(&self) -> u32 {
        let addresses = u32::try_from(self.replica_addresses.len()).unwrap_or(u32::MAX);
        if addresses > 0 { addresses } else { self.replicas }
    }

    /// Engines of all replicas.
    pub(in crate::cli) fn engines(&self) -> u32 {
        self.replicas().saturating_mul(self.data_parallel_size.get())
    }
}

/// Limits of a simulated engine's steps, its cache, and how long steps take: of `play` and of `inspect simulate`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Simulated engine")]
pub(in crate::cli) struct SteppingArgs {
    /// Requests that run at once; without it, 256.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(in crate::cli) max_num_seqs: Option<NonZeroU32>,
    /// Tokens of one step; without it 2048, or the model's length where prompts are not computed in parts. 8k is 8000, 8K is 8192.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(in crate::cli) max_num_batched_tokens: Option<NonZeroU32>,
    /// Tokens of one request in one step while others are there; 0 is no limit.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(in crate::cli) long_prefill_token_threshold: u32,
    /// Computes a long prompt over several steps. It does so anyway.
    #[arg(long, overrides_with = "no_enable_chunked_prefill")]
    pub(in crate::cli) enable_chunked_prefill: bool,
    /// Computes each prompt in one step.
    #[arg(long, overrides_with = "enable_chunked_prefill")]
    pub(in crate::cli) no_enable_chunked_prefill: bool,
    /// Which waiting request runs next: the first that came, or the one whose `priority` is lowest.
    #[arg(long, value_name = "POLICY", default_value = "fcfs", value_parser = one_of::<SchedulingPolicy>())]
    pub(in crate::cli) scheduling_policy: SchedulingPolicy,
    /// Blocks of the KV cache, one of which is never used; without it, 16384, and in `inspect simulate` as many as hold 262144 tokens.
    #[arg(long, value_name = "N", visible_alias = "kv-cache-size", value_parser = blocks)]
    pub(in crate::cli) num_gpu_blocks_override: Option<NonZeroU32>,
    /// Keeps full blocks for other requests with the same prefix. It does so anyway.
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    pub(in crate::cli) enable_prefix_caching: bool,
    /// Computes every prompt anew.
    #[arg(long, overrides_with = "enable_prefix_caching")]
    pub(in crate::cli) no_enable_prefix_caching: bool,
    /// Hash of cached blocks.
    #[arg(long, value_name = "HASH", default_value = "sha256", value_parser = one_of::<HashAlgorithm>())]
    pub(in crate::cli) prefix_caching_hash_algo: HashAlgorithm,
    /// A trace whose steps the engine's steps take as long as: a model is fitted to it. See `inspect fit`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["latency_profile", "instant"], conflicts_with_all = KNOBS)]
    pub(in crate::cli) latency_trace: Vec<PathBuf>,
    /// Steps as long as by the data sheets of a GPU and a model. Without any times `play` takes the medians of the trace that it serves;
    /// else this is h100-8b.
    #[arg(long, value_name = "NAME", conflicts_with = "instant", conflicts_with_all = KNOBS)]
    pub(in crate::cli) latency_profile: Option<Profile>,
    /// Standard deviation of --time-to-first-token; times are log-normal.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) time_to_first_token_std_dev: Option<Duration>,
    /// Standard deviation of --inter-token-latency.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) inter_token_latency_std_dev: Option<Duration>,
    /// Time of a prompt that does not depend on its length. With it or the next one, --time-to-first-token does not count.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) prefill_overhead: Option<Duration>,
    /// Time of each token of a prompt that is not cached.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) prefill_time_per_token: Option<Duration>,
    /// Standard deviation of the prefill's time per token.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) prefill_time_std_dev: Option<Duration>,
    /// How many times longer everything takes with --max-num-seqs requests than with one.
    #[arg(long, value_name = "X", value_parser = factor)]
    pub(in crate::cli) time_factor_under_load: Option<f64>,
}

/// Flags of times that are set one by one.
const KNOBS: [&str; 8] = [
    "time_to_first_token",
    "inter_token_latency",
    "time_to_first_token_std_dev",
    "inter_token_latency_std_dev",
    "prefill_overhead",
    "prefill_time_per_token",
    "prefill_time_std_dev",
    "time_factor_under_load",
];

/// Flags of other times than recorded ones, beside [`KNOBS`].
const TIMES: [&str; 4] = ["instant", "pace", "latency_trace", "latency_profile"];

/// Values of the engine's flags that change nothing without it, as vLLM's do without a model.
pub(in crate::cli) const VLLMS_OWN: [&str; 12] = [
    "data_parallel_size",
    "speculative_config",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "enable_chunked_prefill",
    "no_enable_chunked_prefill",
    "scheduling_policy",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "no_enable_prefix_caching",
    "prefix_caching_hash_algo",
];

/// Flags of the engine that no server has without it.
pub(in crate::cli) const OWN: [&str; 14] = [
    "speculative_acceptance_rate",
    "replicas",
    "replica_addresses",
    "script",
    "legacy_metrics",
    "latency_recorded",
    "latency_trace",
    "latency_profile",
    "time_to_first_token_std_dev",
    "inter_token_latency_std_dev",
    "prefill_overhead",
    "prefill_time_per_token",
    "prefill_time_std_dev",
    "time_factor_under_load",
];

/// A number, as vLLM takes it.
pub(super) fn count(text: &str) -> Result<NonZeroU32, String> {
    let wrong = || "a number from 1 on is needed, such as 256, 8k or 8K".to_owned();
    model_length(text).ok().and_then(|length| length.0).ok_or_else(wrong)
}

fn ranks(text: &str) -> Result<NonZeroU32, String> {
    let ranks = text.parse().ok().filter(|ranks: &NonZeroU32| ranks.get() <= 256);
    ranks.ok_or_else(|| "a number from 1 to 256 is needed".to_owned())
}

/// A number of blocks, one of which is never used.
fn blocks(text: &str) -> Result<NonZeroU32, String> {
    let blocks = count(text)?;
    if blocks.get() < 2 {
        return Err("a number from 2 on is needed: one block is never used, as in vLLM".to_owned());
    }
    Ok(blocks)
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.0..=1000.0).contains(factor));
    factor.ok_or_else(|| "a factor from 1 to 1000 is needed, such as 1.5".to_owned())
}
