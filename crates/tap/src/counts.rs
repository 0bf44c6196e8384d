//! Counters of the recorder.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use recording::recorder::{Capacity, RecorderProgress};

/// Counters of the recorder. Drops are counted in records: a request has one for each choice.
#[derive(Debug, Default)]
pub(super) struct RecorderCounts {
    /// State of its queue and of its file.
    pub(super) progress: Arc<RecorderProgress>,
    /// Records that were flushed to the operating system.
    pub(super) written: AtomicU64,
    pub(super) write_failed: AtomicU64,
    pub(super) broken: AtomicU64,
    pub(super) ids_incomplete: AtomicU64,
    pub(super) hashes_skipped: AtomicU64,
    pub(super) content_skipped: AtomicU64,
    pub(super) unsearched: AtomicU64,
    pub(super) redacted: AtomicU64,
    /// Choices without a record, because their request has too many.
    pub(super) choices_left_out: AtomicU64,
    /// Records that broke a rule of the format, and what broke it was left out.
    pub(super) repaired: AtomicU64,
    pub(super) files: AtomicU32,
    /// Number of times that another program emptied the file.
    pub(super) emptied: AtomicU64,
}

impl RecorderCounts {
    /// Creates the counters of a recorder that waits so long for its disk at the end.
    pub(super) fn new(disk_timeout: Duration) -> Self {
        let progress = RecorderProgress::new(Capacity { disk_timeout, ..Capacity::default() });
        Self { progress: Arc::new(progress), ..Self::default() }
    }

    pub(super) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }

    /// Returns the number of records that were dropped, for any reason.
    pub(super) fn dropped(&self) -> u64 {
        let by_reason = [&self.progress.queue_full, &self.progress.queue_bytes, &self.write_failed, &self.broken];
        by_reason.into_iter().map(Self::get).sum()
    }
}
