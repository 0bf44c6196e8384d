//! Counts of the values that were redacted in a recording, by kind.
//!
//! Limits: a value counts once, as long as no more than [`MOST`] are known; beyond that it counts once for each record.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use xxhash_rust::xxh3::xxh3_64;

use recording::redaction::Seen;

/// Maximum number of values of which hashes are held.
const MOST: usize = 1 << 16;

/// Counts of redacted values.
#[derive(Debug, Default)]
pub(in crate::player) struct RedactedCounts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    hashes: HashSet<(Arc<str>, u64)>,
    counts: BTreeMap<Arc<str>, u64>,
}

impl RedactedCounts {
    /// Adds the values of a record.
    pub(in crate::player) fn add(&self, values: &Seen) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (placeholder, value) in values.values() {
            let hash = (Arc::clone(&placeholder.kind), xxh3_64(value.as_bytes()));
            let is_known = known.hashes.contains(&hash);
            if !is_known && known.hashes.len() < MOST {
                known.hashes.insert(hash);
            }
            if !is_known {
                *known.counts.entry(placeholder.kind).or_default() += 1;
            }
        }
    }

    /// The number of values of each kind.
    pub(in crate::player) fn by_kind(&self) -> BTreeMap<Arc<str>, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).counts.clone()
    }
}
