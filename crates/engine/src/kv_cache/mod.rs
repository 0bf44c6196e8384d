//! The simulated KV cache: a pool of blocks, the prefix cache over them, and the events that it publishes.
//!
//! [`KvCacheManager`] allocates blocks for the tokens of a [`Sequence`], in vLLM's order: unused blocks first, then cached
//! ones that no sequence uses, the least recently used first and of one sequence its last block first. A full block is
//! cached under its [`BlockHash`] when its last token is scheduled, whether of a prompt or generated; blocks with the same
//! content are not merged, so block ids of a sequence never change. Source: `vllm/v1/core/{kv_cache_manager,block_pool,
//! kv_cache_utils,single_type_kv_cache_manager}.py` of vLLM 0.32.0.
//!
//! Limits: one group of full attention; no sliding windows, Mamba states, lookahead slots of speculative decoding, external
//! caches or hashes finer than a block. Block 0 is the null block, which is never handed out.

mod block_pool;
mod cached_blocks;
mod encode;
mod event;
mod free_queue;
mod hash;
mod manager;
mod residency;
mod sequence;

pub use event::{BlockStored, KvCacheEvent};
pub use hash::{BlockHash, HashAlgorithm, NONE_HASH_SEED};
pub use manager::{KvCacheConfig, KvCacheManager};
pub use residency::Eviction;
pub use sequence::{CountedSequence, LoraRequest, Sequence};

/// Number of a block in the pool, from 1 on; 0 is the null block.
pub type BlockId = u32;
