//! The tokens of a request and the blocks that hold their keys and values.

use std::sync::Arc;

use super::{BlockHash, BlockId, hash::KvBlockHasher};

/// A LoRA adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraRequest {
    /// Its number, from 1 on.
    pub lora_int_id: u32,
    /// Its name.
    pub lora_name: String,
    /// Where its weights are; part of block hashes.
    pub lora_path: String,
}

/// A request of which only counts are known, and hashes in place of token ids.
#[derive(Debug, Clone, Default)]
pub struct CountedSequence {
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens that will be sampled.
    pub output_tokens: usize,
    /// Of each full block of both, in order. Each names its block and all before it.
    pub block_hashes: Vec<BlockHash>,
}

/// Token ids of a prompt and of all that will be sampled after it, of which some exist so far.
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    /// By which events know it.
    pub(crate) number: u32,
    /// Empty where they are only counted.
    tokens: Vec<u32>,
    /// Number of tokens once all are sampled.
    pub(crate) planned_tokens: usize,
    pub(crate) num_prompt_tokens: usize,
    /// Number of tokens of the prompt and of those sampled so far.
    pub(crate) num_tokens: usize,
    pub(crate) lora: Option<Arc<LoraRequest>>,
    pub(crate) cache_salt: Option<String>,
    /// The session, by its name.
    pub(crate) session_id: Option<String>,
    block_hashes: Vec<BlockHash>,
    /// Number of blocks, from the first on, that are cached.
    pub(super) num_cached_blocks: usize,
    /// The blocks allocated so far, in the order of their tokens.
    pub(crate) blocks: Vec<BlockId>,
    /// Number of tokens up to which these blocks suffice and no other one becomes full.
    pub(super) settled_tokens: usize,
}

/// Inputs of a block hash besides tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ExtraKeys<'a> {
    pub(super) lora: Option<&'a LoraRequest>,
    /// Of a sequence's first block only.
    pub(super) cache_salt: Option<&'a str>,
}

/// A key by the texts that are hashed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtraKey<'a> {
    source: &'static str,
    pub(super) value: &'a str,
    more: Option<&'a str>,
}

impl<'a> ExtraKeys<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = ExtraKey<'a>> {
        let of_lora = |lora: &'a LoraRequest| (lora.lora_name.as_str(), Some(lora.lora_path.as_str()));
        let lora = self.lora.map(of_lora).map(|(value, more)| ExtraKey { source: "lora", value, more });
        let salt = self.cache_salt.map(|value| ExtraKey { source: "cache_salt", value, more: None });
        lora.into_iter().chain(salt)
    }
}

impl<'a> ExtraKey<'a> {
    pub(super) fn parts(self) -> impl Iterator<Item = &'a str> {
        [self.source, self.value].into_iter().chain(self.more)
    }
}

impl Sequence {
    /// A sequence of a prompt after which `output` will be sampled.
    pub(crate) fn new(prompt: Vec<u32>, output: &[u32]) -> Self {
        let num_prompt_tokens = prompt.len();
        let mut tokens = prompt;
        tokens.extend_from_slice(output);
        let planned_tokens = tokens.len();
        Self { tokens, planned_tokens, num_prompt_tokens, num_tokens: num_prompt_tokens, ..Self::default() }
    }

    /// A sequence without token ids; what it samples is 0. Its events have no tokens either.
    pub(crate) fn counted(counted: CountedSequence) -> Self {
        let CountedSequence { prompt_tokens, output_tokens, block_hashes } = counted;
        let planned_tokens = prompt_tokens + output_tokens;
        let num_prompt_tokens = prompt_tokens;
        Self { planned_tokens, num_prompt_tokens, num_tokens: prompt_tokens, block_hashes, ..Self::default() }
    }

    /// Samples the next token; `None` where none is left.
    pub fn sample(&mut self) -> Option<u32> {
        if self.num_tokens >= self.planned_tokens {
            return None;
        }
        let token = self.tokens.get(self.num_tokens).copied().unwrap_or_default();
        self.num_tokens += 1;
        Some(token)
    }

    /// The tokens of blocks `first..end`.
    pub(super) fn tokens(&self, first: usize, end: usize, block_size: usize) -> &[u32] {
        self.tokens.get(first * block_size..end * block_size).unwrap_or_default()
    }

    /// The hashes of blocks `first..end`, as far as they were computed.
    pub(super) fn hashes(&self, first: usize, end: usize) -> &[BlockHash] {
        self.block_hashes.get(first..end).unwrap_or_default()
    }

    pub(super) fn extra_keys(&self, block: usize) -> ExtraKeys<'_> {
        let cache_salt = self.cache_salt.as_deref().filter(|_| block == 0);
        ExtraKeys { lora: self.lora.as_deref(), cache_salt }
    }

    /// The hash of a full block, computed once, and after those of all blocks before it.
    pub(super) fn block_hash(&mut self, block: usize, hasher: &mut KvBlockHasher, block_size: usize) -> BlockHash {
        while self.block_hashes.len() <= block {
            let at = self.block_hashes.len();
            let hash = hasher.hash(self.block_hashes.last(), self.tokens(at, at + 1, block_size), &self.extra_keys(at));
            self.block_hashes.push(hash);
        }
        self.block_hashes.get(block).copied().unwrap_or_default()
    }
}
