//! What `replay` prints: one object, or its figures as text.

use std::{collections::BTreeMap, num::NonZeroUsize, process::ExitCode, time::Duration};

use serde::Serialize;

use super::{
    args::{ArrivalsArg, ReplayArgs},
    find_max::FindMaxArgs,
    outputs,
    server_side::ServerSide,
};
use crate::{
    base::{stats::Summary, units::Millis},
    cli::{failure::Failure, output},
    drive::{
        Ceiling, Drive, History, Verdict, Workload,
        drift::DriftReport,
        history::HistoryCounts,
        peers::PeerReport,
        results::{ResultsReport, TargetCounts},
    },
    replay::meter::Slo,
};

/// Inputs of a run.
#[derive(Debug, Serialize)]
pub(super) struct RunInputs {
    /// The traces or cassettes.
    workload: String,
    targets: Vec<String>,
    /// Requests to send; `None` with --find-max, where each rung sends what its time allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<u64>,
    /// Records that are not sent, by what they are.
    left_out: BTreeMap<&'static str, u64>,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<String>,
    #[serde(flatten)]
    load: RunLoad,
}

/// Flags that shape a run: which requests are sent, when, and how they are judged. `None` where a flag says nothing of this load.
#[derive(Debug, Serialize)]
struct RunLoad {
    concurrency: Option<NonZeroUsize>,
    max_concurrency: Option<NonZeroUsize>,
    rung_ms: Option<f64>,
    arrivals: Option<ArrivalsArg>,
    rate: Option<f64>,
    burstiness: Option<f64>,
    speed: Option<f64>,
    max_think_ms: Option<f64>,
    duration_ms: Option<f64>,
    limit: Option<NonZeroUsize>,
    sample: f64,
    shard: String,
    history: History,
    prime: bool,
    warmup_ms: f64,
    max_errors: f64,
    /// The limits of `goodput`.
    slo_ms: BTreeMap<&'static str, f64>,
}

impl RunLoad {
    fn of(args: &ReplayArgs) -> Self {
        let millis = |time: Duration| Millis::from(time).0;
        let FindMaxArgs { find_max, rung, max_concurrency } = args.search;
        let is_open = args.concurrency.is_none() && !find_max;
        let Slo { ttft, itl, tpot, e2e } = args.slo.unwrap_or_default();
        let limits = [("ttft", ttft), ("itl", itl), ("tpot", tpot), ("e2e", e2e)];
        Self {
            concurrency: args.concurrency,
            max_concurrency: find_max.then_some(max_concurrency),
            rung_ms: find_max.then(|| millis(rung)),
            arrivals: is_open.then_some(args.arrivals),
            rate: args.rate,
            burstiness: (args.arrivals == ArrivalsArg::Gamma).then(|| args.burstiness()),
            speed: is_open.then_some(args.speed),
            max_think_ms: args.max_think.map(millis),
            duration_ms: args.duration.map(millis),
            limit: args.limit,
            sample: args.sample,
            shard: format!("{}/{}", args.shard.0, args.shard.1),
            history: args.history,
            prime: args.prime,
            warmup_ms: args.warmup.map_or(0.0, millis),
            max_errors: args.max_errors,
            slo_ms: limits.into_iter().filter_map(|(name, limit)| Some((name, millis(limit?)))).collect(),
        }
    }
}

impl RunInputs {
    pub(super) fn of(workload: &Workload, configuration: &Drive, planned: u64, args: &ReplayArgs) -> Self {
        Self {
            workload: workload.name.clone(),
            targets: configuration.targets.iter().map(ToString::to_string).collect(),
            planned: (!args.search.find_max).then_some(planned),
            left_out: workload.left_out.clone(),
            seed: args.seed,
            cache_salt: configuration.prompts.cache_salt.clone(),
            load: RunLoad::of(args),
        }
    }
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Printed {
    pub(super) version: &'static str,
    pub(super) commit: &'static str,
    pub(super) run: RunInputs,
    pub(super) verdict: Verdict,
    /// What the client reaches at a server that answers at once, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling: Option<Ceiling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<HistoryCounts>,
    /// The beginning of the first failed response of each status; by the outcome, why there was no response.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) errors: BTreeMap<String, String>,
    pub(super) results: ResultsReport,
    /// The servers' metrics, with --scrape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_side: Option<ServerSide>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) printed_as: Vec<PeerReport>,
}

impl Printed {
    pub(super) fn print(&self, as_json: bool) -> Result<ExitCode, Failure> {
        output::verdict(self.verdict.valid, as_json, || self, || text(self))
    }
}

/// Differences from the recording that are shown.
const SHOWN: usize = 20;

/// How the requests that failed ended, and what the servers said to the first of each status.
fn failures(results: &ResultsReport, errors: &BTreeMap<String, String>) -> Vec<String> {
    let ends: Vec<String> = results.failures.iter().map(|(end, count)| format!("{count} {end}")).collect();
    let mut lines = Vec::new();
    if results.failed > 0 {
        lines.push(format!("failed     {}", ends.join(", ")));
    }
    if results.as_recorded > 0 {
        lines.push(format!("as recorded {} were refused with the status that they had been", results.as_recorded));
    }
    lines.extend(errors.iter().map(|(kind, text)| {
        let kind = if kind.parse::<u16>().is_ok() { format!("status {kind}") } else { kind.clone() };
        format!("           {kind}: {text}")
    }));
    if results.unread_events > 0 {
        lines.push(format!("events     {} could not be read: they are no JSON", results.unread_events));
    }
    lines
}

fn tokens(results: &ResultsReport) -> String {
    let counted = results.counted_by.iter().map(|(by, count)| format!("{count} by {}", by.name()));
    let counted = if results.output_tokens > 0 { counted.collect() } else { vec!["none came".to_owned()] };
    let per_event = results.tokens_per_event.map_or(String::new(), |tokens| format!("; {tokens:.2} an event"));
    format!("tokens     {} ({}{per_event})", results.output_tokens, counted.join(", "))
}

/// A table of the targets, where there are several.
fn targets(results: &ResultsReport) -> impl Iterator<Item = String> {
    let counts = results.by_target.iter();
    counts.map(|(target, TargetCounts { requests, good })| {
        format!("target     {target}: {requests} requests, {} not answered well", requests - good)
    })
}

fn text(Printed { run, verdict, ceiling, history, errors, results, server_side, printed_as, .. }: &Printed) -> String {
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
    lines.extend(failures(results, errors));
    lines.extend(targets(results));
    lines.push(tokens(results));
    if let (Some(requests), Some(tokens)) = (results.goodput, results.token_goodput) {
        let limits: Vec<String> = run.load.slo_ms.iter().map(|(name, limit)| format!("{name} {limit} ms")).collect();
        lines.push(format!("goodput    {requests:.2} requests/s, {tokens:.1} tokens/s within {}", limits.join(", ")));
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

pub(super) fn judged(verdict: &Verdict) -> String {
    let reasons = || verdict.reasons.iter().map(ToString::to_string).collect::<Vec<_>>();
    if verdict.valid { "valid".to_owned() } else { format!("not valid: {}", reasons().join("; ")) }
}
