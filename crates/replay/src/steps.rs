//! The steps of the engine that a trace was recorded from, as far as its records show them.
//!
//! The gap before a single token is the time of a step. Who took part in it is known where the trace has it (`itl_ctx`), else
//! from the other records: those between their first and their last token decode, and a prompt is prefilled in the step that
//! brings its first token. A request that was alone gives the time of its prefill, with what it spent outside of steps.
//!
//! Limits: tokens that came together do not show their steps; times are those at which chunks were seen.

use engine::step_clock::{MeasuredStep, StepWork};
use recording::trace::{Joined, Record, Sources, TraceError};

/// Records that are kept at the most.
const MOST_RECORDS: usize = 8192;

/// Steps that are measured at the most, evenly spread.
const MOST_STEPS: usize = 65_536;

/// A first token may be seen this much later than the other tokens of its step, in seconds and as a share of the step: a front end
/// takes longer over it.
const APART: (f64, f64) = (0.008, 0.4);

/// A record as a stream of tokens, times in seconds from the trace's zero.
#[derive(Debug)]
struct TokenStream {
    arrival: f64,
    first: f64,
    last: f64,
    prompt: f64,
    /// Tokens of the prompt that were not cached.
    computed: u32,
    output: f64,
}

/// Streams of tokens in traces, whose steps are measured.
#[derive(Debug, Default)]
pub struct StreamedRecords {
    /// How many there are.
    pub count: usize,
    /// The times of all that have an arrival: who took part in a step.
    streams: Vec<TokenStream>,
    /// An even sample of them, each `every`th.
    sample: Vec<Record>,
    every: usize,
}

impl StreamedRecords {
    /// Reads them from traces.
    ///
    /// # Errors
    /// When a trace cannot be read.
    pub fn of(sources: &Sources) -> Result<Self, TraceError> {
        let mut streamed = Self::default();
        each_streamed(sources, |record| streamed.add(record))?;
        Ok(streamed)
    }

    fn add(&mut self, record: Record) {
        self.streams.extend(TokenStream::of(&record));
        if self.sample.len() == MOST_RECORDS {
            // Every other one, the first included: what is kept is each `every`th again.
            let mut number = 0;
            self.sample.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
        self.every = self.every.max(1);
        self.sample.extend(Some(record).filter(|_| self.count.is_multiple_of(self.every)));
        self.count += 1;
    }

    /// Number of those whose steps are measured.
    #[must_use]
    pub fn sampled(&self) -> usize {
        self.sample.len()
    }

    /// Measures the steps.
    #[must_use]
    pub fn measured(&self) -> Vec<MeasuredStep> {
        let others = Others::of(&self.streams);
        let gaps: usize = self.sample.iter().map(|record| record.chunks.len()).sum();
        let every = gaps.div_ceil(MOST_STEPS).max(1);
        let mut measured: Vec<MeasuredStep> =
            self.sample.iter().flat_map(|record| of_gaps(record, &others)).step_by(every).collect();
        let streams = self.sample.iter().filter_map(TokenStream::of);
        measured.extend(streams.filter_map(|stream| others.alone(&stream)));
        measured
    }
}

/// Calls `take` with each record of traces that streamed any tokens; returns the tokens of their blocks.
fn each_streamed(sources: &Sources, mut take: impl FnMut(Record)) -> Result<Option<u32>, TraceError> {
    let mut joined = Joined::of(sources);
    while let Some(record) = joined.next_sound()? {
        if !record.chunks.is_empty() && record.stream != Some(false) {
            take(record);
        }
    }
    Ok(joined.block_size())
}

/// The first records of traces that streamed any tokens and have an arrival, as many as are looked at, the tokens of their blocks, and how many such
/// records there are.
///
/// # Errors
/// When a trace cannot be read.
pub fn first_streamed(sources: &Sources) -> Result<(Vec<Record>, Option<u32>, usize), TraceError> {
    let (mut first, mut count) = (Vec::new(), 0);
    let block_size = each_streamed(sources, |record| {
        if record.arrival.is_some() {
            count += 1;
            first.extend(Some(record).filter(|_| count <= MOST_RECORDS));
        }
    })?;
    Ok((first, block_size, count))
}

/// The steps behind a record's gaps after its first token.
fn of_gaps<'a>(record: &'a Record, others: &'a Others) -> impl Iterator<Item = MeasuredStep> + 'a {
    let mut at = record.arrival.unwrap_or_default().as_secs_f64();
    let mut produced = 0_u32;
    record.chunks.iter().enumerate().filter_map(move |(number, chunk)| {
        let (from, seconds) = (at, chunk.gap.as_secs_f64());
        at += seconds;
        let before = u64::from(record.prompt_tokens) + u64::from(produced);
        produced = produced.saturating_add(chunk.tokens);
        if number == 0 || chunk.tokens != 1 || seconds <= 0.0 {
            return None;
        }
        let work = match (chunk.step, record.arrival) {
            (Some(step), _) => StepWork {
                decodes: step.num_running,
                prefills: u32::from(step.prefill_tokens > 0),
                prefill_tokens: step.prefill_tokens,
                prefill_share: 1.0,
                context_tokens: before.saturating_mul(u64::from(step.num_running)),
                ..StepWork::default()
            },
            (None, Some(_)) => others.work(from, from + seconds),
            (None, None) => return None,
        };
        Some(MeasuredStep { work, seconds, is_request: false })
    })
}

impl TokenStream {
    fn of(record: &Record) -> Option<Self> {
        let arrival = record.arrival?.as_secs_f64();
        let first = arrival + record.ttft()?.as_secs_f64();
        let last = arrival + record.emissions().map(|chunk| chunk.gap.as_secs_f64()).sum::<f64>();
        let computed = record.prompt_tokens.saturating_sub(record.cached_tokens.unwrap_or(0));
        let (prompt, output) = (f64::from(record.prompt_tokens), f64::from(record.output_tokens));
        Some(Self { arrival, first, last, prompt, computed, output })
    }
}

/// Sums over all streams, by time.
struct Others {
    /// When streams begin and end to decode: how many then do, and their context as a linear function of time.
    changes: Vec<(f64, [f64; 3])>,
    /// First tokens, with how many there were and how many tokens of prompts were computed for them so far.
    firsts: Vec<(f64, u32, u64)>,
    /// Arrivals in order.
    arrivals: Vec<f64>,
}

impl Others {
    fn of(streams: &[TokenStream]) -> Self {
        let mut changes = Vec::with_capacity(2 * streams.len());
        for stream in streams.iter().filter(|stream| stream.last > stream.first) {
            let per_second = stream.output / (stream.last - stream.first);
            let of_stream = [1.0, stream.prompt - per_second * stream.first, per_second];
            changes.push((stream.first, of_stream));
            changes.push((stream.last, of_stream.map(|value| -value)));
        }
        changes.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let mut sums = [0.0; 3];
        for (_, change) in &mut changes {
            sums.iter_mut().zip(change.iter()).for_each(|(sum, value)| *sum += value);
            *change = sums;
        }
        let mut firsts: Vec<(f64, u32, u64)> =
            streams.iter().map(|stream| (stream.first, 1, u64::from(stream.computed))).collect();
        firsts.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
        let (mut count, mut computed) = (0_u32, 0_u64);
        for (_, of_one, tokens) in &mut firsts {
            (count, computed) = (count + *of_one, computed + *tokens);
            (*of_one, *tokens) = (count, computed);
        }
        let mut arrivals: Vec<f64> = streams.iter().map(|stream| stream.arrival).collect();
        arrivals.sort_by(f64::total_cmp);
        Self { changes, firsts, arrivals }
    }

    /// Requests that decode at a time, and their context.
    fn decoding(&self, at: f64) -> (f64, f64) {
        let place = self.changes.partition_point(|(time, _)| *time <= at);
        let sums = place.checked_sub(1).and_then(|place| self.changes.get(place)).map_or([0.0; 3], |(_, sums)| *sums);
        let [count, constant, per_second] = sums;
        (count.round().max(0.0), (constant + per_second * at).max(0.0))
    }

    /// First tokens between two times, and the tokens of prompts that were computed for them.
    fn prefilled(&self, from: f64, to: f64) -> (u32, u64) {
        let until = |time: f64| {
            let place = self.firsts.partition_point(|(first, ..)| *first <= time);
            let before = place.checked_sub(1).and_then(|place| self.firsts.get(place));
            before.map_or((0, 0), |(_, count, computed)| (*count, *computed))
        };
        let ((few, less), (many, more)) = (until(from), until(to));
        (many.saturating_sub(few), more.saturating_sub(less))
    }

    /// The work of a step between two times.
    #[allow(clippy::cast_possible_truncation)] // counts, none negative
    fn work(&self, from: f64, to: f64) -> StepWork {
        let (decodes, context) = self.decoding(f64::midpoint(from, to));
        let apart = APART.0.min(APART.1 * (to - from));
        let (prefills, computed) = self.prefilled(from + apart, to + apart);
        StepWork {
            decodes: (decodes as u32).max(1),
            prefills,
            prefill_tokens: u32::try_from(computed).unwrap_or(u32::MAX),
            prefill_share: 1.0,
            context_tokens: context as u64,
            ..StepWork::default()
        }
    }

    /// The prefill of a request that was alone until its first token.
    fn alone(&self, stream: &TokenStream) -> Option<MeasuredStep> {
        let seconds = stream.first - stream.arrival;
        let (decoding, _) = self.decoding(stream.arrival);
        let (others, _) = self.prefilled(stream.arrival - f64::EPSILON, stream.first);
        let before = self.arrivals.partition_point(|arrival| *arrival <= stream.first);
        let earlier = self.arrivals.partition_point(|arrival| *arrival < stream.arrival);
        let (done, _) = self.prefilled(f64::NEG_INFINITY, stream.arrival);
        let is_waiting = usize::try_from(done).unwrap_or(usize::MAX) < earlier;
        if decoding > 0.0 || others != 1 || before - earlier != 1 || is_waiting || seconds <= 0.0 {
            return None;
        }
        let work = StepWork { prefills: 1, prefill_tokens: stream.computed, prefill_share: 1.0, ..StepWork::default() };
        Some(MeasuredStep { work, seconds, is_request: true })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use recording::trace::{Chunk, StepContext};

    const MS: Duration = Duration::from_millis(1);

    fn record(arrival: u32, prompt_tokens: u32, gaps: &[u32]) -> Record {
        let chunk = |gap: &u32| Chunk { gap: MS * *gap, tokens: 1, step: None };
        Record {
            prompt_tokens,
            arrival: Some(MS * arrival),
            output_tokens: u32::try_from(gaps.len()).unwrap(),
            chunks: gaps.iter().map(chunk).collect(),
            ..Record::default()
        }
    }

    fn steps(records: &[Record]) -> Vec<(u32, u32, u32, f64, bool)> {
        let mut streamed = StreamedRecords::default();
        records.iter().cloned().for_each(|record| streamed.add(record));
        let measured = streamed.measured();
        let millis = |step: &MeasuredStep| (step.seconds * 1000.0).round();
        let plain = |step: &MeasuredStep| {
            (step.work.decodes, step.work.prefills, step.work.prefill_tokens, millis(step), step.is_request)
        };
        measured.iter().map(plain).collect()
    }

    #[test]
    fn a_request_alone_shows_its_prefill_and_its_decodes() {
        assert_eq!(
            steps(&[record(0, 100, &[50, 10, 10])]),
            [(1, 0, 0, 10.0, false), (1, 0, 0, 10.0, false), (0, 1, 100, 50.0, true)]
        );
    }

    #[test]
    fn many_records_are_sampled_evenly_and_all_of_them_take_part() {
        let mut streamed = StreamedRecords::default();
        // Two at a time, twice as slow in the last tenth.
        for pair in 0..10_000 {
            let step = if pair < 9000 { 10 } else { 20 };
            (0..2).for_each(|_| streamed.add(record(pair * 100, 10, &[step, step, step])));
        }
        let measured = streamed.measured();
        assert_eq!((streamed.count, streamed.sampled(), measured.len()), (20_000, 5000, 10_000));
        assert!(measured.iter().all(|step| step.work.decodes == 2), "{:?}", measured.first());
        assert_eq!(measured.iter().filter(|step| step.seconds > 0.015).count(), 1000);
    }

    #[test]
    fn a_prefill_is_in_the_step_of_the_others_that_brings_its_first_token() {
        // The second one comes at 65, waits for the step that ends at 70, and its prefill makes the next one long.
        let records = [record(0, 100, &[50, 10, 10, 30, 12]), record(65, 400, &[36, 11])];
        let mut found = steps(&records);
        found.sort_by(|one, other| one.partial_cmp(other).unwrap());
        assert_eq!(
            found,
            [
                (0, 1, 100, 50.0, true),
                (1, 0, 0, 10.0, false),
                (1, 0, 0, 10.0, false),
                (1, 1, 400, 30.0, false),
                (2, 0, 0, 11.0, false),
                (2, 0, 0, 12.0, false)
            ]
        );
    }

    #[test]
    fn steps_that_the_trace_knows_are_taken_from_it() {
        let mut known = record(0, 10, &[50, 10]);
        known.arrival = None;
        known.chunks[1].step = Some(StepContext { num_running: 7, prefill_tokens: 30 });
        assert_eq!(steps(&[known]), [(7, 1, 30, 10.0, false)]);
    }
}
