//! Limit on log lines that would come too often: one in ten seconds is written, with the number of those that were not.

use std::time::Duration;

use tokio::time::Instant;

use crate::lock::Lock;

/// Minimum time between two lines.
const APART: Duration = Duration::from_secs(10);

/// Rate limit of one kind of log line.
#[derive(Debug, Default)]
pub struct RateLimitedLog {
    /// When a line was last written, and the lines that were suppressed since.
    state: Lock<(Option<Instant>, u64)>,
}

impl RateLimitedLog {
    /// Creates a limit of which no line was written yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: Lock::new((None, 0)) }
    }

    /// Returns the number of lines suppressed since the last one where another one is due; `None` where none is.
    pub fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < APART) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_counts_the_others() {
        let (log, now) = (RateLimitedLog::default(), Instant::now());
        assert_eq!(log.due_at(now), Some(0));
        assert_eq!((log.due_at(now), log.due_at(now)), (None, None));
        assert_eq!(log.due_at(now + APART), Some(2));
        assert_eq!(log.due_at(now + APART), None);
    }
}
