//! State shared by a recorder's handle and its thread: the queue's length, and the thread's progress.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use super::RefusedReason;

base::with_defaults! {
    /// Bounds of a recorder: its queue, and its wait for a disk.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Capacity {
        /// Items that may wait.
        pub items: usize = 16_384,
        /// Bytes that they may hold. A single item may hold more where nothing else waits.
        pub bytes: usize = 256 << 20,
        /// Longest wait at the end for a disk that does not answer. A recorder whose thread gave no sign of life for half of it
        /// is stalled; it gives one twice a second.
        pub disk_timeout: Duration = Duration::from_secs(10),
    }
}

/// State of a recorder: items in its queue, drops, and the progress of its thread.
#[derive(Debug)]
pub struct RecorderProgress {
    /// Bounds of the queue.
    pub capacity: Capacity,
    queued: AtomicUsize,
    bytes: AtomicUsize,
    /// Records dropped because too many items waited.
    pub queue_full: AtomicU64,
    /// Records dropped because what waited held too many bytes.
    pub queue_bytes: AtomicU64,
    /// Whether bytes were lacking last, and less than half of them are free since.
    lacks_bytes: AtomicBool,
    is_open: AtomicBool,
    is_abandoned: AtomicBool,
    /// Whether a record is being searched for secrets: work, not a disk, is waited for.
    is_searching: AtomicBool,
    pulse: Pulse,
}

/// State of a recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecorderState {
    /// It writes.
    Recording,
    /// No file can be written.
    Failing,
    /// The disk has not answered for so long.
    Stalled(Duration),
    /// A record has been searched for secrets for so long.
    Searching(Duration),
    /// The queue is full: records are dropped.
    Behind,
}

#[derive(Debug)]
struct Pulse {
    zero: Instant,
    /// In milliseconds from `zero`.
    last: AtomicU64,
}

impl Pulse {
    fn beat(&self, now: Instant) {
        self.last.store(self.since_zero(now), Relaxed);
    }

    fn silence(&self, now: Instant) -> Duration {
        Duration::from_millis(self.since_zero(now).saturating_sub(self.last.load(Relaxed)))
    }

    fn since_zero(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.zero).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for RecorderProgress {
    fn default() -> Self {
        Self::new(Capacity::default())
    }
}

impl RecorderProgress {
    /// An empty queue with these bounds; no file is open yet.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            queued: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            queue_full: AtomicU64::new(0),
            queue_bytes: AtomicU64::new(0),
            lacks_bytes: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            is_searching: AtomicBool::new(false),
            pulse: Pulse { zero: Instant::now(), last: AtomicU64::new(0) },
        }
    }

    /// Items that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued.load(Relaxed)
    }

    /// Returns true if a file is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Notes whether a file is open.
    pub fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Relaxed);
    }

    /// State of the recorder.
    #[must_use]
    pub fn state(&self) -> RecorderState {
        self.state_at(Instant::now())
    }

    fn state_at(&self, now: Instant) -> RecorderState {
        if !self.is_open() {
            return RecorderState::Failing;
        }
        let silence = self.pulse.silence(now);
        let is_stalled = silence > self.capacity.disk_timeout / 2;
        if is_stalled && self.is_searching() {
            RecorderState::Searching(silence)
        } else if is_stalled {
            RecorderState::Stalled(silence)
        } else if self.queued() >= self.capacity.items || self.lacks_bytes.load(Relaxed) {
            RecorderState::Behind
        } else {
            RecorderState::Recording
        }
    }

    /// Reserves a place for an item of so many bytes, where it fits.
    pub(super) fn reserve(&self, weight: usize) -> Result<(), RefusedReason> {
        let held = self.bytes.fetch_add(weight, Relaxed);
        if weight > 0 && held > 0 && held + weight > self.capacity.bytes {
            self.bytes.fetch_sub(weight, Relaxed);
            return Err(RefusedReason::Bytes);
        }
        if self.queued.fetch_add(1, Relaxed) >= self.capacity.items {
            self.release(weight);
            return Err(RefusedReason::Full);
        }
        Ok(())
    }

    /// Releases the place of an item that no longer waits.
    pub(super) fn release(&self, weight: usize) {
        let held = self.bytes.fetch_sub(weight, Relaxed) - weight;
        if held <= self.capacity.bytes / 2 && self.lacks_bytes.load(Relaxed) {
            self.lacks_bytes.store(false, Relaxed);
        }
        self.queued.fetch_sub(1, Relaxed);
    }

    /// Ends the wait for the end of the recording.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Relaxed);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Relaxed)
    }

    pub(super) fn count_dropped(&self, records: u64, reason: RefusedReason) {
        let count = match reason {
            RefusedReason::Full => &self.queue_full,
            RefusedReason::Bytes => {
                self.lacks_bytes.store(true, Relaxed);
                &self.queue_bytes
            }
        };
        count.fetch_add(records, Relaxed);
    }

    /// Runs a search of a record for secrets, whose time is no silence of the disk.
    pub fn searching<T>(&self, search: impl FnOnce() -> T) -> T {
        self.beat();
        self.is_searching.store(true, Relaxed);
        let _over = SearchOver(self);
        search()
    }

    pub(super) fn is_searching(&self) -> bool {
        self.is_searching.load(Relaxed)
    }

    /// The recorder's thread goes on. A sink calls it where one item takes long.
    pub fn beat(&self) {
        self.pulse.beat(Instant::now());
    }

    /// Message about what is still to be written at the end.
    pub(super) fn remaining(&self) -> String {
        let (waiting, mib) = (self.queued(), self.bytes.load(Relaxed) >> 20);
        let what = match waiting {
            0 => "the recording is being closed".to_owned(),
            _ => format!("{waiting} exchanges ({mib} MiB) wait to be written"),
        };
        format!("{what}; a second signal ends at once and loses what is not written")
    }

    /// How far the thread is: what waits, and its last sign of life. Equal later on where nothing moved.
    pub(super) fn position(&self) -> (usize, u64) {
        (self.queued(), self.pulse.last.load(Relaxed))
    }
}

/// End of a search, also of one that panics.
struct SearchOver<'a>(&'a RecorderProgress);

impl Drop for SearchOver<'_> {
    fn drop(&mut self) {
        self.0.beat();
        self.0.is_searching.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALLED_AFTER: Duration = Duration::from_secs(5);

    #[test]
    fn a_recorder_without_a_sign_of_life_is_not_recording() {
        let progress = RecorderProgress::new(Capacity { items: 1, bytes: 10, ..Capacity::default() });
        let (zero, late) = (progress.pulse.zero, progress.pulse.zero + STALLED_AFTER + Duration::from_secs(2));
        assert_eq!(progress.state_at(zero), RecorderState::Failing);
        progress.set_open(true);
        assert_eq!(progress.state_at(zero + STALLED_AFTER), RecorderState::Recording);
        assert_eq!(progress.state_at(late), RecorderState::Stalled(Duration::from_secs(7)));
        let before = progress.position();
        assert_eq!(progress.position(), before);
        progress.pulse.beat(late);
        assert_ne!(progress.position(), before, "a long item that is worked on is no disk that does not answer");
        assert_eq!(progress.state_at(late), RecorderState::Recording);
        assert!(progress.reserve(4).is_ok());
        assert_eq!(progress.state_at(late), RecorderState::Behind);
    }

    #[test]
    fn a_long_search_for_secrets_is_not_blamed_on_the_disk() {
        let progress = RecorderProgress::new(Capacity { items: 9, bytes: 10, ..Capacity::default() });
        progress.set_open(true);
        let late = Instant::now() + STALLED_AFTER + Duration::from_secs(2);
        assert!(matches!(progress.searching(|| progress.state_at(late)), RecorderState::Searching(_)));
        assert!(matches!(progress.state_at(late + STALLED_AFTER), RecorderState::Stalled(_)));
    }

    #[test]
    fn what_is_still_to_be_written_is_named() {
        let progress = RecorderProgress::new(Capacity::default());
        assert!(progress.remaining().starts_with("the recording is being closed; a second signal"));
        assert!(progress.reserve(5 << 20).is_ok() && progress.reserve(1 << 20).is_ok());
        assert!(progress.remaining().starts_with("2 exchanges (6 MiB) wait to be written; a second signal"));
    }

    #[test]
    fn bytes_are_bounded_but_a_single_item_always_fits() {
        let progress = RecorderProgress::new(Capacity { items: 10, bytes: 10, ..Capacity::default() });
        assert!(progress.reserve(11).is_ok() && progress.reserve(1).is_err() && progress.reserve(0).is_ok());
        progress.release(11);
        progress.release(0);
        assert!(progress.reserve(4).is_ok() && progress.reserve(6).is_ok() && progress.reserve(1).is_err());
        assert_eq!(progress.queued(), 2);
    }

    #[test]
    fn drops_are_counted_by_reason_and_a_lack_of_bytes_is_seen_until_half_of_them_are_free() {
        let progress = RecorderProgress::new(Capacity { items: 10, bytes: 10, ..Capacity::default() });
        progress.set_open(true);
        let count = |count: &AtomicU64| count.load(Relaxed);
        let counts = || (count(&progress.queue_full), count(&progress.queue_bytes));
        assert!(progress.reserve(4).is_ok() && progress.reserve(6).is_ok());
        progress.count_dropped(2, RefusedReason::Full);
        assert_eq!((counts(), progress.state()), ((2, 0), RecorderState::Recording));
        progress.count_dropped(3, RefusedReason::Bytes);
        assert_eq!((counts(), progress.state()), ((2, 3), RecorderState::Behind));
        progress.release(4);
        assert_eq!(progress.state(), RecorderState::Behind);
        progress.release(6);
        assert_eq!(progress.state(), RecorderState::Recording);
    }
}
