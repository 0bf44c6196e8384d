//! Allocation of blocks for sequences, and what that caches and evicts.

use std::time::Duration;

use super::{
    BlockId, BlockStored, HashAlgorithm, KvCacheEvent, Sequence,
    block_pool::BlockPool,
    event::UnpublishedEvent,
    hash::{KvBlockHasher, NONE_HASH_SEED},
    residency::{Eviction, Residency},
};

base::with_defaults! {
    /// Configuration of the KV cache, by the names of vLLM's flags.
    #[derive(Debug, Clone)]
    pub struct KvCacheConfig {
        /// Tokens per block.
        pub block_size: usize = 16,
        /// Blocks of the pool, the null block included.
        pub num_gpu_blocks: u32 = 1024,
        /// Whether full blocks are cached.
        pub enable_prefix_caching: bool = true,
        /// The hash of cached blocks.
        pub prefix_caching_hash_algo: HashAlgorithm,
        /// What the hash before the first block is taken of.
        pub none_hash_seed: String = NONE_HASH_SEED.to_owned(),
        /// Whether the last block of a cached prefix is computed again.
        pub drops_last_hit: bool,
        /// Whether events are kept for [`KvCacheManager::events`].
        pub enable_kv_cache_events: bool,
        /// Share of the blocks, above 0 and up to 1, whose evictions are kept for [`KvCacheManager::drain_evictions`]; `None` for none.
        pub kv_cache_metrics_sample: Option<f64>,
    }
}

/// Allocator of blocks with a prefix cache.
#[derive(Debug)]
pub struct KvCacheManager {
    pub(crate) config: KvCacheConfig,
    pool: BlockPool,
    hasher: KvBlockHasher,
    /// The cached blocks of the sequence that was looked up last.
    hits: Vec<BlockId>,
    events: Vec<UnpublishedEvent>,
    residency: Option<Residency>,
    /// Whether the cache was reset since the last step.
    was_reset: bool,
}

impl KvCacheManager {
    /// A manager of an empty cache. Sizes of 0 count as 1.
    pub(crate) fn new(config: KvCacheConfig) -> Self {
        let config = KvCacheConfig { block_size: config.block_size.max(1), ..config };
        Self {
            pool: BlockPool::new(config.num_gpu_blocks.max(1)),
            residency: config.kv_cache_metrics_sample.map(Residency::new),
            hasher: KvBlockHasher::new(config.prefix_caching_hash_algo, &config.none_hash_seed),
            config,
            hits: Vec::new(),
            events: Vec::new(),
            was_reset: false,
        }
    }

    /// Share of blocks in use, from 0 to 1.
    pub(crate) fn usage(&self) -> f64 {
        self.pool.usage()
    }

    /// Sets whether no block is free from now on, as if others had taken them: nothing is admitted, and what needs a block is preempted.
    pub fn set_exhausted(&mut self, is_exhausted: bool) {
        self.pool.is_exhausted = is_exhausted;
    }

    /// Finds the cached prefix of a sequence without blocks, for [`KvCacheManager::admit`]; gives its tokens. Its last token
    /// never counts, for it must be computed to sample the next one. Finds nothing where the cache is not read.
    pub(crate) fn get_computed_blocks(&mut self, sequence: &mut Sequence, reads: bool) -> usize {
        self.hits.clear();
        if reads && self.config.enable_prefix_caching {
            let block_size = self.config.block_size;
            for block in 0..sequence.num_tokens.saturating_sub(1) / block_size {
                let hash = sequence.block_hash(block, &mut self.hasher, block_size);
                let Some(cached) = self.pool.get_cached_block(&hash) else { break };
                self.hits.push(cached);
            }
            if self.config.drops_last_hit {
                self.hits.pop();
            }
        }
        self.hits.len() * self.config.block_size
    }

    /// Makes an event of the cached prefix that was found last, of a sequence.
    pub(crate) fn report_hits(&mut self, sequence: &Sequence) {
        if self.config.enable_kv_cache_events && !self.hits.is_empty() {
            self.events.push(UnpublishedEvent::Stored { sequence: sequence.number, first: 0, end: self.hits.len() });
        }
    }

    /// Gives a sequence the cached prefix that was found last and blocks up to `num_slots` places, of
    /// which `num_tokens` are filled. Does nothing and returns false unless these and all tokens that it has now would fit.
    pub fn admit(&mut self, sequence: &mut Sequence, num_tokens: usize, num_slots: usize) -> bool {
        if !self.fits(sequence.num_tokens.max(num_slots), 0) {
            return false;
        }
        self.take_hits(sequence);
        self.allocate_slots(sequence, num_tokens, num_slots)
    }

    /// Gives a sequence the cached prefix that was found last and blocks for all other tokens, which are cached by
    /// `settle`. Does nothing and returns false unless they fit and leave so many blocks free.
    pub(crate) fn admit_loaded(&mut self, sequence: &mut Sequence, reserved: usize) -> bool {
        if !self.fits(sequence.num_tokens, reserved) {
            return false;
        }
        self.take_hits(sequence);
        self.extend(sequence, sequence.num_tokens.div_ceil(self.config.block_size))
    }

    /// Whether so many tokens would fit with the cached prefix that was found last, and leave so many blocks free.
    fn fits(&self, num_tokens: usize, reserved: usize) -> bool {
        let required = num_tokens.div_ceil(self.config.block_size);
        let evictable = self.hits.iter().filter(|block| self.pool.is_free(**block)).count();
        required.saturating_sub(self.hits.len()) + evictable + reserved <= self.pool.num_free_blocks()
    }

    /// Gives a sequence the cached prefix that was found last.
    fn take_hits(&mut self, sequence: &mut Sequence) {
        for block in &self.hits {
            self.pool.touch(*block);
            self.residency.iter_mut().for_each(|residency| residency.hit(*block));
        }
        sequence.num_cached_blocks = self.hits.len();
        sequence.blocks.clear();
        sequence.blocks.append(&mut self.hits);
    }

    /// Gives a sequence blocks until it has so many; does nothing and returns false when there are too few.
    fn extend(&mut self, sequence: &mut Sequence, required: usize) -> bool {
        let lacking = required.saturating_sub(sequence.blocks.len());
        if lacking > self.pool.num_free_blocks() {
            return false;
        }
        for (block, evicted) in (0..lacking).map_while(|_| self.pool.get_new_block()) {
            sequence.blocks.push(block);
            self.residency.iter_mut().for_each(|residency| residency.take(block));
            if let Some(hash) = evicted.filter(|_| self.config.enable_kv_cache_events) {
                self.events.push(UnpublishedEvent::Removed(hash));
            }
        }
        true
    }

    /// Gives a sequence the blocks that it lacks to have `num_slots` places, of which `num_tokens` are filled, and caches those that
    /// this fills with tokens that it has. Does nothing and returns false when there are too few.
    pub(crate) fn allocate_slots(&mut self, sequence: &mut Sequence, num_tokens: usize, num_slots: usize) -> bool {
        let has_room = num_slots <= sequence.blocks.len() * self.config.block_size;
        if has_room && num_tokens <= sequence.settled_tokens {
            return true;
        }
        if !has_room && !self.extend(sequence, num_slots.div_ceil(self.config.block_size)) {
            return false;
        }
        self.settle(sequence, num_tokens.min(sequence.num_tokens));
        true
    }

    /// Caches the blocks of a sequence that so many tokens fill, and notes how far its blocks go.
    pub(crate) fn settle(&mut self, sequence: &mut Sequence, num_tokens: usize) {
        self.cache_blocks(sequence, num_tokens / self.config.block_size);
        sequence.settled_tokens = sequence.blocks.len() * self.config.block_size;
        if self.config.enable_prefix_caching {
            let next_full = (sequence.num_cached_blocks + 1) * self.config.block_size;
            sequence.settled_tokens = sequence.settled_tokens.min(next_full - 1);
        }
    }

    fn cache_blocks(&mut self, sequence: &mut Sequence, full_blocks: usize) {
        let first = sequence.num_cached_blocks;
        if full_blocks <= first || !self.config.enable_prefix_caching {
            return;
        }
        for at in first..full_blocks {
            let hash = sequence.block_hash(at, &mut self.hasher, self.config.block_size);
            if let Some(block) = sequence.blocks.get(at) {
                self.pool.cache(*block, hash);
            }
        }
        sequence.num_cached_blocks = full_blocks;
        if self.config.enable_kv_cache_events {
            self.events.push(UnpublishedEvent::Stored { sequence: sequence.number, first, end: full_blocks });
        }
    }

    /// Releases all blocks of a sequence; those that are cached stay so until they are reused.
    pub fn free(&mut self, sequence: &mut Sequence) {
        self.pool.free_blocks(&sequence.blocks);
        sequence.blocks.clear();
        sequence.num_cached_blocks = 0;
        sequence.settled_tokens = 0;
    }

    /// Forgets the prefix cache; does nothing and returns false while a sequence has blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let is_reset = self.pool.reset();
        self.residency.iter_mut().filter(|_| is_reset).for_each(Residency::reset);
        self.was_reset |= is_reset;
        is_reset
    }

    /// Sets the time that evictions are measured by, from any zero.
    pub fn set_now(&mut self, now: Duration) {
        self.residency.iter_mut().for_each(|residency| residency.now = now);
    }

    /// The evictions of sampled blocks since the last call.
    pub fn drain_evictions(&mut self) -> Vec<Eviction> {
        self.residency.as_mut().map(Residency::drain).unwrap_or_default()
    }

    /// The events since [`KvCacheManager::begin_step`], in order; `sequence` finds sequences by their numbers.
    pub fn events<'a>(&'a self, sequence: impl Fn(u32) -> &'a Sequence + 'a) -> impl Iterator<Item = KvCacheEvent<'a>> {
        self.events.iter().map(move |event| match *event {
            UnpublishedEvent::Removed(hash) => KvCacheEvent::BlockRemoved(hash),
            UnpublishedEvent::Cleared => KvCacheEvent::AllBlocksCleared,
            UnpublishedEvent::Stored { sequence: number, first, end } => {
                KvCacheEvent::BlockStored(BlockStored::new(sequence(number), first, end, self.config.block_size))
            }
        })
    }

    /// Forgets the events so far. A reset is the first event of the next step that has work, as in vLLM.
    pub fn begin_step(&mut self, has_work: bool) {
        self.events.clear();
        if has_work && std::mem::take(&mut self.was_reset) && self.config.enable_kv_cache_events {
            self.events.push(UnpublishedEvent::Cleared);
        }
    }
}
