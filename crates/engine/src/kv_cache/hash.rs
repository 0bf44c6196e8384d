//! Chained hashes of full blocks, byte for byte vLLM's.
//!
//! A hash covers its block's tokens, what else decides about their keys and values (LoRA adapter, cache salt), and the hash
//! of the block before, so that it names the whole prefix. Before the first block there is the none hash, a hash of a seed:
//! `PYTHONHASHSEED` where it is set, else [`NONE_HASH_SEED`] (and a random one for xxhash).

use std::{fmt, hash::Hasher};

use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_128;

use super::{
    encode::{cbor_block, cbor_text, pickle_block, pickle_text},
    sequence::ExtraKeys,
};

/// The seed of the none hash that vLLM takes with SHA-256 where `PYTHONHASHSEED` is not set.
pub const NONE_HASH_SEED: &str = "vllm-none-hash";

base::named! {
    /// Value of vLLM's `--prefix-caching-hash-algo`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum HashAlgorithm {
        /// SHA-256 of a pickle.
        #[default]
        Sha256 = "sha256",
        /// SHA-256 of CBOR.
        Sha256Cbor = "sha256_cbor",
        /// xxh3 with 128 bits of a pickle.
        Xxhash = "xxhash",
        /// xxh3 with 128 bits of CBOR.
        XxhashCbor = "xxhash_cbor",
    }
}

impl HashAlgorithm {
    fn is_cbor(self) -> bool {
        matches!(self, Self::Sha256Cbor | Self::XxhashCbor)
    }

    fn is_xxhash(self) -> bool {
        matches!(self, Self::Xxhash | Self::XxhashCbor)
    }
}

/// Hash of a block and all before it: 32 bytes, or 16 behind as many zeros.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// The number in KV events: the hash's last 8 bytes, big-endian.
    #[must_use]
    pub fn external(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The hash whose [`BlockHash::external`] this is, with zeros before it: for blocks whose tokens are not known.
    #[must_use]
    pub fn of_external(external: u64) -> Self {
        Self::right(&external.to_be_bytes())
    }

    /// The bytes that an algorithm gives.
    pub(crate) fn digest(&self, algorithm: HashAlgorithm) -> &[u8] {
        if algorithm.is_xxhash() { self.0.split_at(16).1 } else { &self.0 }
    }

    /// Bytes at the end, zeros before them.
    fn right(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.iter_mut().rev().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from);
        Self(hash)
    }
}

impl std::hash::Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.external());
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Hashes blocks one after the other.
#[derive(Debug)]
pub(super) struct KvBlockHasher {
    algorithm: HashAlgorithm,
    none_hash: BlockHash,
    encoded: Vec<u8>,
}

impl KvBlockHasher {
    pub(super) fn new(algorithm: HashAlgorithm, none_hash_seed: &str) -> Self {
        let mut encoded = Vec::new();
        let encode = if algorithm.is_cbor() { cbor_text } else { pickle_text };
        encode(&mut encoded, none_hash_seed);
        Self { algorithm, none_hash: digest(algorithm, &encoded), encoded }
    }

    /// Hashes a full block; `parent` is the hash of the block before it.
    pub(super) fn hash(&mut self, parent: Option<&BlockHash>, tokens: &[u32], keys: &ExtraKeys) -> BlockHash {
        let parent = parent.unwrap_or(&self.none_hash).digest(self.algorithm);
        self.encoded.clear();
        if self.algorithm.is_cbor() {
            cbor_block(&mut self.encoded, parent, tokens, keys);
        } else {
            pickle_block(&mut self.encoded, parent, tokens, keys);
        }
        digest(self.algorithm, &self.encoded)
    }
}

fn digest(algorithm: HashAlgorithm, bytes: &[u8]) -> BlockHash {
    if algorithm.is_xxhash() {
        BlockHash::right(&xxh3_128(bytes).to_be_bytes())
    } else {
        BlockHash::right(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::LoraRequest;

    /// A chain of blocks with tokens of all widths, a long salt and an adapter; the numbers are those of Python's
    /// `pickle.dumps(…, protocol=5)` and `cbor2.dumps(…, canonical=True)` under `hashlib.sha256` and `xxhash`.
    #[test]
    fn hashes_are_pythons() {
        let lora = LoraRequest { lora_int_id: 1, lora_name: "adapter-1".to_owned(), lora_path: "/none".to_owned() };
        let salt = "é".repeat(200);
        let none = ExtraKeys::default();
        let blocks: [(&[u32], ExtraKeys<'_>); 4] = [
            (&[1], none),
            (
                &[24, 255, 256, 65_535, 65_536, 0x7fff_ffff, 0x8000_0000, u32::MAX],
                ExtraKeys { lora: Some(&lora), cache_salt: Some(&salt) },
            ),
            (&[1, 2], ExtraKeys { cache_salt: Some("a"), ..none }),
            (&[1, 2, 3], none),
        ];
        let cases = [
            (
                HashAlgorithm::Sha256,
                [12466796630403248834, 4997104047031912110, 10865121835557800322, 11902702834035795810],
            ),
            (
                HashAlgorithm::Sha256Cbor,
                [10770410404746678416, 9189169478593820418, 15200729635155364670, 7875537865941266175],
            ),
            (
                HashAlgorithm::Xxhash,
                [6557642737496228375, 11698736431149862022, 7698984448259767336, 9201059862228913390],
            ),
            (
                HashAlgorithm::XxhashCbor,
                [18037987924263012280, 11428063975821518203, 3402758187116041747, 8469041462830366979],
            ),
        ];
        for (algorithm, expected) in cases {
            let mut hasher = KvBlockHasher::new(algorithm, "0");
            let mut parent = None;
            let found = blocks.map(|(tokens, keys)| {
                let hash = hasher.hash(parent.as_ref(), tokens, &keys);
                parent = Some(hash);
                hash.external()
            });
            assert_eq!(found, expected, "{algorithm:?}");
        }
    }
}
