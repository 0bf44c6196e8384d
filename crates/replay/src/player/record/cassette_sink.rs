//! The sink of a cassette: makes records of exchanges, redacts them and writes them in the order of their requests.
//!
//! An exchange waits here for those that came before it and have not ended. What has waited for seconds is written at the end of the
//! partial file meanwhile, and again in its place. Limits: where more waits than may, the first of them is written out of order.
//!
//! See docs/decisions/0073-what-waits-is-on-the-disk.md.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use crate::{
    mcp::is_of_mcp,
    player::{
        FailedTries, RecordErrors,
        record::{
            assemble,
            compare::ComparedWith,
            record_report::RecordCounts,
            recorder::{OpenArrivals, route_of},
            session_values::SessionValues,
        },
        secrets::{self, RedactionResult},
    },
};
use base::{rate_limited_log::RateLimitedLog, units::Millis};
use net::{server::media_type, wire::recorded_json_as_utf8};
use recording::{
    capture::{Capture, CaptureLimits, Captures},
    cassette::{
        AnswerContent, CassetteError, CassetteRecord, CassetteWriter, RecordedAnswer, RecordedExchange, Sidecar,
        TransportFault,
    },
    exchange::{Exchange, ExchangeRequest},
    recorder::{RecorderProgress, Sink},
    redaction::{NamedValues, RedactionRules},
    trace::{Outcome, ResponseContent},
};

/// Bytes of exchanges that may wait for earlier ones.
const MOST_WAITING: usize = 256 << 20;

/// An exchange that waits longer is written before those that it waits for; so often at most.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many times as long as it takes to write what waits, nothing of it is written.
const PAUSE: u32 = 10;

/// An exchange and its place among the records.
#[derive(Debug)]
pub struct SinkEntry {
    pub(crate) number: u64,
    /// Bytes that it holds.
    pub(crate) weight: usize,
    pub(crate) content: EntryContent,
}

#[derive(Debug)]
pub(crate) enum EntryContent {
    Exchange(Box<Exchange>),
    Replayed(Box<RecordedExchange>),
    /// An exchange that is compared with a recorded answer; `None` where the upstream did not answer.
    Compared(Option<Box<Exchange>>, Box<ComparedWith>),
    /// A request that the upstream did not answer.
    Unanswered(Box<ExchangeRequest>),
}

base::with_defaults! {
    /// Writer of a cassette, and comparer of answers with recorded ones.
    #[derive(Debug)]
    pub struct CassetteSink {
        /// `None` where answers are compared only.
        writer: Option<CassetteWriter>,
        secrets: RedactionRules,
        errors: RecordErrors,
        arrivals: Arc<OpenArrivals>,
        counts: Arc<RecordCounts>,
        progress: Arc<RecorderProgress>,
        /// Everything before it was in the queue when the batch was taken.
        first_open: u64,
        /// What waits for earlier exchanges.
        waiting: BTreeMap<u64, WaitingRecord>,
        waiting_bytes: usize,
        /// When what waits may be written again, and how many records and bytes of it were written.
        next_waiting: Instant = Instant::now(),
        written_waiting: (usize, usize),
        /// Tries whose failures are not recorded.
        failed: FailedTries,
        /// Values in the requests of what was written.
        earlier: SessionValues,
        /// Secrets that names show in what was written.
        named: NamedValues,
        failing: RateLimitedLog,
    }
}

/// A record that waits for earlier ones.
#[derive(Debug)]
struct WaitingRecord {
    since: Instant,
    weight: usize,
    recorded: RecordedExchange,
    output_ids: Vec<Vec<u32>>,
    session: String,
    redacted: RedactionResult,
}

impl CassetteSink {
    /// Writes what is submitted by these arrivals.
    pub(crate) fn new(
        writer: Option<CassetteWriter>,
        secrets: RedactionRules,
        errors: RecordErrors,
        (arrivals, counts, progress): (Arc<OpenArrivals>, Arc<RecordCounts>, Arc<RecorderProgress>),
    ) -> Self {
        Self { writer, secrets, errors, arrivals, counts, progress, ..Self::default() }
    }

    #[cfg(test)]
    pub(crate) fn let_pass(&mut self, time: Duration) {
        self.waiting.values_mut().for_each(|waiting| waiting.since -= time);
        self.next_waiting -= time;
    }

    /// Makes the record of an exchange, unless it is compared only or must not be recorded.
    fn made(&mut self, content: EntryContent, weight: usize) -> Option<WaitingRecord> {
        let (mut recorded, output_ids, session) = match content {
            EntryContent::Exchange(mut exchange) => {
                let output_ids = std::mem::take(&mut exchange.output_ids);
                let session = std::mem::take(&mut exchange.request.session);
                (record_of(*exchange), output_ids, session)
            }
            EntryContent::Replayed(mut recorded) => {
                // Records have other ids in this file.
                recorded.record.put_back.retain(|(_, source)| source.record.is_none());
                (*recorded, Vec::new(), String::new())
            }
            EntryContent::Compared(exchange, with) => {
                with.compare(exchange, &self.secrets);
                return None;
            }
            EntryContent::Unanswered(request) => {
                let ExchangeRequest { method, target: path, headers, body, raw, is_retry, .. } = *request;
                let record = CassetteRecord { method, path, headers, body, raw, ..CassetteRecord::default() };
                self.failed.add(record.key().number(), is_retry);
                return None;
            }
        };
        let status = judged_status(&recorded.record.answer);
        if !self.errors.includes(status) {
            self.failed.add(recorded.record.key().number(), recorded.is_retry);
            tracing::warn!("an answer with status {status} is not recorded (--record-errors all records it)");
            self.counts.note(|report| report.skipped += 1);
            return None;
        }
        // An equal record before the failure is another request's.
        recorded.is_retry = recorded.is_retry && !self.failed.take(recorded.record.key().number());
        let redact = || secrets::redact(&self.secrets, &mut recorded.record, &mut recorded.side);
        let redacted = self.progress.searching(redact);
        if redacted.is_unsearched {
            tracing::warn!("an exchange is not recorded: to search it for secrets would take too much work");
            self.counts.note(|report| report.unsearched += 1);
            return None;
        }
        // Ids spell what was redacted.
        let output_ids = if redacted.had_any { Vec::new() } else { output_ids };
        Some(WaitingRecord { since: Instant::now(), weight, recorded, output_ids, session, redacted })
    }

    /// Brings the partial file up to date, with what has waited for too long.
    fn bring(&mut self) -> Result<(), CassetteError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let now = Instant::now();
        if !self.waiting.values().any(|waiting| now.duration_since(waiting.since) >= PATIENCE) {
            return writer.flush();
        }
        let waiting = (self.waiting.len(), self.waiting_bytes);
        if now < self.next_waiting || (waiting == self.written_waiting && writer.is_intact()) {
            return Ok(());
        }
        let written = writer.flush_with(self.waiting.values().map(|waiting| &waiting.recorded));
        self.next_waiting = Instant::now() + PATIENCE.max(now.elapsed() * PAUSE);
        if written.is_ok() {
            self.written_waiting = waiting;
        }
        written
    }

    /// Writes what waits for nothing any more.
    fn write(&mut self, mut may_go: impl FnMut(u64, usize) -> bool) {
        let Some(writer) = &mut self.writer else { return };
        while let Some((number, waiting)) = self.waiting.pop_first() {
            if !may_go(number, self.waiting_bytes) {
                self.waiting.insert(number, waiting);
                return;
            }
            self.waiting_bytes -= waiting.weight;
            let WaitingRecord { mut recorded, output_ids, session, redacted, .. } = waiting;
            let (is_partial, of_mcp) = (recorded.record.aborted.is_some(), is_of_mcp(&recorded.record));
            self.earlier.name_in(&mut recorded.record, &session, &redacted.answered);
            let id = writer.add_with_ids(recorded, output_ids);
            self.earlier.add(id, &session, &redacted.requested);
            self.counts.add_redacted(&redacted.all);
            self.named.add(&redacted.all);
            self.counts.note(|report| {
                report.partial += u64::from(is_partial);
                report.of_mcp += usize::from(of_mcp);
                report.recorded += 1;
            });
        }
    }
}

impl Sink for CassetteSink {
    type Item = SinkEntry;
    type Ending = Result<(), CassetteError>;

    fn weight(entry: &SinkEntry) -> usize {
        entry.weight
    }

    fn begin_batch(&mut self) {
        self.first_open = self.arrivals.first_open();
    }

    fn record(&mut self, entry: SinkEntry) {
        let SinkEntry { number, weight, content } = entry;
        match catch_unwind(AssertUnwindSafe(|| self.made(content, weight))) {
            Ok(Some(waiting)) => {
                self.waiting_bytes += weight;
                self.waiting.insert(number, waiting);
            }
            Ok(None) => {}
            Err(_) => {
                tracing::error!("an exchange could not be recorded; please report this");
                self.counts.note(|report| report.broken += 1);
            }
        }
    }

    fn end_batch(&mut self) {
        let first_open = self.first_open;
        self.write(|number, waiting| number < first_open || waiting > MOST_WAITING);
    }

    fn flush(&mut self) {
        if let Err(error) = self.bring()
            && self.failing.due().is_some()
        {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(cause, "{error}: requests are answered, what was recorded waits to be written");
        }
    }

    fn finish(mut self) -> Result<(), CassetteError> {
        self.write(|_, _| true);
        let Some(mut writer) = self.writer else { return Ok(()) };
        let path = writer.path().to_owned();
        if self.counts.note_discarded() {
            self.counts.note(|report| report.not_written = (report.discarded == 0).then_some(path));
            return writer.discard();
        }
        if !self.named.is_empty() {
            let (secrets, named) = (&self.secrets, &self.named);
            self.progress.searching(|| writer.mend(|whole| secrets::redact_named(secrets, named, whole)))?;
        }
        let records = writer.finish()?;
        self.counts.note(|report| report.not_written = (records == 0).then_some(path));
        Ok(())
    }
}

/// The status of a response; where its stream ends with an error, that of the error: vLLM says in this way that its engine died.
fn judged_status(answer: &RecordedAnswer) -> u16 {
    let AnswerContent::Events(events) = &answer.content else { return answer.status };
    let error = events.iter().rev().find_map(|event| event.data.get("error").filter(|error| error.is_object()));
    let code = error.and_then(|error| u16::try_from(error.get("code")?.as_u64()?).ok());
    let kind = error.and_then(|error| error.get("type")?.as_str());
    code.or(matches!(kind, Some("api_error" | "overloaded_error")).then_some(500)).unwrap_or(answer.status)
}

/// Bytes of a response that is copied at once, and what a packed one may become.
pub(crate) const LONGEST: usize = 256 << 20;

/// A copy of a response that was received whole; `None` where it is compressed or too large.
pub(crate) fn whole_capture(target: &str, headers: &HeaderMap, body: &Bytes, took: Duration) -> Option<Capture> {
    let limits = CaptureLimits { each: LONGEST, together: LONGEST as u64 };
    let mut capture = Capture::new(&Captures::new(limits), target.to_owned(), Bytes::new());
    capture.headers(headers);
    if media_type(headers).starts_with("text/event-stream") {
        capture = capture.splitting();
    }
    capture.received(body, took);
    (!capture.is_lost()).then_some(capture)
}

pub(crate) fn record_of(exchange: Exchange) -> RecordedExchange {
    let Exchange { request, mut response, timing, outcome, output_ids: _ } = exchange;
    let ExchangeRequest { method, target, headers, body, raw, is_retry, size: _, session: _ } = request;
    let mut side =
        Sidecar { ms: Millis::from(timing.e2e).rounded(), recorded_at: timing.recorded_at, ..Sidecar::default() };
    let path = route_of(&target);
    let copy = response.capture.take_response();
    let (assembled, events) = match copy.content {
        ResponseContent::Events(mut events) => {
            events.iter_mut().for_each(|event| event.0 = Millis(event.0).rounded());
            let (assembled, count) = (assemble::events(path, &events), events.len());
            side.events = events.into();
            (assembled, count)
        }
        ResponseContent::Body(bytes) => {
            // JSON in another encoding is the same JSON.
            let bytes = match recorded_json_as_utf8(&bytes) {
                Cow::Owned(json) => json,
                Cow::Borrowed(_) => bytes,
            };
            let assembled = assemble::body(path, response.status, &bytes);
            if matches!(assembled.content, AnswerContent::Choices { .. } | AnswerContent::Json(_)) {
                side.body = String::from_utf8(bytes).ok();
            }
            (assembled, 0)
        }
    };
    side.head = assembled.head;
    // JSON is shown as text where it could not be shown as itself, and is JSON still.
    let is_text = matches!(assembled.content, AnswerContent::Text(_) | AnswerContent::Bytes(_));
    let kept = copy.headers.into_iter().filter(|(name, value)| is_text || !is_usual(name, value)).collect();
    let is_broken = matches!(outcome, Outcome::UpstreamFailed | Outcome::TimedOut);
    let fault = is_broken.then_some(TransportFault::reset(events));
    let aborted = matches!(outcome, Outcome::ClientGone | Outcome::Cut).then_some(events as u64);
    let answer = RecordedAnswer {
        status: response.status,
        headers: kept,
        content: assembled.content,
        fault,
        ..RecordedAnswer::default()
    };
    let record =
        CassetteRecord { method, path: target, headers, body, raw, aborted, answer, ..CassetteRecord::default() };
    RecordedExchange { record, side, is_retry }
}

/// A header that most responses have.
pub(crate) fn is_usual(name: &str, value: &str) -> bool {
    name == "content-type" && (value == "application/json" || value.starts_with("text/event-stream"))
}
