//! The sink of a cassette: makes records of exchanges, redacts them and writes them in the order of their requests.
//!
//! An exchange waits here for those that came before it and have not ended. Limits: where more waits than may, the first of them is
//! written out of order.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{
    RecordErrors, assemble,
    recorder::{Arrivals, RecordCounts, route_of},
    secrets,
};
use crate::{
    base::{rate_limited_log::RateLimitedLog, units::Millis},
    recording::cassette::{Answer, CassetteError, CassetteWriter, Content, Fault, Record, RecordedExchange, Side},
    recording::{
        exchange::{Exchange, ExchangeRequest},
        recorder::{Progress, Sink},
        redaction::Rules,
        trace::{Outcome, ResponseContent},
    },
};

/// Bytes of exchanges that may wait for earlier ones.
const MOST_WAITING: usize = 256 << 20;

/// An exchange and its place among the records.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) number: u64,
    /// Bytes that it holds.
    pub(super) weight: usize,
    pub(super) content: EntryContent,
}

/// Content of an entry.
#[derive(Debug)]
pub(crate) enum EntryContent {
    Exchange(Box<Exchange>),
    /// A record that was replayed.
    Replayed(Box<RecordedExchange>),
}

/// Writer of a cassette.
#[derive(Debug)]
pub(crate) struct CassetteSink {
    writer: CassetteWriter,
    secrets: Rules,
    errors: RecordErrors,
    arrivals: Arc<Arrivals>,
    counts: Arc<RecordCounts>,
    progress: Arc<Progress>,
    /// Everything before it was in the queue when the batch was taken.
    first_open: u64,
    /// What waits for earlier exchanges.
    waiting: BTreeMap<u64, Waiting>,
    waiting_bytes: usize,
    failing: RateLimitedLog,
}

/// Why an exchange is not recorded.
enum NotRecorded {
    Status(u16),
    /// To search it for secrets takes more work than it may.
    Unsearched,
}

/// A record that waits for earlier ones.
#[derive(Debug)]
struct Waiting {
    weight: usize,
    recorded: RecordedExchange,
    output_ids: Vec<Vec<u32>>,
}

impl CassetteSink {
    /// Writes what is submitted by these arrivals.
    pub(super) fn new(
        writer: CassetteWriter,
        secrets: Rules,
        errors: RecordErrors,
        (arrivals, counts, progress): (Arc<Arrivals>, Arc<RecordCounts>, Arc<Progress>),
    ) -> Self {
        let (waiting, failing) = (BTreeMap::new(), RateLimitedLog::default());
        Self { writer, secrets, errors, arrivals, counts, progress, first_open: 0, waiting, waiting_bytes: 0, failing }
    }

    /// Writes what waits for nothing any more.
    fn write(&mut self, mut may_go: impl FnMut(u64, usize) -> bool) {
        while let Some((number, waiting)) = self.waiting.pop_first() {
            if !may_go(number, self.waiting_bytes) {
                self.waiting.insert(number, waiting);
                return;
            }
            self.waiting_bytes -= waiting.weight;
            if waiting.recorded.record.aborted.is_some() {
                self.counts.partial.fetch_add(1, Relaxed);
            }
            self.writer.add_with_ids(waiting.recorded, waiting.output_ids);
            self.counts.recorded.fetch_add(1, Relaxed);
        }
    }
}

impl Sink for CassetteSink {
    type Item = Entry;
    type Ending = Result<(), CassetteError>;

    fn weight(entry: &Entry) -> usize {
        entry.weight
    }

    fn begin_batch(&mut self) {
        self.first_open = self.arrivals.first_open();
    }

    fn record(&mut self, entry: Entry) {
        let Entry { number, weight, content } = entry;
        let errors = self.errors;
        let made = catch_unwind(AssertUnwindSafe(|| {
            let (mut recorded, output_ids) = match content {
                EntryContent::Exchange(mut exchange) => {
                    let output_ids = std::mem::take(&mut exchange.output_ids);
                    (record_of(*exchange), output_ids)
                }
                EntryContent::Replayed(recorded) => (*recorded, Vec::new()),
            };
            if !errors.includes(recorded.record.answer.status) {
                return Err(NotRecorded::Status(recorded.record.answer.status));
            }
            let redact = || secrets::redact(&self.secrets, &mut recorded.record, &mut recorded.side);
            let redacted = self.progress.searching(redact);
            if redacted.is_unsearched {
                return Err(NotRecorded::Unsearched);
            }
            // Ids spell what was redacted.
            let output_ids = if redacted.had_any { Vec::new() } else { output_ids };
            Ok(Waiting { weight, recorded, output_ids })
        }));
        match made {
            Ok(Ok(waiting)) => {
                self.waiting_bytes += weight;
                self.waiting.insert(number, waiting);
            }
            Ok(Err(NotRecorded::Unsearched)) => {
                tracing::warn!("an exchange is not recorded: to search it for secrets would take too much work");
                self.counts.unsearched.fetch_add(1, Relaxed);
            }
            Ok(Err(NotRecorded::Status(status))) => {
                tracing::warn!("an answer with status {status} is not recorded (--record-errors all records it)");
                self.counts.skipped.fetch_add(1, Relaxed);
            }
            Err(_) => {
                tracing::error!("an exchange could not be recorded; please report this");
                self.counts.broken.fetch_add(1, Relaxed);
            }
        }
    }

    fn end_batch(&mut self) {
        let first_open = self.first_open;
        self.write(|number, waiting| number < first_open || waiting > MOST_WAITING);
    }

    fn flush(&mut self) {
        if let Err(error) = self.writer.flush()
            && self.failing.due().is_some()
        {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(cause, "{error}: requests are answered, what was recorded waits to be written");
        }
    }

    fn finish(mut self) -> Result<(), CassetteError> {
        self.write(|_, _| true);
        let records = self.writer.finish()?;
        self.counts.is_not_written.store(records.is_empty(), Relaxed);
        Ok(())
    }
}

/// Makes a record of an exchange.
fn record_of(exchange: Exchange) -> RecordedExchange {
    let Exchange { request, mut response, timing, outcome, output_ids: _ } = exchange;
    let ExchangeRequest { method, target, headers, body, raw, is_retry, size: _ } = request;
    let mut side = Side { ms: millis(timing.e2e), recorded_at: timing.recorded_at, ..Side::default() };
    let path = route_of(&target);
    let copy = response.capture.take_response();
    let (assembled, events) = match copy.content {
        ResponseContent::Events(mut events) => {
            events.iter_mut().for_each(|event| event.0 = rounded(event.0));
            let (assembled, count) = (assemble::events(path, &events), events.len());
            side.events = events.into();
            (assembled, count)
        }
        ResponseContent::Body(bytes) => {
            let assembled = assemble::body(path, response.status, &bytes);
            if matches!(assembled.content, Content::Choices { .. } | Content::Json(_)) {
                side.body = String::from_utf8(bytes).ok();
            }
            (assembled, 0)
        }
    };
    side.head = assembled.head;
    // JSON is shown as text where it could not be shown as itself, and is JSON still.
    let is_text = matches!(assembled.content, Content::Text(_) | Content::Bytes(_));
    let kept = copy.headers.into_iter().filter(|(name, value)| is_text || !is_usual(name, value)).collect();
    let is_broken = matches!(outcome, Outcome::UpstreamFailed | Outcome::TimedOut);
    let fault = is_broken.then_some(Fault::Reset { after_events: events });
    let aborted = matches!(outcome, Outcome::ClientGone | Outcome::Cut).then_some(events as u64);
    let answer = Answer { status: response.status, headers: kept, content: assembled.content, fault };
    let record = Record { method, path: target, headers, body, raw, aborted, answer, ..Record::default() };
    RecordedExchange { record, side, is_retry }
}

/// A header that most responses have.
pub(super) fn is_usual(name: &str, value: &str) -> bool {
    name == "content-type" && (value == "application/json" || value.starts_with("text/event-stream"))
}

/// Milliseconds, to the microsecond.
fn millis(duration: std::time::Duration) -> f64 {
    rounded(Millis::from(duration).0)
}

fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}
