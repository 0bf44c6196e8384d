//! What a connection was given to send and has not sent: how late events really leave.
//!
//! A service [notes](Outbox::note) each event that it hands over with its deadline; once the connection has written all
//! it was given, the lateness of what was noted is counted. So lateness holds the encoding, the writing and the waiting for
//! a client that does not read. Events that leave in one write count with the deadline of the first of them.
//!
//! Limits: on HTTP/2 an event counts when its connection is next flushed, which may be before its own frame left.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use crate::base::stats::{Lateness, StreamClass};

/// The outbox of a connection; clones share it. One without a [`Lateness`] counts nothing.
#[derive(Debug, Clone, Default)]
pub struct Outbox(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    lateness: Arc<Lateness>,
    noted: Mutex<Option<Noted>>,
}

#[derive(Debug)]
struct Noted {
    due: Instant,
    class: StreamClass,
    events: u32,
}

impl Outbox {
    pub(super) fn new(lateness: Option<&Arc<Lateness>>) -> Self {
        let inner = |lateness| Arc::new(Inner { lateness: Arc::clone(lateness), noted: Mutex::default() });
        Self(lateness.map(inner))
    }

    /// An event that was due at an instant is handed over now.
    pub fn note(&self, class: StreamClass, due: Instant) {
        let Some(inner) = &self.0 else { return };
        let mut noted = inner.noted.lock().unwrap_or_else(PoisonError::into_inner);
        match noted.as_mut() {
            Some(noted) => noted.events = noted.events.saturating_add(1),
            None => *noted = Some(Noted { due, class, events: 1 }),
        }
    }

    /// Everything that was handed over is written.
    pub(super) fn written(&self) {
        let Some(inner) = &self.0 else { return };
        let noted = inner.noted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Noted { due, class, events }) = noted else { return };
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
    fn what_was_noted_counts_once_written() {
        let lateness = Arc::new(Lateness::default());
        let outbox = Outbox::new(Some(&lateness));
        let due = Instant::now();
        outbox.note(StreamClass::Fixed, due);
        outbox.note(StreamClass::Fixed, due + Duration::from_secs(1));
        assert_eq!(lateness.summary(StreamClass::Fixed, &[]), None);
        outbox.written();
        outbox.written();
        let summary = lateness.summary(StreamClass::Fixed, &[]).unwrap();
        assert_eq!((summary.millis.count, summary.early), (2, 0));
        outbox.note(StreamClass::Whole, Instant::now() + Duration::from_secs(60));
        outbox.written();
        assert_eq!(lateness.summary(StreamClass::Whole, &[]).unwrap().early, 1);
    }

    #[test]
    fn without_a_place_to_count_nothing_happens() {
        Outbox::default().note(StreamClass::Instant, Instant::now());
        Outbox::new(None).written();
    }
}
