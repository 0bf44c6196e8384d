//! A map of bounded size that evicts the entries that were not used lately.
//!
//! It has two generations. Entries that are inserted or looked up are in the young one; when that has filled half of the
//! limit it becomes the old one, and the entries of the previous old one are evicted. So no list of uses has to be kept.
//!
//! See docs/decisions/0045-libraries-that-are-not-used.md.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// A map of bounded size. Sizes are in bytes, as the caller counts them.
#[derive(Debug)]
pub struct BoundedCache<K, V, S> {
    limit: usize,
    largest: usize,
    young: HashMap<K, CachedValue<V>, S>,
    young_bytes: usize,
    old: HashMap<K, CachedValue<V>, S>,
}

#[derive(Debug)]
struct CachedValue<V> {
    value: V,
    bytes: usize,
}

impl<K: Eq + Hash + Clone, V, S: BuildHasher + Default> BoundedCache<K, V, S> {
    /// Builds an empty map of at most `limit` bytes that accepts entries of up to `largest` bytes (at most half of `limit`).
    #[must_use]
    pub fn new(limit: usize, largest: usize) -> Self {
        debug_assert!(largest <= limit / 2, "invariant: an entry fits into one generation");
        Self { limit, largest, young: HashMap::default(), young_bytes: 0, old: HashMap::default() }
    }

    /// Looks up a key and moves its entry to the young generation.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        if !self.young.contains_key(key) {
            let CachedValue { value, bytes } = self.old.remove(key)?;
            self.insert(key.clone(), value, bytes);
        }
        self.young.get(key).map(|entry| &entry.value)
    }

    /// Inserts a value of `bytes` bytes, unless it is larger than an entry may be.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.largest {
            return;
        }
        if self.young_bytes + bytes > self.limit / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        let before = self.young.insert(key, CachedValue { value, bytes }).map_or(0, |before| before.bytes);
        self.young_bytes = self.young_bytes + bytes - before;
    }

    /// Returns the sum of all entries in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.young.values().chain(self.old.values()).map(|entry| entry.bytes).sum()
    }
}
