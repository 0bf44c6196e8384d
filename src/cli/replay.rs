//! `replay`: its flags, the plan that they describe, and its figures.

mod calibration;
mod find_max;
mod inputs;
mod outputs;
mod server_side;

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use http::{HeaderName, HeaderValue};
use serde::Serialize;
use tokio::sync::watch;

use self::server_side::ServerSide;
use crate::{
    base::{stats::Summary, units::parse_duration},
    cli::{
        build,
        failure::{Exit, Failure},
        output, runtime,
        values::Secret,
    },
    drive::{
        Arrivals, Ceiling, Drive, DriveError, History, Load, Plan, PromptTexts, Results, Selection, Verdict, Workload,
        WorkloadError,
        drift::DriftReport,
        drive,
        find_max::{Climb, Search},
        history::HistoryCounts,
        peers::PeerReport,
        prompt::Prompts,
        results::ResultsReport,
    },
    net::{
        server,
        upstream::{Authorities, UpstreamOptions, UpstreamUrl},
    },
    recording::redaction::RedactionRules,
    replay::meter::Slo,
};

use outputs::{OutputArgs, Saves};

/// Send the requests of a recording at a server, when they were sent, and measure what comes back.
///
/// Sends recorded requests as they were; where a trace holds none, prompts of token ids with the recorded lengths and shared blocks. Prints the
/// figures and whether they may be believed: exit code 1 where they may not.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  vllm-vcr replay day.jsonl.gz --target http://localhost:8000\n  \
                             vllm-vcr replay day.jsonl.gz --target http://localhost:8000 --arrivals poisson --rate 20 --out run.jsonl.gz\n  \
                             vllm-vcr replay day.jsonl.gz --target http://localhost:8000 --concurrency 64 --json | jq .verdict")]
pub(in crate::cli) struct ReplayArgs {
    /// The traces: files, directories of them, the first file of a capture in several; - is stdin. Or cassettes, and folders of them.
    #[arg(value_name = "PATH", required = true)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Values of placeholders in cassettes, a line for each: email:1 = jane@example.org. They are put into what is sent.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) secrets: Option<PathBuf>,
    /// The server to drive: http://HOST, https://HOST, h2c://HOST (HTTP/2 without TLS) or unix:SOCKET; with several, sessions go to
    /// them in turn.
    #[arg(long, value_name = "URL", required = true)]
    pub(in crate::cli) target: Vec<UpstreamUrl>,
    /// Who signs the certificates of https targets, or a target's own certificate, a PEM file; without it, the authorities that browsers
    /// trust.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) target_ca: Option<PathBuf>,
    /// How sessions, and requests outside of sessions, arrive.
    #[arg(long, value_name = "KIND", default_value = "recorded", conflicts_with = "concurrency")]
    pub(in crate::cli) arrivals: ArrivalsArg,
    /// Sessions, and requests outside of sessions, that arrive a second.
    #[arg(long, value_name = "N", required_if_eq_any([("arrivals", "constant"), ("arrivals", "poisson"), ("arrivals", "gamma")]), conflicts_with = "concurrency", value_parser = positive)]
    pub(in crate::cli) rate: Option<f64>,
    /// Shape of the gamma distribution: 1 is Poisson, less is burstier.
    #[arg(long, value_name = "X", default_value = "0.5", conflicts_with = "concurrency", value_parser = positive)]
    pub(in crate::cli) burstiness: f64,
    /// How many times faster than recorded, or than --rate, they arrive.
    #[arg(long, value_name = "X", default_value = "1", conflicts_with = "concurrency", value_parser = positive)]
    pub(in crate::cli) speed: f64,
    /// Sends the next one when one has ended, so that this many are on their way.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) concurrency: Option<NonZeroUsize>,
    /// Longest pause between the end of a turn and the next one.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) max_think: Option<Duration>,
    /// Sends the first N requests only.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) limit: Option<NonZeroUsize>,
    /// Sends this share of the sessions.
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = positive)]
    pub(in crate::cli) sample: f64,
    /// Sends part I of N, counted from 0; sessions are dealt in turn. --rate and --concurrency are those of all parts together.
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = shard)]
    pub(in crate::cli) shard: (usize, usize),
    /// Begins no session later than this after the start.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) duration: Option<Duration>,
    /// Seed of what is drawn.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(in crate::cli) seed: u64,
    /// Name of the model at the server; NAME=OTHER for requests of that recorded model.
    #[arg(long, value_name = "[NAME=]OTHER", value_parser = model)]
    pub(in crate::cli) model: Vec<(String, String)>,
    /// Adds a header; {session}, {turn} and {index} stand for those of the request.
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    pub(in crate::cli) header: Vec<(HeaderName, String)>,
    /// Sent as `Authorization: Bearer KEY`.
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(in crate::cli) api_key: Option<Secret>,
    /// Prompts of requests that were not recorded: token ids for /v1/completions, or words for the endpoint that was asked.
    #[arg(long, value_name = "FORM", default_value = "ids")]
    pub(in crate::cli) prompt_as: PromptArg,
    /// Tokenizer of the model, by which prompts of words get their lengths. Without it the server is asked before the run.
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// What later turns of a conversation repeat: the recorded answers, or those of this run.
    #[arg(long, value_name = "WHICH", default_value = "recorded")]
    pub(in crate::cli) history: HistoryArg,
    /// Sends before the run what servers would have in their caches: the beginning of each session's first prompt.
    #[arg(long)]
    pub(in crate::cli) prime: bool,
    /// Starts the run at this time, RFC 3339 or seconds since 1970, as it is on all machines that take part.
    #[arg(long, value_name = "TIME", value_parser = inputs::time)]
    pub(in crate::cli) start_at: Option<SystemTime>,
    /// Sends `cache_salt` with this text, so that a server's prefix cache holds nothing from an earlier run; run is a new one for each run.
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) cache_salt: Option<String>,
    /// Longest wait for the head of a response, and for the next bytes of it.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10m")]
    pub(in crate::cli) timeout: Duration,
    /// Limits of latencies; the report says how many requests and tokens a second keep them.
    #[arg(long, value_name = "ttft=…,itl=…,tpot=…,e2e=…")]
    pub(in crate::cli) slo: Option<Slo>,
    /// Leaves requests out of the figures that were to be sent earlier than this.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(in crate::cli) warmup: Option<Duration>,
    /// Compares tokens, texts, ends and counts with the recording, for a server that plays it; a difference makes the run invalid.
    #[arg(long)]
    pub(in crate::cli) check: bool,
    /// Share of the requests that may fail in a valid run.
    #[arg(long, value_name = "SHARE", default_value = "0.01")]
    pub(in crate::cli) max_errors: f64,
    /// Measures first what this client reaches at a server of its own that answers at once, for some seconds; a run above 80 % of that is not valid.
    #[arg(long)]
    pub(in crate::cli) calibrate: bool,
    /// Reads /metrics of this server every second, of several too; the report has its queue, batch and cache beside what the client saw.
    #[arg(long, value_name = "URL", value_parser = server_side::page, conflicts_with = "find_max")]
    pub(in crate::cli) scrape: Vec<UpstreamUrl>,
    #[command(flatten)]
    pub(in crate::cli) search: find_max::FindMaxArgs,
    /// Threads that send; by default one for each core.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) threads: Option<NonZeroUsize>,
    /// Writes what came back as a trace.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) out: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) outputs: OutputArgs,
}

/// How requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ArrivalsArg {
    /// When they did.
    Recorded,
    /// In equal distances.
    Constant,
    /// In exponential distances.
    Poisson,
    /// In distances of a gamma distribution, see --burstiness.
    Gamma,
    /// All at once.
    Burst,
}

/// Form of prompts that are made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PromptArg {
    /// Token ids.
    Ids,
    /// Words.
    Text,
}

/// Answers that later turns repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum HistoryArg {
    /// The recorded ones.
    Recorded,
    /// Those of this run.
    Live,
}

fn positive(text: &str) -> Result<f64, String> {
    let is_meant = |number: &f64| (1e-6..=1e9).contains(number);
    text.parse().ok().filter(is_meant).ok_or_else(|| "not a number between 0.000001 and 1000000000".to_owned())
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    parts
        .filter(|(part, parts)| part < parts)
        .ok_or_else(|| "not a part: write I/N, such as 0/4 for the first of four".to_owned())
}

fn model(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.split_once('=').unwrap_or(("", text));
    if to.is_empty() { Err("it names no model".to_owned()) } else { Ok((from.to_owned(), to.to_owned())) }
}

fn header(text: &str) -> Result<(HeaderName, String), String> {
    let (name, value) = text.split_once(':').ok_or("not a header: write 'NAME: VALUE'")?;
    let name = name.trim().parse().map_err(|_| "not the name of a header".to_owned())?;
    Ok((name, value.trim().to_owned()))
}

/// Differences from the recording that are shown.
const SHOWN: usize = 20;

/// What was run.
#[derive(Debug, Serialize)]
struct RunInputs {
    /// The traces or cassettes.
    workload: String,
    targets: Vec<String>,
    planned: u64,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<String>,
}

impl RunInputs {
    fn of(workload: &Workload, configuration: &Drive, planned: u64, seed: u64) -> Self {
        Self {
            workload: workload.name.clone(),
            targets: configuration.targets.iter().map(ToString::to_string).collect(),
            planned,
            seed,
            cache_salt: configuration.prompts.cache_salt.clone(),
        }
    }
}

/// What is printed with `--json`.
#[derive(Debug, Serialize)]
struct Printed {
    version: &'static str,
    commit: &'static str,
    run: RunInputs,
    verdict: Verdict,
    /// What the client reaches at a server that answers at once, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<Ceiling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryCounts>,
    results: ResultsReport,
    /// What the servers say, where --scrape asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_side: Option<ServerSide>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    printed_as: Vec<PeerReport>,
}

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
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            shutdown.requested().await;
            let _ended = stop.send(true);
        });
        let (warmup, slo, allowed, as_json) =
            (args.warmup.unwrap_or_default(), args.slo.unwrap_or_default(), args.max_errors, args.json);
        let results = Arc::new(Results::new(&workload, slo, warmup, args.check));
        let search = Search { most: args.search.max_concurrency.get(), length: args.search.rung, slo, allowed };
        let (planned, calibrates, finds_max) = (number(plan.requests()), args.calibrate, args.search.find_max);
        let (pages, primes, tokenizer) = (args.scrape.clone(), args.prime, inputs::tokenizer(&args)?);
        let seed = args.seed;
        let mut configuration = setup(args)?;
        let inputs = RunInputs::of(&workload, &configuration, planned, seed);
        configuration.rules = workload.rules.clone();
        let ceiling = match calibrates {
            true => calibration::ceiling(&configuration, &workload, &plan, stopped.clone()).await?,
            false => None,
        };
        let mut stop = stopped.clone();
        tokio::select! {
            done = inputs::before(&mut configuration, &workload, &plan, (tokenizer.as_ref(), primes)) => done?,
            _ = stop.wait_for(|stop| *stop) => return Err(Failure::environment("stopped before the run began")),
        }
        let workload = Arc::new(workload);
        if finds_max {
            return find_max::run(Climb { search, configuration, workload, selection, stopped }, ceiling, as_json)
                .await;
        }
        let watches = server_side::begin(&pages).await;
        let progress = outputs::progress(Arc::clone(&results), planned);
        let driven = drive(configuration, Arc::clone(&workload), plan, Arc::clone(&results), stopped).await?;
        drop(progress);
        let (measured, report) = (results.measured(), results.report());
        let server_side = server_side::end(watches, driven.start, &workload, &results, &report).await;
        let verdict =
            Verdict::of(&report, &driven, planned, allowed).with(ceiling.and_then(|ceiling| ceiling.reason(&report)));
        let printed = Printed {
            version: build::VERSION,
            commit: build::COMMIT,
            run: inputs,
            verdict,
            ceiling,
            history: Some(driven.history).filter(|counts| *counts != HistoryCounts::default()),
            results: report,
            server_side,
            printed_as: outputs.printed_as(&measured),
        };
        let code = printed.print(as_json)?;
        outputs.save(&printed, &results, &measured)?;
        Ok(code)
    })
}

impl Printed {
    fn print(&self, as_json: bool) -> Result<ExitCode, Failure> {
        let code = if self.verdict.valid { ExitCode::SUCCESS } else { Exit::No.into() };
        if as_json { output::print_json(self) } else { output::print(&text(self)) }?;
        Ok(code)
    }
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
        return Err(Failure::usage("--rate is for made-up arrivals: add --arrivals constant, poisson or gamma")
            .hint("recorded arrivals are made faster with --speed"));
    }
    let rate = args.rate.unwrap_or(1.0);
    let arrivals = match args.arrivals {
        ArrivalsArg::Recorded => Arrivals::Recorded,
        ArrivalsArg::Constant => Arrivals::Constant(rate),
        ArrivalsArg::Poisson => Arrivals::Gamma(rate, 1.0),
        ArrivalsArg::Gamma => Arrivals::Gamma(rate, args.burstiness),
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

fn setup(args: ReplayArgs) -> Result<Drive, Failure> {
    if let Some(out) = args.out.as_deref().filter(|out| out.exists()) {
        return Err(Failure::usage(format!(
            "--out {}: the file exists; name another one, or remove it",
            out.display()
        )));
    }
    for (name, text) in &args.header {
        if HeaderValue::from_str(text).is_err() {
            return Err(Failure::usage(format!("--header {name}: the value has characters that no header may have")));
        }
    }
    let mut headers = args.header;
    if args.api_key.as_ref().is_some_and(|key| HeaderValue::from_str(&key.0).is_err()) {
        return Err(Failure::usage("--api-key: the key has characters that no header may have, such as a line break"));
    }
    if let Some(key) = &args.api_key {
        headers.push((http::header::AUTHORIZATION, format!("Bearer {}", key.0)));
    }
    let authorities = args.target_ca.as_deref().map(Authorities::read).transpose();
    let reach = UpstreamOptions {
        response_timeout: Some(args.timeout),
        authorities: authorities.map_err(Failure::input)?.map(Arc::new),
        ..UpstreamOptions::default()
    };
    let texts = (args.prompt_as == PromptArg::Text).then(PromptTexts::default);
    let history = match args.history {
        HistoryArg::Recorded => History::Recorded,
        HistoryArg::Live => History::Live,
    };
    let threads = args.threads.or_else(|| thread::available_parallelism().ok());
    Ok(Drive {
        targets: args.target,
        reach,
        idle: Some(args.timeout),
        prompts: Prompts { models: args.model, cache_salt: args.cache_salt.map(inputs::salt), headers, texts },
        history,
        start_at: args.start_at,
        out: args.out,
        commit: Some(build::COMMIT.to_owned()),
        content: args.check,
        rules: RedactionRules::default(),
        duration: args.duration,
        threads: threads.unwrap_or(NonZeroUsize::MIN),
    })
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// How the requests that failed ended, where any did.
fn failures(results: &ResultsReport) -> Option<String> {
    let outcomes = results.by_outcome.iter().filter(|(outcome, _)| *outcome != "finished");
    let statuses = results.by_status.iter().filter(|(status, _)| **status >= 300);
    let outcomes = outcomes.map(|(outcome, count)| format!("{count} {outcome}"));
    let statuses = statuses.map(|(status, count)| format!("{count} with status {status}"));
    let ends: Vec<String> = outcomes.chain(statuses).collect();
    (results.failed > 0).then(|| format!("failed     {}", ends.join(", ")))
}

fn text(Printed { verdict, ceiling, history, results, server_side, printed_as, .. }: &Printed) -> String {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(history.map(|HistoryCounts { live, recorded }| {
        format!("history    {live} answers of this run were repeated, {recorded} recorded ones in place of others")
    }));
    lines.extend([
        format!(
            "requests   {} sent and ended, {} failed, in {:.1} s",
            results.requests, results.failed, results.duration_s
        ),
        format!("throughput {:.2} requests/s, {:.1} tokens/s", results.request_throughput, results.output_throughput),
    ]);
    lines.extend(failures(results));
    let counted = results.counted_by.iter().map(|(by, count)| format!("{count} by {}", by.name()));
    let per_event = results.tokens_per_event.map_or(String::new(), |tokens| format!("; {tokens:.2} an event"));
    lines.push(format!("tokens     {} ({}{per_event})", results.output_tokens, counted.collect::<Vec<_>>().join(", ")));
    if let (Some(requests), Some(tokens)) = (results.goodput, results.token_goodput) {
        lines.push(format!("goodput    {requests:.2} requests/s, {tokens:.1} tokens/s"));
    }
    if let Some(drift) = results.drift.filter(|drift| drift.largest != 0) {
        let DriftReport { prompts, median, p99, largest, .. } = drift;
        lines.push(format!("drift      median {median:+}, p99 {p99}, largest {largest:+} tokens of {prompts} prompts"));
    }
    if let Some(DriftReport { prompts, median, p99, largest, .. }) =
        results.output_drift.filter(|drift| drift.largest != 0)
    {
        lines.push(format!("outputs    median {median:+}, p99 {p99}, largest {largest:+} tokens of {prompts} that were asked for with a length"));
    }
    if let Some(ceiling) = ceiling {
        let reached = ceiling.reached(results.request_throughput, results.output_throughput) * 100.0;
        let Ceiling { requests_per_s, tokens_per_s } = *ceiling;
        lines.push(format!(
            "ceiling    {requests_per_s:.2} requests/s, {tokens_per_s:.1} tokens/s by this client, {reached:.0} % reached"
        ));
    }
    lines.push("ms                    mean      p50      p90      p99      max".to_owned());
    for (name, summary) in [
        ("late", results.late_ms),
        ("TTFT", results.ttft_ms),
        ("TTFT, intended", results.ttft_intended_ms),
        (if results.has_exact_itl() { "ITL" } else { "ITL, estimated" }, results.itl_ms),
        ("chunk gap", results.chunk_gap_ms.filter(|_| results.tokens_per_event.is_some_and(|tokens| tokens > 1.0))),
        ("TPOT", results.tpot_ms),
        ("E2E", results.e2e_ms),
        ("E2E, intended", results.e2e_intended_ms),
    ] {
        let Some(Summary { mean, p50, p90, p99, max, .. }) = summary else { continue };
        lines.push(format!("{name:16} {mean:9.2}{p50:9.2}{p90:9.2}{p99:9.2}{max:9.2}"));
    }
    lines.extend(server_side.iter().flat_map(ServerSide::lines));
    if let Some(check) = &results.check {
        lines.push(format!("check      {} of {} responses differ from the recording", check.differ, check.compared));
        lines.extend(check.differences.iter().take(SHOWN).map(|difference| format!("  {difference}")));
    }
    lines.push(judged(verdict));
    let peers: String = printed_as.iter().map(outputs::text).collect();
    lines.join("\n") + "\n" + &peers
}

fn judged(verdict: &Verdict) -> String {
    let reasons = || verdict.reasons.iter().map(ToString::to_string).collect::<Vec<_>>();
    if verdict.valid { "valid".to_owned() } else { format!("not valid: {}", reasons().join("; ")) }
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
