//! Counters of the recorder.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::recording::recorder::{Capacity, Progress};

/// Exchanges that may wait to be written, and the bytes that they may hold.
const CAPACITY: Capacity = Capacity { items: 16_384, bytes: 256 << 20 };

/// Counters of the recorder. Drops are counted in records: a request has one for each choice.
#[derive(Debug)]
pub(super) struct RecorderCounts {
    /// State of its queue and of its file.
    pub(super) progress: Arc<Progress>,
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

impl Default for RecorderCounts {
    fn default() -> Self {
        Self {
            progress: Arc::new(Progress::new(CAPACITY)),
            written: AtomicU64::default(),
            write_failed: AtomicU64::default(),
            broken: AtomicU64::default(),
            ids_incomplete: AtomicU64::default(),
            hashes_skipped: AtomicU64::default(),
            content_skipped: AtomicU64::default(),
            unsearched: AtomicU64::default(),
            redacted: AtomicU64::default(),
            choices_left_out: AtomicU64::default(),
            repaired: AtomicU64::default(),
            files: AtomicU32::default(),
            emptied: AtomicU64::default(),
        }
    }
}

impl RecorderCounts {
    /// Reads a counter.
    pub(super) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }

    /// Returns the number of records that were dropped, for any reason.
    pub(super) fn dropped(&self) -> u64 {
        [self.progress.queue_full(), &self.write_failed, &self.broken].into_iter().map(Self::get).sum()
    }
}
