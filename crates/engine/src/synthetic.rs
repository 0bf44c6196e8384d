//! Tokens that no model made.
//!
//! Each id is made when it is needed. Random tokens never end: a caller takes a number of them.

use std::sync::Arc;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use text::prompt::WordTokens;

/// Key of one response's ids: equal keys give equal ids, whatever else the server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticKey {
    /// The server's seed.
    pub seed: u64,
    /// The request: its own `seed` field, its ordinal, or a hash of its prompt.
    pub request: u64,
    /// The choice's index in its request.
    pub choice: u32,
}

impl SyntheticKey {
    /// The random numbers of this answer.
    pub(super) fn generator(self) -> Xoshiro256PlusPlus {
        let mut bytes = [0; 12];
        let (request, choice) = bytes.split_at_mut(8);
        request.copy_from_slice(&self.request.to_le_bytes());
        choice.copy_from_slice(&self.choice.to_le_bytes());
        Xoshiro256PlusPlus::seed_from_u64(xxh3_64_with_seed(&bytes, self.seed))
    }

    /// The random numbers that decide on this answer's length, so that its words do not depend on it.
    #[must_use]
    pub fn lengths(self) -> Xoshiro256PlusPlus {
        Self { request: !self.request, ..self }.generator()
    }
}

/// Words drawn evenly, without end; none of an empty vocabulary. The first one begins a text.
#[derive(Debug, Clone)]
pub struct RandomTokens {
    generator: Xoshiro256PlusPlus,
    words: Arc<WordTokens>,
    begins: bool,
}

impl RandomTokens {
    /// Draws from [`Tokenizer::words`](text::prompt::Tokenizer::words).
    #[must_use]
    pub fn new(key: SyntheticKey, words: Arc<WordTokens>) -> Self {
        Self { generator: key.generator(), words, begins: true }
    }

    /// Returns true if there is nothing to draw from.
    pub(crate) fn is_empty(&self) -> bool {
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

/// Reasoning at the beginning of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntheticReasoning {
    /// Tokens before it.
    pub open: Vec<u32>,
    /// Number of tokens.
    pub tokens: usize,
    /// Tokens after it.
    pub close: Vec<u32>,
}

impl SyntheticReasoning {
    /// All tokens: the reasoning, and what follows it.
    #[must_use]
    pub fn before(self, words: RandomTokens, rest: Vec<u32>) -> Vec<u32> {
        [self.open, words.take(self.tokens).collect(), self.close, rest].concat()
    }
}

/// Text of a number of tokens, each made on demand.
#[derive(Debug, Clone)]
pub struct MadeUpText {
    words: RandomTokens,
    /// Most texts have none.
    reasoning: Option<Box<SyntheticReasoning>>,
    count: usize,
}

impl MadeUpText {
    /// A text of `count` tokens, its reasoning and the marks around that included; none of an empty vocabulary.
    #[must_use]
    pub fn new(words: RandomTokens, reasoning: Option<SyntheticReasoning>, count: usize) -> Self {
        let count = if words.is_empty() { 0 } else { count };
        Self { words, reasoning: reasoning.map(Box::new), count }
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if it has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Leaves it at most this many tokens.
    pub fn truncate(&mut self, most: usize) {
        self.count = self.count.min(most);
    }

    /// The token at a place; places are asked for in order.
    pub fn token(&mut self, at: usize) -> Option<u32> {
        if at >= self.count {
            return None;
        }
        let Some(SyntheticReasoning { open, tokens, close }) = self.reasoning.as_deref() else {
            return self.words.next();
        };
        if let Some(id) = open.get(at) {
            return Some(*id);
        }
        let behind = at.checked_sub(open.len().saturating_add(*tokens));
        match behind.and_then(|behind| close.get(behind)) {
            Some(id) => {
                self.words.begins = true;
                Some(*id)
            }
            None => self.words.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const KEY: SyntheticKey = SyntheticKey { seed: 7, request: 1, choice: 0 };

    fn ids(key: SyntheticKey) -> Vec<u32> {
        let words = WordTokens { first: (0..100).collect(), next: (100..200).collect() };
        RandomTokens::new(key, words.into()).take(64).collect()
    }

    #[test]
    fn equal_keys_give_equal_ids_and_each_part_of_a_key_counts() {
        assert_eq!(ids(KEY), ids(KEY));
        let keys = [
            KEY,
            SyntheticKey { seed: 8, ..KEY },
            SyntheticKey { request: 2, ..KEY },
            SyntheticKey { choice: 1, ..KEY },
        ];
        assert_eq!(keys.map(ids).iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn random_ids_are_pinned() {
        assert_eq!(
            ids(KEY)[..4],
            [25, 148, 197, 180],
            "an update of the generator must not change answers that users have"
        );
    }

    #[test]
    fn random_ids_are_drawn_from_the_whole_list_and_no_other() {
        let words = WordTokens { first: vec![1], next: vec![3, 5, 8] };
        let mut drawn = RandomTokens::new(KEY, words.into());
        assert_eq!(drawn.next(), Some(1));
        assert_eq!(drawn.take(200).collect::<HashSet<_>>(), HashSet::from([3, 5, 8]));
        let mut none = RandomTokens::new(KEY, Arc::default());
        assert!(none.is_empty() && none.next().is_none());
    }

    #[test]
    fn reasoning_stands_between_its_marks_and_a_text_begins_behind_it() {
        let words = RandomTokens::new(KEY, WordTokens { first: vec![1], next: vec![2] }.into());
        let reasoning = SyntheticReasoning { open: vec![10], tokens: 2, close: vec![20, 21] };
        let all = |mut text: MadeUpText| (0..).map_while(|at| text.token(at)).collect::<Vec<_>>();
        let text = MadeUpText::new(words.clone(), Some(reasoning.clone()), 8);
        assert_eq!((text.len(), all(text)), (8, vec![10, 1, 2, 20, 21, 1, 2, 2]));
        assert_eq!(all(MadeUpText::new(words.clone(), None, 3)), [1, 2, 2]);
        assert_eq!(reasoning.before(words, vec![7]), [10, 1, 2, 20, 21, 7]);
        assert!(MadeUpText::new(RandomTokens::new(KEY, Arc::default()), None, 3).is_empty());
    }
}
