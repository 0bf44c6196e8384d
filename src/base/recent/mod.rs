//! A map that takes a bounded amount of memory and forgets what nobody asks for.
//!
//! It has two generations. What is kept, and what is asked for, is in the young one; when that has filled half of the
//! limit it becomes the old one, and what was old is forgotten.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// A map that forgets. Sizes are in bytes, as its owner counts them.
#[derive(Debug)]
pub struct Recent<K, V, S> {
    limit: usize,
    largest: usize,
    young: HashMap<K, Entry<V>, S>,
    young_bytes: usize,
    old: HashMap<K, Entry<V>, S>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
}

impl<K: Eq + Hash + Clone, V, S: BuildHasher + Default> Recent<K, V, S> {
    /// An empty map of at most `limit` bytes, which keeps no entry of more than `largest`: at most half of the limit.
    #[must_use]
    pub fn new(limit: usize, largest: usize) -> Self {
        Self { limit, largest, young: HashMap::default(), young_bytes: 0, old: HashMap::default() }
    }

    /// What is kept under a key; it stays young.
    pub fn recall(&mut self, key: &K) -> Option<&V> {
        if !self.young.contains_key(key) {
            let Entry { value, bytes } = self.old.remove(key)?;
            self.keep(key.clone(), value, bytes);
        }
        self.young.get(key).map(|entry| &entry.value)
    }

    /// Keeps a value of so many bytes, unless it is too large.
    pub fn keep(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.largest {
            return;
        }
        if self.young_bytes + bytes > self.limit / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        let before = self.young.insert(key, Entry { value, bytes }).map_or(0, |before| before.bytes);
        self.young_bytes = self.young_bytes + bytes - before;
    }

    /// Bytes of all that is kept.
    #[must_use]
    pub fn size(&self) -> usize {
        self.young.values().chain(self.old.values()).map(|entry| entry.bytes).sum()
    }
}
