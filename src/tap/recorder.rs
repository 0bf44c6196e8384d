//! The recorder: a bounded queue and one thread that makes records and writes them.
//!
//! A request never waits for it. When the queue is full, or the file cannot be written, records are dropped and counted
//! by reason; the count is in the log, in the metrics, in the report and in the trace's last line. The file is flushed
//! twice a second, so that a crash of the program loses at most the last second; what is flushed is with the operating system, not yet
//! on the disk. A file that cannot be written any more is given up, and the next one is tried for, less and less often.
//!
//! A disk that does not answer at all holds up this thread only: at the end it is waited for, but not for ever.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Map, json};
use tokio::time::Instant;

use super::{
    Starting, TapError,
    assemble::Assembler,
    exchange::Findings,
    hushed::Hushed,
    metrics::{Metrics, RecorderCounts},
    queue::{Queue, Refused, Taken},
};
use crate::trace::{CreateMode, End, Limits, Meta, Parts, Record, TraceError};

/// Exchanges that may wait to be written.
pub(super) const QUEUE: usize = 16_384;

/// Bytes of requests' bodies that may wait to be hashed.
const QUEUED_BODIES: usize = 256 << 20;

/// How often what was written is handed to the operating system.
const FLUSH_EVERY: Duration = Duration::from_millis(500);

/// How long after a failed write another file is tried for, at first and at most.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);

/// How long the end waits for a disk that does not answer.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// What became of recorded exchanges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Records in the trace, this capture's only.
    pub written: u64,
    /// Exchanges dropped because the queue was full.
    pub queue_full: u64,
    /// Records dropped because the file could not be written.
    pub write_failed: u64,
    /// Exchanges dropped because making their records failed: a defect of this program.
    pub broken: u64,
    /// Exchanges recorded without ids because the engine did not name all of them.
    pub ids_incomplete: u64,
    /// Exchanges recorded without block hashes because too many long prompts waited to be hashed.
    pub hashes_skipped: u64,
    /// Records in which a secret was redacted.
    pub redacted: u64,
    /// Files begun.
    pub files: u32,
    /// Why the trace could not be written at some time.
    pub write_error: Option<String>,
}

/// Where exchanges hand in their findings.
#[derive(Debug)]
pub(super) struct RecorderHandle {
    queue: Arc<Queue<Box<Findings>>>,
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    full: Hushed,
}

#[derive(Debug, Default)]
struct Shared {
    body_bytes: AtomicUsize,
    rotate: AtomicBool,
}

/// The thread behind the handle.
#[derive(Debug)]
pub(super) struct RecorderThread {
    done: Receiver<Option<String>>,
    metrics: Arc<Metrics>,
}

/// What the recorder's thread needs to begin.
#[derive(Debug)]
pub(super) struct RecorderConfig {
    pub(super) path: PathBuf,
    pub(super) create: CreateMode,
    pub(super) limits: Limits,
    pub(super) starting: Starting,
    pub(super) meta: Meta,
    pub(super) assembler: Assembler,
}

/// Creates the trace and starts the thread that writes it.
///
/// # Errors
/// When the trace cannot be created or the thread cannot be started.
pub(super) fn start(
    config: RecorderConfig,
    metrics: Arc<Metrics>,
) -> Result<(RecorderHandle, RecorderThread), TapError> {
    let queue = Arc::new(Queue::new(QUEUE));
    let shared = Arc::new(Shared::default());
    let parts = match Parts::create(&config.path, config.meta.clone(), config.create, config.limits) {
        Err(error @ TraceError::Io { .. }) if config.starting == Starting::Anyway => {
            tracing::error!(%error, "the trace cannot be written: requests are forwarded, nothing is recorded yet");
            Parts::later(&config.path, config.meta, config.limits)
        }
        created => created?,
    };
    metrics.recorder.files.store(parts.count(), Relaxed);
    metrics.recorder.recording.store(parts.is_open().into(), Relaxed);
    let writing = Writing {
        parts,
        assembler: config.assembler,
        metrics: Arc::clone(&metrics),
        shared: Arc::clone(&shared),
        unflushed: 0,
        told: 0,
        retry: (Instant::now() + RETRY_FIRST, RETRY_FIRST),
        error: None,
        failing: Hushed::default(),
    };
    let (tell, done) = sync_channel(1);
    let taken = Arc::clone(&queue);
    thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || tell.send(writing.run(&taken)))
        .map_err(|error| TapError::Recorder(error.to_string()))?;
    let handle = RecorderHandle { queue, metrics: Arc::clone(&metrics), shared, full: Hushed::default() };
    Ok((handle, RecorderThread { done, metrics }))
}

impl RecorderHandle {
    /// Hands in an exchange; never waits.
    pub(super) fn submit(&self, mut findings: Box<Findings>) {
        let counts = &self.metrics.recorder;
        let length = findings.body.as_ref().map_or(0, Bytes::len);
        if self.shared.body_bytes.fetch_add(length, Relaxed) + length > QUEUED_BODIES {
            self.shared.body_bytes.fetch_sub(length, Relaxed);
            counts.hashes_skipped.fetch_add(1, Relaxed);
            findings.body = None;
        }
        counts.queued.fetch_add(1, Relaxed);
        let Err(Refused(refused)) = self.queue.push(findings) else { return };
        counts.queued.fetch_sub(1, Relaxed);
        self.shared.forget(&refused);
        counts.queue_full.fetch_add(1, Relaxed);
        if let Some(held) = self.full.due() {
            let dropped = held + 1;
            tracing::warn!(dropped, "the recorder cannot keep up: records are dropped (requests are not affected)");
        }
    }

    /// The next record goes to a new file.
    pub(super) fn rotate(&self) {
        self.shared.rotate.store(true, Relaxed);
    }

    /// No more exchanges come.
    pub(super) fn close(&self) {
        self.queue.close();
    }
}

impl Shared {
    /// An exchange's body waits no longer.
    fn forget(&self, findings: &Findings) {
        let length = findings.body.as_ref().map_or(0, Bytes::len);
        self.body_bytes.fetch_sub(length, Relaxed);
    }
}

impl RecorderThread {
    /// Waits until everything is written and the trace is closed, but not for ever.
    ///
    /// # Errors
    /// When the thread panicked.
    pub(super) fn join(self) -> Result<RecorderReport, TapError> {
        let counts = &self.metrics.recorder;
        let write_error = match self.done.recv_timeout(FINISH_WITHIN) {
            Ok(error) => error,
            Err(RecvTimeoutError::Timeout) => {
                let waiting = counts.queued.swap(0, Relaxed) as u64;
                counts.write_failed.fetch_add(waiting, Relaxed);
                Some("the disk did not answer at the end".to_owned())
            }
            Err(RecvTimeoutError::Disconnected) => return Err(TapError::Recorder("its thread panicked".to_owned())),
        };
        Ok(RecorderReport {
            written: RecorderCounts::get(&counts.written),
            queue_full: RecorderCounts::get(&counts.queue_full),
            write_failed: RecorderCounts::get(&counts.write_failed),
            broken: RecorderCounts::get(&counts.broken),
            ids_incomplete: RecorderCounts::get(&counts.ids_incomplete),
            hashes_skipped: RecorderCounts::get(&counts.hashes_skipped),
            redacted: RecorderCounts::get(&counts.redacted),
            files: counts.files.load(Relaxed),
            write_error,
        })
    }
}

struct Writing {
    parts: Parts,
    assembler: Assembler,
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    /// Records written since the last flush: not safe yet.
    unflushed: u64,
    /// Dropped records that an end line told of.
    told: u64,
    /// When another file is tried for after a failure, and how long to wait after the next one.
    retry: (Instant, Duration),
    error: Option<String>,
    failing: Hushed,
}

impl Writing {
    /// Writes until nothing more comes; gives the last error.
    fn run(mut self, queue: &Queue<Box<Findings>>) -> Option<String> {
        let (mut due, mut batch) = (Instant::now() + FLUSH_EVERY, Vec::new());
        let mut taken = queue.take(&mut batch, due);
        loop {
            for findings in batch.drain(..) {
                self.metrics.recorder.queued.fetch_sub(1, Relaxed);
                self.record(*findings);
                self.flush_if(&mut due);
            }
            self.flush_if(&mut due);
            taken = match taken {
                Taken::Some => queue.rest_and_take(&mut batch, due),
                Taken::Nothing => queue.take(&mut batch, due),
                Taken::Over => return self.finish(),
            };
        }
    }

    fn flush_if(&mut self, due: &mut Instant) {
        if *due <= Instant::now() {
            self.flush();
            *due = Instant::now() + FLUSH_EVERY;
        }
    }

    fn record(&mut self, findings: Findings) {
        self.shared.forget(&findings);
        let metrics = Arc::clone(&self.metrics);
        let assembled = catch_unwind(AssertUnwindSafe(|| {
            metrics.observe(&findings);
            self.assembler.assemble(findings)
        }));
        let Ok(assembled) = assembled else {
            metrics.recorder.broken.fetch_add(1, Relaxed);
            tracing::error!("an exchange could not be recorded; please report this");
            return;
        };
        if assembled.ids_dropped {
            metrics.recorder.ids_incomplete.fetch_add(1, Relaxed);
            tracing::debug!("an answer's token ids are incomplete; its record has none");
        }
        metrics.recorder.redacted.fetch_add(assembled.redacted, Relaxed);
        for record in &assembled.records {
            self.append(record);
        }
        if self.parts.is_full() {
            self.rotate();
        }
    }

    fn append(&mut self, record: &Record) {
        if !self.parts.is_open() {
            self.metrics.recorder.write_failed.fetch_add(1, Relaxed);
            return;
        }
        match self.parts.append(record) {
            Ok(()) => self.unflushed += 1,
            Err(error) => self.fail(&error, 1),
        }
    }

    /// What is due from time to time.
    fn flush(&mut self) {
        if !self.parts.is_open() {
            return self.retry();
        }
        match self.parts.flush() {
            Ok(()) => self.keep(),
            Err(error) => return self.fail(&error, 0),
        }
        if self.shared.rotate.swap(false, Relaxed) || self.parts.is_full() {
            self.rotate();
        }
    }

    fn keep(&mut self) {
        if self.unflushed > 0 {
            self.retry.1 = RETRY_FIRST;
        }
        self.metrics.recorder.written.fetch_add(std::mem::take(&mut self.unflushed), Relaxed);
    }

    fn rotate(&mut self) {
        if !self.parts.rotates() {
            return;
        }
        let end = self.end();
        if let Err(error) = self.parts.close(end) {
            self.fail(&error, 0);
        }
        self.keep();
        match self.parts.reopen() {
            Ok(()) => self.opened(),
            Err(error) => self.fail(&error, 0),
        }
    }

    fn opened(&mut self) {
        let counts = &self.metrics.recorder;
        counts.files.store(self.parts.count(), Relaxed);
        counts.recording.store(1, Relaxed);
        tracing::info!(path = %self.parts.path().display(), "recording goes on in a new file");
    }

    fn retry(&mut self) {
        if Instant::now() < self.retry.0 || !self.parts.rotates() {
            return;
        }
        match self.parts.reopen() {
            Ok(()) => self.opened(),
            Err(error) => self.fail(&error, 0),
        }
    }

    /// The file cannot be written: what was not flushed is lost, as far as is known.
    fn fail(&mut self, error: &TraceError, lost: u64) {
        let lost = lost + std::mem::take(&mut self.unflushed);
        let counts = &self.metrics.recorder;
        counts.write_failed.fetch_add(lost, Relaxed);
        counts.recording.store(0, Relaxed);
        let pause = self.retry.1;
        self.retry = (Instant::now() + pause, (pause * 2).min(RETRY_LAST));
        self.error = Some(error.to_string());
        if self.failing.due().is_some() {
            let dropped = counts.dropped();
            tracing::error!(%error, dropped, "the trace cannot be written: requests are forwarded, not recorded");
        }
    }

    /// The end line of the open file: what was dropped since the last one.
    fn end(&mut self) -> End {
        let counts = &self.metrics.recorder;
        let mut extra = Map::new();
        for (name, count) in [("ids_incomplete", &counts.ids_incomplete), ("hashes_skipped", &counts.hashes_skipped)] {
            let count = RecorderCounts::get(count);
            if count > 0 {
                extra.insert(name.to_owned(), json!(count));
            }
        }
        let dropped = counts.dropped();
        let new = dropped - self.told;
        self.told = dropped;
        End { records: 0, dropped: new, extra }
    }

    fn finish(mut self) -> Option<String> {
        if !self.parts.is_open() && self.metrics.recorder.dropped() > self.told && self.parts.rotates() {
            // The last chance to say what is missing.
            if self.parts.reopen().is_ok() {
                self.opened();
            }
        }
        if self.parts.is_open() {
            let end = self.end();
            match self.parts.close(end) {
                Ok(()) => self.keep(),
                Err(error) => self.fail(&error, 0),
            }
        }
        self.error
    }
}
