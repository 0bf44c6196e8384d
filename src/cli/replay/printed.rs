//! What `replay` prints: one object, or its figures as text.

use std::{collections::BTreeMap, process::ExitCode};

use serde::Serialize;

use super::{outputs, server_side::ServerSide};
use crate::{
    base::stats::Summary,
    cli::{failure::Failure, output},
    drive::{
        Ceiling, Drive, Verdict, Workload,
        drift::DriftReport,
        history::HistoryCounts,
        peers::PeerReport,
        results::{ResultsReport, TargetCounts},
    },
};

/// Inputs of a run.
#[derive(Debug, Serialize)]
pub(super) struct RunInputs {
    /// The traces or cassettes.
    workload: String,
    targets: Vec<String>,
    planned: u64,
    /// Records that are not sent, by what they are.
    left_out: BTreeMap<&'static str, u64>,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<String>,
}

impl RunInputs {
    pub(super) fn of(workload: &Workload, configuration: &Drive, planned: u64, seed: u64) -> Self {
        Self {
            workload: workload.name.clone(),
            targets: configuration.targets.iter().map(ToString::to_string).collect(),
            planned,
            left_out: workload.left_out.clone(),
            seed,
            cache_salt: configuration.prompts.cache_salt.clone(),
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
    /// The beginning of the first error response of each status.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) errors: BTreeMap<u16, String>,
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
fn failures(results: &ResultsReport, errors: &BTreeMap<u16, String>) -> Vec<String> {
    let ends: Vec<String> = results.failures.iter().map(|(end, count)| format!("{count} {end}")).collect();
    let mut lines = Vec::new();
    if results.failed > 0 {
        lines.push(format!("failed     {}", ends.join(", ")));
    }
    if results.as_recorded > 0 {
        lines.push(format!("as recorded {} were refused with the status that they had been", results.as_recorded));
    }
    lines.extend(errors.iter().map(|(status, text)| format!("           status {status}: {text}")));
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

fn text(Printed { verdict, ceiling, history, errors, results, server_side, printed_as, .. }: &Printed) -> String {
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

pub(super) fn judged(verdict: &Verdict) -> String {
    let reasons = || verdict.reasons.iter().map(ToString::to_string).collect::<Vec<_>>();
    if verdict.valid { "valid".to_owned() } else { format!("not valid: {}", reasons().join("; ")) }
}
