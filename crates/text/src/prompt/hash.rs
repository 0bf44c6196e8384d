//! Chained hashes over blocks of prompt tokens.
//!
//! Each full block of `block_size` tokens folds the previous block's hash with its own ids, so one value names the whole
//! prefix up to there: two prompts share a hash exactly when they share every token before it. The bytes that are hashed
//! are the previous hash (8 bytes, little-endian; 0xcbf29ce484222325 before the first block) and then 4 bytes per id,
//! little-endian. That is the public vllm-vcr chain; what differs between the algorithms is only the hash itself.
//!
//! See docs/decisions/0003-prompt-hash-breaks-ties.md.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::HashKey;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// The algorithm of the chained prompt block hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum BlockHashAlgorithm {
    /// 64-bit FNV-1a: the public vllm-vcr hash, and the default where a trace names none.
    #[default]
    #[serde(rename = "fnv1a-64")]
    Fnv1a64,
    /// 64-bit xxh3: about ten times faster.
    #[serde(rename = "xxh3-64")]
    Xxh3_64,
    /// 64-bit SipHash-2-4 with a key: without it a hash cannot be linked to a prompt.
    #[serde(rename = "siphash-2-4-64")]
    SipHash24,
}

/// Hashes prompts block by block.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    algorithm: BlockHashAlgorithm,
    block_size: usize,
    /// For keyed algorithms; without it they hash nothing.
    key: Option<HashKey>,
}

/// Hashes of one prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptHashes {
    /// One chained hash per full block.
    pub blocks: Vec<u64>,
    /// The chain over the whole prompt: the last full block's hash folded with the tokens after it, or that hash itself
    /// where no token is left. `None` for an empty prompt.
    pub whole: Option<u64>,
}

impl BlockHasher {
    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// A hasher for blocks of `block_size` tokens; 0 counts as 1.
    #[must_use]
    pub fn new(algorithm: BlockHashAlgorithm, block_size: u32) -> Self {
        Self { algorithm, block_size: usize::try_from(block_size).unwrap_or(usize::MAX).max(1), key: None }
    }

    /// A hasher for blocks of `block_size` tokens whose hashes reveal nothing without the key.
    #[must_use]
    pub fn keyed(key: HashKey, block_size: u32) -> Self {
        Self { key: Some(key), ..Self::new(BlockHashAlgorithm::SipHash24, block_size) }
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.algorithm == BlockHashAlgorithm::SipHash24
    }

    /// Hashes anything but tokens, for one purpose; `None` where the key is missing.
    pub(super) fn hash_bytes(&self, purpose: &[u8], bytes: &[u8]) -> Option<u64> {
        if self.is_keyed() { self.key.as_ref().map(|key| key.hash(purpose, bytes)) } else { Some(xxh3_64(bytes)) }
    }

    /// Hashes a prompt. A keyed algorithm without its key gives nothing.
    #[must_use]
    pub fn hash(&self, ids: &[u32]) -> PromptHashes {
        if self.is_keyed() && self.key.is_none() {
            return PromptHashes::default();
        }
        let mut previous = FNV_OFFSET;
        let full = ids.chunks_exact(self.block_size);
        let tail = full.remainder();
        let mut bytes = Vec::with_capacity(8 + 4 * self.block_size.min(ids.len()));
        let mut blocks = Vec::with_capacity(ids.len() / self.block_size);
        for block in full {
            previous = self.fold(previous, block, &mut bytes);
            blocks.push(previous);
        }
        let whole = if tail.is_empty() { blocks.last().copied() } else { Some(self.fold(previous, tail, &mut bytes)) };
        PromptHashes { blocks, whole }
    }

    /// The chain over the first tokens of a prompt that was hashed, as the hash of the whole of so long a prompt; `None` where it is shorter.
    #[must_use]
    pub fn whole_of_first(&self, ids: &[u32], hashes: &PromptHashes, tokens: usize) -> Option<u64> {
        let full = tokens / self.block_size;
        let tail = ids.get(full * self.block_size..tokens)?;
        let previous = match full.checked_sub(1) {
            Some(last) => *hashes.blocks.get(last)?,
            None => FNV_OFFSET,
        };
        if tail.is_empty() {
            return (full > 0).then_some(previous);
        }
        hashes.whole?;
        Some(self.fold(previous, tail, &mut Vec::with_capacity(8 + 4 * tail.len())))
    }

    /// The hash of the full block of these ids after one with this hash; `None` without the key, or where they are no full block.
    #[must_use]
    pub fn block_after(&self, previous: u64, ids: &[u32]) -> Option<u64> {
        let is_known = ids.len() == self.block_size && (!self.is_keyed() || self.key.is_some());
        is_known.then(|| self.fold(previous, ids, &mut Vec::with_capacity(8 + 4 * ids.len())))
    }

    /// A request's canonical key as a trace holds it; with a keyed algorithm it reveals nothing without the key.
    #[must_use]
    pub fn request_key(&self, key: u128) -> Option<String> {
        if !self.is_keyed() {
            return Some(format!("xxh3:{key:032x}"));
        }
        self.key.as_ref().map(|secret| format!("siphash:{:016x}", secret.hash(b"request", &key.to_le_bytes())))
    }

    fn fold(&self, previous: u64, block: &[u32], bytes: &mut Vec<u8>) -> u64 {
        bytes.clear();
        bytes.extend_from_slice(&previous.to_le_bytes());
        for id in block {
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        match self.algorithm {
            BlockHashAlgorithm::Fnv1a64 => {
                bytes.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
            }
            BlockHashAlgorithm::Xxh3_64 => xxh3_64(bytes),
            BlockHashAlgorithm::SipHash24 => self.key.as_ref().map_or(0, |key| key.hash(b"block", bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tokens_of_a_prompt_hash_as_a_prompt_of_their_own() {
        let ids: Vec<u32> = (7..30).collect();
        let keyed = BlockHasher::keyed(HashKey::new(b"a key of some bytes"), 4);
        let plain = [BlockHashAlgorithm::Fnv1a64, BlockHashAlgorithm::Xxh3_64].map(|kind| BlockHasher::new(kind, 4));
        for hasher in plain.into_iter().chain([keyed]) {
            let hashes = hasher.hash(&ids);
            for tokens in 0..=ids.len() {
                let whole = hasher.hash(ids.get(..tokens).unwrap_or_default()).whole;
                assert_eq!(hasher.whole_of_first(&ids, &hashes, tokens), whole, "{tokens}");
            }
            assert_eq!(hasher.whole_of_first(&ids, &hashes, ids.len() + 1), None);
        }
    }

    /// The public algorithm, spelled out byte by byte as its specification has it.
    fn fnv_by_hand(ids: &[u32], block_size: usize) -> Vec<u64> {
        let mut previous: u64 = 0xcbf2_9ce4_8422_2325;
        let mut hashes = Vec::new();
        for block in ids.chunks_exact(block_size) {
            let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
            for byte in previous.to_le_bytes().into_iter().chain(block.iter().flat_map(|id| id.to_le_bytes())) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            hashes.push(hash);
            previous = hash;
        }
        hashes
    }

    #[test]
    fn fnv_is_the_public_hash() {
        let ids: Vec<u32> = (0..70).map(|n| n * 7 + 1).collect();
        assert_eq!(BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 16).hash(&ids).blocks, fnv_by_hand(&ids, 16));
    }

    #[test]
    fn a_shared_prefix_shares_hashes_and_a_changed_token_changes_all_after_it() {
        for algorithm in [BlockHashAlgorithm::Fnv1a64, BlockHashAlgorithm::Xxh3_64] {
            let hasher = BlockHasher::new(algorithm, 4);
            let one: Vec<u32> = (0..18).collect();
            let mut other = one.clone();
            other[9] = 99;
            let (one, other) = (hasher.hash(&one), hasher.hash(&other));
            assert_eq!(one.blocks[..2], other.blocks[..2]);
            assert!(one.blocks[2..].iter().zip(&other.blocks[2..]).all(|(a, b)| a != b));
            assert_ne!(one.whole, other.whole);
        }
    }

    #[test]
    fn keyed_hashes_need_the_key() {
        let ids: Vec<u32> = (0..40).collect();
        let hashed = |key: &[u8]| BlockHasher::keyed(HashKey::new(key), 16).hash(&ids);
        assert_eq!(hashed(b"a key"), hashed(b"a key"));
        assert_ne!(hashed(b"a key").blocks, hashed(b"b key").blocks);
        assert_eq!(hashed(b"a key").blocks.len(), 2);
        assert_eq!(BlockHasher::new(BlockHashAlgorithm::SipHash24, 16).hash(&ids), PromptHashes::default());
    }

    #[test]
    fn the_whole_hash_covers_the_partial_tail() {
        let hasher = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 4);
        assert_eq!(hasher.hash(&[]), PromptHashes::default());
        let exact = hasher.hash(&[1, 2, 3, 4]);
        assert_eq!(exact.whole, Some(exact.blocks[0]));
        assert_ne!(hasher.hash(&[1, 2, 3, 4, 5]).whole, hasher.hash(&[1, 2, 3, 4, 6]).whole);
    }
}
