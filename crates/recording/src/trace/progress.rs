//! Progress of a load.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of a load that is under way, to be read from another thread.
#[derive(Debug, Default)]
pub struct LoadProgress {
    size: AtomicU64,
    read: AtomicU64,
    json: AtomicU64,
    records: AtomicU64,
    /// Number of bytes read of the files before the current one.
    read_before: AtomicU64,
    json_before: AtomicU64,
}

/// State of a [`LoadProgress`] at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadCounts {
    /// Bytes of all files; `None` where that is not known, as of standard input.
    pub size: Option<u64>,
    /// Bytes of them that were read, packed as they are.
    pub read: u64,
    /// Bytes of JSON that they held.
    pub json: u64,
    /// Records that they held.
    pub records: u64,
}

impl LoadProgress {
    /// Returns the current state. The counts may be some records apart from each other.
    #[must_use]
    pub fn now(&self) -> LoadCounts {
        let size = self.size.load(Relaxed);
        LoadCounts {
            size: (size > 0).then_some(size),
            read: self.read.load(Relaxed),
            json: self.json.load(Relaxed),
            records: self.records.load(Relaxed),
        }
    }

    /// The file has so many bytes, unless the size of all files together is known.
    pub(super) fn has_size(&self, bytes: u64) {
        let _known = self.size.compare_exchange(0, bytes, Relaxed, Relaxed);
    }

    pub(super) fn next_file(&self) {
        self.read_before.store(self.read.load(Relaxed), Relaxed);
        self.json_before.store(self.json.load(Relaxed), Relaxed);
    }

    /// Of the file, so many bytes from its start.
    pub(super) fn has_read(&self, bytes: u64) {
        self.read.store(self.read_before.load(Relaxed) + bytes, Relaxed);
    }

    pub(super) fn has_json(&self, bytes: u64) {
        self.json.store(self.json_before.load(Relaxed) + bytes, Relaxed);
    }

    /// Notes how many records were read so far.
    pub fn has_records(&self, count: u64) {
        self.records.store(count, Relaxed);
    }
}
