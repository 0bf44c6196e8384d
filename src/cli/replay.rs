//! `replay`: its flags, the plan that they describe, and its figures.

mod args;
pub(in crate::cli) mod calibration;
mod find_max;
mod inputs;
mod outputs;
mod printed;
mod server_side;

use std::{collections::BTreeMap, num::NonZeroUsize, path::Path, process::ExitCode, sync::Arc, thread};

use http::HeaderValue;
use tokio::sync::watch;

use crate::{
    cli::{
        build,
        failure::Failure,
        gateway, output,
        runtime::{self, Shutdown},
        values::api_path_advice,
    },
    drive::{
        Arrivals, Drive, DriveError, Load, Plan, PromptTexts, Results, Selection, Verdict, WorkloadError, drive,
        find_max::{Climb, Search},
        history::HistoryCounts,
        prompt::Prompts,
    },
    net::{
        server,
        upstream::{UpstreamOptions, UpstreamUrl},
    },
    recording::{redaction::RedactionRules, trace::TraceError},
    tap::TapError,
};

pub(in crate::cli) use args::ReplayArgs;
use args::{ArrivalsArg, PromptArg};
use outputs::Saves;
use printed::{Printed, RunInputs};

/// Sends the requests and prints the figures; exit code 1 where they may not be believed.
pub(in crate::cli) fn run(args: ReplayArgs) -> Result<ExitCode, Failure> {
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        runtime::outlive_file_limits();
        let workload = inputs::workload(&args)?;
        let selection = selection(&args);
        let plan = Plan::of(&workload, load(&args)?, &selection);
        inputs::describe(&workload, &plan);
        let outputs = Saves::open(&args.outputs, &args, &workload)?;
        let stopped = stopped(shutdown);
        let slo = args.slo.unwrap_or_default();
        let results = Arc::new(Results::new(&workload, slo, args.warmup.unwrap_or_default(), args.check));
        let (planned, tokenizer) = (plan.requests() as u64, inputs::tokenizer(&args)?);
        let mut configuration = setup(&args)?;
        let inputs = RunInputs::of(&workload, &configuration, planned, &args);
        configuration.rules = workload.rules.clone();
        let ceiling = match args.calibrate {
            true => calibration::ceiling(&configuration, &workload, &plan, stopped.clone()).await?,
            false => None,
        };
        let mut stop = stopped.clone();
        tokio::select! {
            done = inputs::before(&mut configuration, &workload, &plan, (tokenizer.as_ref(), args.prime)) => done?,
            _ = stop.wait_for(|stop| *stop) => return Err(Failure::environment("stopped before the run began")),
        }
        let workload = Arc::new(workload);
        if args.search.find_max {
            let (most, length, allowed) = (args.search.max_concurrency.get(), args.search.rung, args.max_errors);
            let search = Search { most, length, slo, allowed };
            let climb = Climb { search, configuration, workload, selection, stopped };
            return find_max::run(climb, inputs, ceiling, args.json, outputs).await;
        }
        let watches = server_side::begin(&args.scrape).await;
        let progress = outputs::progress(Arc::clone(&results), planned);
        let driven = drive(configuration, Arc::clone(&workload), plan, Arc::clone(&results), stopped).await?;
        drop(progress);
        let (measured, report) = (results.measured(), results.report());
        let server_side = server_side::end(watches, driven.start, &workload, &results, &report).await;
        let verdict = Verdict::of(&report, &driven, planned, args.max_errors)
            .with(ceiling.and_then(|ceiling| ceiling.reason(&report)));
        advise(&args.target, &driven.errors);
        let printed = Printed {
            version: build::VERSION,
            commit: build::COMMIT,
            run: inputs,
            verdict,
            ceiling,
            history: Some(driven.history).filter(|counts| *counts != HistoryCounts::default()),
            errors: driven.errors,
            results: report,
            server_side,
            printed_as: outputs.printed_as(&measured),
        };
        let code = printed.print(args.json)?;
        outputs.save(&printed, &results, &measured)?;
        Ok(code)
    })
}

/// A flag that becomes true with the signal.
fn stopped(shutdown: Shutdown) -> watch::Receiver<bool> {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        shutdown.requested().await;
        let _ended = stop.send(true);
    });
    stopped
}

/// Prints what to do about a target that has no such path.
fn advise(targets: &[UpstreamUrl], errors: &BTreeMap<String, String>) {
    let advice = targets.iter().find_map(api_path_advice).filter(|_| errors.contains_key("404"));
    advice.into_iter().for_each(|advice| output::note(&format!("hint: {advice}\n")));
}

fn selection(args: &ReplayArgs) -> Selection {
    Selection {
        limit: args.limit.map(Into::into),
        sample: args.sample,
        shard: args.shard,
        duration: args.duration,
        max_think: args.max_think,
        seed: args.seed,
    }
}

fn load(args: &ReplayArgs) -> Result<Load, Failure> {
    if args.rate.is_some() && args.arrivals == ArrivalsArg::Recorded {
        return Err(Failure::usage("--rate needs --arrivals constant, poisson or gamma")
            .hint("to make recorded arrivals faster, use --speed"));
    }
    if args.burstiness.is_some() && args.arrivals != ArrivalsArg::Gamma {
        return Err(Failure::usage("--burstiness is for --arrivals gamma"));
    }
    if args.rate.is_some() && args.arrivals == ArrivalsArg::Burst {
        return Err(Failure::usage("--rate has no meaning with --arrivals burst, which sends all at once"));
    }
    let rate = args.rate.unwrap_or(1.0);
    let arrivals = match args.arrivals {
        ArrivalsArg::Recorded => Arrivals::Recorded,
        ArrivalsArg::Constant => Arrivals::Constant(rate),
        ArrivalsArg::Poisson => Arrivals::Gamma(rate, 1.0),
        ArrivalsArg::Gamma => Arrivals::Gamma(rate, args.burstiness()),
        ArrivalsArg::Burst => Arrivals::Burst,
    };
    let Some(places) = args.concurrency.map(NonZeroUsize::get) else { return Ok(Load::Open(arrivals, args.speed)) };
    let (part, parts) = args.shard;
    match share_of(places, part, parts) {
        0 => {
            let message = format!("--concurrency {places} is less than the {parts} parts of --shard");
            Err(Failure::usage(message).hint("it is the concurrency of all parts together; make fewer parts"))
        }
        own => Ok(Load::Closed(own)),
    }
}

/// What part `part` of so many has of a number of places that are all parts' together.
fn share_of(places: usize, part: usize, parts: usize) -> usize {
    places / parts + usize::from(part < places % parts)
}

fn setup(args: &ReplayArgs) -> Result<Drive, Failure> {
    if args.out.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage("--out -: the report is on standard output; name a file"));
    }
    if let Some(out) = args.out.as_deref().filter(|out| out.exists()) {
        return Err(outputs::exists("--out", out));
    }
    let headers = gateway::headers(&args.header, args.api_key.as_ref())?;
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let reach =
        UpstreamOptions { response_timeout: Some(args.timeout), ..gateway::options(args.target_ca.as_deref())? };
    let texts = (args.prompt_as == PromptArg::Text).then(PromptTexts::default);
    let cache_salt = args.cache_salt.clone().map(inputs::salt);
    let threads = args.threads.or_else(|| thread::available_parallelism().ok());
    Ok(Drive {
        targets: args.target.clone(),
        reach,
        idle: Some(args.timeout),
        prompts: Prompts { models: args.model.clone(), cache_salt, headers, texts },
        history: args.history,
        start_at: args.start_at,
        out: args.out.clone(),
        commit: Some(build::COMMIT.to_owned()),
        content: args.check,
        rules: RedactionRules::default(),
        duration: args.duration,
        threads: threads.unwrap_or(NonZeroUsize::MIN),
    })
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Self {
        match error {
            WorkloadError::Trace(error) => error.into(),
            WorkloadError::Cassette(error) => error.into(),
            error @ WorkloadError::Empty { .. } => Self::input(error),
        }
    }
}

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Tap(error @ TapError::Trace(TraceError::Exists(_))) => {
                Self::usage(format!("--out {error}")).hint("a run is not added to a trace")
            }
            DriveError::Tap(error) => error.into(),
            error @ (DriveError::StartIsOver(_) | DriveError::StartIsTooFar | DriveError::NoTemplate) => {
                Self::usage(error.to_string())
            }
            error @ (DriveError::Thread(_) | DriveError::NoTarget | DriveError::NoLength { .. }) => {
                Self::environment(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_all_places_together() {
        for (places, parts) in [(10, 4), (4, 4), (3, 4), (1, 1), (1000, 7)] {
            let own: Vec<usize> = (0..parts).map(|part| share_of(places, part, parts)).collect();
            assert_eq!(own.iter().sum::<usize>(), places, "{own:?}");
            assert!(own.iter().max().unwrap() - own.iter().min().unwrap() <= 1, "{own:?}");
        }
    }
}
