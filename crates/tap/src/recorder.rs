//! The tap's recorder of a trace: exchanges that ended go into the queue of a [`Recorder`], whose thread makes records of
//! them and writes them ([`TraceSink`]).
//!
//! When the queue is full, or the file cannot be written, records are dropped and counted
//! by reason; the count is in the log, in the metrics, in the report and in the end of a packed trace.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    Setup,
    capabilities::Capabilities,
    counts::RecorderCounts,
    metrics::TapMetrics,
    observed_exchange::ObservedExchange,
    trace_sink::{Ending, TraceSink},
};
use recording::{
    recorder::{Recorder, RecorderError, RefusedItem, RefusedReason},
    trace::{TraceError, TraceParts},
};

/// Error of a tap that cannot start or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The trace cannot be created.
    #[error("cannot write the trace")]
    Trace(#[from] TraceError),
    /// The recorder's thread cannot be started or did not end properly.
    #[error("the recorder failed: {0}")]
    Recorder(String),
}

/// Counts of a finished recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Records in the trace, this capture's only.
    pub written: u64,
    /// Records dropped because too many exchanges waited.
    pub queue_full: u64,
    /// Records dropped because the exchanges that waited held too many bytes.
    pub queue_bytes: u64,
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
    /// Exchanges recorded without their content because to search it for secrets would have taken too much work.
    pub unsearched: u64,
    /// Records in which a secret was redacted.
    pub redacted: u64,
    /// Choices without a record, because their request has too many.
    pub choices_left_out: u64,
    /// Records that broke a rule of the format; what broke it was left out.
    pub repaired: u64,
    /// Times that another program emptied the trace; what was in it is gone, and it was begun again.
    pub emptied: u64,
    /// Files begun.
    pub files: u32,
    /// The first error of writing the trace.
    pub write_error: Option<String>,
    /// The trace could not be written at the end.
    pub is_failing: bool,
}

#[derive(Debug)]
pub(super) struct TraceRecorder {
    recorder: Recorder<TraceSink>,
    metrics: Arc<TapMetrics>,
    rotate: Arc<AtomicBool>,
    /// The file that was begun first.
    pub(super) path: PathBuf,
}

impl TraceRecorder {
    /// Creates the trace and starts the thread that writes it; `engine` has the capabilities of the default upstream, whose facts the first line has.
    pub(super) fn start(setup: &Setup, engine: Arc<Capabilities>, metrics: Arc<TapMetrics>) -> Result<Self, TapError> {
        let (path, limits) = (&setup.config.trace_out, setup.limits);
        let mut meta = setup.meta();
        if let Some(facts) = engine.facts() {
            facts.complete(&mut meta);
        }
        let mut error = None;
        let created = match setup.discards {
            true => Ok(TraceParts::later(path, meta.clone(), limits)),
            false => TraceParts::create(path, meta.clone(), setup.config.create, limits),
        };
        let parts = match created {
            Err(failed @ TraceError::Io { .. }) if setup.start_without_file => {
                tracing::error!(error = %failed, "the trace cannot be written: requests are forwarded, nothing is recorded yet");
                error = Some(failed.to_string());
                TraceParts::later(path, meta, limits)
            }
            created => created?,
        };
        metrics.recorder.files.store(parts.count(), Relaxed);
        metrics.recorder.progress.set_open(parts.is_open() || setup.discards);
        let rotate = Arc::new(AtomicBool::new(false));
        let path = parts.path().to_owned();
        let sink = TraceSink::new(setup, (parts, error), engine, Arc::clone(&metrics), Arc::clone(&rotate));
        let recorder = Recorder::start(sink, Arc::clone(&metrics.recorder.progress))
            .map_err(|error| TapError::Recorder(error.to_string()))?;
        Ok(Self { recorder, metrics, rotate, path })
    }

    /// Submits an exchange; never waits. Where too much waits, it goes without its body, then without its content, and then not at all.
    pub(super) fn submit(&self, mut observed: Box<ObservedExchange>) {
        observed.weight = observed.weigh();
        let counts = &self.metrics.recorder;
        let mut submitted = self.recorder.submit(observed);
        if let Err(RefusedItem { mut item, reason: RefusedReason::Bytes }) = submitted {
            counts.hashes_skipped.fetch_add(item.drop_body().into(), Relaxed);
            item.weight = item.weigh();
            submitted = self.recorder.submit(item);
        }
        if let Err(RefusedItem { mut item, reason: RefusedReason::Bytes }) = submitted {
            item.drop_content();
            item.weight = item.weigh();
            submitted = self.recorder.submit(item);
        }
        if let Err(RefusedItem { item, reason }) = submitted {
            self.recorder.drop_records(item.records(), reason);
        }
    }

    /// Begins a new file with the next record.
    pub(super) fn rotate(&self) {
        self.rotate.store(true, Relaxed);
    }

    /// Waits until everything is written and the trace is closed, with a timeout.
    pub(super) fn finish(&self) -> Result<RecorderReport, TapError> {
        let counts = &self.metrics.recorder;
        let Ending { write_error, is_failing } = match self.recorder.finish() {
            Ok(Some(ending)) => ending,
            Ok(None) => return Ok(RecorderReport::default()),
            Err(error @ RecorderError::Panicked) => return Err(TapError::Recorder(error.to_string())),
            Err(error @ (RecorderError::TimedOut | RecorderError::Searching)) => {
                let known = RecorderCounts::get(&counts.written) + counts.dropped();
                let missing = self.metrics.records_due().saturating_sub(known);
                if missing == 0 && counts.progress.is_open() {
                    // All records are with the operating system, which writes them when the disk answers again.
                    tracing::warn!("{error}: all records were written, but the trace may lack its end");
                    return Ok(self.report(None, false));
                }
                if error == RecorderError::Searching {
                    self.recorder.drop_records(missing, RefusedReason::Full);
                } else {
                    counts.write_failed.fetch_add(missing, Relaxed);
                }
                Ending { write_error: Some(error.to_string()), is_failing: true }
            }
        };
        Ok(self.report(write_error, is_failing))
    }

    fn report(&self, write_error: Option<String>, is_failing: bool) -> RecorderReport {
        let counts = &self.metrics.recorder;
        RecorderReport {
            written: RecorderCounts::get(&counts.written),
            queue_full: RecorderCounts::get(&counts.progress.queue_full),
            queue_bytes: RecorderCounts::get(&counts.progress.queue_bytes),
            write_failed: RecorderCounts::get(&counts.write_failed),
            broken: RecorderCounts::get(&counts.broken),
            ids_incomplete: RecorderCounts::get(&counts.ids_incomplete),
            hashes_skipped: RecorderCounts::get(&counts.hashes_skipped),
            content_skipped: RecorderCounts::get(&counts.content_skipped),
            unsearched: RecorderCounts::get(&counts.unsearched),
            redacted: RecorderCounts::get(&counts.redacted),
            choices_left_out: RecorderCounts::get(&counts.choices_left_out),
            repaired: RecorderCounts::get(&counts.repaired),
            emptied: RecorderCounts::get(&counts.emptied),
            files: counts.files.load(Relaxed),
            write_error,
            is_failing,
        }
    }
}
