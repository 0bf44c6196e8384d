//! The recorder: a bounded queue and one thread that makes records and writes them.
//!
//! A request never waits for it. When the queue is full, or the file cannot be written, records are dropped and counted
//! by reason; the count is in the log, in the report and in the trace's last line. The file is flushed every second, so a
//! crash loses at most that.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Map, json};
use tokio::time::Instant;

use super::{TapError, assemble::Assembler, exchange::Findings, learned::Learned};
use crate::trace::{CreateMode, End, Meta, Record, TraceError, Writer};

/// Exchanges that may wait to be written.
const QUEUE: usize = 16_384;

/// How often what was written is made safe.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// What became of recorded exchanges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Records in the trace.
    pub written: u64,
    /// Exchanges dropped because the queue was full.
    pub queue_full: u64,
    /// Records dropped because the file could not be written.
    pub write_failed: u64,
    /// Exchanges recorded without ids because the engine did not name all of them.
    pub ids_incomplete: u64,
}

/// Where exchanges hand in their findings.
#[derive(Debug)]
pub(super) struct RecorderHandle {
    queue: Mutex<Option<SyncSender<Box<Findings>>>>,
    queue_full: Arc<AtomicU64>,
    learned: Arc<Learned>,
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
    let queue_full = Arc::new(AtomicU64::new(0));
    let writer = Writer::create(&config.path, &config.meta, config.create)?;
    let writing = Writing {
        writer: Some(writer),
        assembler: config.assembler,
        queue_full: Arc::clone(&queue_full),
        report: RecorderReport::default(),
    };
    let thread = thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || writing.run(&receiver))
        .map_err(|error| TapError::Recorder(error.to_string()))?;
    Ok((RecorderHandle { queue: Mutex::new(Some(sender)), queue_full, learned }, RecorderThread { thread }))
}

impl RecorderHandle {
    /// Hands in an exchange; never waits.
    pub(super) fn submit(&self, mut findings: Box<Findings>) {
        findings.ids_are_exact = self.learned.ids_are_exact();
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let full = match queue.as_ref().map(|queue| queue.try_send(findings)) {
            Some(Ok(())) => false,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => true,
        };
        if full && self.queue_full.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the recorder cannot keep up: records are being dropped (the requests are not affected)");
        }
    }

    /// No more exchanges come.
    pub(super) fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
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
    queue_full: Arc<AtomicU64>,
    report: RecorderReport,
}

impl Writing {
    fn run(mut self, queue: &Receiver<Box<Findings>>) -> RecorderReport {
        let mut flushed = Instant::now();
        loop {
            match queue.recv_timeout(FLUSH_EVERY) {
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
        let assembled = self.assembler.assemble(findings);
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
            Some(Ok(())) => self.report.written += 1,
            Some(Err(error)) => self.fail(&error, 1),
            None => self.report.write_failed += 1,
        }
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.writer.as_mut().map(Writer::flush) {
            self.fail(&error, 0);
        }
    }

    fn fail(&mut self, error: &TraceError, lost: u64) {
        tracing::error!(%error, "recording stopped: the trace cannot be written (requests are still forwarded)");
        self.writer = None;
        self.report.write_failed += lost;
    }

    fn finish(mut self) -> RecorderReport {
        self.report.queue_full = self.queue_full.load(Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            let mut extra = Map::new();
            if self.report.ids_incomplete > 0 {
                extra.insert("ids_incomplete".to_owned(), json!(self.report.ids_incomplete));
            }
            let dropped = self.report.queue_full + self.report.write_failed;
            if let Err(error) = writer.finish(End { records: self.report.written, dropped, extra }) {
                self.fail(&error, 0);
            }
        }
        self.report
    }
}
