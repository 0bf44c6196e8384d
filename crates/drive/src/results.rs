//! What came back, in figures. Records come from the recorder's thread, one at a time.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base::stats::{Durations, Summary};
use recording::trace::{ContentSource, Outcome, Record};
use replay::meter::{self, Slo};
use serde::Serialize;
use serde_json::json;

use crate::{
    check::{ContentCheck, Difference},
    steady::{self, Change, Interval},
    workload::{Workload, WorkloadRequest},
};

/// How output tokens were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedBy {
    /// The server named each token's id.
    TokenIds,
    /// The server's count at the end, spread over the events by the text that they carry.
    Usage,
    /// Events that carry text.
    Events,
}

impl CountedBy {
    /// Its name in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenIds => "token ids",
            Self::Usage => "usage",
            Self::Events => "events",
        }
    }
}

/// Figures of a run.
#[derive(Debug, Default)]
pub struct Results {
    figures: Mutex<Figures>,
    slo: Slo,
    /// Requests that were to be sent earlier than this count for nothing but the number of failures.
    warmup: Duration,
}

#[derive(Debug, Default)]
struct Figures {
    samples: Vec<Sample>,
    warmup: u64,
    check: Option<ContentCheck>,
    by_outcome: BTreeMap<String, u64>,
    by_status: BTreeMap<u16, u64>,
    counted_by: BTreeMap<CountedBy, u64>,
    output_tokens: u64,
    /// Of the requests whose cached tokens the server counts: these, and their prompt tokens.
    cached_tokens: u64,
    counted_prompt_tokens: u64,
    events: u64,
    late: Durations,
    ttft: Durations,
    ttft_intended: Durations,
    itl: Durations,
    tpot: Durations,
    e2e: Durations,
    e2e_intended: Durations,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Its index in the workload.
    pub request: usize,
    /// When it was to be sent, and when it was, from the start of the run.
    pub intended: Duration,
    /// When it was sent.
    pub sent: Duration,
    /// From sent to the first token.
    pub ttft: Option<Duration>,
    /// From sent to the end.
    pub e2e: Duration,
    /// Tokens that came.
    pub output_tokens: u32,
    /// Prompt tokens by the server's count, less the recorded ones; `None` where it gave none.
    pub prompt_drift: Option<i64>,
    /// Per output token after the first.
    pub tpot: Option<Duration>,
    /// It ended as it should.
    pub is_good: bool,
    /// It kept the limits.
    pub keeps_slo: bool,
}

/// Figures in numbers, times in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct ResultsReport {
    /// Requests that ended, those of the warm-up left out.
    pub requests: u64,
    /// Requests of the warm-up.
    pub warmup: u64,
    /// Those that did not end as they should: errors, broken connections, timeouts.
    pub failed: u64,
    /// How they ended.
    pub by_outcome: BTreeMap<String, u64>,
    /// HTTP status of their responses.
    pub by_status: BTreeMap<u16, u64>,
    /// How output tokens were counted.
    pub counted_by: BTreeMap<CountedBy, u64>,
    /// From the first send to the last end, in seconds.
    pub duration_s: f64,
    /// Requests that ended well a second.
    pub request_throughput: f64,
    /// Output tokens a second.
    pub output_throughput: f64,
    /// Requests that ended well and kept the limits, a second; `None` without limits.
    pub goodput: Option<f64>,
    /// Their output tokens a second.
    pub token_goodput: Option<f64>,
    /// All output tokens.
    pub output_tokens: u64,
    /// Share of the prompt tokens that the server had in its cache, of the requests for which it says it (`cached_tokens`).
    pub cached_share: Option<f64>,
    /// Output tokens of an event that carries any, on average.
    pub tokens_per_event: Option<f64>,
    /// From when a request was to be sent to when it was.
    pub late_ms: Option<Summary>,
    /// From sent to the first token.
    pub ttft_ms: Option<Summary>,
    /// From when it was to be sent to the first token.
    pub ttft_intended_ms: Option<Summary>,
    /// Between events that carry tokens.
    pub itl_ms: Option<Summary>,
    /// Per output token after the first.
    pub tpot_ms: Option<Summary>,
    /// From sent to the end.
    pub e2e_ms: Option<Summary>,
    /// From when it was to be sent to the end.
    pub e2e_intended_ms: Option<Summary>,
    /// Requests whose prompt had another length than recorded, by the server's count, and the sum of the differences.
    pub drifted_prompts: u64,
    /// Largest difference of a prompt's length, in tokens.
    pub largest_drift: i64,
    /// Intervals of quantiles, as `ttft_p99`; those for which there are too few requests are left out.
    pub intervals_ms: BTreeMap<String, Interval>,
    /// Changes within the run, by the latency that changed.
    pub changes: BTreeMap<String, Change>,
    /// Figures of the longer part of the run before or after the strongest change; `None` where the run is steady.
    pub steady: Option<SteadyPart>,
    /// The comparison with the recording, where it was asked for.
    pub check: Option<CheckReport>,
}

/// The longer part of a run that changed.
#[derive(Debug, Clone, Serialize)]
pub struct SteadyPart {
    /// From here on, in seconds from the start.
    pub from_s: f64,
    /// Up to here.
    pub to_s: f64,
    /// Requests that ended well in it.
    pub requests: u64,
    /// Medians of its latencies.
    pub p50_ms: BTreeMap<String, f64>,
}

/// What differs from the recording.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// Responses that were compared.
    pub compared: u64,
    /// Responses that differ.
    pub differ: u64,
    /// The first differences.
    pub differences: Vec<Difference>,
}

impl Results {
    /// Results of a workload with limits for its latencies; compared with its records if `checks` says so.
    #[must_use]
    pub fn new(workload: &Workload, slo: Slo, warmup: Duration, checks: bool) -> Self {
        let check = checks.then(|| ContentCheck::of(workload));
        Self { figures: Mutex::new(Figures { check, ..Figures::default() }), slo, warmup }
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the record of a request that was to be sent at `intended` and was sent at `sent`, from the start of the run, and notes the former in it.
    pub fn add(
        &self,
        request: usize,
        recorded: &WorkloadRequest,
        intended: Duration,
        sent: Duration,
        record: &mut Record,
    ) {
        record.extra.insert("intended_ms".to_owned(), json!(millis(intended)));
        let (number, recorded) = (recorded.number, &recorded.record);
        if record.choice.is_some_and(|choice| choice > 0) {
            return self.lock().add_tokens(record);
        }
        let late = sent.saturating_sub(intended);
        let is_good = record.outcome == Some(Outcome::Finished) && !record.is_error();
        let counted = record.prompt_tokens > 0;
        let (ttft, tpot) = (meter::ttft(record), meter::tpot(record));
        let times = [ttft, meter::itl(record).max(), tpot, meter::e2e(record)];
        let sample = Sample {
            request,
            intended,
            sent,
            ttft,
            tpot,
            keeps_slo: is_good && self.slo.is_kept(times),
            e2e: record.e2e.unwrap_or_default(),
            output_tokens: record.output_tokens,
            prompt_drift: counted.then(|| i64::from(record.prompt_tokens) - i64::from(recorded.prompt_tokens)),
            is_good,
        };
        let mut figures = self.lock();
        if intended < self.warmup {
            figures.warmup += 1;
            return;
        }
        if let Some(check) = &mut figures.check {
            check.compare(number, recorded, record);
        }
        figures.late.record(late);
        let outcome = record.outcome.and_then(|outcome| serde_json::to_value(outcome).ok());
        let outcome = outcome.and_then(|outcome| outcome.as_str().map(str::to_owned)).unwrap_or_default();
        *figures.by_outcome.entry(outcome).or_default() += 1;
        *figures.by_status.entry(record.status.unwrap_or_default()).or_default() += 1;
        figures.samples.push(sample);
        if let Some(cached) = record.cached_tokens.filter(|_| counted) {
            figures.cached_tokens += u64::from(cached);
            figures.counted_prompt_tokens += u64::from(record.prompt_tokens);
        }
        if is_good {
            figures.add_latencies(record, late);
        }
        figures.add_tokens(record);
    }

    /// Returns every request that ended, in the order of their ends.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.lock().samples.clone()
    }

    /// Returns the figures so far.
    #[must_use]
    pub fn report(&self) -> ResultsReport {
        let figures = self.lock();
        let samples = &figures.samples;
        let begin = samples.iter().map(|sample| sample.sent).min().unwrap_or_default();
        let end = samples.iter().map(|sample| sample.sent + sample.e2e).max().unwrap_or_default();
        let duration_s = end.saturating_sub(begin).as_secs_f64();
        let per_second = |count: u64| if duration_s > 0.0 { float(count) / duration_s } else { 0.0 };
        let failed = count(samples.iter().filter(|sample| !sample.is_good));
        let drifts = || samples.iter().filter_map(|sample| sample.prompt_drift).filter(|drift| *drift != 0);
        let good = || samples.iter().filter(|sample| sample.keeps_slo);
        let has_slo = self.slo != Slo::default();
        let latencies = latencies(samples);
        let changes = changes(&latencies);
        ResultsReport {
            warmup: figures.warmup,
            goodput: has_slo.then(|| per_second(count(good()))),
            token_goodput: has_slo.then(|| per_second(good().map(|sample| u64::from(sample.output_tokens)).sum())),
            intervals_ms: intervals(&latencies),
            steady: steady_part(&latencies, &changes, end),
            changes,
            check: figures.check.as_ref().map(|check| CheckReport {
                compared: check.compared,
                differ: check.differ,
                differences: check.differences.clone(),
            }),
            requests: count(samples.iter()),
            failed,
            by_outcome: figures.by_outcome.clone(),
            by_status: figures.by_status.clone(),
            counted_by: figures.counted_by.clone(),
            duration_s,
            request_throughput: per_second(count(samples.iter()) - failed),
            output_throughput: per_second(figures.output_tokens),
            output_tokens: figures.output_tokens,
            cached_share: (figures.counted_prompt_tokens > 0)
                .then(|| float(figures.cached_tokens) / float(figures.counted_prompt_tokens)),
            tokens_per_event: (figures.events > 0).then(|| float(figures.output_tokens) / float(figures.events)),
            late_ms: figures.late.summary(),
            ttft_ms: figures.ttft.summary(),
            ttft_intended_ms: figures.ttft_intended.summary(),
            itl_ms: figures.itl.summary(),
            tpot_ms: figures.tpot.summary(),
            e2e_ms: figures.e2e.summary(),
            e2e_intended_ms: figures.e2e_intended.summary(),
            drifted_prompts: count(drifts()),
            largest_drift: drifts().max_by_key(|drift| drift.abs()).unwrap_or_default(),
        }
    }
}

impl Figures {
    fn add_latencies(&mut self, record: &Record, late: Duration) {
        if let Some(ttft) = meter::ttft(record) {
            self.ttft.record(ttft);
            self.ttft_intended.record(ttft + late);
        }
        if let Some(e2e) = meter::e2e(record) {
            self.e2e.record(e2e);
            self.e2e_intended.record(e2e + late);
        }
        if let Some(tpot) = meter::tpot(record) {
            self.tpot.record(tpot);
        }
    }

    fn add_tokens(&mut self, record: &Record) {
        self.output_tokens += u64::from(record.output_tokens);
        if record.output_tokens == 0 {
            return;
        }
        let counted_by = match (&record.output_token_ids, record.content_source) {
            (Some(_), None | Some(ContentSource::Engine)) => CountedBy::TokenIds,
            _ if record.prompt_tokens > 0 => CountedBy::Usage,
            _ => CountedBy::Events,
        };
        *self.counted_by.entry(counted_by).or_default() += 1;
        self.events += count(record.emissions());
        if record.outcome == Some(Outcome::Finished) {
            meter::itl(record).for_each(|gap| self.itl.record(gap));
        }
    }
}

/// Values of each latency with the times at which their requests were sent, in this order.
fn latencies(samples: &[Sample]) -> Vec<(&'static str, Vec<(Duration, Duration)>)> {
    let mut good: Vec<&Sample> = samples.iter().filter(|sample| sample.is_good).collect();
    good.sort_by_key(|sample| sample.sent);
    let of = |latency: fn(&Sample) -> Option<Duration>| {
        good.iter().filter_map(|sample| Some((sample.sent, latency(sample)?))).collect::<Vec<_>>()
    };
    vec![("ttft", of(|sample| sample.ttft)), ("tpot", of(|sample| sample.tpot)), ("e2e", of(|sample| Some(sample.e2e)))]
}

/// Changes of the latencies that do not depend on how long a response is; of the end-to-end latency where there are no others.
fn changes(latencies: &[(&'static str, Vec<(Duration, Duration)>)]) -> BTreeMap<String, Change> {
    let has_tokens = latencies.iter().any(|(name, values)| *name == "ttft" && !values.is_empty());
    let judged = latencies.iter().filter(|(name, _)| *name != "e2e" || !has_tokens);
    judged.filter_map(|(name, values)| Some(((*name).to_owned(), steady::change(values)?))).collect()
}

fn intervals(latencies: &[(&'static str, Vec<(Duration, Duration)>)]) -> BTreeMap<String, Interval> {
    let mut intervals = BTreeMap::new();
    for (name, values) in latencies {
        let values: Vec<Duration> = values.iter().map(|(_, value)| *value).collect();
        for (quantile, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
            let interval = steady::interval(&values, share, 0);
            intervals.extend(interval.map(|interval| (format!("{name}_{quantile}"), interval)));
        }
    }
    intervals
}

fn steady_part(
    latencies: &[(&'static str, Vec<(Duration, Duration)>)],
    changes: &BTreeMap<String, Change>,
    end: Duration,
) -> Option<SteadyPart> {
    let factor =
        |change: &&Change| change.before_ms.max(change.after_ms) / change.before_ms.min(change.after_ms).max(1e-3);
    let at_s = changes.values().max_by(|one, other| factor(one).total_cmp(&factor(other)))?.at_s;
    let end = end.as_secs_f64();
    let (from_s, to_s) = if at_s * 2.0 > end { (0.0, at_s) } else { (at_s, end) };
    let inside = |values: &[(Duration, Duration)]| -> Vec<Duration> {
        let is_inside = |at: &Duration| (from_s..to_s).contains(&at.as_secs_f64());
        values.iter().filter(|(at, _)| is_inside(at)).map(|(_, value)| *value).collect()
    };
    let of_e2e = latencies.iter().find(|(name, _)| *name == "e2e").map(|(_, values)| inside(values));
    let median = |values: &[(Duration, Duration)]| steady::quantile(&inside(values), 0.5).map(millis);
    Some(SteadyPart {
        from_s,
        to_s,
        requests: count(of_e2e.iter().flatten()),
        p50_ms: latencies.iter().filter_map(|(name, values)| Some(((*name).to_owned(), median(values)?))).collect(),
    })
}

fn count(all: impl Iterator) -> u64 {
    u64::try_from(all.count()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
