//! Remembers the ids of texts, in a bounded amount of memory.
//!
//! Texts are known by a 128-bit hash with a secret seed, so that no client can construct a collision.
//! Entries that were not used since half of the memory was filled anew are evicted.

use std::{
    hash::BuildHasherDefault,
    sync::{Arc, Mutex, PoisonError},
};

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128_with_seed};

use base::bounded_cache::BoundedCache;

/// Most bytes that remembered ids take, bookkeeping included.
const BYTES: usize = 64 << 20;
/// Overhead of an entry besides its ids, in bytes.
const ENTRY: usize = 96;

/// A bounded map from texts to their ids.
#[derive(Debug)]
pub(super) struct Memory {
    seed: u64,
    texts: Mutex<BoundedCache<Key, Arc<[u32]>, BuildHasherDefault<Xxh3Default>>>,
}

/// A text's name in a [`Memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

impl Default for Memory {
    fn default() -> Self {
        Self::of(BYTES)
    }
}

impl Memory {
    /// A memory of so many bytes; a text's ids take half of them at most.
    fn of(limit: usize) -> Self {
        Self { seed: rand::random(), texts: Mutex::new(BoundedCache::new(limit, limit / 2)) }
    }

    pub(super) fn key(&self, text: &str) -> Key {
        Key(xxh3_128_with_seed(text.as_bytes(), self.seed))
    }

    pub(super) fn recall(&self, key: Key) -> Option<Arc<[u32]>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    pub(super) fn keep(&self, key: Key, ids: Arc<[u32]>) {
        let bytes = size_of_val(ids.as_ref()) + ENTRY;
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).insert(key, ids, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back() {
        let memory = Memory::of(1 << 20);
        memory.keep(memory.key("a"), Arc::from([1, 2]));
        assert_eq!(memory.recall(memory.key("a")).unwrap().as_ref(), [1, 2]);
        assert!(memory.recall(memory.key("b")).is_none());
    }

    #[test]
    fn it_stays_within_its_limit_and_keeps_what_is_asked_for() {
        let limit = 20 * (ENTRY + 4);
        let memory = Memory::of(limit);
        memory.keep(memory.key("often"), Arc::from([7]));
        for number in 0..1000 {
            memory.keep(memory.key(&number.to_string()), Arc::from([number]));
            assert!(memory.texts.lock().unwrap().size() <= limit);
            assert_eq!(memory.recall(memory.key("often")).unwrap().as_ref(), [7]);
        }
        assert!(memory.recall(memory.key("3")).is_none());
    }

    #[test]
    fn what_is_larger_than_the_memory_is_not_kept() {
        let memory = Memory::of(100);
        memory.keep(memory.key("a"), vec![0; 1000].into());
        assert!(memory.recall(memory.key("a")).is_none());
    }
}
