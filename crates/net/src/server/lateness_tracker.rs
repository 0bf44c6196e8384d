//! Lateness of the events of a connection: from their deadline until they are written to the socket.
//!
//! A service [tracks](LatenessTracker::track) each event that it passes to the connection with its deadline; when the
//! connection has written everything, their lateness is recorded. It includes encoding, writing and waiting for a client
//! that does not read. Events that leave in one write count with the deadline of the first of them.
//!
//! Limits: on HTTP/2 an event counts when its connection is next flushed, which may be before its own frame is sent.

use std::sync::Arc;

use tokio::time::Instant;

use base::lock::Lock;
use base::stats::{Lateness, StreamClass};

/// The tracker of a connection; clones share it. One without a [`Lateness`] records nothing.
#[derive(Debug, Clone, Default)]
pub struct LatenessTracker(Option<Arc<TrackerState>>);

#[derive(Debug)]
struct TrackerState {
    lateness: Arc<Lateness>,
    pending: Lock<Option<Pending>>,
}

/// Events that are not written yet.
#[derive(Debug)]
struct Pending {
    due: Instant,
    class: StreamClass,
    events: u32,
}

impl LatenessTracker {
    pub(super) fn new(lateness: Option<&Arc<Lateness>>) -> Self {
        let inner = |lateness| Arc::new(TrackerState { lateness: Arc::clone(lateness), pending: Lock::default() });
        Self(lateness.map(inner))
    }

    /// Registers an event that is passed to the connection now and was due at `due`.
    pub fn track(&self, class: StreamClass, due: Instant) {
        let Some(inner) = &self.0 else { return };
        let mut pending = inner.pending.lock();
        match pending.as_mut() {
            Some(pending) => pending.events = pending.events.saturating_add(1),
            None => *pending = Some(Pending { due, class, events: 1 }),
        }
    }

    /// Records the lateness of the registered events, which are written now.
    pub(super) fn flushed(&self) {
        let Some(inner) = &self.0 else { return };
        let pending = inner.pending.lock().take();
        let Some(Pending { due, class, events }) = pending else { return };
        let now = Instant::now();
        let (early, late) = (due.saturating_duration_since(now), now.saturating_duration_since(due));
        inner.lateness.record(class, events, early, late);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_count_once_they_are_written() {
        let lateness = Arc::new(Lateness::default());
        let tracker = LatenessTracker::new(Some(&lateness));
        let due = Instant::now();
        tracker.track(StreamClass::Fixed, due);
        tracker.track(StreamClass::Fixed, due + Duration::from_secs(1));
        assert_eq!(lateness.summary(StreamClass::Fixed, &[]), None);
        tracker.flushed();
        tracker.flushed();
        let summary = lateness.summary(StreamClass::Fixed, &[]).unwrap();
        assert_eq!((summary.millis.count, summary.early), (2, 0));
        tracker.track(StreamClass::Whole, Instant::now() + Duration::from_secs(60));
        tracker.flushed();
        assert_eq!(lateness.summary(StreamClass::Whole, &[]).unwrap().early, 1);
    }

    #[test]
    fn a_tracker_without_statistics_records_nothing() {
        LatenessTracker::default().track(StreamClass::Instant, Instant::now());
        LatenessTracker::new(None).flushed();
    }
}
