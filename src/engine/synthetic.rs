//! Tokens that no model made.
//!
//! Both kinds are lazy iterators over ids. The caller takes as many as it wants, and has to have a number, for random
//! tokens never end.

use std::sync::Arc;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::prompt::Words;

/// What the ids of one answer depend on: equal keys give equal ids, whatever else the server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The server's seed.
    pub seed: u64,
    /// The request: its own `seed` field, its ordinal, or a hash of its prompt.
    pub request: u64,
    /// The choice's index in its request.
    pub choice: u32,
}

impl Key {
    /// The random numbers of this answer.
    pub(super) fn generator(self) -> Xoshiro256PlusPlus {
        let mut bytes = [0; 12];
        let (request, choice) = bytes.split_at_mut(8);
        request.copy_from_slice(&self.request.to_le_bytes());
        choice.copy_from_slice(&self.choice.to_le_bytes());
        Xoshiro256PlusPlus::seed_from_u64(xxh3_64_with_seed(&bytes, self.seed))
    }
}

/// Words drawn evenly, without end; none of an empty vocabulary. The first one begins a text.
#[derive(Debug, Clone)]
pub struct RandomTokens {
    generator: Xoshiro256PlusPlus,
    words: Arc<Words>,
    begins: bool,
}

impl RandomTokens {
    /// Draws from [`Tokenizer::words`](crate::prompt::Tokenizer::words).
    #[must_use]
    pub fn new(key: Key, words: Arc<Words>) -> Self {
        Self { generator: key.generator(), words, begins: true }
    }

    /// Whether there is anything to draw from.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.first.is_empty() || self.words.next.is_empty()
    }
}

impl Iterator for RandomTokens {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let ids = if std::mem::take(&mut self.begins) { &self.words.first } else { &self.words.next };
        let at = if ids.is_empty() { 0 } else { self.generator.random_range(0..ids.len()) };
        ids.get(at).copied()
    }
}

/// How often an echo says what it heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Once: the answer stops by itself.
    Once,
    /// Round and round until the caller's limit: for `ignore_eos`.
    Forever,
}

/// The prompt's own ids in order; none of an empty prompt.
#[derive(Debug, Clone)]
pub struct Echo<Ids> {
    ids: Ids,
    next: usize,
    repeat: Repeat,
}

impl<Ids: AsRef<[u32]>> Echo<Ids> {
    /// Gives `ids` back.
    #[must_use]
    pub fn new(ids: Ids, repeat: Repeat) -> Self {
        Self { ids, next: 0, repeat }
    }
}

impl<Ids: AsRef<[u32]>> Iterator for Echo<Ids> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let ids = self.ids.as_ref();
        if self.repeat == Repeat::Forever && self.next == ids.len() {
            self.next = 0;
        }
        let id = ids.get(self.next).copied()?;
        self.next += 1;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const KEY: Key = Key { seed: 7, request: 1, choice: 0 };

    fn ids(key: Key) -> Vec<u32> {
        let words = Words { first: (0..100).collect(), next: (100..200).collect() };
        RandomTokens::new(key, words.into()).take(64).collect()
    }

    #[test]
    fn equal_keys_give_equal_ids_and_each_part_of_a_key_counts() {
        assert_eq!(ids(KEY), ids(KEY));
        let keys = [KEY, Key { seed: 8, ..KEY }, Key { request: 2, ..KEY }, Key { choice: 1, ..KEY }];
        assert_eq!(keys.map(ids).iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn random_ids_are_pinned() {
        assert_eq!(ids(KEY)[..4], [25, 148, 197, 180], "an update of the generator must not change what users saw");
    }

    #[test]
    fn random_ids_are_drawn_from_the_whole_list_and_no_other() {
        let words = Words { first: vec![1], next: vec![3, 5, 8] };
        let mut drawn = RandomTokens::new(KEY, words.into());
        assert_eq!(drawn.next(), Some(1));
        assert_eq!(drawn.take(200).collect::<HashSet<_>>(), HashSet::from([3, 5, 8]));
        let mut none = RandomTokens::new(KEY, Arc::default());
        assert!(none.is_empty() && none.next().is_none());
    }

    #[test]
    fn an_echo_stops_or_goes_round() {
        let prompt: Arc<[u32]> = Arc::new([1, 2, 3]);
        let once = Echo::new(Arc::clone(&prompt), Repeat::Once);
        assert_eq!(once.collect::<Vec<_>>(), [1, 2, 3]);
        let round = Echo::new(prompt, Repeat::Forever);
        assert_eq!(round.take(7).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(Echo::new([], Repeat::Forever).next(), None);
    }
}
