//! Tries of requests that failed apart from any record, and that their clients may send again: such a retry is none to the records.

use std::collections::hash_map::RandomState;

use base::bounded_cache::BoundedCache;

/// Bytes that there are for such requests; the least recent are forgotten.
const MOST_BYTES: usize = 1 << 20;

/// Bytes of one of them, with its share of the table.
const ENTRY: usize = 64;

base::with_defaults! {
    /// Requests that failed, by a hash, and how many equal ones are to be tried again.
    #[derive(Debug)]
    pub struct FailedTries {
        counts: BoundedCache<u128, u64, RandomState> = BoundedCache::new(MOST_BYTES, ENTRY),
    }
}

impl FailedTries {
    /// Notes that a request failed, which may itself be a retry of one that did.
    pub fn add(&mut self, request: u128, is_retry: bool) {
        let count = self.counts.get(&request).copied().unwrap_or(0);
        self.counts.insert(request, if is_retry { count.max(1) } else { count + 1 }, ENTRY);
    }

    /// Returns whether a retry is one of a request that failed, which it no longer waits for then.
    pub fn take(&mut self, request: u128) -> bool {
        let count = self.counts.get(&request).copied().unwrap_or(0);
        self.counts.insert(request, count.saturating_sub(1), ENTRY);
        count > 0
    }
}
