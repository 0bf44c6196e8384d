//! The sink of a trace: makes records and writes them.
//!
//! Flushed records are with the operating system, not yet on the disk. After a write error a file keeps the records flushed before it; a new file is
//! tried at growing intervals. Records of an object count as written once it is closed, and are lost with it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use serde_json::{Map, json};
use tokio::time::Instant;

use super::{
    RecordHook, Setup,
    assemble::Assembler,
    capabilities::Capabilities,
    counts::RecorderCounts,
    metrics::TapMetrics,
    observed_exchange::ObservedExchange,
    records::{ExchangeRecords, SecretlessRecord},
};
use base::rate_limited_log::RateLimitedLog;
use recording::{
    recorder::Sink,
    trace::{CaptureEnd, Record, TraceError, TraceParts},
};

/// Longest wait of the first record for the engine's version, models and settings.
const FACTS_WITHIN: Duration = Duration::from_millis(500);

/// Pause between a failed write and the next attempt to open a file: the first one, and the longest.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);

/// Records of one exchange after which the thread gives a sign of life.
const RECORDS_PER_BEAT: u64 = 256;

#[derive(Debug)]
pub(super) struct TraceSink {
    parts: TraceParts,
    assembler: Arc<Assembler>,
    engine: Arc<Capabilities>,
    /// The first line of files has the engine's facts.
    meta_is_complete: bool,
    has_waited: bool,
    metrics: Arc<TapMetrics>,
    /// The next record goes to a new file.
    rotate: Arc<AtomicBool>,
    /// Number of records written since the last flush.
    unflushed: u64,
    /// Number of dropped records already reported at the end of a file.
    reported_dropped: u64,
    /// Time of the next attempt to open a file after a failure.
    retry_at: Instant,
    /// Pause after the next failure.
    retry_pause: Duration,
    error: Option<String>,
    /// Sees each record before it is written.
    hook: Option<RecordHook>,
    /// Records are written to no file.
    discards: bool,
    failing: RateLimitedLog,
    repairing: RateLimitedLog,
}

/// Result of a recording.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) write_error: Option<String>,
    /// The trace could not be written at the end.
    pub(super) is_failing: bool,
}

impl TraceSink {
    /// Creates a sink that writes to `parts`; `error` is the reason if no file could be opened yet.
    pub(super) fn new(
        setup: &Setup,
        (parts, error): (TraceParts, Option<String>),
        engine: Arc<Capabilities>,
        metrics: Arc<TapMetrics>,
        rotate: Arc<AtomicBool>,
    ) -> Self {
        Self {
            parts,
            assembler: Arc::new(Assembler::new(setup)),
            meta_is_complete: engine.has_answered(),
            engine,
            has_waited: false,
            metrics,
            rotate,
            unflushed: 0,
            reported_dropped: 0,
            retry_at: Instant::now() + RETRY_FIRST,
            retry_pause: RETRY_FIRST,
            error,
            hook: setup.hook.clone(),
            discards: setup.discards,
            failing: RateLimitedLog::default(),
            repairing: RateLimitedLog::default(),
        }
    }

    /// Completes the first line with the engine's facts. Waits for them once, because an engine that has answered a request answers that too.
    fn complete_meta(&mut self, observed: &ObservedExchange) {
        if self.meta_is_complete {
            return;
        }
        if observed.status.is_some() && !std::mem::replace(&mut self.has_waited, true) {
            self.engine.wait_for_facts(FACTS_WITHIN);
        }
        self.meta_is_complete = self.engine.has_answered();
        let Some(facts) = self.engine.facts() else { return };
        let mut meta = self.parts.meta().clone();
        facts.complete(&mut meta);
        if let Err(error) = self.parts.set_meta(meta) {
            self.fail(&error, 0);
        }
    }

    /// Makes and writes the records of an exchange one by one, counting `due` down.
    fn record_each(&mut self, observed: ObservedExchange, due: &mut u64) -> thread::Result<()> {
        let (assembler, metrics) = (Arc::clone(&self.assembler), Arc::clone(&self.metrics));
        let mut records = catch_unwind(AssertUnwindSafe(|| {
            metrics.observe(&observed);
            metrics.recorder.progress.searching(|| assembler.records(observed))
        }))?;
        let counts = &metrics.recorder;
        if records.ids_dropped {
            counts.ids_incomplete.fetch_add(1, Relaxed);
            tracing::debug!("an answer's token ids are incomplete; its record has none");
        }
        counts.content_skipped.fetch_add(records.content_skipped.into(), Relaxed);
        let next = |records: &mut ExchangeRecords<'_>| counts.progress.searching(|| records.next());
        while let Some(SecretlessRecord { mut record, had_secret }) =
            catch_unwind(AssertUnwindSafe(|| next(&mut records)))?
        {
            counts.redacted.fetch_add(had_secret.into(), Relaxed);
            if let Some(RecordHook(hook)) = &self.hook {
                hook(&mut record);
            }
            self.append(&record);
            *due = due.saturating_sub(1);
            if due.is_multiple_of(RECORDS_PER_BEAT) {
                counts.progress.beat();
            }
        }
        if records.is_unsearched() {
            counts.unsearched.fetch_add(1, Relaxed);
            tracing::warn!(
                "an exchange is recorded without its content: to search it for secrets would take too much work"
            );
        }
        Ok(())
    }

    fn append(&mut self, record: &Record) {
        if self.discards {
            self.unflushed += 1;
            return;
        }
        if !self.parts.is_open() {
            self.metrics.recorder.write_failed.fetch_add(1, Relaxed);
            return;
        }
        match self.parts.append(record) {
            Ok(defects) => {
                self.unflushed += 1;
                self.count_repair(&defects);
            }
            Err(error) => self.fail(&error, 1),
        }
    }

    fn count_repair(&mut self, defects: &[String]) {
        let Some(first) = defects.first() else { return };
        self.metrics.recorder.repaired.fetch_add(1, Relaxed);
        if self.repairing.due().is_some() {
            tracing::warn!(defect = %first, "a record broke a rule of the format: what broke it was left out; please report this");
        }
    }

    fn count_written(&mut self) {
        if self.unflushed > 0 {
            self.retry_pause = RETRY_FIRST;
        }
        self.metrics.recorder.written.fetch_add(std::mem::take(&mut self.unflushed), Relaxed);
    }

    fn count_emptied(&mut self) {
        let times = self.parts.take_emptied();
        if times > 0 {
            self.metrics.recorder.emptied.fetch_add(times.into(), Relaxed);
            tracing::warn!(path = %self.parts.path().display(), "another program emptied the trace; it was begun again with its first line");
        }
    }

    fn rotate(&mut self) {
        if !self.parts.rotates() {
            return;
        }
        self.close();
        self.reopen();
    }

    fn reopen(&mut self) {
        match self.parts.reopen() {
            Ok(()) => self.opened(),
            Err(error) => self.fail(&error, 0),
        }
    }

    fn opened(&mut self) {
        let counts = &self.metrics.recorder;
        counts.files.store(self.parts.count(), Relaxed);
        counts.progress.set_open(true);
        let (path, missing) = (self.parts.path().display(), counts.dropped().saturating_sub(self.reported_dropped));
        if missing > 0 {
            // A plain file has no place for it.
            let is_packed = self.parts.path().extension().is_some_and(|end| end.eq_ignore_ascii_case("gz"));
            let end = if is_packed { "; its last line will have the number of missing records" } else { "" };
            tracing::warn!(%path, missing, "recording goes on in a new file{end}");
        } else {
            tracing::info!(%path, "recording goes on in a new file");
        }
    }

    fn retry(&mut self) {
        if Instant::now() >= self.retry_at && self.parts.rotates() {
            self.reopen();
        }
    }

    /// Handles a write error: unflushed records are counted as lost, and the file no longer has them.
    fn fail(&mut self, error: &TraceError, lost: u64) {
        let lost = lost + std::mem::take(&mut self.unflushed);
        let counts = &self.metrics.recorder;
        counts.write_failed.fetch_add(lost, Relaxed);
        counts.progress.set_open(false);
        self.retry_at = Instant::now() + self.retry_pause;
        self.retry_pause = (self.retry_pause * 2).min(RETRY_LAST);
        self.error.get_or_insert_with(|| error.to_string());
        if self.failing.due().is_some() {
            let dropped = counts.dropped();
            tracing::error!(%error, dropped, "the trace cannot be written: requests go on, and are not recorded");
        }
    }

    /// Closes the open file. The end of a packed file has the number of records dropped since the file before it.
    fn close(&mut self) {
        match self.parts.flush() {
            Ok(()) => self.count_emptied(),
            Err(error) => return self.fail(&error, 0),
        }
        let counts = &self.metrics.recorder;
        let mut extra = Map::new();
        for (name, count) in [
            ("ids_incomplete", &counts.ids_incomplete),
            ("hashes_skipped", &counts.hashes_skipped),
            ("repaired", &counts.repaired),
            ("content_skipped", &counts.content_skipped),
            ("choices_left_out", &counts.choices_left_out),
            ("unsearched", &counts.unsearched),
        ] {
            let count = RecorderCounts::get(count);
            if count > 0 {
                extra.insert(name.to_owned(), json!(count));
            }
        }
        let dropped = counts.dropped();
        match self.parts.close(CaptureEnd { records: 0, dropped: dropped.saturating_sub(self.reported_dropped), extra })
        {
            Ok(()) => {
                self.reported_dropped = dropped;
                self.count_written();
            }
            Err(error) => self.fail(&error, 0),
        }
    }
}

impl Sink for TraceSink {
    type Item = Box<ObservedExchange>;
    type Ending = Ending;

    fn weight(observed: &Box<ObservedExchange>) -> usize {
        observed.weight
    }

    fn record(&mut self, observed: Box<ObservedExchange>) {
        self.complete_meta(&observed);
        self.metrics.recorder.choices_left_out.fetch_add(observed.choices_left_out(), Relaxed);
        let mut due = observed.records();
        if self.record_each(*observed, &mut due).is_err() {
            self.metrics.recorder.broken.fetch_add(due, Relaxed);
            tracing::error!("an exchange could not be recorded; please report this");
        }
        if self.parts.is_full() {
            self.rotate();
        }
    }

    fn flush(&mut self) {
        if self.discards {
            return self.count_written();
        }
        if !self.parts.is_open() {
            return self.retry();
        }
        match self.parts.flush() {
            Ok(()) if self.parts.lasts_once_flushed() => self.count_written(),
            Ok(()) => {}
            Err(error) => return self.fail(&error, 0),
        }
        self.count_emptied();
        let is_removed = self.parts.is_removed();
        if is_removed {
            tracing::warn!(path = %self.parts.path().display(), "the trace was removed, and what was in it");
        }
        if self.rotate.swap(false, Relaxed) || is_removed || self.parts.is_full() {
            self.rotate();
        }
    }

    fn finish(mut self) -> Ending {
        if self.discards {
            self.count_written();
            return Ending { write_error: None, is_failing: false };
        }
        let was_failing = !self.parts.is_open();
        if was_failing && self.metrics.recorder.dropped() > self.reported_dropped && self.parts.rotates() {
            // A new file is the last place where the number of missing records can be written.
            if self.parts.reopen().is_ok() {
                self.opened();
            }
        }
        if self.parts.is_open() {
            self.close();
        }
        let is_failing = was_failing || !self.metrics.recorder.progress.is_open();
        Ending { write_error: self.error, is_failing }
    }
}
