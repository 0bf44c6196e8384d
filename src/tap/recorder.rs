//! The recorder: a bounded queue and one thread that makes records and writes them ([`Writing`]).
//!
//! A request never waits for it. When the queue is full, or the file cannot be written, records are dropped and counted
//! by reason; the count is in the log, in the metrics, in the report and in the end of a packed trace.
//!
//! A disk that does not answer at all holds up this thread only: at the end it is waited for, but not for ever.

use std::{
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

use super::{
    Starting, TapError,
    assemble::Assembler,
    counts::{RecorderCounts, Recording},
    exchange::Findings,
    hushed::Hushed,
    learned::Learned,
    metrics::Metrics,
    queue::{Queue, Refused},
    writing::{Ending, Writing},
};
use crate::recording::trace::{CreateMode, Limits, Meta, Parts, TraceError};

/// Exchanges that may wait to be written.
pub(super) const QUEUE: usize = 16_384;

/// Bytes of requests' bodies that may wait to be hashed.
const QUEUED_BODIES: usize = 256 << 20;

/// How long the end waits for a disk that does not answer.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// What became of recorded exchanges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Records in the trace, this capture's only.
    pub written: u64,
    /// Records dropped because the queue was full.
    pub queue_full: u64,
    /// Records dropped because the file could not be written.
    pub write_failed: u64,
    /// Records dropped because making them failed: a defect of this program.
    pub broken: u64,
    /// Exchanges recorded without ids because the engine did not name all of them.
    pub ids_incomplete: u64,
    /// Exchanges recorded without block hashes because too many long prompts waited to be hashed.
    pub hashes_skipped: u64,
    /// Exchanges recorded without their content because it was too long, or too much at a time.
    pub content_skipped: u64,
    /// Records in which a secret was redacted.
    pub redacted: u64,
    /// Records that broke a rule of the format; what broke it was left out.
    pub repaired: u64,
    /// Files begun.
    pub files: u32,
    /// Why the trace could not be written, the first time.
    pub write_error: Option<String>,
    /// Whether it could not be written at the end.
    pub is_failing: bool,
}

/// Where exchanges hand in their findings.
#[derive(Debug)]
pub(super) struct RecorderHandle {
    queue: Arc<Queue<Box<Findings>>>,
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    full: Hushed,
    stalled: Hushed,
}

/// What the handle and the thread share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    body_bytes: AtomicUsize,
    pub(super) rotate: AtomicBool,
}

/// The thread behind the handle.
#[derive(Debug)]
pub(super) struct RecorderThread {
    done: Receiver<Ending>,
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
    /// What the engine tells of itself.
    pub(super) engine: Arc<Learned>,
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
    let mut error = None;
    let parts = match Parts::create(&config.path, config.meta.clone(), config.create, config.limits) {
        Err(failed @ TraceError::Io { .. }) if config.starting == Starting::Anyway => {
            tracing::error!(error = %failed, "the trace cannot be written: requests are forwarded, nothing is recorded yet");
            error = Some(failed.to_string());
            Parts::later(&config.path, config.meta, config.limits)
        }
        created => created?,
    };
    metrics.recorder.files.store(parts.count(), Relaxed);
    metrics.recorder.is_open.store(parts.is_open(), Relaxed);
    let writing =
        Writing::new((parts, error), config.assembler, config.engine, Arc::clone(&metrics), Arc::clone(&shared));
    let (tell, done) = sync_channel(1);
    let taken = Arc::clone(&queue);
    thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || tell.send(writing.run(&taken)))
        .map_err(|error| TapError::Recorder(error.to_string()))?;
    let handle = RecorderHandle {
        queue,
        metrics: Arc::clone(&metrics),
        shared,
        full: Hushed::default(),
        stalled: Hushed::default(),
    };
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
        let Err(Refused(refused)) = self.queue.push(findings) else { return self.watch() };
        counts.queued.fetch_sub(1, Relaxed);
        self.shared.forget(&refused);
        counts.queue_full.fetch_add(refused.records(), Relaxed);
        if let Some(held) = self.full.due() {
            let dropped = held + 1;
            tracing::warn!(dropped, "the recorder cannot keep up: records are dropped (requests are not affected)");
        }
    }

    /// Says that the disk does not answer, which the recorder's thread cannot say.
    fn watch(&self) {
        if let Recording::Stalled(silence) = self.metrics.recorder.state()
            && self.stalled.due().is_some()
        {
            let waiting = self.metrics.recorder.queued.load(Relaxed);
            tracing::error!(?silence, waiting, "the disk does not answer: requests are forwarded, their records wait");
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
    pub(super) fn forget(&self, findings: &Findings) {
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
        let Ending { write_error, is_failing } = match self.done.recv_timeout(FINISH_WITHIN) {
            Ok(ending) => ending,
            Err(RecvTimeoutError::Timeout) => {
                let known = RecorderCounts::get(&counts.written) + counts.dropped();
                counts.write_failed.fetch_add(self.metrics.records_due().saturating_sub(known), Relaxed);
                Ending { write_error: Some("the disk did not answer at the end".to_owned()), is_failing: true }
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
            content_skipped: RecorderCounts::get(&counts.content_skipped),
            redacted: RecorderCounts::get(&counts.redacted),
            repaired: RecorderCounts::get(&counts.repaired),
            files: counts.files.load(Relaxed),
            write_error,
            is_failing,
        })
    }
}
