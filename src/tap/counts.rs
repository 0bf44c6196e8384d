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
#[derive(Debug, Default)]
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
    pub(super) content_skipped: AtomicU64,
    pub(super) redacted: AtomicU64,
    /// Records that broke a rule of the format, and what broke it was left out.
    pub(super) repaired: AtomicU64,
    pub(super) files: AtomicU32,
    /// Whether a file is open.
    pub(super) is_open: AtomicBool,
    pulse: Pulse,
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

/// When the recorder's thread was last seen to go on.
#[derive(Debug)]
struct Pulse {
    zero: Instant,
    /// In milliseconds from `zero`.
    last: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { zero: Instant::now(), last: AtomicU64::new(0) }
    }
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
        self.pulse.beat(Instant::now());
    }

    /// How recording goes.
    pub(super) fn state(&self) -> Recording {
        self.state_at(Instant::now())
    }

    fn state_at(&self, now: Instant) -> Recording {
        if !self.is_open.load(Relaxed) {
            return Recording::Failing;
        }
        let silence = self.pulse.silence(now);
        if silence > STALLED_AFTER {
            Recording::Stalled(silence)
        } else if self.queued.load(Relaxed) >= QUEUE {
            Recording::Behind
        } else {
            Recording::Going
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_without_a_sign_of_life_is_not_recording() {
        let counts = RecorderCounts::default();
        let (zero, late) = (counts.pulse.zero, counts.pulse.zero + STALLED_AFTER + Duration::from_secs(2));
        assert_eq!(counts.state_at(zero), Recording::Failing);
        counts.is_open.store(true, Relaxed);
        assert_eq!(counts.state_at(zero + STALLED_AFTER), Recording::Going);
        assert_eq!(counts.state_at(late), Recording::Stalled(Duration::from_secs(7)));
        counts.pulse.beat(late);
        assert_eq!(counts.state_at(late), Recording::Going);
        counts.queued.store(QUEUE, Relaxed);
        assert_eq!(counts.state_at(late), Recording::Behind);
    }
}
