//! `--find-max`: its flags and what it prints.

use std::{num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::Args;
use serde::Serialize;

use super::{outputs::Saves, printed::RunInputs};
use crate::{
    cli::{build, failure::Failure, output, values::with_unit},
    drive::{
        Ceiling, Verdict,
        find_max::{Climb, ClimbEnd, FoundMax},
        rung::Rung,
    },
};

/// The most that a server does.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Search")]
pub(in crate::cli) struct FindMaxArgs {
    /// Finds the server's highest throughput: a closed loop at 1, 4, 16… concurrent sessions, until throughput stops rising or --slo is
    /// broken, then at values in between.
    #[arg(long, conflicts_with_all = ["arrivals", "rate", "concurrency", "speed", "duration", "warmup", "shard", "check", "out", "print_as"])]
    pub(in crate::cli) find_max: bool,
    /// How long sessions are started at each concurrency; up to four times as long if requests are slow.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = with_unit, requires = "find_max")]
    pub(in crate::cli) rung: Duration,
    /// The highest concurrency to try.
    #[arg(long, value_name = "N", default_value = "4096", requires = "find_max")]
    pub(in crate::cli) max_concurrency: NonZeroUsize,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct PrintedSearch {
    version: &'static str,
    commit: &'static str,
    run: RunInputs,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<Ceiling>,
    find_max: FoundMax,
}

/// Climbs and prints the rungs; exit code 1 where they may not be believed.
pub(super) async fn run(
    mut climb: Climb,
    run: RunInputs,
    ceiling: Option<Ceiling>,
    as_json: bool,
    saves: Saves,
) -> Result<ExitCode, Failure> {
    // A pause is no load: places are to be filled.
    climb.selection.max_think.get_or_insert(Duration::ZERO);
    output::note(&format!("{HEAD}\n"));
    let (found, mut reasons) = climb.run(|rung| output::note(&format!("{}\n", row(rung)))).await?;
    reasons.extend(ceiling.and_then(|ceiling| found.client_bound(ceiling)));
    let verdict = Verdict { valid: reasons.is_empty(), reasons };
    let printed =
        PrintedSearch { version: build::VERSION, commit: build::COMMIT, run, verdict, ceiling, find_max: found };
    let as_text = || text(&printed.find_max, &printed.verdict);
    let code = output::verdict(printed.verdict.valid, as_json, || &printed, as_text)?;
    saves.save_search(&printed, &printed.find_max.rungs)?;
    Ok(code)
}

const HEAD: &str = "concurrency  in flight   requests/s   failed     tokens/s   ± %  E2E mean ms  TTFT p50 ms  TTFT p99 ms  goodput/s  within SLO";

fn row(rung: &Rung) -> String {
    let half = rung.output_throughput_interval.map(|interval| (interval.high - interval.low) / 2.0);
    let percent = half.map_or("-".to_owned(), |half| format!("{:.1}", half * 100.0 / rung.output_throughput.max(1e-9)));
    let shown =
        |figure: Option<f64>, digits: usize| figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"));
    format!(
        "{:11} {:10.1} {:12.2} {:8} {:12.1} {percent:>5} {:12.1} {:>12} {:>12} {:>10} {:>11}",
        rung.concurrency,
        rung.in_flight,
        rung.request_throughput,
        rung.failed,
        rung.output_throughput,
        rung.e2e_mean_ms,
        shown(rung.ttft_p50_ms, 1),
        shown(rung.ttft_p99_ms, 1),
        shown(rung.goodput.filter(|_| rung.slo_share.is_some()), 2),
        rung.slo_share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
    )
}

fn text(found: &FoundMax, verdict: &Verdict) -> String {
    let mut lines = vec![HEAD.to_owned()];
    lines.extend(found.rungs.iter().map(row));
    lines.extend(found.knee.map(|knee| format!("knee       at a concurrency of {knee}: more do not raise throughput")));
    lines.extend(found.slo_concurrency.map(|most| format!("SLO        kept up to a concurrency of {most}")));
    let best = found.rungs.iter().find(|rung| Some(rung.concurrency) == found.best);
    lines.extend(best.map(|rung| match (rung.goodput, rung.token_goodput) {
        (Some(requests), Some(tokens)) => {
            format!(
                "goodput    {requests:.2} requests/s, {tokens:.1} tokens/s at a concurrency of {}",
                rung.concurrency
            )
        }
        _ => format!("most       {:.1} tokens/s at a concurrency of {}", rung.output_throughput, rung.concurrency),
    }));
    lines.push(format!("ended      {}", ended(found.ended)));
    lines.push(super::printed::judged(verdict));
    lines.join("\n") + "\n"
}

fn ended(ended: ClimbEnd) -> &'static str {
    match ended {
        ClimbEnd::Saturated => "throughput does not rise any more",
        ClimbEnd::SloBroken => "the limits of --slo are broken",
        ClimbEnd::Failing => "more than a tenth of the requests fail",
        ClimbEnd::MostConcurrency => "throughput still rose at --max-concurrency",
        ClimbEnd::MostRungs => "ten rungs: the bend may be anywhere between the last ones",
        ClimbEnd::Failed => "every request failed",
        ClimbEnd::Stopped => "stopped",
    }
}
