//! Two traces side by side: what changed from one to the other, how sure that is, and whether a gate lets it pass.
//!
//! A latency is said to have changed only where the interval of its difference excludes zero ([`steady`]).
//!
//! Limits: the latencies of all requests are in memory, of gaps between tokens at most [`MOST_GAPS`], evenly picked.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    base::units::parse_duration,
    drive::steady::{self, Interval},
    recording::trace::{BadLines, Joined, Outcome, Record, Sources, TraceError},
    replay::meter,
};

/// Gaps between tokens that are compared, of each trace.
const MOST_GAPS: usize = 50_000;

/// Quantiles that are compared.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// Two traces side by side.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The file names.
    pub a: String,
    /// The later one.
    pub b: String,
    /// The metrics, by name.
    pub metrics: BTreeMap<String, Compared>,
    /// What a gate said; empty without one.
    pub gate: Vec<GateResult>,
}

/// One metric of both traces. Times are in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// In the earlier trace; `None` where it has none.
    pub a: Option<f64>,
    /// In the later one.
    pub b: Option<f64>,
    /// Change in percent of `a`.
    pub change_percent: Option<f64>,
    /// The difference lies in here with a probability of 95 %; of quantiles with enough values only.
    pub interval: Option<Interval>,
    /// The interval excludes zero.
    pub has_changed: Option<bool>,
}

/// Result of a rule of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateResult {
    /// The metric.
    pub metric: String,
    /// Why it does not pass; `None` where it does.
    pub failure: Option<String>,
}

/// Limits by metric, as in a file.
#[derive(Debug, Default)]
pub struct Gate(BTreeMap<String, Limits>);

/// Limits of one metric. Times as `500ms`, shares and changes as `10%` or `0.1`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    max: Option<String>,
    min: Option<String>,
    max_increase: Option<String>,
    max_decrease: Option<String>,
}

/// Values of one trace.
#[derive(Debug, Default)]
struct Values {
    latencies: BTreeMap<&'static str, Vec<Duration>>,
    figures: BTreeMap<&'static str, f64>,
}

/// Compares a trace with an earlier one.
///
/// # Errors
/// When a file cannot be read.
pub fn compare(a: &Path, b: &Path, gate: &Gate) -> Result<Comparison, TraceError> {
    let (earlier, later) = (Values::read(a)?, Values::read(b)?);
    let mut metrics = BTreeMap::new();
    for (name, values) in &earlier.latencies {
        let others = later.latencies.get(name).map(Vec::as_slice).unwrap_or_default();
        for (quantile, share) in QUANTILES {
            let of = |values: &[Duration]| steady::quantile(values, share).map(|value| value.as_secs_f64() * 1000.0);
            let interval = steady::interval_of_difference(values, others, share, 0);
            metrics.insert(format!("{name}_{quantile}"), Compared::of(of(values), of(others), interval));
        }
    }
    for (name, figure) in &earlier.figures {
        metrics.insert((*name).to_owned(), Compared::of(Some(*figure), later.figures.get(name).copied(), None));
    }
    let gate = gate.0.iter().map(|(metric, limits)| limits.judge(metric, metrics.get(metric))).collect();
    Ok(Comparison { a: a.display().to_string(), b: b.display().to_string(), metrics, gate })
}

impl Comparison {
    /// Returns true if no rule of the gate failed.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.gate.iter().all(|result| result.failure.is_none())
    }
}

impl Compared {
    fn of(a: Option<f64>, b: Option<f64>, interval: Option<Interval>) -> Self {
        let change = |a: f64, b: f64| (a != 0.0).then(|| (b - a) / a * 100.0);
        let change_percent = a.zip(b).and_then(|(a, b)| change(a, b));
        let has_changed = interval.map(|interval| interval.low > 0.0 || interval.high < 0.0);
        Self { a, b, change_percent, interval, has_changed }
    }
}

impl Gate {
    /// Reads a gate: a table for each metric with `max`, `min`, `max_increase` or `max_decrease`.
    ///
    /// # Errors
    /// With the line, where the text is no such TOML or a limit cannot be read.
    pub fn read(text: &str) -> Result<Self, String> {
        let gate: BTreeMap<String, Limits> = toml::from_str(text).map_err(|error| error.to_string())?;
        for (metric, limits) in &gate {
            let Limits { max, min, max_increase, max_decrease } = limits;
            let given: Vec<&String> = [max, min, max_increase, max_decrease].into_iter().flatten().collect();
            if given.is_empty() {
                return Err(format!("[{metric}] has no limit: write max, min, max_increase or max_decrease"));
            }
            if let Some(wrong) = given.into_iter().find(|text| limit(text).is_none()) {
                return Err(format!("[{metric}] `{wrong}` is no limit: write 500ms, 10% or a number, as text"));
            }
        }
        Ok(Self(gate))
    }
}

impl Limits {
    /// A metric that is not there fails: nothing shows that it is within its limits.
    fn judge(&self, metric: &str, compared: Option<&Compared>) -> GateResult {
        let failure = match compared {
            None => Some("there is no such metric".to_owned()),
            Some(Compared { b: None, .. }) => Some("the later trace has no values of it".to_owned()),
            Some(Compared { a, b: Some(b), change_percent, .. }) => {
                let above = |limit: &Option<String>, value: f64| self::parsed(limit).filter(|most| value > *most);
                let max = above(&self.max, *b).map(|most| format!("{b:.3} is above {most}"));
                let min =
                    self::parsed(&self.min).filter(|least| *b < *least).map(|least| format!("{b:.3} is below {least}"));
                let needs_a = (self.max_increase.is_some() || self.max_decrease.is_some()) && a.is_none();
                let lacks = needs_a.then(|| "the earlier trace has no values of it".to_owned());
                let percent = change_percent.unwrap_or_default() / 100.0;
                let rise = above(&self.max_increase, percent).map(|most| changed("rose", percent, most));
                let fall = above(&self.max_decrease, -percent).map(|most| changed("fell", -percent, most));
                max.or(min).or(lacks).or(rise).or(fall)
            }
        };
        GateResult { metric: metric.to_owned(), failure }
    }
}

fn changed(verb: &str, by: f64, most: f64) -> String {
    format!("it {verb} by {:.1} %, and may by {:.1} %", by * 100.0, most * 100.0)
}

fn parsed(text: &Option<String>) -> Option<f64> {
    text.as_deref().and_then(limit)
}

/// Milliseconds of a duration, the share of a percentage, or a number.
fn limit(text: &str) -> Option<f64> {
    if let Some(percent) = text.strip_suffix('%') {
        return percent.trim().parse().ok().map(|percent: f64| percent / 100.0);
    }
    let number = text.parse().ok();
    number.or_else(|| Some(parse_duration(text).ok()?.as_secs_f64() * 1000.0))
}

impl Values {
    fn read(path: &Path) -> Result<Self, TraceError> {
        let sources = Sources::gather(&[path.to_owned()])?;
        let mut joined = Joined::of(&sources);
        let mut counted = Counted::default();
        let mut values = Self::default();
        while let Some((_, mut reader)) = joined.next_file()? {
            let mut bad_lines = BadLines::default();
            while let Some((_, mut record)) = reader.next_sound(&mut bad_lines)? {
                joined.place(&mut record);
                values.add(&record, &mut counted);
            }
        }
        if let Some(gaps) = values.latencies.get_mut("itl") {
            let every = gaps.len().div_ceil(MOST_GAPS).max(1);
            *gaps = gaps.iter().copied().step_by(every).collect();
        }
        values.figures = counted.figures();
        Ok(values)
    }

    fn add(&mut self, record: &Record, counted: &mut Counted) {
        counted.add(record);
        if record.is_error() || record.outcome.is_some_and(|outcome| outcome != Outcome::Finished) {
            return;
        }
        let single = [("ttft", meter::ttft(record)), ("tpot", meter::tpot(record)), ("e2e", meter::e2e(record))];
        for (name, value) in single {
            self.latencies.entry(name).or_default().extend(value);
        }
        self.latencies.entry("itl").or_default().extend(meter::itl(record));
    }
}

/// Counts of one trace.
#[derive(Debug, Default)]
struct Counted {
    records: u32,
    failed: u32,
    prompt_tokens: f64,
    cached_tokens: f64,
    output_tokens: f64,
    first: Option<Duration>,
    last: Duration,
}

impl Counted {
    fn add(&mut self, record: &Record) {
        self.records += 1;
        let is_good = !record.is_error() && record.outcome.is_none_or(|outcome| outcome == Outcome::Finished);
        self.failed += u32::from(!is_good);
        self.prompt_tokens += f64::from(record.prompt_tokens);
        self.cached_tokens += f64::from(record.cached_tokens.unwrap_or_default());
        self.output_tokens += f64::from(record.output_tokens);
        if let Some(arrival) = record.arrival {
            self.first = Some(self.first.map_or(arrival, |first| first.min(arrival)));
            self.last = self.last.max(arrival + meter::e2e(record).unwrap_or_default());
        }
    }

    fn figures(&self) -> BTreeMap<&'static str, f64> {
        let records = f64::from(self.records.max(1));
        let seconds = self.last.saturating_sub(self.first.unwrap_or_default()).as_secs_f64();
        let mut figures = BTreeMap::from([
            ("requests", f64::from(self.records)),
            ("error_share", f64::from(self.failed) / records),
            ("output_tokens_mean", self.output_tokens / records),
        ]);
        if self.prompt_tokens > 0.0 {
            figures.insert("cached_share", self.cached_tokens / self.prompt_tokens);
        }
        if seconds > 0.0 {
            figures.insert("request_throughput", f64::from(self.records - self.failed) / seconds);
            figures.insert("output_throughput", self.output_tokens / seconds);
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(a: Option<f64>, b: Option<f64>) -> Compared {
        Compared::of(a, b, None)
    }

    #[test]
    fn a_gate_names_what_is_over_its_limit() {
        let gate =
            Gate::read("[ttft_p99]\nmax_increase = '10%'\nmax = '500ms'\n[request_throughput]\nmin = '9.5'\n").unwrap();
        let judge = |metric: &str, (a, b)| gate.0[metric].judge(metric, Some(&compared(a, b))).failure;
        assert_eq!(judge("ttft_p99", (Some(100.0), Some(109.0))), None);
        let slower = judge("ttft_p99", (Some(100.0), Some(120.0)));
        assert_eq!(slower.as_deref(), Some("it rose by 20.0 %, and may by 10.0 %"));
        assert_eq!(judge("ttft_p99", (Some(499.0), Some(501.0))).as_deref(), Some("501.000 is above 500"));
        assert_eq!(judge("request_throughput", (None, Some(9.0))).as_deref(), Some("9.000 is below 9.5"));
    }

    #[test]
    fn a_metric_that_is_missing_fails() {
        let gate = Gate::read("[ttft_p99]\nmax_increase = '10%'").unwrap();
        for missing in [None, Some(compared(Some(1.0), None)), Some(compared(None, Some(1.0)))] {
            assert!(gate.0["ttft_p99"].judge("ttft_p99", missing.as_ref()).failure.is_some(), "{missing:?}");
        }
    }

    #[test]
    fn a_gate_that_cannot_be_read_says_where() {
        for (text, part) in [
            ("[ttft_p99]\nmaximum = '1s'", "maximum"),
            ("[ttft_p99]", "has no limit"),
            ("[ttft_p99]\nmax = 'soon'", "`soon` is no limit"),
            ("ttft_p99 = 4", "ttft_p99"),
        ] {
            assert!(Gate::read(text).unwrap_err().contains(part), "{text}");
        }
    }
}
