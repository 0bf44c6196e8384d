//! Remembers the ids of texts, in a bounded amount of memory.
//!
//! Texts are known by a 128-bit hash with a secret seed, so that nobody can send a text that passes for another one.
//! What was not asked for since half of the memory was filled anew is forgotten.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    sync::{Arc, Mutex, PoisonError},
};

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128_with_seed};

/// Most bytes that remembered ids take, bookkeeping included.
const BYTES: usize = 64 << 20;
/// What an entry costs beside its ids.
const ENTRY: usize = 96;

/// A bounded map from texts to their ids.
#[derive(Debug)]
pub(super) struct Memory {
    seed: u64,
    limit: usize,
    generations: Mutex<Generations>,
}

/// A text's name in a [`Memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

type Known = HashMap<Key, Arc<[u32]>, BuildHasherDefault<Xxh3Default>>;

#[derive(Debug, Default)]
struct Generations {
    young: Known,
    young_bytes: usize,
    old: Known,
}

impl Default for Memory {
    fn default() -> Self {
        Self { seed: rand::random(), limit: BYTES, generations: Mutex::default() }
    }
}

impl Memory {
    pub(super) fn key(&self, text: &str) -> Key {
        Key(xxh3_128_with_seed(text.as_bytes(), self.seed))
    }

    pub(super) fn recall(&self, key: Key) -> Option<Arc<[u32]>> {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = generations.young.get(&key) {
            return Some(Arc::clone(ids));
        }
        let ids = generations.old.remove(&key)?;
        generations.keep(key, Arc::clone(&ids), self.limit);
        Some(ids)
    }

    pub(super) fn keep(&self, key: Key, ids: Arc<[u32]>) {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner).keep(key, ids, self.limit);
    }
}

impl Generations {
    fn keep(&mut self, key: Key, ids: Arc<[u32]>, limit: usize) {
        let bytes = size_of_val(ids.as_ref()) + ENTRY;
        if bytes > limit / 2 {
            return;
        }
        if self.young_bytes + bytes > limit / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(key, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit: usize) -> Memory {
        Memory { limit, ..Memory::default() }
    }

    fn bytes(memory: &Memory) -> usize {
        let generations = memory.generations.lock().unwrap();
        let all = generations.young.values().chain(generations.old.values());
        all.map(|ids| size_of_val(ids.as_ref()) + ENTRY).sum()
    }

    #[test]
    fn what_was_kept_comes_back() {
        let memory = memory(1 << 20);
        memory.keep(memory.key("a"), Arc::from([1, 2]));
        assert_eq!(memory.recall(memory.key("a")).unwrap().as_ref(), [1, 2]);
        assert!(memory.recall(memory.key("b")).is_none());
    }

    #[test]
    fn it_stays_within_its_limit_and_keeps_what_is_asked_for() {
        let memory = memory(20 * (ENTRY + 4));
        memory.keep(memory.key("often"), Arc::from([7]));
        for number in 0..1000 {
            memory.keep(memory.key(&number.to_string()), Arc::from([number]));
            assert!(bytes(&memory) <= memory.limit);
            assert_eq!(memory.recall(memory.key("often")).unwrap().as_ref(), [7]);
        }
        assert!(memory.recall(memory.key("3")).is_none());
    }

    #[test]
    fn what_is_larger_than_the_memory_is_not_kept() {
        let memory = memory(100);
        memory.keep(memory.key("a"), vec![0; 1000].into());
        assert!(memory.recall(memory.key("a")).is_none());
    }
}
