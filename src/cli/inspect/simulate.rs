//! `inspect simulate`: its arguments, the simulation that they describe, and its report.

use std::{num::NonZeroU32, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;

use crate::{
    base::units::{TimeScale, parse_duration},
    cli::{
        failure::Failure,
        output,
        stepping::{self, ModelLength, OwnTimes, SteppingArgs, count, model_length},
        values::{one_of, share, within},
    },
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{PROFILES, StepTimes},
    },
    inspect::{self, Answers, ArrivalSchedule, Balance, RouterPolicy, SimulateError, Simulation},
    replay::meter::Slo,
};

/// A trace, engines, and a router before them.
#[derive(Debug, Args)]
pub(in crate::cli) struct SimulateArgs {
    /// The traces: files, directories of traces, or the first file of a rotated capture; - is stdin. Or one file of requests of another
    /// tool, as in `inspect convert`, such as a Mooncake trace.
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Number of engines.
    #[arg(long, help_heading = "Router", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(in crate::cli) replicas: u32,
    /// How the router chooses a replica: each in turn (round_robin); fewest requests in flight (least_loaded); the less loaded of two
    /// random ones (least_request, as in Envoy); by a hash of the session or first block (consistent_hash); longest prefix served before
    /// (prefix, as cache_aware of vllm-router); or any (random).
    #[arg(long, help_heading = "Router", value_name = "POLICY", default_value = "round_robin")]
    pub(in crate::cli) router: RouterPolicy,
    /// Smallest share of a prompt that `prefix` follows; below it, the least loaded replica gets the request.
    #[arg(long, help_heading = "Router", value_name = "SHARE", default_value = "0.3", value_parser = share("a share from 0 to 1 is needed, such as 0.3"))]
    pub(in crate::cli) cache_threshold: f64,
    /// `prefix` chooses the least loaded replica if another one exceeds it by more than this number of requests and by more than the factor
    /// of --balance-rel-threshold.
    #[arg(long, help_heading = "Router", value_name = "N", default_value = "64")]
    pub(in crate::cli) balance_abs_threshold: u32,
    /// The factor for --balance-abs-threshold.
    #[arg(long, help_heading = "Router", value_name = "X", default_value = "1.5", value_parser = within(1.0..=1e6, "a factor from 1 on is needed, such as 1.5"))]
    pub(in crate::cli) balance_rel_threshold: f64,
    /// How many times faster than recorded requests arrive.
    #[arg(long, help_heading = "Workload", value_name = "X", default_value = "1")]
    pub(in crate::cli) speed: TimeScale,
    /// Latency limits of a good request: ttft, itl (its longest gap), tpot (its mean gap) and e2e, such as ttft=2s,itl=50ms.
    #[arg(long, help_heading = "Output", value_name = "LIMITS")]
    pub(in crate::cli) slo: Option<Slo>,
    /// How an answer stands in the prompt of the next turn, if the trace's cached tokens do not show it.
    #[arg(long, help_heading = "Workload", value_name = "TOKENS", default_value = "verbatim", value_parser = one_of::<Answers>())]
    pub(in crate::cli) answers: Answers,
    /// Seed of random times, and of --router random and least_request.
    #[arg(long, help_heading = "Workload", value_name = "N", default_value = "0")]
    pub(in crate::cli) seed: u64,
    /// Tokens per block of `hash_ids`.
    #[arg(long, help_heading = "Workload", value_name = "N", default_value = "512", value_parser = count)]
    pub(in crate::cli) hash_block_size: NonZeroU32,
    /// Prints one JSON object instead of text.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
    /// Tokens per block of the prefix cache. Default: the trace's. One must be a multiple of the other.
    #[arg(long, value_name = "N", help_heading = "Engine", value_parser = count)]
    pub(in crate::cli) block_size: Option<NonZeroU32>,
    /// Maximum length of prompt plus output in tokens; longer requests are refused or cut. Default: what fits into the cache.
    #[arg(long, value_name = "N", help_heading = "Engine", value_parser = model_length)]
    pub(in crate::cli) max_model_len: Option<ModelLength>,
    /// Maximum number of requests of an engine; more are refused.
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub(in crate::cli) max_num_queued_reqs: Option<u32>,
    /// Steps take no time.
    #[arg(long, help_heading = "Engine", conflicts_with_all = ["time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) instant: bool,
    /// Speed factor of the steps, relative to these times.
    #[arg(long, value_name = "X", help_heading = "Engine", conflicts_with = "instant")]
    pub(in crate::cli) time_scale: Option<TimeScale>,
    /// Time of a step with a prefill.
    #[arg(long, value_name = "DURATION", help_heading = "Engine", value_parser = parse_duration)]
    pub(in crate::cli) time_to_first_token: Option<Duration>,
    /// Time of a step with decodes only.
    #[arg(long, value_name = "DURATION", help_heading = "Engine", value_parser = parse_duration)]
    pub(in crate::cli) inter_token_latency: Option<Duration>,
    /// Time of a request outside of the engine: in the router, in the front end and on the network. A --latency-trace includes it.
    #[arg(long, help_heading = "Router", value_name = "DURATION", default_value = "0", value_parser = parse_duration, conflicts_with = "latency_trace")]
    pub(in crate::cli) front_end_time: Duration,
    #[command(flatten)]
    pub(in crate::cli) stepping: SteppingArgs,
}

/// Tokens that the cache holds by default, whatever its blocks are: 16384 blocks of 16.
const CACHED_TOKENS: usize = 262_144;

pub(in crate::cli) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    let schedule = ArrivalSchedule::read(&args.paths, args.hash_block_size.get(), args.answers).map_err(failure)?;
    let report = inspect::simulate(&schedule, &simulation(args, &schedule)?).map_err(failure)?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn simulation(args: &SimulateArgs, schedule: &ArrivalSchedule) -> Result<Simulation, Failure> {
    let block_size = args.block_size.map_or((schedule.block_size as usize).max(1), stepping::size);
    let usual = u32::try_from((CACHED_TOKENS / block_size).max(2)).unwrap_or(u32::MAX);
    let kv_cache = KvCacheConfig { block_size, ..stepping::kv_cache(&args.stepping, usual) };
    let own = OwnTimes {
        instant: args.instant,
        time_to_first_token: args.time_to_first_token,
        inter_token_latency: args.inter_token_latency,
    };
    let [profile, ..] = PROFILES;
    Ok(Simulation {
        replicas: args.replicas as usize,
        policy: args.router,
        balance: Balance {
            cache_threshold: args.cache_threshold,
            abs_threshold: args.balance_abs_threshold,
            rel_threshold: args.balance_rel_threshold,
        },
        scheduler: scheduler(args, &kv_cache)?,
        kv_cache,
        times: stepping::times(&args.stepping, &own)?.unwrap_or(StepTimes::Profile(profile)),
        time_scale: args.time_scale.map_or(1.0, TimeScale::factor),
        front_end: args.front_end_time,
        speed: args.speed.factor(),
        slo: args.slo,
        seed: args.seed,
    })
}

/// The limits of a step. No request may be longer than the cache, for it would never run.
fn scheduler(args: &SimulateArgs, kv_cache: &KvCacheConfig) -> Result<SchedulerConfig, Failure> {
    let fits = (kv_cache.num_gpu_blocks.saturating_sub(1) as usize).saturating_mul(kv_cache.block_size);
    let requested = args.max_model_len.and_then(|length| length.0).map(stepping::size);
    if let Some(requested) = requested.filter(|requested| *requested > fits) {
        let message = format!("--max-model-len {requested} does not fit the KV cache of {fits} tokens");
        return Err(Failure::usage(message).hint("give it more blocks with --num-gpu-blocks-override, or leave it out"));
    }
    let scheduler = SchedulerConfig {
        max_model_len: requested.unwrap_or(fits),
        max_num_queued_reqs: args.max_num_queued_reqs.map(|most| most as usize),
        ..stepping::scheduler(&args.stepping)
    };
    let max_num_batched_tokens = args.stepping.max_num_batched_tokens.map(stepping::size);
    let max_num_batched_tokens = max_num_batched_tokens.unwrap_or_else(|| scheduler.usual_batched_tokens());
    Ok(SchedulerConfig { max_num_batched_tokens, ..scheduler })
}

fn failure(error: SimulateError) -> Failure {
    match error {
        SimulateError::Trace(error) => error.into(),
        SimulateError::NoArrivals { .. } => {
            Failure::input(error).hint("a trace that the tap wrote has `arrival_ms` in its records")
        }
        SimulateError::Format(error) => error.into(),
        SimulateError::Engine(error) => Failure::usage(stepping::in_flags(&error)),
        SimulateError::BlockSize { .. } => Failure::usage(error.to_string()),
    }
}
