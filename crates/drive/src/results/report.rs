//! The figures of a run as they are printed.

use std::{collections::BTreeMap, time::Duration};

use base::stats::{Summary, quantile};
use serde::Serialize;

use super::{CountedBy, Sample};
use crate::{
    check::CheckReport,
    drift::DriftReport,
    numbers::{count, millis},
    steady::{self, Change, Interval},
};

/// Figures in numbers, times in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct ResultsReport {
    /// Requests that ended, those of the warm-up left out.
    pub requests: u64,
    /// Requests of the warm-up.
    pub warmup: u64,
    /// Requests that were on their way when the run was stopped; they count for nothing else.
    pub cut: u64,
    /// Those that did not end as they should: errors, broken connections, timeouts.
    pub failed: u64,
    /// What these ended with.
    pub failures: BTreeMap<String, u64>,
    /// Requests that were refused as when they were recorded, with the same status: they did not fail.
    pub as_recorded: u64,
    /// Requests of each target, where there are several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by_target: BTreeMap<String, TargetCounts>,
    /// Events that could not be read, as those that are no JSON.
    pub unread_events: u64,
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
    /// Share of the prompt tokens that the server had in its cache, of the requests for which it reports it (`cached_tokens`).
    pub cached_share: Option<f64>,
    /// Output tokens of an event that carries any, on average.
    pub tokens_per_event: Option<f64>,
    /// From when a request was to be sent to when it was.
    pub late_ms: Option<Summary>,
    /// From sent to the first token.
    pub ttft_ms: Option<Summary>,
    /// From when it was to be sent to the first token.
    pub ttft_intended_ms: Option<Summary>,
    /// Between tokens; exact where the server named ids or counted with every event.
    pub itl_ms: Option<Summary>,
    /// Between events that carry tokens, however many.
    pub chunk_gap_ms: Option<Summary>,
    /// Per output token after the first.
    pub tpot_ms: Option<Summary>,
    /// From sent to the end.
    pub e2e_ms: Option<Summary>,
    /// From when it was to be sent to the end.
    pub e2e_intended_ms: Option<Summary>,
    /// Requests whose prompt had another length than recorded, by the server's count.
    pub drifted_prompts: u64,
    /// Largest difference of a prompt's length, in tokens.
    pub largest_drift: i64,
    /// The differences of all prompts; `None` where none can be known.
    pub drift: Option<DriftReport>,
    /// The same of outputs, of requests that were made to have the recorded length.
    pub output_drift: Option<DriftReport>,
    /// Intervals of quantiles, as `ttft_p99`; those for which there are too few requests are left out.
    pub intervals_ms: BTreeMap<String, Interval>,
    /// Changes within the run, by the latency that changed.
    pub changes: BTreeMap<String, Change>,
    /// Figures of the longer part of the run before or after the strongest change; `None` where the run is steady.
    pub steady: Option<SteadyPart>,
    /// The comparison with the recording, where it was requested.
    pub check: Option<CheckReport>,
}

/// Requests of one target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TargetCounts {
    /// Requests that ended.
    pub requests: u64,
    /// Those that ended well.
    pub good: u64,
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

impl ResultsReport {
    /// Returns true if every response has the number of tokens of each of its events.
    #[must_use]
    pub fn has_exact_itl(&self) -> bool {
        self.counted_by.keys().all(|by| by.is_exact())
    }
}

/// Counts of the targets with these names.
pub(super) fn by_target(samples: &[Sample], names: &[String]) -> BTreeMap<String, TargetCounts> {
    let mut counts: BTreeMap<String, TargetCounts> = BTreeMap::new();
    for (sample, name) in samples.iter().filter_map(|sample| Some((sample, names.get(sample.target?)?))) {
        let counts = counts.entry(name.clone()).or_default();
        counts.requests += 1;
        counts.good += u64::from(sample.is_good);
    }
    counts
}

/// Values of each latency with the times at which their requests were sent, in this order.
pub(super) fn latencies(samples: &[Sample]) -> Vec<(&'static str, Vec<(Duration, Duration)>)> {
    let mut good: Vec<&Sample> = samples.iter().filter(|sample| sample.is_good).collect();
    good.sort_by_key(|sample| sample.sent);
    let of = |latency: fn(&Sample) -> Option<Duration>| {
        good.iter().filter_map(|sample| Some((sample.sent, latency(sample)?))).collect::<Vec<_>>()
    };
    vec![("ttft", of(|sample| sample.ttft)), ("tpot", of(|sample| sample.tpot)), ("e2e", of(|sample| Some(sample.e2e)))]
}

/// Changes of the latencies that do not depend on how long a response is; of the end-to-end latency where there are no others.
pub(super) fn changes(latencies: &[(&'static str, Vec<(Duration, Duration)>)]) -> BTreeMap<String, Change> {
    let has_tokens = latencies.iter().any(|(name, values)| *name == "ttft" && !values.is_empty());
    let judged = latencies.iter().filter(|(name, _)| *name != "e2e" || !has_tokens);
    judged.filter_map(|(name, values)| Some(((*name).to_owned(), steady::change(values)?))).collect()
}

pub(super) fn intervals(latencies: &[(&'static str, Vec<(Duration, Duration)>)]) -> BTreeMap<String, Interval> {
    let mut intervals = BTreeMap::new();
    for (name, values) in latencies {
        let values: Vec<Duration> = values.iter().map(|(_, value)| *value).collect();
        let of_shares = steady::intervals(&values, &[0.5, 0.9, 0.99, 0.999], 0);
        for (quantile, interval) in ["p50", "p90", "p99", "p999"].into_iter().zip(of_shares) {
            intervals.extend(interval.map(|interval| (format!("{name}_{quantile}"), interval)));
        }
    }
    intervals
}

pub(super) fn steady_part(
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
    let median = |values: &[(Duration, Duration)]| quantile(&inside(values), 0.5).map(millis);
    Some(SteadyPart {
        from_s,
        to_s,
        requests: count(of_e2e.iter().flatten()),
        p50_ms: latencies.iter().filter_map(|(name, values)| Some(((*name).to_owned(), median(values)?))).collect(),
    })
}
