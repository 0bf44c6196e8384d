//! Records whose whole prompt another prompt begins with: those whose answer it may continue.
//!
//! A prompt of `n` tokens is found by the chained hash of its last full block and then by that of all of it, so that a longer prompt looks
//! at one entry for each of its blocks, and hashes only beginnings as long as a recorded prompt that shares its full blocks.
//!
//! Limits: records without a hash of their whole prompt take no part; the tokens behind it are for the caller to compare.

use std::{collections::HashMap, ops::Range};

use base::hash_is_key::BuildHashIsKey;

use super::Keys;

/// A record whose whole prompt another one begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunRecord {
    /// Its index.
    pub record: usize,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
}

#[derive(Debug, Default)]
pub(super) struct PromptEnds {
    /// In order.
    ends: Box<[PromptEnd]>,
    /// The ends behind each last full block.
    of_chain: HashMap<u64, Range<usize>, BuildHashIsKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PromptEnd {
    /// Hash of the last full block; the salt alone where there is none.
    chain: u64,
    tokens: u32,
    whole: u64,
    record: u32,
}

impl PromptEnds {
    /// Of servable records by their number, with the salts of their models.
    pub(super) fn new<'a>(servable: impl Iterator<Item = (u32, Keys<'a>, u64)>) -> Self {
        let end = |(record, keys, salt): (u32, Keys<'a>, u64)| {
            let chain = keys.chain.last().copied().unwrap_or(0) ^ salt;
            Some(PromptEnd { chain, tokens: keys.prompt_tokens, whole: keys.prompt_hash? ^ salt, record })
        };
        let mut ends: Vec<PromptEnd> = servable.filter_map(end).collect();
        ends.sort_unstable();
        let mut of_chain: HashMap<u64, Range<usize>, BuildHashIsKey> = HashMap::default();
        for (at, end) in ends.iter().enumerate() {
            of_chain.entry(end.chain).or_insert(at..at).end = at + 1;
        }
        Self { ends: ends.into(), of_chain }
    }

    /// The records whose prompts a prompt of these blocks begins with, longest first. `whole` hashes so many of its first tokens.
    pub(super) fn begun<'a>(
        &'a self,
        blocks: &'a [u64],
        salt: u64,
        whole: impl Fn(usize) -> Option<u64> + 'a,
    ) -> impl Iterator<Item = BegunRecord> + 'a {
        let chains = blocks.iter().rev().copied().chain([0]);
        let behind = move |chain: u64| self.of_chain.get(&(chain ^ salt)).and_then(|at| self.ends.get(at.clone()));
        chains.filter_map(behind).flat_map(move |ends| self::equal(ends, &whole, salt))
    }
}

/// Those of the ends behind one block that are the same prompt, longest first.
fn equal(mut ends: &[PromptEnd], whole: &impl Fn(usize) -> Option<u64>, salt: u64) -> Vec<BegunRecord> {
    let mut found = Vec::new();
    while let Some(last) = ends.last() {
        let start = ends.partition_point(|end| end.tokens < last.tokens);
        let (shorter, same) = ends.split_at_checked(start).unwrap_or_default();
        let prompt_tokens = last.tokens as usize;
        if let Some(hash) = whole(prompt_tokens).map(|hash| hash ^ salt) {
            let from = same.partition_point(|end| end.whole < hash);
            let equal = same.iter().skip(from).take_while(|end| end.whole == hash);
            found.extend(equal.map(|end| BegunRecord { record: end.record as usize, prompt_tokens }));
        }
        ends = shorter;
    }
    found
}
