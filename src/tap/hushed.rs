//! Log lines that would come too often: one in a while is written, and tells how many were not.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How far apart the lines are.
const APART: Duration = Duration::from_secs(10);

/// Lets one line through and holds back what follows it for a while.
#[derive(Debug, Default)]
pub(super) struct Hushed {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Hushed {
    /// How many lines were held back since the last one, where it is time for another; `None` where it is not.
    pub(super) fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, held) = *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < APART) {
            state.1 = held + 1;
            return None;
        }
        *state = (Some(now), 0);
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_tells_of_the_others() {
        let (hushed, now) = (Hushed::default(), Instant::now());
        assert_eq!(hushed.due_at(now), Some(0));
        assert_eq!((hushed.due_at(now), hushed.due_at(now)), (None, None));
        assert_eq!(hushed.due_at(now + APART), Some(2));
        assert_eq!(hushed.due_at(now + APART), None);
    }
}
