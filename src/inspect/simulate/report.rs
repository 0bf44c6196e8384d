//! What a simulation measures, and its report.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use serde::Serialize;

use super::{AnswersInPrompts, ArrivalSchedule, Simulation, fleet::LiveRequest};
use crate::{
    base::one_line::counted,
    base::stats::{Durations, Summary},
    engine::{
        offline::BegunStep,
        scheduler::{Decisions, PrefixCacheStats, SchedulerStats},
    },
    replay::meter::Slo,
};

/// Longest latency that is measured; longer ones count as this.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

impl LiveRequest {
    /// Its times in the order of [`Slo::is_kept`].
    fn times(&self) -> [Option<Duration>; 4] {
        [Some(self.first - self.arrival), Some(self.longest_gap), self.tpot(), Some(self.last - self.arrival)]
    }

    /// The mean of its gaps; `None` for one token.
    fn tpot(&self) -> Option<Duration> {
        let gaps = self.tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some((self.last - self.first) / gaps)
    }
}

#[derive(Default)]
pub(super) struct FleetMeasurements {
    slo: Option<Slo>,
    ttft: Durations,
    itl: Durations,
    tpot: Durations,
    e2e: Durations,
    /// The gap that most tokens of a step have, and how many of them.
    gap: (Duration, u32),
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    finished: u64,
    good: u64,
    good_tokens: u64,
    pub(super) refused: u64,
    pub(super) end: Duration,
}

impl FleetMeasurements {
    pub(super) fn new(slo: Option<Slo>) -> Self {
        let empty = || Durations::up_to(LONGEST);
        Self { slo, ttft: empty(), itl: empty(), tpot: empty(), e2e: empty(), ..Self::default() }
    }

    pub(super) fn token(&mut self, now: Duration, live: &mut LiveRequest) {
        self.output_tokens += 1;
        live.tokens += 1;
        if live.tokens == 1 {
            live.first = now;
        } else {
            let gap = now - live.last;
            live.longest_gap = live.longest_gap.max(gap);
            // A step's tokens have one gap but for those of requests that were preempted: counted together, recorded once.
            if gap == self.gap.0 {
                self.gap.1 += 1;
            } else {
                self.itl.record_many(self.gap.0, self.gap.1);
                self.gap = (gap, 1);
            }
        }
        live.last = now;
    }

    pub(super) fn first(&mut self, live: &LiveRequest, cached: usize) {
        self.ttft.record(live.first - live.arrival);
        self.prompt_tokens += u64::from(live.prompt_tokens);
        self.cached_tokens += cached as u64;
    }

    pub(super) fn finished(&mut self, live: &LiveRequest) {
        self.finished += 1;
        self.e2e.record(live.last - live.arrival);
        live.tpot().into_iter().for_each(|tpot| self.tpot.record(tpot));
        if self.slo.is_some_and(|slo| slo.is_kept(live.times())) {
            self.good += 1;
            self.good_tokens += u64::from(live.tokens);
        }
    }

    pub(super) fn report(
        mut self,
        schedule: &ArrivalSchedule,
        simulation: &Simulation,
        totals: &[ReplicaTotals],
    ) -> SimulateReport {
        self.itl.record_many(self.gap.0, self.gap.1);
        let seconds = self.end.as_secs_f64();
        let per_second = |count: u64| ratio(count as f64, seconds);
        let goodput = |_| Goodput {
            requests: self.good,
            share: ratio(self.good as f64, schedule.len() as f64),
            requests_per_s: per_second(self.good),
            output_tokens_per_s: per_second(self.good_tokens),
        };
        SimulateReport {
            path: schedule.name.clone(),
            router: simulation.policy.name(),
            requests: schedule.len(),
            finished: self.finished,
            refused: self.refused,
            left_out: schedule.left_out,
            seconds,
            ttft_ms: self.ttft.summary(),
            itl_ms: self.itl.summary(),
            tpot_ms: self.tpot.summary(),
            e2e_ms: self.e2e.summary(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            output_tokens_per_s: per_second(self.output_tokens),
            hit_rate: ratio(self.cached_tokens as f64, self.prompt_tokens as f64),
            preemptions: totals.iter().map(|totals| totals.preemptions).sum(),
            goodput: self.slo.map(goodput),
            has_blocks: schedule.has_blocks(),
            answers: schedule.answers,
            replicas: totals.iter().map(|totals| totals.report(self.end)).collect(),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct ReplicaTotals {
    pub(super) requests: u64,
    steps: u64,
    preemptions: u64,
    busy: Duration,
    /// Length of the step in progress.
    duration: Duration,
    /// Requests of steps, by seconds.
    batch: f64,
    /// Share of blocks in use, by seconds, and the largest.
    usage: f64,
    most_usage: f64,
    cache: PrefixCacheStats,
}

impl ReplicaTotals {
    /// A step begins, or does not.
    pub(super) fn begin(&mut self, begun: Option<&BegunStep>, decisions: &Decisions) {
        self.preemptions += decisions.preempted.len() as u64;
        let Some(BegunStep { work, duration }) = begun else { return };
        self.steps += 1;
        self.duration = *duration;
        self.busy += *duration;
        self.batch += f64::from(work.requests()) * duration.as_secs_f64();
    }

    pub(super) fn end(&mut self, stats: &SchedulerStats) {
        self.usage += stats.kv_cache_usage * self.duration.as_secs_f64();
        self.most_usage = self.most_usage.max(stats.kv_cache_usage);
        self.cache.add(&stats.prefix_cache_stats);
    }

    fn report(&self, end: Duration) -> ReplicaReport {
        let (busy, seconds) = (self.busy.as_secs_f64(), end.as_secs_f64());
        ReplicaReport {
            requests: self.requests,
            steps: self.steps,
            utilisation: ratio(busy, seconds),
            mean_batch: ratio(self.batch, busy),
            kv_cache_usage: ratio(self.usage, busy),
            max_kv_cache_usage: self.most_usage,
            hit_rate: ratio(self.cache.hits as f64, self.cache.queries as f64),
            preemptions: self.preemptions,
        }
    }
}

/// Latencies and counts of a simulation. Times are in milliseconds where a name ends so, else in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulateReport {
    /// The trace.
    pub path: String,
    /// Name of the policy.
    pub router: &'static str,
    /// Requests that arrived.
    pub requests: usize,
    /// Those that got all of their tokens.
    pub finished: u64,
    /// Those that an engine refused: too long, or its queue was full.
    pub refused: u64,
    /// Records that are no requests.
    pub left_out: u64,
    /// From the first arrival to the last token.
    pub seconds: f64,
    /// Time to the first token.
    pub ttft_ms: Option<Summary>,
    /// Gaps between tokens, over all requests.
    pub itl_ms: Option<Summary>,
    /// Mean gap of each request.
    pub tpot_ms: Option<Summary>,
    /// Time to the last token.
    pub e2e_ms: Option<Summary>,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Those of them that were cached when their request first ran.
    pub cached_tokens: u64,
    /// Tokens that were sampled.
    pub output_tokens: u64,
    /// The same, per second.
    pub output_tokens_per_s: f64,
    /// Share of prompt tokens that were cached.
    pub hit_rate: f64,
    /// How often a request lost its blocks.
    pub preemptions: u64,
    /// What kept the limits, where there were any.
    pub goodput: Option<Goodput>,
    /// Whether the trace has blocks, so that prompts can share any.
    pub has_blocks: bool,
    /// Answers in the prompts that go on with them.
    pub answers: AnswersInPrompts,
    /// Each engine.
    pub replicas: Vec<ReplicaReport>,
}

/// Requests that kept all limits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// How many.
    pub requests: u64,
    /// Share of all that arrived.
    pub share: f64,
    /// Per second.
    pub requests_per_s: f64,
    /// Their tokens per second.
    pub output_tokens_per_s: f64,
}

/// One engine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReplicaReport {
    /// Requests that went there.
    pub requests: u64,
    /// Steps that it took.
    pub steps: u64,
    /// Share of the time in which it computed.
    pub utilisation: f64,
    /// Requests of a step, by time.
    pub mean_batch: f64,
    /// Share of blocks in use while it computed, on average.
    pub kv_cache_usage: f64,
    /// The most.
    pub max_kv_cache_usage: f64,
    /// Share of prompt tokens that were cached.
    pub hit_rate: f64,
    /// How often a request lost its blocks.
    pub preemptions: u64,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl fmt::Display for SimulateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.replicas.len();
        let of_replicas = if count == 1 { String::new() } else { format!(", {count} replicas, {}", self.router) };
        writeln!(f, "{}: {} in {:.1} s{of_replicas}", self.path, counted(self.requests, "request"), self.seconds)?;
        for (number, noun, what) in [
            (self.refused, "request", "refused: longer than the model or its cache, or the queue was full"),
            (self.left_out, "record", "left out: without an arrival or tokens, or invalid"),
        ] {
            if number > 0 {
                writeln!(f, "  {} {what}", counted(number, noun))?;
            }
        }
        if !self.has_blocks {
            writeln!(f, "  the trace has no block hashes, so no prompt shares a prefix with another one")?;
        }
        writeln!(f, "\n{:<6}{:>12}{:>12}{:>12}{:>12} ms", "", "mean", "p50", "p90", "p99")?;
        let rows = [("TTFT", self.ttft_ms), ("ITL", self.itl_ms), ("TPOT", self.tpot_ms), ("E2E", self.e2e_ms)];
        for (name, summary) in rows.into_iter().filter_map(|(name, summary)| Some((name, summary?))) {
            let Summary { mean, p50, p90, p99, .. } = summary;
            writeln!(f, "{name:<6}{mean:>12.2}{p50:>12.2}{p90:>12.2}{p99:>12.2}")?;
        }
        let hits = self.hit_rate * 100.0;
        writeln!(f, "\nprefix cache  {hits:.1} % of {} prompt tokens", self.prompt_tokens)?;
        f.write_str(&self.answers.to_string())?;
        writeln!(f, "output        {} tokens, {:.0} per second", self.output_tokens, self.output_tokens_per_s)?;
        writeln!(f, "preemptions   {}", self.preemptions)?;
        if let Some(Goodput { requests, share, requests_per_s, output_tokens_per_s }) = self.goodput {
            let share = share * 100.0;
            writeln!(
                f,
                "goodput       {share:.1} % ({requests} requests), {requests_per_s:.2} requests and {output_tokens_per_s:.0} tokens per second"
            )?;
        }
        f.write_str(&self.table())
    }
}

impl SimulateReport {
    /// A line for each replica.
    fn table(&self) -> String {
        let mut text = "\nreplica  requests    busy   batch  KV mean   KV max    hits  preemptions\n".to_owned();
        for (replica, number) in self.replicas.iter().zip(0..) {
            let percent = |share: f64| share * 100.0;
            let _ = writeln!(
                text,
                "{number:>7}{:>10}{:>6.1} %{:>8.1}{:>7.1} %{:>7.1} %{:>6.1} %{:>13}",
                replica.requests,
                percent(replica.utilisation),
                replica.mean_batch,
                percent(replica.kv_cache_usage),
                percent(replica.max_kv_cache_usage),
                percent(replica.hit_rate),
                replica.preemptions
            );
        }
        text
    }
}
