//! `bench`: its flags, and the published benchmark on this machine as a table, JSON and a chart.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, builder::PossibleValuesParser, value_parser};

use crate::cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  Measure this machine in a minute:
    vllm-vcr bench

  Draw lateness over streams too, and keep the figures:
    vllm-vcr bench --svg lateness.svg --json > bench.json

  Measure two rows, the best of five rounds:
    vllm-vcr bench --only paced,one_by_one --rounds 5";

/// The rows by their names in JSON.
const ROWS: [&str; 7] = ["start", "paced", "lateness", "at_once", "small", "one_by_one", "burst"];

/// Measure this program on this machine, beside a floor that only waits and writes.
///
/// Takes the rows of the published table that fit a minute: this program and the floor are started in turns and loaded over loopback. What the
/// machine does not allow the floor, it allows no program. Nothing else should run meanwhile.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct BenchArgs {
    /// Measures these rows only.
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_parser = PossibleValuesParser::new(ROWS))]
    only: Vec<String>,
    /// Measures what is about latency so many times, and keeps the best.
    #[arg(long, value_name = "N", default_value = "1", value_parser = value_parser!(u8).range(1..=20))]
    rounds: u8,
    /// Draws lateness over numbers of streams, beside the floor's; takes half a minute more.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[cfg(target_os = "linux")]
pub(in crate::cli) use linux::{floor, run};

#[cfg(not(target_os = "linux"))]
const ELSEWHERE: &str = "the benchmark needs Linux: its floor and its load client are made of epoll and timerfd";

#[cfg(not(target_os = "linux"))]
pub(in crate::cli) fn run(_args: &BenchArgs) -> Result<ExitCode, Failure> {
    Err(Failure::environment(ELSEWHERE))
}

#[cfg(not(target_os = "linux"))]
pub(in crate::cli) fn floor(_arguments: Vec<String>) -> Result<ExitCode, Failure> {
    Err(Failure::environment(ELSEWHERE))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{env, fmt::Write as _, fs::File};

    use serde_json::{Map, Value};

    use super::{BenchArgs, ExitCode, Failure};
    use crate::{
        benchmark::{self, table},
        cli::output,
        net::server,
    };

    /// Files that are open beside connections.
    const OTHER_FILES: usize = 200;

    /// Measures, and prints what was found.
    pub(in crate::cli) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
        if let Some(path) = &args.svg {
            let unwritable = |error| Failure::environment(format!("--svg {}: {error}", path.display()));
            File::options().append(true).create(true).open(path).map_err(unwritable)?;
        }
        if cfg!(debug_assertions) {
            output::note("this program is built without optimisation: its figures say little\n");
        }
        let found = measure(args)?;
        if let Some(path) = &args.svg {
            output::save(path, &table::lateness_chart(&found))?;
        }
        if args.json { output::print_json(&found) } else { output::print(&text(&found)) }
    }

    /// Runs the floor until it is told to end.
    pub(in crate::cli) fn floor(arguments: Vec<String>) -> Result<ExitCode, Failure> {
        server::raise_descriptor_limit();
        benchmark::floor::run(arguments.into_iter()).map_err(Failure::environment)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The figures by row, those of the floor under `floor`.
    fn measure(args: &BenchArgs) -> Result<Value, Failure> {
        let binary = env::current_exe().map_err(Failure::environment)?;
        let limit = server::raise_descriptor_limit().and_then(|limit| usize::try_from(limit).ok());
        let most = limit.unwrap_or(usize::MAX).saturating_sub(OTHER_FILES);
        let (mut found, mut floors) = (Map::new(), Map::new());
        found.insert("machine".to_owned(), table::machine());
        let mut take = |name: &str, measured: std::io::Result<[Value; 2]>| {
            let failed = |error| Failure::environment(format!("{name}: {error}"));
            let [own, floor] = measured.map_err(failed)?;
            found.insert(name.to_owned(), own);
            floors.insert(name.to_owned(), floor);
            Ok::<(), Failure>(())
        };
        for (name, row) in benchmark::QUICK {
            if args.only.is_empty() || args.only.iter().any(|only| only == name) {
                output::note(&format!("{name}…\n"));
                take(name, row(&binary, args.rounds.into()))?;
            }
        }
        if args.svg.is_some() {
            output::note("scaling…\n");
            take("scaling", benchmark::scaling(&binary, most))?;
        }
        found.insert("floor".to_owned(), Value::Object(floors));
        Ok(Value::Object(found))
    }

    fn text(found: &Value) -> String {
        let rows = table::entries(found);
        let mut text = format!("{}\n", table::machine_line(found));
        let width = |column: &dyn Fn(&table::TableEntry) -> &str, head: &str| {
            rows.iter().map(|row| column(row).chars().count()).chain([head.len()]).max().unwrap_or_default()
        };
        let (what, target) = (width(&|row| row.what, "what"), width(&|row| &row.target, "target"));
        let measured = width(&|row| &row.measured, "vllm-vcr");
        let _ = writeln!(text, "{:what$}  {:target$}  {:measured$}  floor", "what", "target", "vllm-vcr");
        for row in &rows {
            let _ =
                writeln!(text, "{:what$}  {:target$}  {:measured$}  {}", row.what, row.target, row.measured, row.floor);
        }
        text
    }
}
