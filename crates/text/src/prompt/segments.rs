//! Encodes a text segment by segment, and remembers the ids of segments.
//!
//! Special tokens cut a text before anything else looks at it, so what lies between two of them has the same ids wherever
//! it stands. A chat is such a text: its template puts special tokens around every message. A conversation that grew by a
//! turn costs a search for special tokens, one hash per old message, and the encoding of what is new.
//!
//! Limits: only for byte-level tokenizers whose special tokens take no white space with them; others encode whole texts.
//!
//! See docs/decisions/0018-segments-are-cached.md.

use std::{hash::BuildHasherDefault, sync::Arc};

use aho_corasick::{AhoCorasick, MatchKind};
use base::bounded_cache::BoundedCache;
use base::lock::Lock;
use tokenizers::{Result, Tokenizer, pre_tokenizers::PreTokenizerWrapper};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128_with_seed};

use super::pieces;

/// Shorter segments are encoded as fast as they are looked up.
const WORTH_REMEMBERING: usize = 32;

/// Splitter of texts into segments, and the ids of recent segments.
#[derive(Debug)]
pub(super) struct Segments {
    finder: AhoCorasick,
    /// The ids of the finder's patterns.
    specials: Vec<u32>,
    memory: Memory,
}

impl Segments {
    /// Creates the splitter of a tokenizer; `None` if segments cannot be found without its model.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        if !tokenizer.get_pre_tokenizer().is_some_and(is_the_same_everywhere) || tokenizer.get_encode_special_tokens() {
            return None;
        }
        let mut patterns = Vec::new();
        let mut specials = Vec::new();
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if token.lstrip || token.rstrip || token.single_word {
                return None;
            }
            if !token.normalized && !token.content.is_empty() {
                patterns.push(token.content.clone());
                specials.push(id);
            }
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns).ok()?;
        Some(Self { finder, specials, memory: Memory::of(BYTES) })
    }

    /// The ids of a text, without the special tokens that the tokenizer puts around texts.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = 0;
        for found in self.finder.find_iter(text) {
            pieces::check_cancelled()?;
            self.segment(tokenizer, text.get(rest..found.start()).unwrap_or_default(), &mut ids)?;
            ids.extend(self.specials.get(found.pattern().as_usize()));
            rest = found.end();
        }
        self.segment(tokenizer, text.get(rest..).unwrap_or_default(), &mut ids)?;
        Ok(ids)
    }

    fn segment(&self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if text.len() < WORTH_REMEMBERING {
            if !text.is_empty() {
                ids.extend_from_slice(tokenizer.encode_fast(text, false)?.get_ids());
            }
            return Ok(());
        }
        let key = self.memory.key(text);
        if let Some(known) = self.memory.recall(key) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let found = pieces::encode(tokenizer, text)?;
        ids.extend_from_slice(&found);
        self.memory.keep(key, found.into());
        Ok(())
    }
}

/// Returns true if a text is cut into words regardless of the text before it.
fn is_the_same_everywhere(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(byte_level) => !byte_level.add_prefix_space,
        PreTokenizerWrapper::Split(_) | PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().all(is_the_same_everywhere),
        _ => false,
    }
}

/// Maximum bytes that remembered ids take, bookkeeping included.
const BYTES: usize = 64 << 20;
/// Overhead of an entry besides its ids, in bytes.
const ENTRY: usize = 96;

/// The ids of texts, in a bounded amount of memory. Texts are known by a 128-bit hash with a secret seed, so that no client can
/// construct a collision; entries that were not used since half of the memory was filled again are evicted.
#[derive(Debug)]
struct Memory {
    seed: u64,
    texts: Lock<BoundedCache<u128, Arc<[u32]>, BuildHasherDefault<Xxh3Default>>>,
}

impl Memory {
    /// A memory of so many bytes; a text's ids take half of them at most.
    fn of(limit: usize) -> Self {
        Self { seed: rand::random(), texts: Lock::new(BoundedCache::new(limit, limit / 2)) }
    }

    fn key(&self, text: &str) -> u128 {
        xxh3_128_with_seed(text.as_bytes(), self.seed)
    }

    fn recall(&self, key: u128) -> Option<Arc<[u32]>> {
        self.texts.lock().get(&key).cloned()
    }

    fn keep(&self, key: u128, ids: Arc<[u32]>) {
        let bytes = size_of_val(ids.as_ref()) + ENTRY;
        self.texts.lock().insert(key, ids, bytes);
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
            assert!(memory.texts.lock().size() <= limit);
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
