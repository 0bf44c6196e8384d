//! Lateness of events: time of sending minus deadline, by class of stream.

use std::{sync::MutexGuard, time::Duration};

use super::{Durations, Summary};
use crate::lock::Lock;

crate::named! {
    /// Source of a stream's deadlines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StreamClass {
        /// From its record.
        Recorded = "recorded",
        /// From a fixed pace.
        Fixed = "fixed",
        /// Everything was due when the request came: lateness is the time that answering took.
        Instant = "instant",
        /// The answer was no stream; it was due as a whole.
        Whole = "whole",
    }
}

/// Lateness by class of stream; shared by whatever sends. A class takes no memory before its first event.
#[derive(Debug, Default)]
pub struct Lateness([Lock<Option<Box<Late>>>; StreamClass::ALL.len()]);

#[derive(Debug, Default)]
struct Late {
    durations: Durations,
    early: u64,
}

/// The lateness of one class in figures.
#[derive(Debug, Clone, PartialEq)]
pub struct LatenessSummary {
    /// The figures in milliseconds; what left before its deadline counts as 0.
    pub millis: Summary,
    /// Number of events that left before their deadline, within the pacer's rounding.
    pub early: u64,
    /// Events whose lateness was at most so many microseconds, in the order of the bounds that were requested.
    pub at_most: Vec<u64>,
    /// Their sum in seconds.
    pub sum: f64,
}

impl Lateness {
    /// Counts `events` events that were due `due` after some instant and left `sent` after it.
    pub fn record(&self, class: StreamClass, events: u32, due: Duration, sent: Duration) {
        let mut slot = self.slot(class);
        let late = slot.get_or_insert_default();
        late.durations.record_many(sent.saturating_sub(due), events);
        if sent < due {
            late.early += u64::from(events);
        }
    }

    /// The figures of a class, with how many events were at most as late as each of `bounds` (in microseconds);
    /// `None` when there was no event.
    #[must_use]
    pub fn summary(&self, class: StreamClass, bounds: &[u64]) -> Option<LatenessSummary> {
        let slot = self.slot(class);
        let late = slot.as_ref()?;
        let millis = late.durations.summary()?;
        let at_most = bounds.iter().map(|micros| late.durations.at_most(Duration::from_micros(*micros))).collect();
        Some(LatenessSummary { millis, early: late.early, at_most, sum: late.durations.total().as_secs_f64() })
    }

    fn slot(&self, class: StreamClass) -> MutexGuard<'_, Option<Box<Late>>> {
        let [recorded, fixed, instant, whole] = &self.0;
        let slot = match class {
            StreamClass::Recorded => recorded,
            StreamClass::Fixed => fixed,
            StreamClass::Instant => instant,
            StreamClass::Whole => whole,
        };
        // Counts are whole between any two statements.
        slot.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn classes_are_apart_and_the_early_are_counted() {
        let lateness = Lateness::default();
        assert_eq!(lateness.summary(StreamClass::Fixed, &[]), None);
        lateness.record(StreamClass::Fixed, 3, 10 * MS, 12 * MS);
        lateness.record(StreamClass::Fixed, 1, 20 * MS, 19 * MS);
        let summary = lateness.summary(StreamClass::Fixed, &[0, 1000, 2000]).unwrap();
        assert_eq!((summary.millis.count, summary.millis.min, summary.millis.max), (4, 0.0, 2.0));
        assert_eq!((summary.early, summary.at_most), (1, vec![1, 1, 4]));
        assert!((summary.sum - 0.006).abs() < 1e-9);
        assert_eq!(lateness.summary(StreamClass::Recorded, &[]), None);
    }
}
