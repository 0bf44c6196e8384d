//! What the recorder counts, and whether it is well.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use super::recorder::QUEUE;

/// A recorder that gave no sign of life for so long waits for its disk. It gives one twice a second.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// What the recorder counts. Everything that is dropped is counted in records: a request has one for each choice.
#[derive(Debug)]
pub(super) struct RecorderCounts {
    /// Exchanges that wait to be written.
    pub(super) queued: AtomicUsize,
    /// Records that are safe with the operating system.
    pub(super) written: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) write_failed: AtomicU64,
    pub(super) broken: AtomicU64,
    pub(super) ids_incomplete: AtomicU64,
    pub(super) hashes_skipped: AtomicU64,
    pub(super) redacted: AtomicU64,
    pub(super) files: AtomicU32,
    /// Whether a file is open.
    pub(super) is_open: AtomicBool,
    zero: Instant,
    /// When the recorder's thread was last seen to go on, in milliseconds from `zero`.
    alive: AtomicU64,
}

/// How recording goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    Going,
    /// No file can be written.
    Failing,
    /// The disk has not answered for so long.
    Stalled(Duration),
    /// More waits than may: records are dropped.
    Behind,
}

impl Default for RecorderCounts {
    fn default() -> Self {
        Self {
            queued: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            write_failed: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            ids_incomplete: AtomicU64::new(0),
            hashes_skipped: AtomicU64::new(0),
            redacted: AtomicU64::new(0),
            files: AtomicU32::new(0),
            is_open: AtomicBool::new(false),
            zero: Instant::now(),
            alive: AtomicU64::new(0),
        }
    }
}

impl RecorderCounts {
    /// A counter's value.
    pub(super) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }

    /// What could not be recorded.
    pub(super) fn dropped(&self) -> u64 {
        [&self.queue_full, &self.write_failed, &self.broken].into_iter().map(Self::get).sum()
    }

    /// The recorder's thread goes on.
    pub(super) fn beat(&self) {
        self.beat_at(Instant::now());
    }

    fn beat_at(&self, now: Instant) {
        self.alive.store(self.since_zero(now), Relaxed);
    }

    /// How recording goes.
    pub(super) fn state(&self) -> Recording {
        self.state_at(Instant::now())
    }

    fn state_at(&self, now: Instant) -> Recording {
        if !self.is_open.load(Relaxed) {
            return Recording::Failing;
        }
        let silence = Duration::from_millis(self.since_zero(now).saturating_sub(Self::get(&self.alive)));
        if silence > STALLED_AFTER {
            Recording::Stalled(silence)
        } else if self.queued.load(Relaxed) >= QUEUE {
            Recording::Behind
        } else {
            Recording::Going
        }
    }

    fn since_zero(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.zero).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_without_a_sign_of_life_is_not_recording() {
        let counts = RecorderCounts::default();
        let (zero, late) = (counts.zero, counts.zero + STALLED_AFTER + Duration::from_secs(2));
        assert_eq!(counts.state_at(zero), Recording::Failing);
        counts.is_open.store(true, Relaxed);
        assert_eq!(counts.state_at(zero + STALLED_AFTER), Recording::Going);
        assert_eq!(counts.state_at(late), Recording::Stalled(Duration::from_secs(7)));
        counts.beat_at(late);
        assert_eq!(counts.state_at(late), Recording::Going);
        counts.queued.store(QUEUE, Relaxed);
        assert_eq!(counts.state_at(late), Recording::Behind);
    }
}
