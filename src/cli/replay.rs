//! Runs `replay`: what was typed becomes a plan, and its figures are printed.

use std::{process::ExitCode, sync::Arc, thread};

use serde::Serialize;
use tokio::sync::watch;

use super::{
    args::{ArrivalsArg, ReplayArgs},
    failure::{Exit, Failure},
    output, runtime, signals,
};
use crate::{
    base::stats::Summary,
    drive::{
        Arrivals, Drive, DriveError, Load, Plan, Results, Selection, Verdict, Workload, WorkloadError, drive,
        prompt::Prompts, results::ResultsReport,
    },
    net::{server, upstream::UpstreamOptions},
};

/// Differences from the recording that are shown.
const SHOWN: usize = 20;

/// What is printed with `--json`.
#[derive(Debug, Serialize)]
struct Printed {
    version: &'static str,
    verdict: Verdict,
    results: ResultsReport,
}

/// Sends the requests and prints the figures; exit code 1 where they may not be believed.
///
/// # Errors
/// When the recording cannot be read, or the results cannot be written.
pub(super) fn run(args: ReplayArgs) -> Result<ExitCode, Failure> {
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        signals::outlive_file_limits();
        let workload = Workload::read(&args.paths)?;
        let selection = Selection {
            limit: args.limit.map(Into::into),
            sample: args.sample,
            shard: args.shard,
            duration: args.duration,
            max_think: args.max_think,
            seed: args.seed,
        };
        let plan = Plan::of(&workload, load(&args), &selection);
        output::note(&format!("{}: {} requests in {} sessions\n", workload.name, plan.requests(), plan.sessions.len()));
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            shutdown.requested().await;
            let _ended = stop.send(true);
        });
        let warmup = args.warmup.unwrap_or_default();
        let results = Arc::new(Results::new(&workload, args.slo.unwrap_or_default(), warmup, args.check));
        let (allowed, as_json, planned) = (args.max_errors, args.json, number(plan.requests()));
        let driven = drive(setup(args)?, Arc::new(workload), plan, Arc::clone(&results), stopped).await?;
        let results = results.report();
        let verdict = Verdict::of(&results, &driven, planned, allowed);
        let code = if verdict.valid { ExitCode::SUCCESS } else { Exit::No.into() };
        if as_json {
            output::print_json(&Printed { version: env!("CARGO_PKG_VERSION"), verdict, results })?;
        } else {
            output::print(&text(&verdict, &results))?;
        }
        Ok(code)
    })
}

fn load(args: &ReplayArgs) -> Load {
    let rate = args.rate.unwrap_or(1.0);
    let arrivals = match args.arrivals {
        ArrivalsArg::Recorded => Arrivals::Recorded,
        ArrivalsArg::Constant => Arrivals::Constant(rate),
        ArrivalsArg::Poisson => Arrivals::Gamma(rate, 1.0),
        ArrivalsArg::Gamma => Arrivals::Gamma(rate, args.burstiness),
        ArrivalsArg::Burst => Arrivals::Burst,
    };
    args.concurrency.map_or(Load::Open(arrivals, args.speed), |places| Load::Closed(places.get()))
}

fn setup(args: ReplayArgs) -> Result<Drive, Failure> {
    let mut headers = args.header;
    if let Some(key) = &args.api_key {
        headers.push((http::header::AUTHORIZATION, format!("Bearer {}", key.0)));
    }
    let reach = UpstreamOptions { response_timeout: Some(args.timeout), ..UpstreamOptions::default() };
    let threads = args.threads.or_else(|| thread::available_parallelism().ok());
    Ok(Drive {
        targets: args.target,
        reach,
        idle: Some(args.timeout),
        prompts: Prompts { models: args.model, cache_salt: args.cache_salt, headers },
        out: args.out,
        content: args.check,
        duration: args.duration,
        threads: threads.unwrap_or(std::num::NonZeroUsize::MIN),
    })
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn text(verdict: &Verdict, results: &ResultsReport) -> String {
    let mut lines = vec![
        format!(
            "requests   {} sent and ended, {} failed, in {:.1} s",
            results.requests, results.failed, results.duration_s
        ),
        format!("throughput {:.2} requests/s, {:.1} tokens/s", results.request_throughput, results.output_throughput),
    ];
    let counted = results.counted_by.iter().map(|(by, count)| format!("{count} by {}", by.name()));
    lines.push(format!("tokens     {} ({})", results.output_tokens, counted.collect::<Vec<_>>().join(", ")));
    if let (Some(requests), Some(tokens)) = (results.goodput, results.token_goodput) {
        lines.push(format!("goodput    {requests:.2} requests/s, {tokens:.1} tokens/s"));
    }
    lines.push("ms                    mean      p50      p90      p99      max".to_owned());
    for (name, summary) in [
        ("late", results.late_ms),
        ("TTFT", results.ttft_ms),
        ("TTFT, intended", results.ttft_intended_ms),
        ("ITL", results.itl_ms),
        ("TPOT", results.tpot_ms),
        ("E2E", results.e2e_ms),
        ("E2E, intended", results.e2e_intended_ms),
    ] {
        let Some(Summary { mean, p50, p90, p99, max, .. }) = summary else { continue };
        lines.push(format!("{name:16} {mean:9.2}{p50:9.2}{p90:9.2}{p99:9.2}{max:9.2}"));
    }
    if let Some(check) = &results.check {
        lines.push(format!("check      {} of {} responses differ from the recording", check.differ, check.compared));
        lines.extend(check.differences.iter().take(SHOWN).map(|difference| format!("  {difference}")));
    }
    lines.push(match verdict.valid {
        true => "valid".to_owned(),
        false => {
            format!("not valid: {}", verdict.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        }
    });
    lines.join("\n") + "\n"
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Self {
        match error {
            WorkloadError::Trace(error) => error.into(),
            error @ WorkloadError::Empty { .. } => Self::new(Exit::BadInput, error),
        }
    }
}

impl From<DriveError> for Failure {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Tap(error) => error.into(),
            error @ (DriveError::Thread(_) | DriveError::NoTarget) => Self::new(Exit::Environment, error),
        }
    }
}
