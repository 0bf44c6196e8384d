//! What came back, in figures. Records come from the recorder's thread, one at a time.

mod report;
mod sample;

use std::{collections::BTreeMap, time::Duration};

use base::lock::Lock;
use base::stats::Durations;
use recording::trace::{ContentSource, Outcome, Record, UNREAD_EVENTS};
use replay::meter::{self, Slo};
use serde::Serialize;
use serde_json::Value;
use tap::{CONTINUOUS_USAGE, COUNTED_BY};

pub use self::report::{ResultsReport, SteadyPart, TargetCounts};
use self::report::{by_target, changes, intervals, latencies, steady_part};
pub use self::sample::Sample;
use self::sample::{chunks, is_answered, is_refused_again, last_token};
use crate::{
    check::{self, ContentCheck},
    drift::Drifts,
    export::Latencies,
    numbers::{count, float},
    peers::Measured,
    workload::{Workload, WorkloadRequest},
};

/// Field of a result that names its target, where there are several.
pub(crate) const TARGET: &str = "target";

base::named! {
    /// Method by which output tokens were counted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CountedBy {
        /// The server named each token's id.
        TokenIds = "token ids",
        /// The server counted with every event (`continuous_usage_stats`).
        ContinuousUsage = "continuous usage",
        /// The server's count at the end, spread over the events by the text that they carry.
        Usage = "usage",
        /// Events that carry text.
        Events = "events",
    }
}

impl CountedBy {
    /// Returns how the tokens of a record of a tap were counted.
    pub(crate) fn of(record: &Record) -> Self {
        let counted_by = record.extra.get(COUNTED_BY).and_then(Value::as_str);
        match (&record.output_token_ids, record.content_source) {
            (Some(_), None | Some(ContentSource::Engine)) => Self::TokenIds,
            _ if counted_by == Some(CONTINUOUS_USAGE) => Self::ContinuousUsage,
            _ if record.prompt_tokens > 0 => Self::Usage,
            _ => Self::Events,
        }
    }

    /// Returns true if the number of tokens of each event is the server's own, so that ITL is exact.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, Self::TokenIds | Self::ContinuousUsage)
    }
}

/// Figures of a run.
#[derive(Debug, Default)]
pub struct Results {
    figures: Lock<Figures>,
    slo: Slo,
    /// Requests that were to be sent earlier than this count for nothing but the number of failures.
    warmup: Duration,
}

#[derive(Debug, Default)]
struct Figures {
    samples: Vec<Sample>,
    failed: u64,
    as_recorded: u64,
    unread_events: u64,
    warmup: u64,
    check: Option<ContentCheck>,
    by_outcome: BTreeMap<String, u64>,
    by_status: BTreeMap<u16, u64>,
    failures: BTreeMap<String, u64>,
    /// The names of the targets that samples have by their places; none where there is one only.
    targets: Vec<String>,
    counted_by: BTreeMap<CountedBy, u64>,
    drifts: Drifts,
    output_drifts: Drifts,
    /// Requests that were on their way when the run was stopped.
    cut: u64,
    output_tokens: u64,
    streamed_tokens: u64,
    /// Of the requests whose cached tokens the server counts: these, and their prompt tokens.
    cached_tokens: u64,
    counted_prompt_tokens: u64,
    events: u64,
    late: Durations,
    ttft: Durations,
    ttft_intended: Durations,
    itl: Durations,
    chunk_gaps: Durations,
    tpot: Durations,
    e2e: Durations,
    e2e_intended: Durations,
}

/// The state of a run that goes on: counts, medians and 99th percentiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Live {
    /// Requests that ended, those of the warm-up too.
    pub ended: u64,
    /// Those that did not end as they should; of the warm-up none.
    pub failed: u64,
    /// From sent to the first token: median and 99th percentile, in milliseconds; those below likewise.
    pub ttft: Option<(f64, f64)>,
    /// Between tokens.
    pub itl: Option<(f64, f64)>,
    /// From when a request was to be sent to when it was.
    pub late: Option<(f64, f64)>,
}

impl Results {
    /// Results of a workload with limits for its latencies; compared with its records if `checks` is set.
    #[must_use]
    pub fn new(workload: &Workload, slo: Slo, warmup: Duration, checks: bool) -> Self {
        let check = checks.then(|| ContentCheck::of(workload));
        Self { figures: Lock::new(Figures { check, ..Figures::default() }), slo, warmup }
    }

    /// Adds the record of a request that was to be sent at `intended` and was sent at `sent`, from the start of the run. Takes the status out of it
    /// with which this client itself reports that a server did not answer. A response that is no answer of a model, or that was left because it had no
    /// end, becomes an error in the record too, so that all who read it count it as one.
    pub fn add(
        &self,
        request: usize,
        recorded: &WorkloadRequest,
        intended: Duration,
        sent: Duration,
        record: &mut Record,
    ) {
        if record.choice.is_some_and(|choice| choice > 0) {
            if intended >= self.warmup && record.outcome != Some(Outcome::Cut) {
                self.figures.lock().add_choice(request, record);
            }
            return;
        }
        if record.outcome == Some(Outcome::Cut) {
            self.figures.lock().cut += 1;
            return;
        }
        let is_own = matches!(
            (record.outcome, record.status),
            (Some(Outcome::UpstreamFailed), Some(502)) | (Some(Outcome::TimedOut), Some(504))
        );
        record.status = record.status.filter(|_| !is_own);
        let is_good = is_answered(&recorded.record, record);
        let is_endless = record.outcome == Some(Outcome::ClientGone) && !recorded.is_left();
        if is_endless || record.outcome == Some(Outcome::Finished) && !is_good {
            record.outcome = Some(Outcome::Error);
        }
        let mut sample = Sample { request, intended, sent, is_good, ..Sample::of(recorded, record) };
        let times = [sample.ttft, meter::itl(record).map(|gaps| gaps.each).max(), sample.tpot, meter::e2e(record)];
        sample.keeps_slo = is_good && self.slo.is_kept(times);
        let mut figures = self.figures.lock();
        if intended < self.warmup {
            figures.warmup += 1;
            return;
        }
        figures.add(recorded, record, sample);
    }

    /// Returns the servers that requests were sent to; none where there is one only.
    #[must_use]
    pub fn targets(&self) -> Vec<String> {
        self.figures.lock().targets.clone()
    }

    /// Returns every request that ended, in the order of their ends.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.figures.lock().samples.clone()
    }

    /// Returns its state; cheap enough to be asked for several times a second.
    #[must_use]
    pub fn live(&self) -> Live {
        let figures = self.figures.lock();
        let quantiles = |times: &Durations| times.quantile(0.5).zip(times.quantile(0.99));
        Live {
            ended: figures.warmup + count(figures.samples.iter()),
            failed: figures.failed,
            ttft: quantiles(&figures.ttft),
            itl: quantiles(&figures.itl),
            late: quantiles(&figures.late),
        }
    }

    /// Returns the distributions of its latencies.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        let figures = self.figures.lock();
        let named = [
            ("late", &figures.late),
            ("ttft", &figures.ttft),
            ("ttft_intended", &figures.ttft_intended),
            ("itl", &figures.itl),
            ("chunk_gap", &figures.chunk_gaps),
            ("tpot", &figures.tpot),
            ("e2e", &figures.e2e),
            ("e2e_intended", &figures.e2e_intended),
        ];
        Latencies(named.map(|(name, durations)| (name, durations.clone())).into())
    }

    /// Returns what other load clients make their figures of.
    #[must_use]
    pub fn measured(&self) -> Measured {
        let figures = self.figures.lock();
        let (begin, end) = figures.span();
        let good: Vec<Sample> = figures.samples.iter().filter(|sample| sample.is_good).copied().collect();
        Measured {
            failed: count(figures.samples.iter()) - count(good.iter()),
            good,
            duration: end.saturating_sub(begin),
            chunk_gaps: figures.chunk_gaps.clone(),
            itl: figures.itl.clone(),
        }
    }

    /// Returns the figures so far.
    #[must_use]
    pub fn report(&self) -> ResultsReport {
        let figures = self.figures.lock();
        let samples = &figures.samples;
        let (begin, end) = figures.span();
        let duration_s = end.saturating_sub(begin).as_secs_f64();
        let per_second = |count: u64| if duration_s > 0.0 { float(count) / duration_s } else { 0.0 };
        let failed = figures.failed;
        let drifts = || samples.iter().filter_map(|sample| sample.prompt_drift).filter(|drift| *drift != 0);
        let good = || samples.iter().filter(|sample| sample.keeps_slo);
        let has_slo = self.slo != Slo::default();
        let latencies = latencies(samples);
        let changes = changes(&latencies);
        ResultsReport {
            warmup: figures.warmup,
            cut: figures.cut,
            goodput: has_slo.then(|| per_second(count(good()))),
            token_goodput: has_slo.then(|| per_second(good().map(|sample| u64::from(sample.output_tokens)).sum())),
            intervals_ms: intervals(&latencies),
            steady: steady_part(&latencies, &changes, end),
            changes,
            check: figures.check.as_ref().map(|check| check.report.clone()),
            requests: count(samples.iter()),
            failed,
            as_recorded: figures.as_recorded,
            unread_events: figures.unread_events,
            failures: figures.failures.clone(),
            by_target: by_target(samples, &figures.targets),
            by_outcome: figures.by_outcome.clone(),
            by_status: figures.by_status.clone(),
            counted_by: figures.counted_by.clone(),
            duration_s,
            request_throughput: per_second(count(samples.iter().filter(|sample| sample.is_good))),
            output_throughput: per_second(figures.output_tokens),
            output_tokens: figures.output_tokens,
            tokens_per_event: (figures.events > 0).then(|| float(figures.streamed_tokens) / float(figures.events)),
            cached_share: (figures.counted_prompt_tokens > 0)
                .then(|| float(figures.cached_tokens) / float(figures.counted_prompt_tokens)),
            late_ms: figures.late.summary(),
            ttft_ms: figures.ttft.summary(),
            ttft_intended_ms: figures.ttft_intended.summary(),
            itl_ms: figures.itl.summary(),
            chunk_gap_ms: figures.chunk_gaps.summary(),
            tpot_ms: figures.tpot.summary(),
            e2e_ms: figures.e2e.summary(),
            e2e_intended_ms: figures.e2e_intended.summary(),
            drift: figures.drifts.report(),
            output_drift: figures.output_drifts.report(),
            drifted_prompts: count(drifts()),
            largest_drift: drifts().max_by_key(|drift| drift.abs()).unwrap_or_default(),
        }
    }
}

impl Figures {
    fn add(
        &mut self,
        WorkloadRequest { number, record: recorded, .. }: &WorkloadRequest,
        record: &Record,
        mut sample: Sample,
    ) {
        sample.target = record.extra.get(TARGET).and_then(Value::as_str).map(|target| self.target(target));
        let unread = record.extra.get(UNREAD_EVENTS).and_then(Value::as_u64);
        self.unread_events += unread.unwrap_or_default();
        if let Some(check) = &mut self.check {
            check.compare(*number, recorded, record);
        }
        let (late, is_good) = (sample.sent.saturating_sub(sample.intended), sample.is_good);
        self.late.record(late);
        let outcome = record.outcome.map_or("", Outcome::name);
        if let Some(status) = record.status {
            *self.by_status.entry(status).or_default() += 1;
        }
        if !is_good && is_refused_again(recorded, record) {
            self.as_recorded += 1;
        } else if !is_good {
            self.failed += 1;
            let status = record.status.filter(|status| *status >= 300);
            let status = status.map_or(String::new(), |status| format!(" with status {status}"));
            *self.failures.entry(format!("{outcome}{status}")).or_default() += 1;
        }
        *self.by_outcome.entry(outcome.to_owned()).or_default() += 1;
        self.samples.push(sample);
        let counted = check::prompt_tokens(record);
        if let Some(cached) = record.cached_tokens.filter(|_| counted > 0) {
            self.cached_tokens += u64::from(cached);
            self.counted_prompt_tokens += u64::from(counted);
        }
        if is_good {
            self.drifts.add(Some(counted).filter(|counted| *counted > 0), recorded.prompt_tokens);
            // A recorded request may end as the model wants; one that is made of a length forbids it.
            if recorded.request.is_none() && recorded.outcome != Some(Outcome::ClientGone) {
                self.output_drifts.add(Some(record.output_tokens), recorded.output_tokens);
            }
            self.add_latencies(record, late);
        }
        self.add_tokens(record);
    }

    /// Adds a further choice of the request that was added last.
    fn add_choice(&mut self, request: usize, record: &Record) {
        if let Some(sample) = self.samples.last_mut().filter(|sample| sample.request == request) {
            sample.output_tokens = sample.output_tokens.saturating_add(record.output_tokens);
            sample.chunks = sample.chunks.saturating_add(chunks(record));
            sample.last_token = sample.last_token.max(last_token(record));
        }
        self.add_tokens(record);
    }

    fn target(&mut self, name: &str) -> usize {
        self.targets.iter().position(|target| target == name).unwrap_or_else(|| {
            self.targets.push(name.to_owned());
            self.targets.len() - 1
        })
    }

    /// When the first request was sent and the last one ended.
    fn span(&self) -> (Duration, Duration) {
        let begin = self.samples.iter().map(|sample| sample.sent).min().unwrap_or_default();
        let end = self.samples.iter().map(|sample| sample.sent + sample.e2e).max().unwrap_or_default();
        (begin, end)
    }

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
        *self.counted_by.entry(CountedBy::of(record)).or_default() += 1;
        // A whole response has no events.
        if record.stream != Some(false) {
            self.events += count(record.emissions());
            self.streamed_tokens += u64::from(record.output_tokens);
        }
        if record.outcome == Some(Outcome::Finished) {
            meter::itl(record).for_each(|gaps| self.itl.record_many(gaps.each, gaps.tokens));
            meter::chunk_gaps(record).for_each(|gap| self.chunk_gaps.record(gap));
        }
    }
}

#[cfg(test)]
mod tests;
