//! The clock of timestamps in messages.

use rustix::time::{ClockId, clock_gettime};

/// Seconds of the machine's monotonic clock, which Python's `time.monotonic` shows too. A front end subtracts the engine's times only
/// from each other.
#[must_use]
pub fn monotonic_seconds() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
