//! What `replay` shows while it runs, and where its figures go besides: files, and the words of other load clients.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{args::ReplayArgs, printed::Printed};
use crate::{
    cli::{
        build::{self, ProgramBuild},
        failure::Failure,
        progress::ProgressLine,
        values::{one_of, uuid},
    },
    drive::{
        LoadClient, PeerReport, Results, Workload,
        export::{self, BenchmarkRun},
        peers::{ClientFigure, Measured, Statistics},
        results::Live,
        rung::{self, Rung},
    },
    recording::yaml::{self, Layout},
};

/// Where figures go besides standard output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(in crate::cli) struct OutputArgs {
    /// Prints the figures also as another load client does, with its names and formulas.
    #[arg(long, value_name = "TOOL", value_delimiter = ',', value_parser = one_of::<LoadClient>())]
    pub(in crate::cli) print_as: Vec<LoadClient>,
    /// Saves the run: JSON (.json), a table of requests (.csv), an HdrHistogram log (.hlog) or a Benchmark Report of llm-d (.yaml); with
    /// --find-max its rungs, as JSON or as a table.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) save: Vec<SavePath>,
}

/// A file to save to, and its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct SavePath {
    path: PathBuf,
    format: SaveFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SaveFormat {
    Json,
    Csv,
    Histograms,
    BenchmarkReport,
}

impl FromStr for SavePath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(OsStr::to_str) {
            Some("json") => SaveFormat::Json,
            Some("csv") => SaveFormat::Csv,
            Some("hlog") => SaveFormat::Histograms,
            Some("yaml" | "yml") => SaveFormat::BenchmarkReport,
            _ => return Err("its ending names no format: use .json, .csv, .hlog or .yaml"),
        };
        Ok(Self { path, format })
    }
}

/// Files that are open, so that no run is lost for a name that cannot be written, and their descriptions of the run.
#[derive(Debug)]
pub(super) struct Saves {
    files: Vec<(SavePath, File)>,
    print_as: Vec<LoadClient>,
    run: BenchmarkRun,
}

impl Saves {
    /// Creates the files; one that exists is not overwritten.
    pub(super) fn open(outputs: &OutputArgs, args: &ReplayArgs, workload: &Workload) -> Result<Self, Failure> {
        let create = |save: &SavePath| {
            if args.search.find_max && !matches!(save.format, SaveFormat::Json | SaveFormat::Csv) {
                let message = format!("--save {}: the rungs of --find-max have no such format", save.path.display());
                return Err(Failure::usage(message).hint("save them as .json or .csv"));
            }
            let file = File::options().write(true).create_new(true).open(&save.path);
            let failed = |error: io::Error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    Failure::usage(format!("--save {}: exists already; choose another name", save.path.display()))
                        .hint("a run is not added to a file")
                }
                _ => Failure::environment(format!("--save {}: {error}", save.path.display())),
            };
            Ok((save.clone(), file.map_err(failed)?))
        };
        let run = BenchmarkRun {
            uid: uuid(rand::random()),
            began: SystemTime::now(),
            version: build::VERSION.to_owned(),
            concurrency: args.concurrency.map(Into::into),
            rate: args.rate.map(|rate| rate * args.speed),
            made_up: workload.requests.iter().any(|request| request.record.request.is_none()),
            native: json!({}),
        };
        let files = outputs.save.iter().map(create).collect::<Result<_, Failure>>()?;
        Ok(Self { files, print_as: outputs.print_as.clone(), run })
    }

    /// The figures of the other load clients.
    pub(super) fn printed_as(&self, measured: &Measured) -> Vec<PeerReport> {
        self.print_as.iter().map(|tool| PeerReport::of(*tool, measured)).collect()
    }

    /// Writes the files.
    pub(super) fn save(self, printed: &Printed, results: &Results, measured: &Measured) -> Result<(), Failure> {
        let native = json!({"commit": printed.commit, "build": ProgramBuild::this(), "verdict": printed.verdict, "counted_by": printed.results.counted_by});
        let run = BenchmarkRun { native, ..self.run.clone() };
        self.write(|format, out| match format {
            SaveFormat::Json => json(out, printed),
            SaveFormat::Csv => export::csv(out, &results.samples(), &results.targets()),
            SaveFormat::Histograms => results.latencies().write(out, run.began, measured.duration),
            SaveFormat::BenchmarkReport => {
                let mut text = String::new();
                yaml::write(&mut text, &export::benchmark_report(&run, measured), 0, Layout::Block);
                out.write_all(text.as_bytes())
            }
        })
    }

    /// Writes the rungs of a search.
    pub(super) fn save_search(self, printed: &impl Serialize, rungs: &[Rung]) -> Result<(), Failure> {
        self.write(|format, out| if format == SaveFormat::Json { json(out, printed) } else { rung::csv(out, rungs) })
    }

    fn write(mut self, write: impl Fn(SaveFormat, &mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
        while let Some((SavePath { path, format }, file)) = self.files.pop() {
            let mut out = BufWriter::new(file);
            let written = write(format, &mut out);
            let failed = |error| Failure::environment(format!("--save {}: {error}", path.display()));
            written.and_then(|()| out.flush()).map_err(failed)?;
        }
        Ok(())
    }
}

fn json(out: &mut BufWriter<File>, printed: &impl Serialize) -> io::Result<()> {
    Ok(serde_json::to_writer_pretty(out, &build::stamped(printed)?)?)
}

impl Drop for Saves {
    /// Removes what nothing was written to.
    fn drop(&mut self) {
        for (save, _) in &self.files {
            let _gone = std::fs::remove_file(&save.path);
        }
    }
}

/// Shows how a run of so many requests goes on, until it is dropped.
pub(super) fn progress(results: Arc<Results>, planned: u64) -> ProgressLine {
    ProgressLine::anywhere(move |elapsed| line(&results.live(), planned, elapsed))
}

/// Formats the state of a run, shorter than any terminal is wide: medians and 99th percentiles in milliseconds.
fn line(live: &Live, planned: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 10;
    let ended = live.ended.min(planned);
    let full = ended * WIDTH / planned.max(1);
    let bar: String = (0..WIDTH).map(|place| if place < full { '#' } else { '.' }).collect();
    let mut text = format!("[{bar}] {}/{planned} {:.0}s {} failed", live.ended, elapsed.as_secs_f64(), live.failed);
    for (name, quantiles) in [("TTFT", live.ttft), ("ITL", live.itl), ("late", live.late)] {
        if let Some((median, high)) = quantiles {
            let _ = write!(text, " {name} {:.1}/{:.1}", median, high);
        }
    }
    text
}

/// Formats the figures of a load client.
pub(super) fn text(report: &PeerReport) -> String {
    let mut text = format!("\nas {}:\n", report.tool.name());
    for (name, figure) in &report.figures.0 {
        let values = match figure {
            ClientFigure::One(value) => format!("{value:.3}"),
            ClientFigure::Statistics(Statistics(values)) => {
                let values: Vec<String> = values.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
                values.join("  ")
            }
        };
        let _ = writeln!(text, "{name:40} {values}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_file_is_its_format() {
        let format = |text: &str| text.parse::<SavePath>().map(|save| save.format);
        assert_eq!(format("a.json"), Ok(SaveFormat::Json));
        assert_eq!(format("x/b.hlog"), Ok(SaveFormat::Histograms));
        assert_eq!((format("b.yml"), format("c.csv")), (Ok(SaveFormat::BenchmarkReport), Ok(SaveFormat::Csv)));
        assert!(["json", "a.txt", "", "a.JSON.gz"].into_iter().all(|text| format(text).is_err()));
    }

    #[test]
    fn ids_are_uuids_of_version_4() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn the_line_fits_on_a_terminal() {
        let live = Live {
            ended: 5200,
            failed: 17,
            ttft: Some((51.0, 2300.0)),
            itl: Some((10.0, 130.0)),
            late: Some((1.0, 2.0)),
        };
        let shown = line(&live, 10_000, Duration::from_secs(612));
        assert_eq!(shown, "[#####.....] 5200/10000 612s 17 failed TTFT 51.0/2300.0 ITL 10.0/130.0 late 1.0/2.0");
        assert!(shown.len() <= 85);
        let none = Live { ended: 0, failed: 0, ttft: None, itl: None, late: None };
        assert_eq!(line(&none, 0, Duration::ZERO), "[..........] 0/0 0s 0 failed");
    }
}
