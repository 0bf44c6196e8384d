//! `inspect simulate`: from its arguments to a simulation, and its report.

use std::process::ExitCode;

use super::{
    args::SimulateArgs,
    failure::{Exit, Failure},
    output, play_simulated,
};
use crate::{
    base::units::TimeScale,
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{PROFILES, StepTimes},
    },
    inspect::{self, ArrivalSchedule, Balance, Policy, SimulateError, Simulation},
};

/// Tokens that the cache holds by default, whatever its blocks are: 16384 blocks of 16.
const CACHED_TOKENS: usize = 262_144;

/// Simulates, and prints the report.
///
/// # Errors
/// When the trace cannot be read, or the arguments contradict each other or the trace.
pub(super) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    let schedule = ArrivalSchedule::read(&args.paths, args.hash_block_size.get(), args.answers).map_err(failure)?;
    let report = inspect::simulate(&schedule, &simulation(args, &schedule)?).map_err(failure)?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn simulation(args: &SimulateArgs, schedule: &ArrivalSchedule) -> Result<Simulation, Failure> {
    let theirs = usize::try_from(schedule.block_size).unwrap_or(usize::MAX).max(1);
    let block_size = args.block_size.map_or(theirs, play_simulated::size);
    let usual = u32::try_from((CACHED_TOKENS / block_size).max(2)).unwrap_or(u32::MAX);
    let kv_cache = KvCacheConfig { block_size, ..play_simulated::kv_cache(&args.stepping, usual) };
    let knobs = play_simulated::Knobbed {
        instant: args.instant,
        time_to_first_token: args.time_to_first_token,
        inter_token_latency: args.inter_token_latency,
    };
    let [profile, ..] = PROFILES;
    Ok(Simulation {
        replicas: usize::try_from(args.replicas).unwrap_or(usize::MAX),
        policy: policy(args),
        scheduler: scheduler(args, &kv_cache)?,
        kv_cache,
        times: play_simulated::times(&args.stepping, &knobs)?.unwrap_or(StepTimes::Profile(profile)),
        time_scale: args.time_scale.map_or(1.0, TimeScale::factor),
        front_end: args.front_end_time,
        speed: args.speed.factor(),
        slo: args.slo,
        seed: args.seed,
    })
}

fn policy(args: &SimulateArgs) -> Policy {
    match args.router {
        Policy::Prefix(_) => Policy::Prefix(Balance {
            cache_threshold: args.cache_threshold,
            abs_threshold: args.balance_abs_threshold,
            rel_threshold: args.balance_rel_threshold,
        }),
        other => other,
    }
}

/// The limits of a step. No request may be longer than the cache, for it would never run.
fn scheduler(args: &SimulateArgs, kv_cache: &KvCacheConfig) -> Result<SchedulerConfig, Failure> {
    let blocks = usize::try_from(kv_cache.num_gpu_blocks.saturating_sub(1)).unwrap_or(usize::MAX);
    let fits = blocks.saturating_mul(kv_cache.block_size);
    let asked = args.max_model_len.and_then(|length| length.0).map(play_simulated::size);
    if let Some(asked) = asked.filter(|asked| *asked > fits) {
        let message = format!("--max-model-len {asked} does not fit the KV cache of {fits} tokens");
        return Err(Failure::usage(message).hint("give it more blocks with --num-gpu-blocks-override, or leave it out"));
    }
    let scheduler = SchedulerConfig {
        max_model_len: asked.unwrap_or(fits),
        max_num_queued_reqs: args.max_num_queued_reqs.and_then(|most| usize::try_from(most).ok()),
        ..play_simulated::scheduler(&args.stepping)
    };
    let max_num_batched_tokens = args.stepping.max_num_batched_tokens.map(play_simulated::size);
    let max_num_batched_tokens = max_num_batched_tokens.unwrap_or_else(|| scheduler.usual_batched_tokens());
    Ok(SchedulerConfig { max_num_batched_tokens, ..scheduler })
}

fn failure(error: SimulateError) -> Failure {
    match error {
        SimulateError::Trace(error) => error.into(),
        SimulateError::NoArrivals { .. } => {
            Failure::new(Exit::BadInput, error).hint("a trace that the tap wrote has `arrival_ms` in its records")
        }
        SimulateError::Line { .. } => Failure::new(Exit::BadInput, error),
        SimulateError::Engine(_) | SimulateError::BlockSize { .. } => Failure::usage(error.to_string()),
    }
}
