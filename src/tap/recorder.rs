//! The recorder: a bounded queue and one thread that makes records and writes them.
//!
//! A request never waits for it. When the queue is full, or the file cannot be written, records are dropped and counted
//! by reason; the count is in the log, in the report and in the trace's last line. The file is flushed every second, so
//! that a crash of the program loses at most that; what is flushed is with the operating system, not yet on the disk.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Map, json};
use tokio::time::Instant;

use super::{TapError, assemble::Assembler, exchange::Findings, learned::Learned};
use crate::trace::{CreateMode, End, Meta, Record, TraceError, Writer};

/// Exchanges that may wait to be written.
const QUEUE: usize = 16_384;

/// Bytes of requests' bodies that may wait to be hashed.
const QUEUED_BODIES: usize = 256 << 20;

/// How often what was written is handed to the operating system.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

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
    /// Why the trace could not be written to its end.
    pub write_error: Option<String>,
}

/// Where exchanges hand in their findings.
#[derive(Debug)]
pub(super) struct RecorderHandle {
    queue: Mutex<Option<SyncSender<Box<Findings>>>>,
    waiting: Arc<Waiting>,
    learned: Arc<Learned>,
}

/// What waits in the queue, and what did not get in.
#[derive(Debug, Default)]
struct Waiting {
    body_bytes: AtomicUsize,
    queue_full: AtomicU64,
    hashes_skipped: AtomicU64,
}

/// The thread behind the handle.
#[derive(Debug)]
pub(super) struct RecorderThread {
    thread: JoinHandle<RecorderReport>,
}

/// What the recorder's thread needs to begin.
#[derive(Debug)]
pub(super) struct RecorderConfig {
    pub(super) path: PathBuf,
    pub(super) create: CreateMode,
    pub(super) meta: Meta,
    pub(super) assembler: Assembler,
}

/// Creates the trace and starts the thread that writes it.
///
/// # Errors
/// When the trace cannot be created or the thread cannot be started.
pub(super) fn start(
    config: RecorderConfig,
    learned: Arc<Learned>,
) -> Result<(RecorderHandle, RecorderThread), TapError> {
    let (sender, receiver) = sync_channel(QUEUE);
    let waiting = Arc::new(Waiting::default());
    let writer = Writer::create(&config.path, &config.meta, config.create)?;
    let writing = Writing {
        writer: Some(writer),
        assembler: config.assembler,
        waiting: Arc::clone(&waiting),
        unflushed: 0,
        report: RecorderReport::default(),
    };
    let thread = thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || writing.run(&receiver))
        .map_err(|error| TapError::Recorder(error.to_string()))?;
    Ok((RecorderHandle { queue: Mutex::new(Some(sender)), waiting, learned }, RecorderThread { thread }))
}

impl RecorderHandle {
    /// Hands in an exchange; never waits.
    pub(super) fn submit(&self, mut findings: Box<Findings>) {
        findings.ids_are_exact = self.learned.ids_are_exact();
        let length = findings.body.as_ref().map_or(0, Bytes::len);
        if self.waiting.body_bytes.fetch_add(length, Ordering::Relaxed) + length > QUEUED_BODIES {
            self.waiting.body_bytes.fetch_sub(length, Ordering::Relaxed);
            self.waiting.hashes_skipped.fetch_add(1, Ordering::Relaxed);
            findings.body = None;
        }
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match queue.as_ref().map(|queue| queue.try_send(findings)) {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full(findings) | TrySendError::Disconnected(findings))) => Some(findings),
            None => None,
        };
        self.waiting.forget(refused.as_deref());
        if self.waiting.queue_full.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the recorder cannot keep up: records are being dropped (the requests are not affected)");
        }
    }

    /// No more exchanges come.
    pub(super) fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Waiting {
    /// An exchange's body waits no longer.
    fn forget(&self, findings: Option<&Findings>) {
        let length = findings.and_then(|findings| findings.body.as_ref()).map_or(0, Bytes::len);
        self.body_bytes.fetch_sub(length, Ordering::Relaxed);
    }
}

impl RecorderThread {
    /// Waits until everything is written and the trace is closed.
    ///
    /// # Errors
    /// When the thread panicked.
    pub(super) fn join(self) -> Result<RecorderReport, TapError> {
        self.thread.join().map_err(|_| TapError::Recorder("its thread panicked".to_owned()))
    }
}

struct Writing {
    /// `None` once a write has failed.
    writer: Option<Writer>,
    assembler: Assembler,
    waiting: Arc<Waiting>,
    /// Records written since the last flush: not safe yet.
    unflushed: u64,
    report: RecorderReport,
}

impl Writing {
    fn run(mut self, queue: &Receiver<Box<Findings>>) -> RecorderReport {
        let mut flushed = Instant::now();
        loop {
            match queue.recv_timeout(FLUSH_EVERY.saturating_sub(flushed.elapsed())) {
                Ok(findings) => self.record(*findings),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
            if flushed.elapsed() >= FLUSH_EVERY {
                self.flush();
                flushed = Instant::now();
            }
        }
    }

    fn record(&mut self, findings: Findings) {
        self.waiting.forget(Some(&findings));
        let assembled = catch_unwind(AssertUnwindSafe(|| self.assembler.assemble(findings)));
        let Ok(assembled) = assembled else {
            self.report.broken += 1;
            tracing::error!("an exchange could not be recorded; please report this");
            return;
        };
        if assembled.ids_dropped {
            self.report.ids_incomplete += 1;
            tracing::debug!("an answer's token ids are incomplete; its record has none");
        }
        for record in &assembled.records {
            self.append(record);
        }
    }

    fn append(&mut self, record: &Record) {
        match self.writer.as_mut().map(|writer| writer.append(record)) {
            Some(Ok(())) => self.unflushed += 1,
            Some(Err(error)) => self.fail(&error, 1),
            None => self.report.write_failed += 1,
        }
    }

    fn flush(&mut self) {
        match self.writer.as_mut().map(Writer::flush) {
            Some(Ok(())) => self.report.written += std::mem::take(&mut self.unflushed),
            Some(Err(error)) => self.fail(&error, 0),
            None => {}
        }
    }

    fn fail(&mut self, error: &TraceError, lost: u64) {
        tracing::error!(%error, "recording stopped: the trace cannot be written (requests are still forwarded)");
        self.writer = None;
        self.report.write_failed += lost + std::mem::take(&mut self.unflushed);
        self.report.write_error = Some(error.to_string());
    }

    fn finish(mut self) -> RecorderReport {
        self.report.queue_full = self.waiting.queue_full.load(Ordering::Relaxed);
        self.report.hashes_skipped = self.waiting.hashes_skipped.load(Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            let mut extra = Map::new();
            for (name, count) in
                [("ids_incomplete", self.report.ids_incomplete), ("hashes_skipped", self.report.hashes_skipped)]
            {
                if count > 0 {
                    extra.insert(name.to_owned(), json!(count));
                }
            }
            let dropped = self.report.queue_full + self.report.write_failed + self.report.broken;
            match writer.finish(End { records: 0, dropped, extra }) {
                Ok(()) => self.report.written += std::mem::take(&mut self.unflushed),
                Err(error) => self.fail(&error, 0),
            }
        }
        self.report
    }
}
