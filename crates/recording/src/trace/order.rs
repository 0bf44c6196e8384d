//! The order in which a trace is replayed.

use std::time::Duration;

use super::Record;

/// Returns the key by which records are sorted, stably, into the order of their replay.
#[must_use]
pub fn replay_key(arrival: Option<Duration>) -> impl Ord {
    (arrival.is_none(), arrival)
}

/// Indices of `records` (in file order) by arrival; equal arrivals keep their file order, and records without an
/// arrival come last in file order. A record's place in this order is its index for both the recording and the
/// replaying side.
#[must_use]
pub fn replay_order(records: &[Record]) -> Vec<usize> {
    let mut order: Vec<(usize, &Record)> = records.iter().enumerate().collect();
    order.sort_by_key(|(_, record)| replay_key(record.arrival));
    order.into_iter().map(|(index, _)| index).collect()
}
