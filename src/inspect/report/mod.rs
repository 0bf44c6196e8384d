//! Report of one or more traces as one HTML page: the figures of [`summary`](super::summary()) and [`compare`](super::compare()), and what shows
//! best as a picture. The page is made of the JSON that it holds, so that both have the same figures.
//!
//! Limits: curves have at most some hundred points, lists their largest entries. The page holds every name of a summary (endpoints, models) once,
//! however many there are. In memory are, beside what a summary needs, the arrival and TTFT of each response.

mod chart;
mod figures;
mod html;
mod over_time;
mod page;
mod prefixes;
mod responses;
mod sections;
mod tables;
mod tree;

use std::{
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;

use self::{
    over_time::{FirstTokens, TokenBuckets},
    responses::{Failures, Slowest},
};
use crate::{
    base::stats::{Durations, Summary},
    inspect::{
        MetricGate, SummaryReport, TraceComparison, compare,
        summary::{Summarised, summary_with},
    },
    recording::trace::{LoadProgress, Record, Sources, TraceError},
    replay::meter,
};

pub use self::{
    chart::{Axis, line_chart},
    figures::Format,
    over_time::{OverTime, TokenRate},
    prefixes::{PrefixTree, SharedPrefix},
    responses::{FailedRequests, FailureKind, SlowResponse},
};

/// Traces that a report shows side by side, at most.
pub const MOST_RUNS: usize = 8;

/// Error of making a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There are too many.
    #[error(
        "{0} traces are too many for one report, which shows at most {MOST_RUNS}; parts of one trace go into a directory, which counts as one"
    )]
    TooMany(usize),
    /// Two traces are compared, and to do so they are read twice.
    #[error("standard input cannot be compared, because it can be read only once; write it to a file")]
    StandardInput,
}

/// Figures of one or more traces. `inspect report` makes a page of them.
#[derive(Debug, Clone, Serialize)]
pub struct TraceReport {
    /// Version of the program.
    pub version: &'static str,
    /// The traces, in the order in which they were named.
    pub runs: Vec<RunReport>,
    /// The second trace compared with the first one, as [`compare`](super::compare()) makes it; `None` unless there are two.
    pub comparison: Option<TraceComparison>,
    /// The same quantiles of both traces, `[first, second]` in milliseconds; `None` unless there are two.
    pub quantiles: Option<Curves>,
}

/// Figures of one trace.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The path as it was named.
    pub name: String,
    /// As [`summary`](super::summary()) makes it.
    pub summary: SummaryReport,
    /// Survival curves: `[milliseconds, share of the values that are larger]`.
    pub survival: Curves,
    /// TTFT by arrival; `None` without both.
    pub ttft_over_time: Option<OverTime>,
    /// Output tokens per second; `None` without arrivals or tokens.
    pub output_tokens_per_s: Option<TokenRate>,
    /// Prefixes that prompts share; `None` without block hashes.
    pub prefixes: Option<PrefixTree>,
    /// Responses with the largest E2E, the slowest first.
    pub slowest_e2e: Vec<SlowResponse>,
    /// Responses with the largest TTFT, the slowest first.
    pub slowest_ttft: Vec<SlowResponse>,
    /// Requests that failed.
    pub failed: FailedRequests,
}

/// A list of points for each latency.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Request to first token.
    pub ttft: Vec<[f64; 2]>,
    /// Between tokens.
    pub itl: Vec<[f64; 2]>,
    /// Mean time per token after the first.
    pub tpot: Vec<[f64; 2]>,
    /// Request to last byte.
    pub e2e: Vec<[f64; 2]>,
}

impl Curves {
    fn of<T>(runs: &T, points: impl Fn(&T, fn(&Summarised) -> &Durations) -> Vec<[f64; 2]>) -> Self {
        Self {
            ttft: points(runs, |run| &run.ttft),
            itl: points(runs, |run| &run.itl),
            tpot: points(runs, |run| &run.tpot),
            e2e: points(runs, |run| &run.e2e),
        }
    }
}

/// Makes a report of traces, of each path one: a file, a directory, or the first file of a capture in several. Two traces are compared.
///
/// # Errors
/// When there are too many traces, one cannot be read to its end or no line at all of it is a sound record; a file that was cut is no error.
pub fn report(paths: &[PathBuf], progress: &Arc<LoadProgress>) -> Result<TraceReport, ReportError> {
    if paths.len() > MOST_RUNS {
        return Err(ReportError::TooMany(paths.len()));
    }
    let is_standard = |path: &PathBuf| path.as_os_str() == "-";
    if paths.len() > 1 && paths.iter().any(is_standard) {
        return Err(ReportError::StandardInput);
    }
    let (runs, summarised): (Vec<RunReport>, Vec<Summarised>) =
        paths.iter().map(|path| run(path, progress)).collect::<Result<Vec<_>, TraceError>>()?.into_iter().unzip();
    let comparison = match paths {
        [a, b] => Some(compare(a, b, &MetricGate::default())?),
        _ => None,
    };
    let quantiles = match summarised.as_slice() {
        [a, b] => Some(Curves::of(&(a, b), |(a, b), latency| quantiles(latency(a), latency(b)))),
        _ => None,
    };
    Ok(TraceReport { version: env!("CARGO_PKG_VERSION"), runs, comparison, quantiles })
}

fn run(path: &Path, progress: &Arc<LoadProgress>) -> Result<(RunReport, Summarised), TraceError> {
    let mut seen = Seen::default();
    let (summary, mut summarised) =
        summary_with(&Sources::gather(&[path.to_owned()])?, progress, |record| seen.add(record))?;
    let (begin, prompts) = (seen.begin.unwrap_or_default(), mem::take(&mut summarised.prompts));
    let report = RunReport {
        name: path.display().to_string(),
        survival: Curves::of(&summarised, |run, latency| survival(latency(run))),
        ttft_over_time: seen.first_tokens.over_time(begin),
        output_tokens_per_s: seen.tokens.rate(begin),
        prefixes: summary.sharing.is_some().then(|| PrefixTree::of(prompts.iter().map(|(_, prompt)| prompt))),
        slowest_e2e: seen.slowest_e2e.responses(begin),
        slowest_ttft: seen.slowest_ttft.responses(begin),
        failed: seen.failures.report(begin),
        summary,
    };
    Ok((report, summarised))
}

/// Values of the records that a report needs beside their summary.
#[derive(Default)]
struct Seen {
    begin: Option<Duration>,
    first_tokens: FirstTokens,
    tokens: TokenBuckets,
    slowest_e2e: Slowest,
    slowest_ttft: Slowest,
    failures: Failures,
}

impl Seen {
    fn add(&mut self, record: &Record) {
        self.begin = self.begin.into_iter().chain(record.arrival).min();
        self.first_tokens.add(record);
        self.tokens.add(record);
        self.slowest_e2e.add(record, meter::e2e(record));
        self.slowest_ttft.add(record, meter::ttft(record));
        self.failures.add(record);
    }
}

/// Shares of the values that are larger than a point of a curve: each hundredth, and from a tenth down twenty for each factor of ten. Each is
/// larger than that of one value of so many.
fn shares(count: u64) -> impl Iterator<Item = f64> {
    let body = (10..100).rev().map(|hundredth| f64::from(hundredth) / 100.0);
    let tail = (1..=120).map(|step| 0.1 * 10.0_f64.powf(-f64::from(step) / 20.0));
    let smallest = 1.0 / count.max(1) as f64;
    body.chain(tail).take_while(move |share| *share > smallest)
}

/// From the smallest value, which all others exceed, to the largest, which stands at the share of one value.
fn survival(latency: &Durations) -> Vec<[f64; 2]> {
    let Some(Summary { count, min, max, .. }) = latency.summary() else { return Vec::new() };
    let between = shares(count).filter_map(|share| Some([latency.quantile(1.0 - share)?, share]));
    [[min, 1.0]].into_iter().chain(between).chain([[max, 1.0 / count as f64]]).collect()
}

fn quantiles(a: &Durations, b: &Durations) -> Vec<[f64; 2]> {
    let (Some(first), Some(second)) = (a.summary(), b.summary()) else { return Vec::new() };
    let between = shares(first.count.min(second.count));
    let between = between.filter_map(|share| Some([a.quantile(1.0 - share)?, b.quantile(1.0 - share)?]));
    [[first.min, second.min]].into_iter().chain(between).chain([[first.max, second.max]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(millis: impl IntoIterator<Item = u64>) -> Durations {
        let mut latencies = Durations::default();
        millis.into_iter().for_each(|millis| latencies.record(Duration::from_millis(millis)));
        latencies
    }

    #[test]
    fn a_survival_curve_falls_from_all_values_to_one() {
        let curve = survival(&latencies(1..=1000));
        assert_eq!((curve[0], *curve.last().unwrap()), ([1.0, 1.0], [1000.0, 0.001]));
        assert!(curve.windows(2).all(|two| two[0][0] <= two[1][0] && two[0][1] > two[1][1]), "{curve:?}");
        let [median, _] = curve.iter().find(|point| point[1] == 0.5).unwrap();
        assert!((median - 500.0).abs() < 1.0, "{median}");
        assert_eq!(survival(&latencies([])), [[0.0; 2]; 0]);
        assert_eq!(survival(&latencies([7])), [[7.0, 1.0], [7.0, 1.0]]);
        let long = survival(&latencies((1..=1000).cycle().take(1_000_000)));
        assert!(long.len() < 250, "{}", long.len());
    }

    #[test]
    fn quantiles_of_a_run_twice_as_slow_are_twice_as_large() {
        let (fast, slow) = (latencies(1..=1000), latencies((1..=1000).map(|millis| millis * 2)));
        let points = quantiles(&fast, &slow);
        assert!(points.len() > 100 && points.iter().all(|[a, b]| (b / a - 2.0).abs() < 0.01), "{points:?}");
        assert_eq!(quantiles(&fast, &latencies([])), [[0.0; 2]; 0]);
    }
}
