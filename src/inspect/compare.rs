//! Two traces side by side: what changed from one to the other, how sure that is, and whether a gate lets it pass.
//!
//! A metric is better or worse only where the interval of its difference excludes zero ([`steady`]).
//!
//! Limits: the times and counts of all requests are in memory, of gaps between tokens at most [`MOST_GAPS`], evenly picked.

use std::{path::Path, time::Duration};

use serde::{Serialize, Serializer};

use crate::{
    base::units::Millis,
    drive::steady::{self, Grouped, Interval, Ratio},
    inspect::{GateResult, MetricGate},
    recording::trace::{BadLines, Joined, Outcome, Record, Sources, TraceError, Warning, replay_key},
    replay::meter::{self, TokenGaps},
};

/// Gaps between tokens that are compared, of each trace.
const MOST_GAPS: usize = 100_000;

/// Parts of a run for its throughput.
const PARTS: u32 = 100;

const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

const DISTRIBUTIONS: [(&str, MetricUnit, Good); 5] = [
    ("ttft", MetricUnit::Ms, Good::Less),
    ("itl", MetricUnit::Ms, Good::Less),
    ("tpot", MetricUnit::Ms, Good::Less),
    ("e2e", MetricUnit::Ms, Good::Less),
    ("output_tokens", MetricUnit::Tokens, Good::Neither),
];

const RATIOS: [(&str, MetricUnit, Good); 5] = [
    ("output_tokens_mean", MetricUnit::Tokens, Good::Neither),
    ("cached_share", MetricUnit::Share, Good::More),
    ("error_share", MetricUnit::Share, Good::Less),
    ("request_throughput", MetricUnit::PerSecond, Good::More),
    ("output_throughput", MetricUnit::PerSecond, Good::More),
];

/// Name of the number of requests, which has no interval.
const REQUESTS: &str = "requests";

/// Two traces side by side.
#[derive(Debug, Clone, Serialize)]
pub struct TraceComparison {
    /// The file names.
    pub a: String,
    /// The later one.
    pub b: String,
    /// What is wrong with the files, such as that one was cut.
    pub warnings: Vec<String>,
    /// The metrics with their names, in the order of a report.
    #[serde(serialize_with = "by_name")]
    pub metrics: Vec<(String, ComparedMetric)>,
    /// Results of a gate; empty without one.
    pub gate: Vec<GateResult>,
}

fn by_name<S: Serializer>(metrics: &[(String, ComparedMetric)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|(name, compared)| (name, compared)))
}

/// One metric of both traces.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComparedMetric {
    /// Unit of the values and of the interval.
    pub unit: MetricUnit,
    /// In the earlier trace; `None` where it has none.
    pub a: Option<f64>,
    /// In the later one.
    pub b: Option<f64>,
    /// Change in percent of `a`; `None` where that is zero.
    pub change_percent: Option<f64>,
    /// The difference lies in here with a probability of 95 %; `None` where there are too few values.
    pub interval: Option<Interval>,
    /// What the interval shows.
    pub judgement: Option<Judgement>,
}

/// Unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricUnit {
    /// Milliseconds.
    Ms,
    /// Tokens.
    Tokens,
    /// A number between 0 and 1.
    Share,
    /// Requests, or tokens, a second.
    PerSecond,
    /// Requests.
    Requests,
}

/// Judgement of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// It excludes zero, on the good side.
    Better,
    /// It excludes zero, on the other side.
    Worse,
    /// It excludes zero, for a metric of which neither more nor less is good.
    Other,
    /// It holds zero.
    NoChange,
}

/// The side of zero on which a difference is good.
#[derive(Debug, Clone, Copy)]
enum Good {
    Less,
    More,
    Neither,
}

impl ComparedMetric {
    fn of(unit: MetricUnit, good: Good, (a, b): (Option<f64>, Option<f64>), interval: Option<Interval>) -> Self {
        let change = |(a, b): (f64, f64)| match a {
            0.0 => (b == 0.0).then_some(0.0),
            a => Some((b - a) / a * 100.0),
        };
        let judge = |Interval { low, high }| match good {
            _ if low <= 0.0 && high >= 0.0 => Judgement::NoChange,
            Good::Neither => Judgement::Other,
            Good::Less if high < 0.0 => Judgement::Better,
            Good::More if low > 0.0 => Judgement::Better,
            Good::Less | Good::More => Judgement::Worse,
        };
        Self { unit, a, b, change_percent: a.zip(b).and_then(change), interval, judgement: interval.map(judge) }
    }
}

impl TraceComparison {
    /// Returns true if no rule of the gate failed.
    pub(crate) fn passes(&self) -> bool {
        self.gate.iter().all(|result| result.failure.is_none())
    }
}

/// Compares a trace with an earlier one.
///
/// # Errors
/// When a file cannot be read to its end, or no line at all of one is a sound record; a file that was cut is no error.
pub fn compare(a: &Path, b: &Path, gate: &MetricGate) -> Result<TraceComparison, TraceError> {
    let (earlier, later) = (ComparedTrace::read(a)?, ComparedTrace::read(b)?);
    let metrics = metrics(&earlier, &later);
    let gate = gate.judge(&metrics);
    let warnings = [earlier.warnings, later.warnings].concat();
    Ok(TraceComparison { a: a.display().to_string(), b: b.display().to_string(), warnings, metrics, gate })
}

fn metrics(earlier: &ComparedTrace, later: &ComparedTrace) -> Vec<(String, ComparedMetric)> {
    let mut metrics = Vec::new();
    let distributions = earlier.distributions().into_iter().zip(later.distributions());
    for ((name, unit, good), (a, b)) in DISTRIBUTIONS.into_iter().zip(distributions) {
        let shares = QUANTILES.map(|(_, share)| share);
        let resampled = a.resampled(&shares, 0).into_iter().zip(b.resampled(&shares, 1));
        for ((quantile, share), (old, new)) in QUANTILES.into_iter().zip(resampled) {
            let values = (a.quantile(share), b.quantile(share));
            let interval = steady::interval_of_difference(&old, &new);
            metrics.push((format!("{name}_{quantile}"), ComparedMetric::of(unit, good, values, interval)));
        }
    }
    for ((name, unit, good), (a, b)) in RATIOS.into_iter().zip(earlier.ratios().into_iter().zip(later.ratios())) {
        let interval = steady::interval_of_difference(&a.resampled(0), &b.resampled(1));
        metrics.push((name.to_owned(), ComparedMetric::of(unit, good, (a.value(), b.value()), interval)));
    }
    let count = |trace: &ComparedTrace| Some(trace.requests().count() as f64);
    let counts = (count(earlier), count(later));
    metrics.push((REQUESTS.to_owned(), ComparedMetric::of(MetricUnit::Requests, Good::Neither, counts, None)));
    metrics
}

/// Returns the unit of a metric; `None` where there is no such metric.
pub(super) fn unit_of(metric: &str) -> Option<MetricUnit> {
    let figures = RATIOS.into_iter().chain([(REQUESTS, MetricUnit::Requests, Good::Neither)]);
    let figure = figures.into_iter().find(|(name, ..)| *name == metric);
    let quantile = || {
        let (metric, quantile) = metric.rsplit_once('_')?;
        QUANTILES.iter().find(|(name, _)| *name == quantile)?;
        DISTRIBUTIONS.into_iter().find(|(name, ..)| *name == metric)
    };
    figure.or_else(quantile).map(|(_, unit, _)| unit)
}

#[derive(Debug, Default)]
struct ComparedTrace {
    /// Records by their arrivals; of the choices of a request each.
    choices: Vec<ComparedChoice>,
    gaps: SampledGaps,
    warnings: Vec<String>,
}

/// Values of one record that are compared.
#[derive(Debug, Clone, Copy)]
struct ComparedChoice {
    place: usize,
    is_first: bool,
    arrival: Option<Duration>,
    ttft: Option<Duration>,
    tpot: Option<Duration>,
    e2e: Option<Duration>,
    prompt_tokens: u32,
    cached_tokens: Option<u32>,
    output_tokens: u32,
    end: ChoiceOutcome,
}

/// End of a response, as a comparison counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChoiceOutcome {
    Good,
    Failed,
    /// Neither the server's success nor its failure: the client left, or the recorder was stopped.
    Neither,
}

impl ChoiceOutcome {
    pub(super) fn of(record: &Record) -> Self {
        match record.outcome {
            _ if record.is_error() => Self::Failed,
            None | Some(Outcome::Finished) => Self::Good,
            Some(Outcome::Error | Outcome::UpstreamFailed | Outcome::TimedOut) => Self::Failed,
            Some(Outcome::ClientGone | Outcome::Cut) => Self::Neither,
        }
    }
}

impl ComparedChoice {
    fn of(record: &Record, place: usize) -> Self {
        Self {
            place,
            is_first: record.choice.unwrap_or_default() == 0,
            arrival: record.arrival,
            ttft: meter::ttft(record),
            tpot: meter::tpot(record),
            e2e: meter::e2e(record),
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.cached_tokens,
            output_tokens: record.output_tokens,
            end: ChoiceOutcome::of(record),
        }
    }
}

impl ComparedTrace {
    fn read(path: &Path) -> Result<Self, TraceError> {
        let sources = Sources::gather(&[path.to_owned()])?;
        let (mut joined, mut run) = (Joined::of(&sources), Self::default());
        let mut first_bad = None;
        while let Some((path, mut reader)) = joined.next_file()? {
            let path = path.to_owned();
            let mut bad_lines = BadLines::default();
            while let Some((_, mut record)) = reader.next_sound(&mut bad_lines)? {
                joined.place(&mut record);
                run.add(&record);
            }
            let named = |text: String| format!("{}: {text}", path.display());
            run.warnings.extend(reader.warnings().iter().map(Warning::to_string).map(named));
            if let Some(finding) = bad_lines.first.first() {
                let left_out = format!("{} bad lines are left out, the first is line {finding}", bad_lines.count);
                run.warnings.push(named(left_out));
                first_bad.get_or_insert_with(|| TraceError::Line { path, finding: finding.clone() });
            }
        }
        if let Some(error) = first_bad.filter(|_| run.choices.is_empty()) {
            return Err(error);
        }
        run.choices.sort_by_key(|choice| replay_key(choice.arrival));
        Ok(run)
    }

    fn add(&mut self, record: &Record) {
        let choice = ComparedChoice::of(record, self.choices.len());
        if choice.end == ChoiceOutcome::Good {
            meter::itl(record).for_each(|gaps| self.gaps.add(choice.place, gaps));
        }
        self.choices.push(choice);
    }

    /// The values of [`DISTRIBUTIONS`]: latencies of the records that ended well, tokens of all.
    fn distributions(&self) -> [Grouped; 5] {
        let good = || self.choices.iter().enumerate().filter(|(_, choice)| choice.end == ChoiceOutcome::Good);
        let of = |value: fn(&ComparedChoice) -> Option<Duration>| {
            Grouped::new(good().filter_map(|(place, choice)| Some((place, Millis::from(value(choice)?).0))))
        };
        let all = self.choices.iter().enumerate();
        let tokens = Grouped::new(all.map(|(place, choice)| (place, f64::from(choice.output_tokens))));
        let itl = self.gaps.by_place(&self.choices);
        [of(|choice| choice.ttft), itl, of(|choice| choice.tpot), of(|choice| choice.e2e), tokens]
    }

    /// The sums of [`RATIOS`].
    fn ratios(&self) -> [Ratio; 5] {
        let tokens = Ratio::new(self.choices.iter().map(|choice| (f64::from(choice.output_tokens), 1.0)));
        // The engine does not report for every request what it found in its cache.
        let cached = self.requests().filter_map(|choice| Some((choice.cached_tokens?, choice.prompt_tokens)));
        let cached = Ratio::new(cached.map(|(cached, prompt)| (f64::from(cached), f64::from(prompt))));
        let failed =
            Ratio::new(self.requests().map(|choice| (f64::from(u8::from(choice.end == ChoiceOutcome::Failed)), 1.0)));
        let [request_throughput, output_throughput] = self.throughput();
        [tokens, cached, failed, request_throughput, output_throughput]
    }

    fn requests(&self) -> impl Iterator<Item = &ComparedChoice> {
        self.choices.iter().filter(|choice| choice.is_first)
    }

    /// Requests that ended well, and all output tokens, by the seconds of each part of the run: counted where their responses ended.
    fn throughput(&self) -> [Ratio; 2] {
        let ends = || {
            self.choices.iter().filter_map(|choice| Some((choice, choice.arrival? + choice.e2e.unwrap_or_default())))
        };
        let begin = self.choices.iter().filter_map(|choice| choice.arrival).min().unwrap_or_default();
        let span = ends().map(|(_, end)| end).max().unwrap_or_default().saturating_sub(begin).as_secs_f64();
        // Parts need requests: of fewer of them one figure without an interval is made.
        let parts = if ends().count() < PARTS as usize { 1 } else { PARTS };
        let seconds = span / f64::from(parts);
        let mut counts = vec![(0.0, 0.0); parts as usize];
        for (choice, end) in ends() {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the run")]
            let part = ((end.saturating_sub(begin).as_secs_f64() / seconds) as usize).min(counts.len() - 1);
            if let Some((requests, tokens)) = counts.get_mut(part) {
                *requests += f64::from(u8::from(choice.is_first && choice.end == ChoiceOutcome::Good));
                *tokens += f64::from(choice.output_tokens);
            }
        }
        [
            Ratio::new(counts.iter().map(|(requests, _)| (*requests, seconds))),
            Ratio::new(counts.iter().map(|(_, tokens)| (*tokens, seconds))),
        ]
    }
}

/// Gaps between tokens, of each so many-th one.
#[derive(Debug)]
struct SampledGaps {
    kept: Vec<(usize, Duration)>,
    every: usize,
    seen: usize,
}

impl Default for SampledGaps {
    fn default() -> Self {
        Self { kept: Vec::new(), every: 1, seen: 0 }
    }
}

impl SampledGaps {
    /// Adds gaps of the record at this place of the file.
    fn add(&mut self, place: usize, gaps: TokenGaps) {
        let until = self.seen + gaps.tokens as usize;
        while self.seen < until {
            if self.seen.is_multiple_of(self.every) {
                self.kept.push((place, gaps.each));
            }
            self.seen = until.min(self.seen.saturating_add(1).next_multiple_of(self.every));
            if self.kept.len() > MOST_GAPS {
                self.kept = self.kept.iter().copied().step_by(2).collect();
                self.every *= 2;
            }
        }
    }

    /// The gaps by the place of their record among the sorted ones.
    fn by_place(&self, sorted: &[ComparedChoice]) -> Grouped {
        let mut places = vec![0; sorted.len()];
        for (place, choice) in sorted.iter().enumerate() {
            if let Some(own) = places.get_mut(choice.place) {
                *own = place;
            }
        }
        let placed = |(place, gap): &(usize, Duration)| Some((*places.get(*place)?, Millis::from(*gap).0));
        Grouped::new(self.kept.iter().filter_map(placed))
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::recording::trace::Chunk;

    const MS: Duration = Duration::from_millis(1);

    /// A run with noise of a factor of two in its latencies and in the distances of its arrivals.
    fn run(seed: u64, slower: f64) -> ComparedTrace {
        let mut random = StdRng::seed_from_u64(seed);
        let mut noise = |usual: u32| (MS * usual).mul_f64(0.7 + 0.7 * random.random::<f64>());
        let (mut run, mut arrival) = (ComparedTrace::default(), Duration::ZERO);
        for number in 0..1200 {
            arrival += noise(10);
            let (ttft, gap) = (noise(50).mul_f64(slower), noise(10));
            let chunk = |gap| Chunk { gap, tokens: 1, step: None };
            let chunks: Vec<Chunk> = [ttft].into_iter().chain([gap; 9]).map(chunk).collect();
            let is_error = noise(100) < MS * 75;
            run.add(&Record {
                prompt_tokens: 100,
                cached_tokens: Some(number % 64),
                output_tokens: 10,
                chunks,
                arrival: Some(arrival),
                status: is_error.then_some(500),
                ..Record::default()
            });
        }
        run
    }

    fn compared(metrics: &[(String, ComparedMetric)], name: &str) -> ComparedMetric {
        metrics.iter().find(|(metric, _)| metric == name).unwrap().1
    }

    #[test]
    fn a_run_against_another_one_of_the_same_shows_no_change() {
        let mut same = std::collections::BTreeMap::new();
        for seed in 0..20 {
            for (name, compared) in metrics(&run(seed, 1.0), &run(seed + 100, 1.0)) {
                let Some(judgement) = compared.judgement else { continue };
                *same.entry(name).or_insert(0) += i32::from(judgement == Judgement::NoChange);
            }
        }
        assert_eq!(same.len(), 20, "{same:?}");
        assert!(same.values().all(|same| *same >= 18), "{same:?}");
    }

    #[test]
    fn a_doubled_ttft_is_found_and_nothing_else_changed() {
        let (fast, slow) = (run(1, 1.0), run(1, 2.0));
        for (earlier, later, judgement) in [(&fast, &slow, Judgement::Worse), (&slow, &fast, Judgement::Better)] {
            let metrics = metrics(earlier, later);
            for quantile in ["ttft_p50", "ttft_p90", "ttft_p99"] {
                assert_eq!(compared(&metrics, quantile).judgement, Some(judgement), "{metrics:?}");
            }
            for name in ["itl_p50", "tpot_p90", "error_share", "cached_share", "request_throughput"] {
                assert_eq!(compared(&metrics, name).judgement, Some(Judgement::NoChange), "{name}: {metrics:?}");
            }
        }
        let change = compared(&metrics(&fast, &slow), "ttft_p50").change_percent.unwrap();
        assert!((change - 100.0).abs() < 1.0, "{change}");
    }

    #[test]
    fn what_is_good_depends_on_the_metric() {
        let judged = |good, low, high| {
            ComparedMetric::of(MetricUnit::Ms, good, (None, None), Some(Interval { low, high })).judgement
        };
        assert_eq!(judged(Good::Less, 1.0, 2.0), Some(Judgement::Worse));
        assert_eq!(judged(Good::More, 1.0, 2.0), Some(Judgement::Better));
        assert_eq!(judged(Good::More, -2.0, -1.0), Some(Judgement::Worse));
        assert_eq!(judged(Good::Neither, -2.0, -1.0), Some(Judgement::Other));
        assert_eq!(judged(Good::Less, 0.0, 2.0), Some(Judgement::NoChange));
    }

    #[test]
    fn what_a_trace_does_not_hold_has_no_value() {
        let mut run = ComparedTrace::default();
        for outcome in [Outcome::Finished, Outcome::ClientGone, Outcome::TimedOut, Outcome::Cut] {
            run.add(&Record { outcome: Some(outcome), prompt_tokens: 9, output_tokens: 4, ..Record::default() });
        }
        run.add(&Record { choice: Some(1), prompt_tokens: 9, ..Record::default() });
        let metrics = metrics(&run, &run);
        for name in ["ttft_p50", "itl_p50", "e2e_p99", "cached_share", "request_throughput"] {
            assert_eq!(compared(&metrics, name).b, None, "{name}");
        }
        assert_eq!(compared(&metrics, "error_share").b, Some(0.25), "of requests, of which two others were left");
        assert_eq!(compared(&metrics, "requests").b, Some(4.0));
        assert!(metrics.iter().all(|(name, compared)| unit_of(name) == Some(compared.unit)));
        assert_eq!([unit_of("ttft"), unit_of("ttft_p95"), unit_of("error_share_p50"), unit_of("")], [None; 4]);
    }

    #[test]
    fn gaps_in_memory_are_bounded_and_evenly_picked() {
        let mut gaps = SampledGaps::default();
        (0..1_000_000_u32).for_each(|number| gaps.add(0, TokenGaps { each: MS * number, tokens: 1 }));
        assert!((MOST_GAPS / 2..=MOST_GAPS).contains(&gaps.kept.len()), "{}", gaps.kept.len());
        let distances: Vec<Duration> = gaps.kept.windows(2).map(|two| two[1].1 - two[0].1).collect();
        assert!(distances.iter().all(|distance| *distance == MS * u32::try_from(gaps.every).unwrap()));
    }
}
