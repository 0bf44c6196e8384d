//! Which records a connection was served, and how often.

use std::collections::HashMap;

use super::record_index::RecordIndex;
use recording::canonical::Key;

/// Consumption of the records of an index.
#[derive(Debug, Default)]
pub(super) struct Consumption {
    /// The first requests that each record was served to, and how many there were.
    served_to: HashMap<usize, (Vec<u64>, u64)>,
    /// The place among the records of a key at which those begin that may be left.
    next: HashMap<Key, usize>,
}

/// Requests that are remembered for one record.
const MOST_REMEMBERED: usize = 10;

impl Consumption {
    /// The first record of a key that was not served yet.
    pub(super) fn next(&mut self, index: &RecordIndex, key: Key) -> Option<usize> {
        let records = index.of_key(key);
        let next = self.next.entry(key).or_default();
        while records.get(*next).is_some_and(|at| self.served_to.contains_key(at)) {
            *next += 1;
        }
        records.get(*next).copied()
    }

    /// Notes that a record was served to a request.
    pub(super) fn serve(&mut self, record: usize, request: u64) {
        let (served, count) = self.served_to.entry(record).or_default();
        *count += 1;
        if served.len() < MOST_REMEMBERED {
            served.push(request);
        }
    }

    /// Whether a record was served.
    #[must_use]
    pub(super) fn has_served(&self, record: usize) -> bool {
        self.served_to.contains_key(&record)
    }

    /// How many records were served.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.served_to.len()
    }

    /// The records that were served.
    pub(super) fn served(&self) -> impl Iterator<Item = usize> {
        self.served_to.keys().copied()
    }

    /// The records that were served, each with how often.
    pub(super) fn times(&self) -> impl Iterator<Item = (usize, u64)> {
        self.served_to.iter().map(|(at, (_, count))| (*at, *count))
    }

    /// The first requests that a record was served to.
    #[must_use]
    pub(super) fn served_to(&self, record: usize) -> &[u64] {
        self.served_to.get(&record).map(|(served, _)| served.as_slice()).unwrap_or_default()
    }
}
