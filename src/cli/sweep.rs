//! `sweep`: its flags, and what it found as a table, JSON and JUnit.

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode, sync::atomic::AtomicU64, time::Duration};

use clap::Args;
use http::HeaderMap;
use serde_json::json;

use crate::{
    base::{
        one_line::one_line,
        units::{duration_text, parse_duration},
    },
    cli::{
        failure::Failure,
        gateway::GatewayArgs,
        junit::{JunitCase, junit},
        output, runtime,
        values::one_of,
    },
    net::{
        server,
        upstream::{UpstreamOptions, UpstreamUrl},
    },
    prove::{BehindServer, ENDPOINTS, StreamClient, marker_in},
    sweep::{
        Canary, CleanCompare, CleanResult, SweepCell, SweepPlan, SweepReport, Sweeper, matrix, sampled, served_answers,
    },
};

/// Show what a client sees of a text that a guardrail has to hold back.
///
/// Serves answers that contain the text behind the gateway: at every place, cut into tokens in every way, in every field and form, on every
/// endpoint, as streams and as bodies, between answers without it. Exit code 1 if a client received any of it, if a block is not valid on
/// the wire, or if an answer without the text is damaged.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  vllm-vcr sweep --via http://localhost:4000 --canary 'the code is 4711'\n  \
                             vllm-vcr sweep --via http://localhost:4000 --canary 'the code is 4711' \\\n      --canary-as 'der Code ist 4711' --only chat/stream --cells 500\n  \
                             vllm-vcr sweep --via http://localhost:4000 --canary 'the code is 4711' \\\n      --only chat/stream/content/plain/middle/at-7")]
pub(in crate::cli) struct SweepArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// The text that the guardrail has to hold back, 4 to 1024 bytes.
    #[arg(long, help_heading = "Cells", value_name = "TEXT")]
    canary: String,
    /// The same text in another language; the cells of the first are named other-1.
    #[arg(long, help_heading = "Cells", value_name = "TEXT")]
    canary_as: Vec<String>,
    /// Only cells with all of these parts, such as chat/stream/content/base64; several are alternatives.
    #[arg(long, help_heading = "Cells", value_name = "PART/PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Maximum number of cells; if there are more, the seed selects them.
    #[arg(long, help_heading = "Cells", value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..=40_000))]
    cells: u32,
    /// Seed of selected cells and of cuts.
    #[arg(long, help_heading = "Cells", value_name = "N", default_value = "0")]
    seed: u64,
    /// Bytes of the text that a client may see.
    #[arg(long, help_heading = "Comparison", value_name = "N", default_value = "0")]
    allow_bytes: usize,
    /// What of an answer without the text must stay the same.
    #[arg(long, help_heading = "Comparison", value_name = "WHAT", default_value = "content", value_parser = one_of::<CleanCompare>())]
    compare: CleanCompare,
    /// Lets token counts be missing or different, for gateways that have none.
    #[arg(long, help_heading = "Comparison")]
    without_usage: bool,
    /// Requests at once.
    #[arg(long, help_heading = "Cells", value_name = "N", default_value = "32")]
    concurrency: NonZeroUsize,
    /// Time between two tokens.
    #[arg(long, help_heading = "Cells", value_name = "DURATION", value_parser = parse_duration, default_value = "1ms")]
    pause: Duration,
    /// Writes the rows of the table as JUnit XML.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Sweeps, and prints what was found.
pub(in crate::cli) fn run(args: SweepArgs) -> Result<ExitCode, Failure> {
    runtime::run(|shutdown| async move {
        server::raise_descriptor_limit();
        let sweeper = sweeper(&args).await?;
        args.gateway.announce(&format!("{} cells", sweeper.plan.cells.len()), sweeper.behind.address);
        let report = sweeper.sweep(shutdown.requested()).await?;
        if let Some(path) = &args.junit {
            output::save(path, &junit_file(&report))?;
        }
        let json = || {
            json!({
                "gateway": args.gateway.via.to_string(), "seed": args.seed, "cells": report.cells(), "holds": report.holds(),
                "report": report,
                "commands": report.failed.iter().map(|outcome| command(&args, &outcome.cell)).collect::<Vec<_>>(),
            })
        };
        let verdict = output::verdict(report.holds(), args.json, json, || text(&args, &report))?;
        if report.is_stopped { Err(runtime::stopped_before("everything was swept")) } else { Ok(verdict) }
    })
}

async fn sweeper(args: &SweepArgs) -> Result<Sweeper, Failure> {
    let canary = Canary::new(args.canary.clone(), args.canary_as.clone())
        .map_err(|error| Failure::usage(format!("--canary: the text {error}")))?;
    let wanted: Vec<Vec<String>> = args.only.iter().map(|only| only.split('/').map(str::to_owned).collect()).collect();
    let all = matrix(&canary, &ENDPOINTS, &[], args.seed);
    for parts in &wanted {
        let is_known = |part: &&String| all.iter().any(|cell| cell.has(std::slice::from_ref(part)));
        if let Some(part) = parts.iter().find(|part| !is_known(part)) {
            return Err(Failure::usage(format!("--only: no cell has the part `{part}`"))
                .hint("parts are those of a cell's name, such as chat/stream/content/plain/middle/at-7"));
        }
    }
    let cells = matrix(&canary, &ENDPOINTS, &wanted, args.seed);
    if cells.is_empty() {
        return Err(Failure::usage("--only: no cell has all of these parts"));
    }
    let plan = SweepPlan {
        canary,
        cells: sampled(cells, args.cells as usize, args.seed),
        model: args.gateway.model.clone(),
        compare: args.compare,
        has_usage: !args.without_usage,
        allowed: args.allow_bytes,
        concurrency: args.concurrency.get(),
        wait: args.gateway.wait,
    };
    let listener = args.gateway.listener().await?;
    let behind = BehindServer::start(listener, served_answers(&plan, args.pause)?, marker_in)?;
    let url: UpstreamUrl = format!("http://{}", behind.address).parse().map_err(Failure::input)?;
    let direct = StreamClient::new(url, &UpstreamOptions::default(), HeaderMap::new(), args.gateway.timeout);
    Ok(Sweeper { behind, client: args.gateway.client()?, direct, plan, counter: AtomicU64::new(0) })
}

/// The command that repeats a cell alone, without keys: --api-key and --header have to be added.
fn command(args: &SweepArgs, cell: &SweepCell) -> String {
    let mut words = vec!["vllm-vcr".to_owned(), "sweep".to_owned()];
    let mut flag = |name: &str, value: &str| words.extend([format!("--{name}"), output::shell_word(value)]);
    flag("via", &args.gateway.via.to_string());
    args.gateway.via_ca.iter().for_each(|path| flag("via-ca", &path.to_string_lossy()));
    flag("canary", &args.canary);
    args.canary_as.iter().for_each(|text| flag("canary-as", text));
    match &args.gateway.listen {
        Some(listen) => flag("listen", listen),
        None => flag("upstream-port", &args.gateway.upstream_port.to_string()),
    }
    flag("model", &args.gateway.model);
    flag("seed", &args.seed.to_string());
    flag("allow-bytes", &args.allow_bytes.to_string());
    if args.compare == CleanCompare::Bytes {
        flag("compare", "bytes");
    }
    flag("pause", &duration_text(args.pause));
    flag("timeout", &duration_text(args.gateway.timeout));
    flag("only", &cell.to_string());
    words.extend(args.without_usage.then(|| "--without-usage".to_owned()));
    words.join(" ")
}

fn clean_name(clean: &CleanResult) -> String {
    format!("{}/{}", clean.endpoint, if clean.is_stream { "stream" } else { "body" })
}

/// The table, the worst cell of each row, clean answers, and times.
fn text(args: &SweepArgs, report: &SweepReport) -> String {
    let mut lines = vec![format!(
        "{:32}{:>7}{:>8}{:>8}{:>7}{:>11}{:>9}  verdict",
        "canary in", "cells", "refused", "leaked", "whole", "most bytes", "invalid"
    )];
    lines.extend(report.rows.iter().map(|row| {
        let verdict = match (row.leaked, row.invalid) {
            (0, 0) => "holds",
            (0, _) => "INVALID",
            _ => "LEAKS",
        };
        format!(
            "{:32}{:>7}{:>8}{:>8}{:>7}{:>11}{:>9}  {verdict}",
            row.name(),
            row.cells,
            row.refused,
            row.leaked,
            row.whole,
            row.most,
            row.invalid
        )
    }));
    lines.push(format!("\n{:32}{:>7}{:>8}{:>8}{:>7}  verdict", "without it", "answers", "bytes =", "damaged", "burst"));
    for clean in &report.clean {
        let verdict = if clean.damaged == 0 { "holds" } else { "DAMAGED" };
        lines.push(format!(
            "{:32}{:>7}{:>8}{:>8}{:>7}  {verdict}",
            clean_name(clean),
            clean.answers,
            clean.same_bytes,
            clean.damaged,
            clean.bursts
        ));
    }
    lines.extend(latency(report));
    if !report.absent.is_empty() {
        let names: Vec<&str> = report.absent.iter().map(|endpoint| endpoint.name()).collect();
        lines.push(format!("the gateway does not have: {}", names.join(", ")));
    }
    lines.extend(failures(args, report));
    lines.push(if report.holds() { "holds".to_owned() } else { "does not hold".to_owned() });
    lines.join("\n") + "\n"
}

/// What failed, with a command for each row.
fn failures(args: &SweepArgs, report: &SweepReport) -> Vec<String> {
    let mut lines = Vec::new();
    for outcome in report.rows.iter().filter_map(|row| report.worst(row)) {
        lines.push(format!("\n{}: {}", outcome.cell, one_line(&outcome.what())));
        lines.push(format!("   {}", command(args, &outcome.cell)));
    }
    for clean in &report.clean {
        match (&clean.damage, &clean.first_difference) {
            (Some((cell, what)), _) => {
                lines.push(format!("\n{cell} without the canary: {}", one_line(what)));
                lines.push(format!("   {}", command(args, cell)));
            }
            (None, Some(what)) => {
                lines.push(format!("\n{} without the canary, in bytes only: {}", clean_name(clean), one_line(what)))
            }
            (None, None) => {}
        }
    }
    lines
}

/// Times of streams, and what the gateway adds to them.
fn latency(report: &SweepReport) -> Vec<String> {
    let times = &report.latency;
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let row = |name: &str, of: &dyn Fn(bool, f64) -> Option<f64>| {
        format!(
            "{name:32}{:>9}{:>9}{:>9}{:>9}",
            ms(of(true, 0.5)),
            ms(of(true, 0.9)),
            ms(of(false, 0.5)),
            ms(of(false, 0.9))
        )
    };
    let of = |stream: &crate::sweep::StreamLatency, is_ttft: bool, share: f64| {
        if is_ttft { stream.ttft.quantile(share) } else { stream.itl.quantile(share) }
    };
    let less = |stream, is_ttft, share| Some(of(stream, is_ttft, share)? - of(&times.direct, is_ttft, share)?);
    if times.direct.ttft.summary().is_none() {
        return Vec::new();
    }
    vec![
        format!("\n{:32}{:>9}{:>9}{:>9}{:>9}", "streams, ms", "TTFT p50", "p90", "ITL p50", "p90"),
        row("the server itself", &|is_ttft, share| of(&times.direct, is_ttft, share)),
        row("through the gateway", &|is_ttft, share| of(&times.clean, is_ttft, share)),
        row("the same with the canary", &|is_ttft, share| of(&times.with_canary, is_ttft, share)),
        row("the gateway adds", &|is_ttft, share| less(&times.clean, is_ttft, share)),
    ]
}

fn junit_file(report: &SweepReport) -> String {
    let rows = report.rows.iter().map(|row| {
        let failed = report.worst(row).map(|worst| {
            let (leaked, invalid) = (row.leaked, row.invalid);
            format!("{leaked} of {} cells leak, {invalid} are not valid: {}: {}", row.cells, worst.cell, worst.what())
        });
        JunitCase { name: row.name(), failure: failed }
    });
    let clean = report.clean.iter().map(|clean| {
        let failed = clean
            .damage
            .as_ref()
            .map(|(cell, what)| format!("{} of {} answers are damaged: {cell}: {what}", clean.damaged, clean.answers));
        JunitCase { name: format!("{} without the canary", clean_name(clean)), failure: failed }
    });
    junit("vllm-vcr sweep", &rows.chain(clean).chain(JunitCase::stopped(report.is_stopped)).collect::<Vec<_>>())
}
