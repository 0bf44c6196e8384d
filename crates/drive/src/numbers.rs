//! Counts and times as floats, for figures.

use std::time::Duration;

use base::units::Millis;
use rustix::time::{ClockId, clock_gettime};

/// Returns a count as a float; exact, because counts of a run are far below 2^53.
pub(crate) fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}

/// Returns the number of items.
pub(crate) fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

/// Returns milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    Millis::from(time).0
}

/// Returns the processor time of this process or thread so far.
#[must_use]
pub fn processor_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
