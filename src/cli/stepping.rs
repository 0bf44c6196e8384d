//! Flags of a simulated engine's steps, of `play` and of `inspect simulate`: limits, the cache and times, and what they mean.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    base::units::parse_duration,
    cli::{
        failure::Failure,
        output,
        values::{one_of, within},
    },
    engine::{
        kv_cache::{HashAlgorithm, KvCacheConfig},
        scheduler::{SchedulerConfig, SchedulerConfigError, SchedulingPolicy},
        step_clock::{Knobs, Profile, Spread, StepFit, StepTimes},
    },
    recording::trace::Sources,
    replay::steps::StreamedRecords,
};

/// A count of tokens; `None` for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct ModelLength(pub(in crate::cli) Option<NonZeroU32>);

/// A count as vLLM takes it: small letters are decimal multiples, capital ones binary, and only the small ones take fractions.
pub(in crate::cli) fn model_length(text: &str) -> Result<ModelLength, String> {
    if ["auto", "-1"].contains(&text) {
        return Ok(ModelLength(None));
    }
    let units: [(&str, f64); 4] = [("k", 1e3), ("m", 1e6), ("K", 1024.0), ("M", 1_048_576.0)];
    let unit = units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
    let (number, size) = unit.unwrap_or((text, 1.0));
    let is_decimal = text.ends_with(['k', 'm']);
    let plain = || number.parse::<u32>().ok().map(f64::from);
    let count = if is_decimal { number.parse::<f64>().ok() } else { plain() };
    let count =
        count.map(|count| (count * size).floor()).filter(|count| *count >= 1.0 && *count <= f64::from(u32::MAX));
    #[allow(clippy::cast_possible_truncation)] // it is in range
    let count = count.and_then(|count| NonZeroU32::new(count as u32));
    count
        .map(|count| ModelLength(Some(count)))
        .ok_or_else(|| "a number of tokens is needed, such as 8192, 8k or auto".to_owned())
}

/// Limits of a simulated engine's steps, its cache, and how long steps take: of `play` and of `inspect simulate`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(in crate::cli) struct SteppingArgs {
    /// Requests that run at once. Default: 256.
    #[arg(long, group = "@vllm_engine", value_name = "N", value_parser = count)]
    pub(in crate::cli) max_num_seqs: Option<NonZeroU32>,
    /// Tokens per step. Default: 2048, or the model's length without chunked prefill. 8k is 8000, 8K is 8192.
    #[arg(long, group = "@vllm_engine", value_name = "N", value_parser = count)]
    pub(in crate::cli) max_num_batched_tokens: Option<NonZeroU32>,
    /// Tokens of one request per step while others are running; 0 is no limit.
    #[arg(long, group = "@vllm_engine", value_name = "N", default_value = "0")]
    pub(in crate::cli) long_prefill_token_threshold: u32,
    /// Computes a long prompt over several steps; on by default.
    #[arg(long, group = "@vllm_engine", overrides_with = "no_enable_chunked_prefill")]
    pub(in crate::cli) enable_chunked_prefill: bool,
    /// Computes each prompt in one step.
    #[arg(long, group = "@vllm_engine", overrides_with = "enable_chunked_prefill")]
    pub(in crate::cli) no_enable_chunked_prefill: bool,
    /// Which waiting request runs next: the oldest, or the one with the lowest `priority`.
    #[arg(long, group = "@vllm_engine", value_name = "POLICY", default_value = "fcfs", value_parser = one_of::<SchedulingPolicy>())]
    pub(in crate::cli) scheduling_policy: SchedulingPolicy,
    /// Blocks of the KV cache, one of which is never used. Default: 16384, or in `inspect simulate` as many as hold 262144 tokens.
    #[arg(long, group = "@vllm_engine", value_name = "N", visible_alias = "kv-cache-size", value_parser = blocks)]
    pub(in crate::cli) num_gpu_blocks_override: Option<NonZeroU32>,
    /// Keeps full blocks for other requests with the same prefix; on by default.
    #[arg(long, group = "@vllm_engine", overrides_with = "no_enable_prefix_caching")]
    pub(in crate::cli) enable_prefix_caching: bool,
    /// Recomputes every prompt.
    #[arg(long, group = "@vllm_engine", overrides_with = "enable_prefix_caching")]
    pub(in crate::cli) no_enable_prefix_caching: bool,
    /// Hash of cached blocks.
    #[arg(long, group = "@vllm_engine", value_name = "HASH", default_value = "sha256", value_parser = one_of::<HashAlgorithm>())]
    pub(in crate::cli) prefix_caching_hash_algo: HashAlgorithm,
    /// Fits a model of step times to this trace and uses it for the steps. See `inspect fit`.
    #[arg(long, group = "@engine", value_name = "FILE", conflicts_with_all = ["latency_profile", "instant"], conflicts_with_all = KNOBS)]
    pub(in crate::cli) latency_trace: Vec<PathBuf>,
    /// Step times from the data sheets of a GPU and a model. Default without any times: in `play` the medians of the served trace, else
    /// h100-8b.
    #[arg(long, group = "@engine", value_name = "NAME", conflicts_with = "instant", conflicts_with_all = KNOBS)]
    pub(in crate::cli) latency_profile: Option<Profile>,
    /// Standard deviation of --time-to-first-token; times are log-normal.
    #[arg(long, group = "@engine", value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) time_to_first_token_std_dev: Option<Duration>,
    /// Standard deviation of --inter-token-latency.
    #[arg(long, group = "@engine", value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) inter_token_latency_std_dev: Option<Duration>,
    /// Fixed time of a prompt, whatever its length. With this flag or the next one, --time-to-first-token has no effect.
    #[arg(long, group = "@engine", value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) prefill_overhead: Option<Duration>,
    /// Time per prompt token that is not cached.
    #[arg(long, group = "@engine", value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) prefill_time_per_token: Option<Duration>,
    /// Standard deviation of the prefill's time per token.
    #[arg(long, group = "@engine", value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) prefill_time_std_dev: Option<Duration>,
    /// How many times longer everything takes with --max-num-seqs requests than with one.
    #[arg(long, group = "@engine", value_name = "X", value_parser = within(1.0..=1000.0, "a factor from 1 to 1000 is needed, such as 1.5"))]
    pub(in crate::cli) time_factor_under_load: Option<f64>,
}

/// Flags of times that are set one by one.
pub(in crate::cli) const KNOBS: [&str; 8] = [
    "time_to_first_token",
    "inter_token_latency",
    "time_to_first_token_std_dev",
    "inter_token_latency_std_dev",
    "prefill_overhead",
    "prefill_time_per_token",
    "prefill_time_std_dev",
    "time_factor_under_load",
];

/// A number, as vLLM takes it.
pub(in crate::cli) fn count(text: &str) -> Result<NonZeroU32, String> {
    let wrong = || "a number from 1 on is needed, such as 256, 8k or 8K".to_owned();
    model_length(text).ok().and_then(|length| length.0).ok_or_else(wrong)
}

/// A number of blocks, one of which is never used.
fn blocks(text: &str) -> Result<NonZeroU32, String> {
    let blocks = count(text)?;
    if blocks.get() < 2 {
        return Err("a number from 2 on is needed: one block is never used, as in vLLM".to_owned());
    }
    Ok(blocks)
}

/// Requests that run at once by default, as in vLLM on most GPUs.
const MAX_NUM_SEQS: u32 = 256;

/// The limits of a step, but for those that depend on the model.
pub(in crate::cli) fn scheduler(args: &SteppingArgs) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: max_num_seqs(args) as usize,
        long_prefill_token_threshold: args.long_prefill_token_threshold as usize,
        enable_chunked_prefill: !args.no_enable_chunked_prefill,
        policy: args.scheduling_policy,
        ..SchedulerConfig::default()
    }
}

/// The cache, with so many blocks where no flag gives them.
pub(in crate::cli) fn kv_cache(args: &SteppingArgs, usual: u32) -> KvCacheConfig {
    KvCacheConfig {
        num_gpu_blocks: args.num_gpu_blocks_override.map_or(usual, NonZeroU32::get),
        enable_prefix_caching: !args.no_enable_prefix_caching,
        prefix_caching_hash_algo: args.prefix_caching_hash_algo,
        ..KvCacheConfig::default()
    }
}

fn max_num_seqs(args: &SteppingArgs) -> u32 {
    args.max_num_seqs.map_or(MAX_NUM_SEQS, NonZeroU32::get)
}

pub(in crate::cli) fn size(count: NonZeroU32) -> usize {
    count.get() as usize
}

/// Times that have flags of the command's own.
pub(in crate::cli) struct OwnTimes {
    pub(in crate::cli) instant: bool,
    pub(in crate::cli) time_to_first_token: Option<Duration>,
    pub(in crate::cli) inter_token_latency: Option<Duration>,
}

/// How long steps take, where a flag gives it.
pub(in crate::cli) fn times(args: &SteppingArgs, own: &OwnTimes) -> Result<Option<StepTimes>, Failure> {
    if own.instant {
        return Ok(Some(StepTimes::Instant));
    }
    if !args.latency_trace.is_empty() {
        return fitted(&args.latency_trace).map(|fit| Some(StepTimes::Fitted(fit)));
    }
    let profile = args.latency_profile.map(StepTimes::Profile);
    Ok(profile.or_else(|| knobs(args, own).map(StepTimes::Knobs)))
}

/// A model of the steps of traces.
pub(in crate::cli) fn fitted(paths: &[PathBuf]) -> Result<StepFit, Failure> {
    let sources = Sources::gather(paths)?;
    let streamed = StreamedRecords::of(&sources)?;
    if streamed.sampled() < streamed.count {
        let (sampled, all, name) = (streamed.sampled(), streamed.count, sources.name());
        output::note(&format!("step times of {name} are fitted to an even sample, {sampled} of {all} requests\n"));
    }
    StepFit::of(&streamed.measured())
        .map_err(|error| Failure::input(error).hint(format!("the trace is {}", sources.name())))
}

/// Times around a mean, zero for what no flag gives.
pub(in crate::cli) fn spread(mean: Option<Duration>, std_dev: Option<Duration>) -> Spread {
    Spread { mean: mean.unwrap_or_default(), std_dev: std_dev.unwrap_or_default() }
}

/// The times that were set one by one; `None` where none was.
fn knobs(args: &SteppingArgs, own: &OwnTimes) -> Option<Knobs> {
    let spreads = [
        ("time-to-first-token", "", own.time_to_first_token, args.time_to_first_token_std_dev),
        ("inter-token-latency", "", own.inter_token_latency, args.inter_token_latency_std_dev),
        ("prefill-time", "-per-token", args.prefill_time_per_token, args.prefill_time_std_dev),
    ];
    for (name, rest, ..) in spreads.iter().filter(|(.., mean, std_dev)| std_dev.is_some() && mean.is_none()) {
        output::note(&format!("--{name}-std-dev has no effect without --{name}{rest}\n"));
    }
    let means = [own.time_to_first_token, own.inter_token_latency, args.prefill_overhead, args.prefill_time_per_token];
    if means.iter().all(Option::is_none) {
        return None;
    }
    let [time_to_first_token, inter_token_latency, prefill_time_per_token] =
        spreads.map(|(.., mean, std_dev)| spread(mean, std_dev));
    Some(Knobs {
        time_to_first_token,
        inter_token_latency,
        prefill_overhead: args.prefill_overhead.unwrap_or_default(),
        prefill_time_per_token,
        time_factor_under_load: args.time_factor_under_load.unwrap_or(1.0),
        max_num_seqs: max_num_seqs(args),
    })
}

/// An error of the engine's configuration with the flags that set its fields.
pub(in crate::cli) fn in_flags(error: &SchedulerConfigError) -> String {
    error.text(|field| match field {
        "num_gpu_blocks" => "--num-gpu-blocks-override".to_owned(),
        "enable_chunked_prefill" => "--no-enable-chunked-prefill".to_owned(),
        field => format!("--{}", field.replace('_', "-")),
    })
}
