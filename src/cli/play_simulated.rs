//! `play --engine`: from its arguments to the configuration of the simulated engine.

use std::{ffi::OsString, path::PathBuf};

use clap::{ArgMatches, Command, builder::Resettable, parser::ValueSource};

use super::{
    args::{PlayArgs, SimulatedArgs, simulated},
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

/// Refuses flags of the engine without it, and names those of vLLM that have no effect then.
///
/// # Errors
/// The first flag that only an engine has, as a usage error.
pub(super) fn check(args: &PlayArgs, typed: &ArgMatches) -> Result<(), Failure> {
    if args.simulated.engine {
        return Ok(());
    }
    let is_given = |id: &&&str| {
        let is_default = |source| source == ValueSource::DefaultValue;
        typed.value_source(id).is_some_and(|source| !is_default(source))
    };
    if let Some(id) = simulated::OWN.iter().find(is_given) {
        let message = format!("--{} is about a simulated engine, and there is none", id.replace('_', "-"));
        return Err(Failure::usage(message).hint("add --engine, or leave it out"));
    }
    for id in simulated::VLLMS_OWN.iter().filter(is_given) {
        output::note(&format!("--{} has no effect without --engine\n", id.replace('_', "-")));
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
    let max_num_seqs = simulated.max_num_seqs.map_or(MAX_NUM_SEQS, std::num::NonZeroU32::get);
    let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    Ok(Some(EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: size(max_num_seqs),
            long_prefill_token_threshold: size(simulated.long_prefill_token_threshold),
            enable_chunked_prefill: !simulated.no_enable_chunked_prefill,
            policy: simulated.scheduling_policy,
            ..SchedulerConfig::default()
        },
        max_num_batched_tokens: simulated.max_num_batched_tokens.map(|tokens| size(tokens.get())),
        kv_cache: KvCacheConfig {
            num_gpu_blocks: simulated.num_gpu_blocks_override.map_or(BLOCKS, std::num::NonZeroU32::get),
            enable_prefix_caching: !simulated.no_enable_prefix_caching,
            prefix_caching_hash_algo: simulated.prefix_caching_hash_algo,
            ..KvCacheConfig::default()
        },
        times: times(args, max_num_seqs)?,
        time_scale: args.time_scale.map_or(1.0, crate::base::units::TimeScale::factor),
        legacy_metrics: simulated.legacy_metrics,
    }))
}

fn times(args: &PlayArgs, max_num_seqs: u32) -> Result<EngineTimes, Failure> {
    let simulated = &args.simulated;
    if args.instant {
        return Ok(EngineTimes::Given(StepTimes::Instant));
    }
    if !simulated.latency_trace.is_empty() {
        let fit = fitted(&simulated.latency_trace)?;
        return Ok(EngineTimes::Given(StepTimes::Fitted(fit)));
    }
    if let Some(profile) = simulated.latency_profile {
        return Ok(EngineTimes::Given(StepTimes::Profile(profile)));
    }
    if let Some(knobs) = knobs(args, simulated, max_num_seqs) {
        return Ok(EngineTimes::Given(StepTimes::Knobs(knobs)));
    }
    let [profile, ..] = PROFILES;
    Ok(EngineTimes::Trace(StepTimes::Profile(profile)))
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
fn knobs(args: &PlayArgs, simulated: &SimulatedArgs, max_num_seqs: u32) -> Option<Knobs> {
    let means = [
        args.time_to_first_token,
        args.inter_token_latency,
        simulated.prefill_overhead,
        simulated.prefill_time_per_token,
    ];
    if means.iter().all(Option::is_none) {
        return None;
    }
    let spread = |mean: Option<std::time::Duration>, std_dev: Option<std::time::Duration>| Spread {
        mean: mean.unwrap_or_default(),
        std_dev: std_dev.unwrap_or_default(),
    };
    Some(Knobs {
        time_to_first_token: spread(args.time_to_first_token, simulated.time_to_first_token_std_dev),
        inter_token_latency: spread(args.inter_token_latency, simulated.inter_token_latency_std_dev),
        prefill_overhead: simulated.prefill_overhead.unwrap_or_default(),
        prefill_time_per_token: spread(simulated.prefill_time_per_token, simulated.prefill_time_std_dev),
        time_factor_under_load: simulated.time_factor_under_load.unwrap_or(1.0),
        max_num_seqs,
    })
}
