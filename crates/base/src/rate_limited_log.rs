//! Limit on log lines that would come too often: one in ten seconds is written, with the number of those that were not.

use std::time::Duration;

use tokio::time::Instant;

use crate::lock::Lock;

/// Minimum time between two lines.
const APART: Duration = Duration::from_secs(10);

/// Rate limit of one kind of log line.
#[derive(Debug, Default)]
pub struct RateLimitedLog {
    state: Lock<Suppression>,
}

#[derive(Debug, Default)]
struct Suppression {
    /// When a line was last written.
    last: Option<Instant>,
    /// Lines that were suppressed since.
    suppressed: u64,
}

impl RateLimitedLog {
    /// Creates a limit of which no line was written yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: Lock::new(Suppression { last: None, suppressed: 0 }) }
    }

    /// Returns the number of lines suppressed since the last one where another one is due; `None` where none is.
    pub fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < APART) {
            state.suppressed += 1;
            return None;
        }
        let Suppression { suppressed, .. } =
            std::mem::replace(&mut *state, Suppression { last: Some(now), suppressed: 0 });
        Some(suppressed)
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
