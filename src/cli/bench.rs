//! `bench`: its flags, and the published benchmark on this machine as a table, JSON and a chart.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, builder::PossibleValuesParser, value_parser};

use crate::cli::failure::Failure;

/// The rows that fit a minute.
const QUICK: [&str; 7] = ["start", "paced", "lateness", "at_once", "small", "one_by_one", "burst"];

/// Measure this program on this machine, beside a floor that only waits and writes.
///
/// Measures the rows of the published table that take no more than a minute: `play` and the floor run in turn, under load over loopback.
/// The floor shows the most that the machine allows any program. Nothing else should run meanwhile.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  Measure this machine in a minute:\n    vllm-vcr bench\n\n  \
                       Draw lateness over streams too, and keep the figures:\n    vllm-vcr bench --svg lateness.svg --json > bench.json\n\n  \
                       Measure two rows, the best of five rounds:\n    vllm-vcr bench --only paced,one_by_one --rounds 5")]
pub(in crate::cli) struct BenchArgs {
    /// Measures only these rows.
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_parser = PossibleValuesParser::new(QUICK))]
    only: Vec<String>,
    /// Measures latencies this many times and keeps the best.
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u8).range(1..=20))]
    rounds: u8,
    /// Draws lateness by number of streams, beside the floor's; takes half a minute more.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[cfg(target_os = "linux")]
pub(in crate::cli) use linux::{floor, run};

#[cfg(not(target_os = "linux"))]
pub(in crate::cli) fn run(_args: BenchArgs) -> Result<ExitCode, Failure> {
    Err(Failure::environment("the benchmark needs Linux: its floor and its load client use epoll and timerfd"))
}

#[cfg(not(target_os = "linux"))]
pub(in crate::cli) fn floor(_arguments: Vec<String>) -> Result<ExitCode, Failure> {
    Err(Failure::environment("the floor needs Linux"))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{env, fmt::Write as _};

    use serde_json::Value;
    use tokio::signal::unix::{SignalKind, signal};

    use super::{BenchArgs, ExitCode, Failure, QUICK};
    use crate::{
        benchmark::{self, BenchRun, table},
        cli::{output, player::conclude, runtime},
        inspect::{Axis, Format, line_chart},
        net::server::raise_descriptor_limit,
    };

    /// Measures, and prints what was found.
    pub(in crate::cli) fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
        let writable = args.svg.as_deref().map_or(Ok(()), conclude::writable);
        writable.map_err(|failure| failure.hint("--svg takes a file in an existing, writable directory"))?;
        if cfg!(debug_assertions) {
            output::warn("this program was built without optimization: its figures mean little\n");
        }
        runtime::run(|shutdown| async move {
            let BenchArgs { only, rounds, svg, json } = args;
            let draws = svg.is_some();
            let measured = tokio::task::spawn_blocking(move || measure(&only, rounds, draws));
            // A terminal that is closed would leave the servers behind.
            let mut hangup = signal(SignalKind::hangup()).map_err(Failure::environment)?;
            let stopped = async {
                tokio::select! { () = shutdown.requested() => {}, _ = hangup.recv() => {} }
            };
            let found = tokio::select! {
                found = measured => found.map_err(Failure::environment)??,
                () = stopped => {
                    benchmark::server::kill_all();
                    return Err(Failure::environment("stopped before all rows were measured"));
                }
            };
            if let Some(path) = &svg {
                output::save(path, &lateness(&found))?;
            }
            if json { output::print_json(&found) } else { output::print(&text(&found)) }
        })
    }

    /// Runs the floor until SIGTERM.
    pub(in crate::cli) fn floor(arguments: Vec<String>) -> Result<ExitCode, Failure> {
        raise_descriptor_limit();
        benchmark::floor::run(arguments.into_iter()).map_err(Failure::environment)?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(only: &[String], rounds: u8, draws: bool) -> Result<Value, Failure> {
        let run = BenchRun {
            binary: &env::current_exe().map_err(Failure::environment)?,
            rounds: rounds.into(),
            starts: 3,
            seconds: 3,
            sizes: &[100, 1000, 5000],
            files: raise_descriptor_limit().map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        };
        let wanted = QUICK.into_iter().filter(|row| only.is_empty() || only.iter().any(|only| only == row));
        let rows: Vec<&str> = wanted.chain(draws.then_some("scaling")).collect();
        let found = run.measure(&rows, |row| output::note(&format!("{row}…\n")));
        found.map(Value::Object).map_err(Failure::environment)
    }

    fn lateness(found: &Value) -> String {
        let x = Axis { title: "streams, each 5 tokens/s", format: Format::Count, is_log: true };
        let y = Axis { title: "lateness of events", format: Format::Millis, is_log: true };
        let machine = |key: &str| found.pointer(&format!("/machine/{key}")).and_then(Value::as_str).unwrap_or_default();
        let title =
            format!("vllm-vcr {} and its floor, {}, {}", machine("version"), machine("processor"), machine("date"));
        let line = |name, rows, quantile| (name, table::lateness(found, rows, quantile));
        let lines = [
            line("p50", "/scaling", "p50"),
            line("p99", "/scaling", "p99"),
            line("floor p50", "/floor/scaling", "p50"),
            line("floor p99", "/floor/scaling", "p99"),
        ];
        line_chart(&title, x, y, &lines)
    }

    /// The table, with what may be long in the last column.
    fn text(found: &Value) -> String {
        let mut rows = vec![["vllm-vcr", "floor", "target", "what"].map(str::to_owned)];
        rows.extend(
            table::entries(found).into_iter().map(|row| [row.measured, row.floor, row.target, row.what.to_owned()]),
        );
        let width = |at: usize| rows.iter().flat_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        let [own, floor, target] = [0, 1, 2].map(|at| width(at).unwrap_or_default());
        let mut text = format!("{}\n", table::machine_line(found));
        for [measured, least, bound, what] in &rows {
            let _ = writeln!(text, "{measured:own$}  {least:floor$}  {bound:target$}  {what}");
        }
        text
    }
}
