//! `inspect`: its arguments, and what was found in a trace, or decided for a workload, as text or as JSON.

mod compare;
mod convert;
pub(in crate::cli) mod simulate;

use std::{num::NonZeroU32, path::PathBuf, process::ExitCode, sync::Arc};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    base::one_line::one_line,
    cli::{
        failure::{Exit, Failure},
        inspect::simulate::SimulateArgs,
        loading, output,
        redaction::{self, RedactionArgs},
        stepping::{in_flags, size},
    },
    inspect::{self, InspectFitError, MergeError, Predicted, ReportError, ScheduleWorkload},
    recording::trace::{Checked, Finding, Sources, Warning},
};

/// What to do with a trace.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum InspectCommand {
    /// Print counts, and percentiles of tokens and latencies.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect summary day.jsonl.gz\n  \
                                 vllm-vcr inspect summary monday.jsonl.gz tuesday.jsonl.gz --json | jq .")]
    Summary(InspectArgs),
    /// Check every rule of the format; list violations, and exit with 1 if there are any.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect check day.jsonl.gz\n  \
                                 zcat day.jsonl.gz | vllm-vcr inspect check -")]
    Check(InspectArgs),
    /// Show what the trace reveals to its readers; list what looks like a secret, and exit with 1 if anything does.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect audit day.jsonl.gz\n  \
                                 vllm-vcr inspect audit day.jsonl.gz --redact-pattern 'case=case-[0-9]+'")]
    Audit(AuditArgs),
    /// Run the simulated engine's scheduler on a workload; print each step as vLLM's own scheduler decides it.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect schedule workload.json > steps.jsonl\n  \
                                 vllm-vcr inspect schedule workload.json | jq -c '[.step, .running, .waiting, .usage]'")]
    Schedule(ScheduleArgs),
    /// Fit a model of step times to traces; print it with its errors.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect fit low.jsonl.gz\n  \
                                 vllm-vcr inspect fit low.jsonl.gz --predict high.jsonl.gz --max-num-seqs 64")]
    Fit(FitArgs),
    /// Simulate engines behind a router on the requests of a trace, in virtual time; print the latencies.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr inspect simulate day.jsonl.gz --replicas 4 --router prefix \\\n      --slo ttft=2s,itl=50ms\n  \
                                 vllm-vcr inspect simulate toolagent_trace.jsonl --replicas 8 --router round_robin \\\n      --latency-profile h100x4-70b\n  \
                                 vllm-vcr inspect simulate day.jsonl.gz --latency-trace day.jsonl.gz --speed 3 --json | jq .ttft_ms"
    )]
    Simulate(Box<SimulateArgs>),
    /// Compare two traces: what changed, with confidence intervals, and whether the change passes a gate.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect compare monday.jsonl.gz tuesday.jsonl.gz\n  \
                                 vllm-vcr inspect compare before.jsonl.gz after.jsonl.gz --gate gate.toml --markdown change.md")]
    Compare(compare::CompareArgs),
    /// Convert requests between traces and the files of other tools; print the shared prefixes before and after.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect convert conversation_trace.jsonl -o day.jsonl.gz\n  \
                                 vllm-vcr inspect convert agents.json --from weka -o agents.jsonl\n  \
                                 vllm-vcr inspect convert day.jsonl.gz -o day.mooncake.jsonl")]
    Convert(convert::TraceConvertArgs),
    /// Merge traces into one, such as those of the shards of a load, on one clock; print the figures of the whole.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect merge shard-*.jsonl.gz -o whole.jsonl.gz\n  \
                                 vllm-vcr inspect merge shards/ -o whole.jsonl.gz --json | jq .latencies.ttft")]
    Merge(TraceMergeArgs),
    /// Write an HTML page of traces: curves, tables and comparisons.
    #[command(after_long_help = "Examples:\n  vllm-vcr inspect report day.jsonl.gz -o day.html\n  \
                                 vllm-vcr inspect report before.jsonl.gz after.jsonl.gz -o change.html")]
    Report(ReportArgs),
}

/// Traces to fit, and one to predict.
#[derive(Debug, Args)]
pub(in crate::cli) struct FitArgs {
    /// The traces: files, directories of traces, or the first file of a rotated capture; - is stdin.
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Simulates an engine with the fitted times on the requests of this trace, and compares the latencies with the recorded ones.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) predict: Option<PathBuf>,
    /// Requests that the simulated engine runs at once.
    #[arg(long, value_name = "N", default_value = "256", requires = "predict")]
    pub(in crate::cli) max_num_seqs: NonZeroU32,
    /// Tokens per step of that engine.
    #[arg(long, value_name = "N", default_value = "2048", requires = "predict")]
    pub(in crate::cli) max_num_batched_tokens: NonZeroU32,
    /// Blocks of its KV cache.
    #[arg(long, value_name = "N", default_value = "16384", requires = "predict")]
    pub(in crate::cli) num_gpu_blocks_override: NonZeroU32,
    /// Seed of the random times.
    #[arg(long, value_name = "N", default_value = "0", requires = "predict")]
    pub(in crate::cli) seed: u64,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// A workload for the scheduler.
#[derive(Debug, Args)]
pub(in crate::cli) struct ScheduleArgs {
    /// The workload, JSON: a configuration, and requests with the steps before which they arrive; - is stdin.
    #[arg(value_name = "WORKLOAD.json")]
    pub(in crate::cli) workload: PathBuf,
}

/// Traces and what counts as a secret.
#[derive(Debug, Args)]
pub(in crate::cli) struct AuditArgs {
    #[command(flatten)]
    pub(in crate::cli) traces: InspectArgs,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Traces and how to print what was found.
#[derive(Debug, Args)]
pub(in crate::cli) struct InspectArgs {
    /// The traces: files, directories of traces, or the first file of a rotated capture; - is stdin.
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Prints one JSON object instead of text; of several files, check and audit print an array with an object of each.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// Traces that become one.
#[derive(Debug, Args)]
pub(in crate::cli) struct TraceMergeArgs {
    /// The traces: files, directories of traces, or the first file of a rotated capture.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// The new trace, compressed if the name ends in .gz.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Traces, and where the page goes.
#[derive(Debug, Args)]
pub(in crate::cli) struct ReportArgs {
    /// The traces, side by side: each a file, a directory of its parts, or the first file of a rotated capture; - is stdin.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The HTML file to write, which needs no other file; an existing one is replaced.
    #[arg(short, long, value_name = "FILE.html")]
    output: PathBuf,
}

pub(in crate::cli) fn run(command: InspectCommand) -> Result<ExitCode, Failure> {
    match command {
        InspectCommand::Summary(args) => summary(&args),
        InspectCommand::Check(args) => check(&args),
        InspectCommand::Audit(args) => audit(&args),
        InspectCommand::Schedule(args) => schedule(&args),
        InspectCommand::Fit(args) => fit(&args),
        InspectCommand::Simulate(args) => simulate::run(&args),
        InspectCommand::Compare(args) => compare::run(&args),
        InspectCommand::Convert(args) => convert::run(&args),
        InspectCommand::Merge(args) => merge(&args),
        InspectCommand::Report(args) => report(&args),
    }
}

/// Exits with [`Exit::No`] when something looks like a secret, or could not be looked into.
fn audit(args: &AuditArgs) -> Result<ExitCode, Failure> {
    let (sources, rules) = (Sources::gather(&args.traces.paths)?, redaction::rules_of_audit(&args.redaction)?);
    let reports = sources.paths().map(|path| inspect::audit(path, &rules)).collect::<Result<Vec<_>, _>>()?;
    let is_clean = reports.iter().all(|report| {
        report.secrets_found == 0 && report.bad_lines.is_empty() && !report.warnings.iter().any(Warning::is_loss)
    });
    print_each(&reports, args.traces.json, ToString::to_string)?;
    Ok(Exit::unless(is_clean))
}

/// Prints a report of each file; as JSON one object, and a list of several.
fn print_each<R: Serialize>(reports: &[R], json: bool, text: impl Fn(&R) -> String) -> Result<(), Failure> {
    match reports {
        [alone] if json => output::print_json(alone),
        all if json => output::print_json(&all),
        all => output::print(&all.iter().map(text).collect::<String>()),
    }?;
    Ok(())
}

fn schedule(args: &ScheduleArgs) -> Result<ExitCode, Failure> {
    let workload = ScheduleWorkload::read(&args.workload).map_err(Failure::input)?;
    output::stream(|out| workload.write_steps(out))
}

fn fit(args: &FitArgs) -> Result<ExitCode, Failure> {
    let wanted = args.predict.as_ref().map(|path| Predicted {
        path: path.clone(),
        max_num_seqs: size(args.max_num_seqs),
        max_num_batched_tokens: size(args.max_num_batched_tokens),
        num_gpu_blocks: args.num_gpu_blocks_override.get(),
        seed: args.seed,
    });
    let report = inspect::fit(&Sources::gather(&args.paths)?, wanted.as_ref()).map_err(|error| match error {
        InspectFitError::Engine(error) => Failure::input(in_flags(&error)),
        error => Failure::input(error),
    })?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn summary(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let (sources, progress) = (Sources::gather(&args.paths)?, Arc::default());
    let report = loading::watched(&progress, || inspect::summary(&sources, &progress))?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn merge(args: &TraceMergeArgs) -> Result<ExitCode, Failure> {
    let (sources, progress) = (Sources::gather(&args.paths)?, Arc::default());
    let merged = loading::watched(&progress, || inspect::merge(&sources, &args.out, &progress));
    if matches!(&merged, Err(MergeError::Trace(error)) if output::is_closed_pipe(error)) {
        return Ok(ExitCode::SUCCESS);
    }
    let report = merged.map_err(|error| match error {
        MergeError::Trace(error) => error.into(),
        error @ MergeError::NoStart(_) => {
            Failure::input(error).hint("traces that `tap` and `replay --out` write have it; leave this one out")
        }
    })?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn report(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let path = args.output.display();
    let is_page = args.output.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("html"));
    if !is_page {
        // A trace that stands where the page should would be lost.
        return Err(Failure::usage(format!("--output {path}: the name of a page ends in .html")));
    }
    let progress = Arc::default();
    let report =
        loading::watched(&progress, || inspect::report(&args.files, &progress)).map_err(|error| match error {
            ReportError::Trace(error) => Failure::input(error),
            error => Failure::usage(error),
        })?;
    let page = report.html().map_err(Failure::environment)?;
    output::save(&args.output, &page)?;
    output::note(&format!("{path}: {} kB\n", page.len().div_ceil(1000)));
    Ok(ExitCode::SUCCESS)
}

/// Exits with [`Exit::No`] when a rule is broken, records are missing, or there is none. A further file of a capture may be empty.
fn check(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let sources = Sources::gather(&args.paths)?;
    let mut reports = Vec::new();
    for (path, missing) in sources.paths().zip(sources.missing_parts()) {
        let Checked { records, count, findings, mut warnings } = inspect::check(path)?;
        warnings.extend(missing.cloned());
        reports.push(FindingsReport { path: path.display().to_string(), records, count, findings, warnings });
    }
    let is_sound = reports.iter().all(|report| report.findings.is_empty() && !report.is_cut());
    print_each(&reports, args.json, FindingsReport::text)?;
    Ok(Exit::unless(is_sound && reports.iter().any(|report| report.records > 0)))
}

/// Result of a check, as JSON.
#[derive(Serialize)]
struct FindingsReport {
    path: String,
    /// Number of records that are sound.
    records: u64,
    /// Number of defects, of which `findings` has the first.
    count: u64,
    findings: Vec<Finding>,
    warnings: Vec<Warning>,
}

impl FindingsReport {
    fn is_cut(&self) -> bool {
        self.warnings.iter().any(Warning::is_loss)
    }

    fn text(&self) -> String {
        let findings =
            self.findings.iter().map(|finding| format!("{}:{}\n", self.path, one_line(&finding.to_string())));
        let warnings = self.warnings.iter();
        let warnings = warnings.map(|warning| format!("{}: warning: {}\n", self.path, one_line(&warning.to_string())));
        let rest = self.count.saturating_sub(self.findings.len() as u64);
        let last = match self.count {
            0 if self.records == 0 => format!("{}: no records\n", self.path),
            0 if self.is_cut() => format!("{}: not whole\n", self.path),
            0 => format!("{}: sound\n", self.path),
            1 => "1 defect\n".to_owned(),
            many if rest > 0 => format!("{many} defects, of which {rest} are not shown\n"),
            many => format!("{many} defects\n"),
        };
        findings.chain(warnings).chain([last]).collect()
    }
}
