//! Traces in figures.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::sharing::PromptBlocks;
use super::{Concurrency, PrefixSharing, concurrency, sharing};
use crate::base::stats::{CountDistribution, Durations, Summary};
use crate::base::units::Millis;
use crate::recording::trace::{
    BadLines, CaptureEnd, Endpoint, FinishReason, Joined, LoadProgress, Meta, Outcome, Record, Sources, TraceError,
    Warning, replay_key,
};
use crate::replay::meter;

/// Summary of a trace. [`Display`](std::fmt::Display) formats it for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryReport {
    /// The files, as they were named.
    pub path: String,
    /// The first line, of several files what they agree on.
    pub meta: Meta,
    /// Counts from the end of the capture.
    pub end: Option<CaptureEnd>,
    /// Warnings, such as that the file was cut.
    pub warnings: Vec<String>,
    /// Lines that break a rule of the format; they are in no other figure.
    pub bad_lines: BadLines,
    /// Records, one per choice.
    pub records: u64,
    /// Requests: records that are a request's first choice.
    pub requests: u64,
    /// First arrival to last end in milliseconds; `None` without arrivals.
    pub duration_ms: Option<f64>,
    /// Requests per second between the first and the last arrival; `None` below two arrivals.
    pub arrival_rate: Option<f64>,
    /// Records by their features.
    pub by: Breakdown,
    /// Numbers of records by their content.
    pub carrying: FieldCounts,
    /// Token counts.
    pub tokens: TokenSummary,
    /// Times, in milliseconds.
    pub latencies: LatencySummary,
    /// Prefix sharing; `None` when no record has block hashes.
    pub sharing: Option<PrefixSharing>,
    /// Requests in flight; `None` without arrivals.
    pub concurrency: Option<Concurrency>,
}

/// Records by feature; a record without it is under `unknown`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Breakdown {
    /// By endpoint.
    pub endpoint: BTreeMap<String, u64>,
    /// By the model name asked for.
    pub model: BTreeMap<String, u64>,
    /// By how the exchange ended.
    pub outcome: BTreeMap<String, u64>,
    /// By why the engine stopped.
    pub finish_reason: BTreeMap<String, u64>,
    /// By HTTP status.
    pub status: BTreeMap<String, u64>,
    /// By whether the answer was streamed.
    pub stream: BTreeMap<String, u64>,
}

/// Numbers of records by their content.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FieldCounts {
    /// Output token ids.
    pub output_token_ids: u64,
    /// Prompt block hashes.
    pub block_hashes: u64,
    /// A whole-prompt hash.
    pub prompt_hash: u64,
    /// An arrival time.
    pub arrival: u64,
    /// A request id.
    pub request_id: u64,
    /// Text, request bodies or events (opt-in content).
    pub content: u64,
}

/// Token counts per record; prompt tokens and cached tokens once per request.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TokenSummary {
    /// All prompt tokens.
    pub prompt_total: u64,
    /// All output tokens.
    pub output_total: u64,
    /// All cached tokens, of the requests that report them.
    pub cached_total: u64,
    /// Prompt length.
    pub prompt: Option<Summary>,
    /// Output length.
    pub output: Option<Summary>,
    /// Cached tokens, of the requests that report them.
    pub cached: Option<Summary>,
}

/// Latencies in milliseconds, as [`crate::replay::meter`] defines them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Request to first event.
    pub first_event: Option<Summary>,
    /// Request to first token.
    pub ttft: Option<Summary>,
    /// Gap between tokens.
    pub itl: Option<Summary>,
    /// Gap between token-bearing chunks, however many tokens they hold.
    pub chunk_gap: Option<Summary>,
    /// Mean time per token after the first.
    pub tpot: Option<Summary>,
    /// Request to last byte.
    pub e2e: Option<Summary>,
}

/// Reads traces and sums them up as one; `progress` follows.
///
/// # Errors
/// When a file cannot be read to its end, or no line at all is a sound record; a file that was cut is no error.
pub fn summary(sources: &Sources, progress: &Arc<LoadProgress>) -> Result<SummaryReport, TraceError> {
    summary_with(sources, progress, |_| ()).map(|(report, _)| report)
}

/// Values behind the figures of a summary, for further figures.
pub(super) struct Summarised {
    pub(super) ttft: Durations,
    pub(super) itl: Durations,
    pub(super) tpot: Durations,
    pub(super) e2e: Durations,
    /// In replay order.
    pub(super) prompts: Vec<(Option<Duration>, PromptBlocks)>,
}

/// Sums traces up as one, and shows each record to `each`, on the clock of all files.
pub(super) fn summary_with(
    sources: &Sources,
    progress: &Arc<LoadProgress>,
    mut each: impl FnMut(&Record),
) -> Result<(SummaryReport, Summarised), TraceError> {
    let (mut joined, mut tally) = (Joined::ahead(sources, progress), RecordTally::default());
    let mut heads: Vec<TraceHead> = Vec::new();
    while let Some((path, mut reader)) = joined.next_file()? {
        let mut bad_lines = BadLines::default();
        while let Some((_, mut record)) = reader.next_sound(&mut bad_lines)? {
            joined.place(&mut record);
            each(&record);
            tally.add(record);
            progress.has_records(tally.records);
        }
        let warnings = reader.warnings().iter().map(Warning::to_string).collect();
        let (meta, end) = (reader.meta().clone(), reader.end().cloned());
        heads.push(TraceHead { path: path.display().to_string(), meta, end, warnings, bad_lines });
    }
    let bad = heads.iter().find_map(|head| Some((&head.path, head.bad_lines.first.first()?)));
    match bad.filter(|_| tally.records == 0) {
        Some((path, finding)) => Err(TraceError::Line { path: path.into(), finding: finding.clone() }),
        None => Ok(tally.report(heads)),
    }
}

#[derive(Default)]
struct TraceHead {
    path: String,
    meta: Meta,
    end: Option<CaptureEnd>,
    warnings: Vec<String>,
    bad_lines: BadLines,
}

impl TraceHead {
    /// Merges the heads of several files; each warning names its file then.
    fn all(heads: Vec<Self>) -> Self {
        let names = heads.len() > 1;
        let named = |mut head: Self| {
            if names {
                head.warnings.iter_mut().for_each(|warning| *warning = format!("{}: {warning}", head.path));
                head.bad_lines.first.iter_mut().for_each(|finding| finding.text += &format!(" (in {})", head.path));
            }
            head
        };
        let join = |mut all: Self, head: Self| {
            all.path = format!("{}, {}", all.path, head.path);
            all.meta.join(&head.meta);
            all.end = all.end.zip(head.end).map(|(all, end)| all.and(&end));
            all.warnings.extend(head.warnings);
            all.bad_lines.count += head.bad_lines.count;
            all.bad_lines.first.extend(head.bad_lines.first);
            all
        };
        heads.into_iter().map(named).reduce(join).unwrap_or_default()
    }
}

#[derive(Default)]
struct RecordTally {
    records: u64,
    requests: u64,
    by: FeatureCounts,
    carrying: FieldCounts,
    tokens: [CountDistribution; 3],
    times: [Durations; 6],
    prompts: Vec<(Option<Duration>, PromptBlocks)>,
    intervals: Vec<(Duration, Duration)>,
}

/// Records by feature, each by its own type: to spell one for each record would take longer than to read it.
#[derive(Default)]
struct FeatureCounts {
    endpoint: HashMap<Option<Endpoint>, u64>,
    model: HashMap<Option<String>, u64>,
    outcome: HashMap<Option<Outcome>, u64>,
    finish_reason: HashMap<Option<FinishReason>, u64>,
    status: HashMap<Option<u16>, u64>,
    stream: HashMap<Option<bool>, u64>,
}

impl FeatureCounts {
    fn count(&mut self, record: &Record) {
        count(&mut self.endpoint, &record.endpoint);
        count(&mut self.model, &record.model);
        count(&mut self.outcome, &record.outcome);
        count(&mut self.finish_reason, &record.finish_reason);
        count(&mut self.status, &record.status);
        count(&mut self.stream, &record.stream);
    }

    fn breakdown(self) -> Breakdown {
        Breakdown {
            endpoint: spelled(self.endpoint),
            model: spelled(self.model),
            outcome: spelled(self.outcome),
            finish_reason: spelled(self.finish_reason),
            status: spelled(self.status),
            stream: spelled(self.stream),
        }
    }
}

fn count<K: Clone + Eq + Hash>(counts: &mut HashMap<Option<K>, u64>, key: &Option<K>) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(counts.insert(key.clone(), 1)),
    }
}

impl RecordTally {
    fn add(&mut self, record: Record) {
        self.records += 1;
        self.by.count(&record);
        self.count_carried(&record);
        self.time(&record);
        let [prompt, output, cached] = &mut self.tokens;
        output.record(record.output_tokens);
        if record.choice.unwrap_or(0) > 0 {
            return;
        }
        self.requests += 1;
        prompt.record(record.prompt_tokens);
        record.cached_tokens.into_iter().for_each(|tokens| cached.record(tokens));
        if let Some(arrival) = record.arrival {
            self.intervals.push((arrival, meter::e2e(&record).unwrap_or_default()));
        }
        if !record.block_hashes.is_empty() || record.prompt_hash.is_some() {
            let Record { block_hashes: blocks, prompt_tokens: tokens, prompt_hash: whole, .. } = record;
            self.prompts.push((record.arrival, PromptBlocks { blocks, tokens, whole }));
        }
    }

    fn count_carried(&mut self, record: &Record) {
        let carrying = &mut self.carrying;
        carrying.output_token_ids += u64::from(record.output_token_ids.is_some());
        carrying.block_hashes += u64::from(!record.block_hashes.is_empty());
        carrying.prompt_hash += u64::from(record.prompt_hash.is_some());
        carrying.arrival += u64::from(record.arrival.is_some());
        carrying.request_id += u64::from(record.request_id.is_some());
        let content =
            record.request.is_some() || record.text.is_some() || record.events.is_some() || record.response.is_some();
        carrying.content += u64::from(content);
    }

    fn time(&mut self, record: &Record) {
        let [first_event, ttft, itl, chunk_gap, tpot, e2e] = &mut self.times;
        meter::first_event(record).into_iter().for_each(|time| first_event.record(time));
        meter::ttft(record).into_iter().for_each(|time| ttft.record(time));
        meter::itl(record).for_each(|gaps| itl.record_many(gaps.each, gaps.tokens));
        meter::chunk_gaps(record).for_each(|gap| chunk_gap.record(gap));
        meter::tpot(record).into_iter().for_each(|time| tpot.record(time));
        meter::e2e(record).into_iter().for_each(|time| e2e.record(time));
    }

    fn report(mut self, heads: Vec<TraceHead>) -> (SummaryReport, Summarised) {
        let TraceHead { path, meta, end, warnings, bad_lines } = TraceHead::all(heads);
        self.prompts.sort_by_key(|(arrival, _)| replay_key(*arrival));
        let [prompt, output, cached] = &self.tokens;
        let [first_event, ttft, itl, chunk_gap, tpot, e2e] = self.times.each_ref().map(Durations::summary);
        let report = SummaryReport {
            path,
            meta,
            end,
            warnings,
            bad_lines,
            records: self.records,
            requests: self.requests,
            duration_ms: span(&self.intervals),
            arrival_rate: arrival_rate(&self.intervals),
            by: self.by.breakdown(),
            tokens: TokenSummary {
                prompt_total: prompt.total(),
                output_total: output.total(),
                cached_total: cached.total(),
                prompt: prompt.summary(),
                output: output.summary(),
                cached: cached.summary(),
            },
            latencies: LatencySummary { first_event, ttft, itl, chunk_gap, tpot, e2e },
            sharing: (self.carrying.block_hashes > 0)
                .then(|| sharing::measure(self.prompts.iter().map(|(_, prompt)| prompt))),
            carrying: self.carrying,
            concurrency: concurrency::measure(&self.intervals),
        };
        let [_, ttft, itl, .., tpot, e2e] = self.times;
        (report, Summarised { ttft, itl, tpot, e2e, prompts: self.prompts })
    }
}

/// Counts of values in the file's spelling; a model may be named `unknown` too.
fn spelled<K: ToString>(counts: HashMap<Option<K>, u64>) -> BTreeMap<String, u64> {
    let mut spelled = BTreeMap::new();
    for (value, count) in counts {
        let name = value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
        *spelled.entry(name).or_default() += count;
    }
    spelled
}

fn span(intervals: &[(Duration, Duration)]) -> Option<f64> {
    let start = intervals.iter().map(|(arrival, _)| *arrival).min()?;
    let end = intervals.iter().map(|(arrival, length)| arrival.saturating_add(*length)).max()?;
    Some(Millis::from(end.saturating_sub(start)).0)
}

fn arrival_rate(intervals: &[(Duration, Duration)]) -> Option<f64> {
    let first = intervals.iter().map(|(arrival, _)| *arrival).min()?;
    let last = intervals.iter().map(|(arrival, _)| *arrival).max()?;
    let seconds = last.saturating_sub(first).as_secs_f64();
    (seconds > 0.0).then(|| (intervals.len() - 1) as f64 / seconds)
}
