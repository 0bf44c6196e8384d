//! KV cache events: what a subscriber needs to know which prefixes are cached.

use super::{BlockHash, LoraRequest, Sequence, sequence::ExtraKeys};

/// A change of the prefix cache.
#[derive(Debug, Clone, Copy)]
pub enum KvCacheEvent<'a> {
    /// Blocks were cached.
    BlockStored(BlockStored<'a>),
    /// A block was evicted that was cached under a hash. Other blocks may be cached under it too.
    BlockRemoved(BlockHash),
    /// All blocks were forgotten.
    AllBlocksCleared,
}

/// Consecutive blocks of a sequence that were cached.
#[derive(Debug, Clone, Copy)]
pub struct BlockStored<'a> {
    /// Hash of each block.
    pub block_hashes: &'a [BlockHash],
    /// Hash of the block before them; `None` at the start of a sequence.
    pub parent_block_hash: Option<&'a BlockHash>,
    /// Their tokens.
    pub token_ids: &'a [u32],
    /// Tokens per block.
    pub block_size: usize,
    /// The sequence's adapter.
    pub lora: Option<&'a LoraRequest>,
    /// The sequence's session.
    pub session_id: Option<&'a str>,
    keys: ExtraKeys<'a>,
}

/// An event as it is kept until it is published: blocks by their sequence and place in it.
#[derive(Debug, Clone, Copy)]
pub(super) enum UnpublishedEvent {
    Stored { sequence: u32, first: usize, end: usize },
    Removed(BlockHash),
    Cleared,
}

impl<'a> BlockStored<'a> {
    pub(super) fn new(sequence: &'a Sequence, first: usize, end: usize, block_size: usize) -> Self {
        Self {
            block_hashes: sequence.hashes(first, end),
            parent_block_hash: first.checked_sub(1).and_then(|before| sequence.hashes(before, first).first()),
            token_ids: sequence.tokens(first, end, block_size),
            block_size,
            lora: sequence.lora.as_deref(),
            session_id: sequence.session_id.as_deref(),
            keys: sequence.extra_keys(first),
        }
    }

    /// What the hash of one of the blocks covers besides tokens: the adapter's name, then the cache salt.
    pub fn extra_keys(&self, block: usize) -> impl Iterator<Item = &'a str> {
        let keys = ExtraKeys { cache_salt: self.keys.cache_salt.filter(|_| block == 0), ..self.keys };
        keys.iter().map(|key| key.value)
    }
}
