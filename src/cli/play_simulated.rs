//! `play --engine`: from its arguments to the configuration of the simulated engine.

use std::{ffi::OsString, num::NonZeroU32, path::PathBuf, time::Duration};

use clap::{ArgMatches, Command, builder::Resettable, parser::ValueSource};

use super::{
    args::{PlayArgs, SteppingArgs, kv_events, kv_transfer, simulated},
    failure::{Exit, Failure},
    output,
};
use crate::{
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{Knobs, PROFILES, Spread, StepFit, StepTimes},
    },
    play::{EngineConfig, EngineTimes},
    recording::trace::Sources,
    replay::steps,
};

/// Requests that run at once by default, as in vLLM on most GPUs.
const MAX_NUM_SEQS: u32 = 256;

/// Blocks of the cache by default, as many as /metrics shows without an engine.
const BLOCKS: u32 = 16_384;

/// The table of flags for a command line with `--engine`, where `--time-scale` goes with every kind of times.
pub(super) fn with_time_scale(command: Command, arguments: &[OsString]) -> Command {
    let given = command.clone().ignore_errors(true).try_get_matches_from(arguments);
    let play = given.as_ref().ok().and_then(|given| given.subcommand_matches("play"));
    // A line with a mistake has no defaults.
    let is_on = |play: &ArgMatches| matches!(play.try_get_one::<bool>("engine"), Ok(Some(true)));
    if !play.is_some_and(is_on) {
        return command;
    }
    command.mut_subcommand("play", |play| {
        play.mut_arg("time_scale", |arg| arg.conflicts_with(Resettable::<clap::Id>::Reset).conflicts_with("instant"))
    })
}

/// Refuses flags of the engine without it, and names those of vLLM that have no effect.
///
/// # Errors
/// The first flag that only an engine has, as a usage error.
pub(super) fn check(args: &PlayArgs, typed: &ArgMatches) -> Result<(), Failure> {
    let is_given = |id: &&&str| {
        let is_default = |source| source == ValueSource::DefaultValue;
        typed.value_source(id).is_some_and(|source| !is_default(source))
    };
    for id in ["max_loras", "max_cpu_loras"].iter().filter(is_given).filter(|_| !args.lora.enable_lora) {
        output::note(&format!("--{} has no effect without --enable-lora\n", id.replace('_', "-")));
    }
    if args.simulated.engine {
        return Ok(());
    }
    if let Some(id) = simulated::OWN.iter().chain(&kv_events::IDS).chain(&kv_transfer::IDS).find(is_given) {
        let message = format!("--{} is about a simulated engine, and there is none", id.replace('_', "-"));
        return Err(Failure::usage(message).hint("add --engine, or leave it out"));
    }
    for id in simulated::VLLMS_OWN.iter().filter(is_given) {
        output::note(&format!("--{} has no effect without --engine\n", id.replace('_', "-")));
    }
    if args.server.kv_cache_metrics {
        output::note("--kv-cache-metrics shows families that stay zero without --engine\n");
    }
    Ok(())
}

/// Reads the configuration of the engine; `None` without one.
///
/// # Errors
/// When the trace of `--latency-trace` cannot be read, or has no steps.
pub(super) fn engine(args: &PlayArgs) -> Result<Option<EngineConfig>, Failure> {
    let simulated = &args.simulated;
    if !simulated.engine {
        return Ok(None);
    }
    let stepping = &simulated.stepping;
    let knobs = Knobbed {
        instant: args.instant,
        time_to_first_token: args.time_to_first_token,
        inter_token_latency: args.inter_token_latency,
    };
    let [profile, ..] = PROFILES;
    let usual = || EngineTimes::Trace(StepTimes::Profile(profile));
    let kv_cache_metrics_sample = args.server.kv_cache_metrics.then_some(args.server.kv_cache_metrics_sample);
    Ok(Some(EngineConfig {
        scheduler: scheduler(stepping),
        max_num_batched_tokens: stepping.max_num_batched_tokens.map(size),
        kv_cache: KvCacheConfig { kv_cache_metrics_sample, ..kv_cache(stepping, BLOCKS) },
        overrides_blocks: stepping.num_gpu_blocks_override.is_some(),
        times: match simulated.latency_recorded {
            true => EngineTimes::Recorded,
            false => times(stepping, &knobs)?.map_or_else(usual, EngineTimes::Given),
        },
        time_scale: args.time_scale.map_or(1.0, crate::base::units::TimeScale::factor),
        legacy_metrics: simulated.legacy_metrics,
        kv_events: None,
        kv_transfer: None,
    }))
}

/// The limits of a step, but for those that depend on the model.
pub(super) fn scheduler(args: &SteppingArgs) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: usize::try_from(max_num_seqs(args)).unwrap_or(usize::MAX),
        long_prefill_token_threshold: usize::try_from(args.long_prefill_token_threshold).unwrap_or(usize::MAX),
        enable_chunked_prefill: !args.no_enable_chunked_prefill,
        policy: args.scheduling_policy,
        ..SchedulerConfig::default()
    }
}

/// The cache, with so many blocks where no flag gives them.
pub(super) fn kv_cache(args: &SteppingArgs, usual: u32) -> KvCacheConfig {
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

pub(super) fn size(count: NonZeroU32) -> usize {
    usize::try_from(count.get()).unwrap_or(usize::MAX)
}

/// Times that have flags of the command's own.
pub(super) struct Knobbed {
    pub(super) instant: bool,
    pub(super) time_to_first_token: Option<Duration>,
    pub(super) inter_token_latency: Option<Duration>,
}

/// How long steps take, where a flag gives it.
///
/// # Errors
/// When the trace of `--latency-trace` cannot be read, or has no steps.
pub(super) fn times(args: &SteppingArgs, knobbed: &Knobbed) -> Result<Option<StepTimes>, Failure> {
    if knobbed.instant {
        return Ok(Some(StepTimes::Instant));
    }
    if !args.latency_trace.is_empty() {
        return fitted(&args.latency_trace).map(|fit| Some(StepTimes::Fitted(fit)));
    }
    let profile = args.latency_profile.map(StepTimes::Profile);
    Ok(profile.or_else(|| knobs(args, knobbed).map(StepTimes::Knobs)))
}

/// A model of the steps of traces.
///
/// # Errors
/// When they cannot be read, or show too few steps.
pub(super) fn fitted(paths: &[PathBuf]) -> Result<StepFit, Failure> {
    let sources = Sources::gather(paths)?;
    let (records, _) = steps::streamed(&sources)?;
    StepFit::of(&steps::measured(&records))
        .map_err(|error| Failure::new(Exit::BadInput, error).hint(format!("the trace is {}", sources.name())))
}

/// The times that were set one by one; `None` where none was.
fn knobs(args: &SteppingArgs, knobbed: &Knobbed) -> Option<Knobs> {
    let spreads = [
        (
            "time-to-first-token-std-dev",
            args.time_to_first_token_std_dev,
            "time-to-first-token",
            knobbed.time_to_first_token,
        ),
        (
            "inter-token-latency-std-dev",
            args.inter_token_latency_std_dev,
            "inter-token-latency",
            knobbed.inter_token_latency,
        ),
        ("prefill-time-std-dev", args.prefill_time_std_dev, "prefill-time-per-token", args.prefill_time_per_token),
    ];
    for (flag, _, of, _) in spreads.iter().filter(|(_, std_dev, _, mean)| std_dev.is_some() && mean.is_none()) {
        output::note(&format!("--{flag} has no effect without --{of}\n"));
    }
    let means =
        [knobbed.time_to_first_token, knobbed.inter_token_latency, args.prefill_overhead, args.prefill_time_per_token];
    if means.iter().all(Option::is_none) {
        return None;
    }
    let spread = |mean: Option<Duration>, std_dev: Option<Duration>| Spread {
        mean: mean.unwrap_or_default(),
        std_dev: std_dev.unwrap_or_default(),
    };
    Some(Knobs {
        time_to_first_token: spread(knobbed.time_to_first_token, args.time_to_first_token_std_dev),
        inter_token_latency: spread(knobbed.inter_token_latency, args.inter_token_latency_std_dev),
        prefill_overhead: args.prefill_overhead.unwrap_or_default(),
        prefill_time_per_token: spread(args.prefill_time_per_token, args.prefill_time_std_dev),
        time_factor_under_load: args.time_factor_under_load.unwrap_or(1.0),
        max_num_seqs: max_num_seqs(args),
    })
}
