//! The recorder of a cassette: exchanges in the order in which their requests came, whatever order their responses end in.
//!
//! A request never waits for the disk: an exchange that ended goes into the queue of a [`Recorder`], whose thread encodes, redacts
//! and writes it ([`CassetteSink`]). What does not fit into the queue is dropped and counted.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, Condvar, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use base::lock::Lock;
use bytes::Bytes;
use tokio::time::Instant;

use crate::player::{
    CassetteOutput, PlayerConfig,
    forward::completion::Completions,
    record::{
        cassette_sink::{CassetteSink, EntryContent, SinkEntry},
        compare::ComparedWith,
        record_report::{RecordCounts, RecordReport},
    },
};
use net::upstream::UpstreamError;
use recording::{
    capture::{Capture, CaptureLimits, Captures},
    cassette::{CassetteError, CassetteRecord, CassetteWriter, Header, RecordedExchange, WriteMode},
    exchange::{Exchange, ExchangeRequest, ExchangeResponse, Timing},
    recorder::{Capacity, Recorder, RecorderProgress, RefusedItem, Sink},
    trace::Outcome,
};

/// Bytes of what waits to be written.
const QUEUE_BYTES: usize = 512 << 20;

/// Bounds of copies of responses: those that pass, and those that wait to be written.
const COPIES: CaptureLimits = CaptureLimits { each: 256 << 20, together: 1 << 30 };

/// How long the end of a session waits for exchanges that have not ended.
const OPEN_AT_THE_END: Duration = Duration::from_secs(5);

/// Recorder of one cassette. The sink is another one in tests only.
#[derive(Debug)]
pub(crate) struct CassetteRecorder<S: Sink<Item = SinkEntry> = CassetteSink> {
    recorder: Recorder<S>,
    progress: Arc<RecorderProgress>,
    arrivals: Arc<OpenArrivals>,
    captures: Captures,
    completions: Arc<Completions>,
    counts: Arc<RecordCounts>,
    path: PathBuf,
    /// Whether what was played is written too.
    is_full: bool,
    /// Whether secrets stay in it by choice.
    is_unredacted: bool,
}

/// Requests whose exchanges have not ended, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct OpenArrivals {
    state: Lock<ArrivalState>,
    one_ended: Condvar,
}

#[derive(Debug, Default)]
struct ArrivalState {
    next: u64,
    open: BTreeSet<u64>,
}

impl OpenArrivals {
    fn begin(&self) -> u64 {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        number
    }

    fn end(&self, number: u64) {
        self.state.lock().open.remove(&number);
        self.one_ended.notify_all();
    }

    /// Waits until all have ended, or for so long. Blocks.
    fn wait(&self, most: Duration) {
        let waited = self.one_ended.wait_timeout_while(self.state.lock(), most, |state| !state.open.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The first number that may still be submitted: all before it are in the queue, written or not recorded.
    pub(crate) fn first_open(&self) -> u64 {
        let state = self.state.lock();
        state.open.first().copied().unwrap_or(state.next)
    }
}

/// The place of one exchange among the records.
#[derive(Debug)]
struct RecordTicket<S: Sink<Item = SinkEntry>> {
    recorder: Arc<CassetteRecorder<S>>,
    number: u64,
    /// It is an exchange's whose response is awaited.
    awaits: AtomicBool,
}

/// An exchange whose response has not ended.
#[derive(Debug)]
pub struct PendingExchange<S: Sink<Item = SinkEntry> = CassetteSink> {
    ticket: RecordTicket<S>,
    request: ExchangeRequest,
    at: Instant,
    /// The response's status, once it is known.
    pub status: u16,
    /// The recorded answer with which its response is compared, where it is not recorded.
    pub(crate) with: Option<Box<ComparedWith>>,
}

impl CassetteRecorder {
    /// Creates the cassette and starts the thread that writes it.
    pub(crate) fn create(output: &CassetteOutput, config: &PlayerConfig) -> Result<Self, CassetteError> {
        let writer = CassetteWriter::create(&output.path, &output.header, output.mode)?;
        let writer = writer.keeping(config.keep).noting_runs();
        let writer = if output.is_full { writer } else { writer.keeping_places() };
        Self::with_writer(Some(writer), output, config)
    }

    /// Starts the thread that compares answers with recorded ones.
    pub(crate) fn comparing(config: &PlayerConfig) -> Result<Self, CassetteError> {
        let (path, mode) = (PathBuf::from("the comparison"), WriteMode::Replace);
        let output = CassetteOutput { path, header: Header::default(), mode, is_full: false };
        Self::with_writer(None, &output, config)
    }

    fn with_writer(
        writer: Option<CassetteWriter>,
        output: &CassetteOutput,
        config: &PlayerConfig,
    ) -> Result<Self, CassetteError> {
        let (arrivals, counts): (Arc<OpenArrivals>, Arc<RecordCounts>) = Default::default();
        let progress = Arc::new(RecorderProgress::new(Capacity { bytes: QUEUE_BYTES, ..Capacity::default() }));
        let shared = (Arc::clone(&arrivals), Arc::clone(&counts), Arc::clone(&progress));
        let sink = CassetteSink::new(writer, config.secrets.clone(), config.record_errors, shared);
        Self::start(sink, arrivals, (counts, progress), output, config.complete_within)
    }

    /// The completions of responses whose clients leave.
    pub(crate) fn completions(&self) -> &Completions {
        &self.completions
    }

    /// Takes the next place.
    pub(crate) fn place(self: &Arc<Self>) -> RecordPlace {
        RecordPlace(self.ticket())
    }

    /// Submits a record that was replayed, where everything is written that is served.
    pub(crate) fn copy(self: &Arc<Self>, record: &CassetteRecord) {
        if self.is_full {
            let side = record.side.clone().filter(|_| record.is_as_recorded()).unwrap_or_default();
            let weight = side.body.as_ref().map_or(0, String::len);
            let record = CassetteRecord { like: None, side: None, ..record.clone() };
            let content = EntryContent::Replayed(Box::new(RecordedExchange { record, side, is_retry: false }));
            self.ticket().submit(content, weight);
        }
    }

    /// Waits for exchanges whose responses have not ended, as those that a client has read and the server has not seen to be whole.
    /// Blocks.
    pub(crate) fn wait_for_open(&self) {
        self.arrivals.wait(OPEN_AT_THE_END);
    }

    /// Writes everything, and puts the cassette in place.
    pub(crate) fn finish(&self) -> Result<RecordReport, CassetteError> {
        match self.recorder.finish() {
            Ok(ending) => ending.unwrap_or(Ok(()))?,
            Err(error) => {
                let source = std::io::Error::other(error);
                return Err(CassetteError::Io { path: self.path.clone(), source });
            }
        }
        Ok(self.report())
    }

    /// Ends the recording and drops it, as if it had not been.
    pub(crate) fn discard(&self) -> Result<RecordReport, CassetteError> {
        self.counts.discard();
        let report = self.finish()?;
        Ok(RecordReport { unredacted: None, ..report })
    }
}

impl<S: Sink<Item = SinkEntry>> CassetteRecorder<S> {
    fn start(
        sink: S,
        arrivals: Arc<OpenArrivals>,
        (counts, progress): (Arc<RecordCounts>, Arc<RecorderProgress>),
        output: &CassetteOutput,
        complete_within: Duration,
    ) -> Result<Self, CassetteError> {
        progress.set_open(true);
        let path = output.path.clone();
        let recorder = Recorder::start(sink, Arc::clone(&progress))
            .map_err(|source| CassetteError::Io { path: path.clone(), source })?;
        let captures = Captures::new(COPIES);
        let completions = Arc::new(Completions::new(complete_within));
        let (is_full, is_unredacted) = (output.is_full, output.header.redact.is_off);
        Ok(Self { recorder, progress, arrivals, captures, completions, counts, path, is_full, is_unredacted })
    }

    pub(crate) fn begin(self: &Arc<Self>, request: ExchangeRequest, at: Instant) -> PendingExchange<S> {
        let ticket = self.ticket();
        ticket.awaits.store(true, Relaxed);
        PendingExchange { ticket, request, at, status: 0, with: None }
    }

    /// Returns what was recorded so far.
    pub(crate) fn report(&self) -> RecordReport {
        RecordReport {
            queue_full: self.progress.queue_full.load(Relaxed),
            queue_bytes: self.progress.queue_bytes.load(Relaxed),
            unredacted: self.is_unredacted.then(|| self.path.clone()),
            ..self.counts.report()
        }
    }

    fn ticket(self: &Arc<Self>) -> RecordTicket<S> {
        RecordTicket { recorder: Arc::clone(self), number: self.arrivals.begin(), awaits: AtomicBool::new(false) }
    }
}

impl<S: Sink<Item = SinkEntry>> RecordTicket<S> {
    fn submit(self, content: EntryContent, weight: usize) {
        self.awaits.store(false, Relaxed);
        let is_recorded = !matches!(content, EntryContent::Unanswered(_));
        let entry = SinkEntry { number: self.number, weight, content };
        if let Err(RefusedItem { reason, .. }) = self.recorder.recorder.submit(entry)
            && is_recorded
        {
            self.recorder.recorder.drop_records(1, reason);
        }
    }

    /// Counts an exchange without a response.
    fn unanswered(&self, why: impl FnOnce() -> String) {
        self.awaits.store(false, Relaxed);
        self.recorder.counts.note(|report| {
            report.unanswered += 1;
            report.unanswered_why.get_or_insert_with(why);
        });
    }
}

impl<S: Sink<Item = SinkEntry>> Drop for RecordTicket<S> {
    fn drop(&mut self) {
        if *self.awaits.get_mut() {
            self.unanswered(|| "a client left before its response began".to_owned());
        }
        // What was submitted is in the queue by now, so that the sink may go on to what came after it.
        self.recorder.arrivals.end(self.number);
    }
}

impl<S: Sink<Item = SinkEntry>> PendingExchange<S> {
    /// Time since the request came.
    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// A copy of its response, of which nothing has come yet.
    #[must_use]
    pub fn capture(&self) -> Capture {
        Capture::new(&self.ticket.recorder.captures, String::new(), Bytes::new())
    }

    /// The completions of responses whose clients leave.
    #[must_use]
    pub fn completions(&self) -> Arc<Completions> {
        Arc::clone(&self.ticket.recorder.completions)
    }

    /// Counts an exchange whose response cannot be recorded; false.
    pub(crate) fn give_up(&self, why: &str) -> bool {
        let ExchangeRequest { method, target, .. } = &self.request;
        tracing::warn!("the answer to {method} {} {why} and is not recorded", route_of(target));
        self.ticket.awaits.store(false, Relaxed);
        self.ticket.recorder.counts.note(|report| report.unreadable += 1);
        false
    }

    /// Counts an exchange that is not recorded because the upstream did not answer its request.
    pub fn unanswered(self, error: &UpstreamError) {
        self.ticket.unanswered(|| format!("{error}: {}", error.cause()));
        let (content, weight) = match self.with {
            Some(with) => (EntryContent::Compared(None, with), 0),
            None => {
                let weight = self.request.size;
                (EntryContent::Unanswered(Box::new(self.request)), weight)
            }
        };
        self.ticket.submit(content, weight);
    }

    /// Submits the exchange, which ends now; with the ids of every choice, where they are known.
    pub fn end(self, capture: Capture, output_ids: Vec<Vec<u32>>, outcome: Outcome) {
        if capture.is_lost() {
            self.give_up("is compressed or too large");
            return;
        }
        let exchange = Exchange {
            timing: Timing::ending_now(self.at.elapsed()),
            request: self.request,
            response: ExchangeResponse { status: self.status, capture },
            output_ids,
            outcome,
        };
        let weight = exchange.size();
        let exchange = Box::new(exchange);
        let content = match self.with {
            Some(with) => EntryContent::Compared(Some(exchange), with),
            None => EntryContent::Exchange(exchange),
        };
        self.ticket.submit(content, weight);
    }
}

/// A path without its query.
pub(crate) fn route_of(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
}

/// Place of one exchange among the records, taken when its request came. Dropped unfilled, it holds nothing up any more.
#[derive(Debug)]
pub struct RecordPlace(RecordTicket<CassetteSink>);

impl RecordPlace {
    /// Submits the exchange; `weight` is the bytes that it holds.
    pub fn fill(self, recorded: RecordedExchange, weight: usize) {
        self.0.submit(EntryContent::Replayed(Box::new(recorded)), weight);
    }
}

#[cfg(test)]
mod tests;
