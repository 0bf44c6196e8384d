//! The pool of blocks: who uses them, which are free, which are cached.

#![allow(clippy::indexing_slicing)] // ids of blocks come from the pool itself

use super::{BlockHash, BlockId, cached_blocks::CachedBlocks, free_queue::FreeBlockQueue};

/// Blocks with their reference counts and hashes. A block whose count is 0 is free, and stays cached until it is reused.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<KvBlock>,
    free: FreeBlockQueue,
    cached: CachedBlocks,
    /// Whether none counts as free, and all of them as in use.
    pub(super) is_exhausted: bool,
}

#[derive(Debug, Clone, Default)]
struct KvBlock {
    ref_cnt: u32,
    block_hash: Option<BlockHash>,
}

impl BlockPool {
    /// A pool of `num_gpu_blocks`, the first of which is the null block.
    pub(super) fn new(num_gpu_blocks: u32) -> Self {
        let mut free = FreeBlockQueue::new(num_gpu_blocks);
        free.pop_first();
        Self {
            blocks: vec![KvBlock::default(); num_gpu_blocks as usize],
            free,
            cached: CachedBlocks::new(num_gpu_blocks),
            is_exhausted: false,
        }
    }

    /// Number of blocks that no sequence uses, cached ones included.
    pub(super) fn num_free_blocks(&self) -> usize {
        if self.is_exhausted { 0 } else { self.free.len() }
    }

    /// Share of blocks in use, from 0 to 1.
    pub(super) fn usage(&self) -> f64 {
        match self.blocks.len() - 1 {
            _ if self.is_exhausted => 1.0,
            0 => 0.0,
            usable => 1.0 - self.free.len() as f64 / usable as f64,
        }
    }

    pub(super) fn get_cached_block(&self, hash: &BlockHash) -> Option<BlockId> {
        self.cached.get_one_block(hash)
    }

    /// Returns whether no sequence uses a block, so that using it takes it from the free ones.
    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.blocks[block as usize].ref_cnt == 0
    }

    /// Uses a cached block once more.
    pub(super) fn touch(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        if entry.ref_cnt == 0 {
            self.free.remove(block);
        }
        entry.ref_cnt += 1;
    }

    /// Takes the next free block, evicted from the cache, with the hash it was cached under.
    pub(super) fn get_new_block(&mut self) -> Option<(BlockId, Option<BlockHash>)> {
        let block = self.free.pop_first()?;
        let entry = &mut self.blocks[block as usize];
        entry.ref_cnt += 1;
        let evicted = entry.block_hash.take();
        if let Some(hash) = &evicted {
            self.cached.pop(hash, block);
        }
        Some((block, evicted))
    }

    pub(super) fn cache(&mut self, block: BlockId, hash: BlockHash) {
        self.blocks[block as usize].block_hash = Some(hash);
        self.cached.insert(hash, block);
    }

    /// Forgets what the blocks hold; does nothing and returns false while any is in use.
    pub(super) fn reset(&mut self) -> bool {
        if self.free.len() + 1 != self.blocks.len() {
            return false;
        }
        self.blocks.iter_mut().for_each(|block| block.block_hash = None);
        self.cached.clear();
        true
    }

    /// Releases the blocks of a sequence, its last one first. Blocks without a hash are reused first of all, cached ones
    /// after all others.
    pub(super) fn free_blocks(&mut self, blocks: &[BlockId]) {
        let mut first = self.free.end();
        for &block in blocks.iter().rev() {
            let entry = &mut self.blocks[block as usize];
            entry.ref_cnt -= 1;
            match (entry.ref_cnt, entry.block_hash) {
                (0, None) => {
                    self.free.insert_after(first, block);
                    first = block;
                }
                (0, Some(_)) => self.free.append(block),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pool: &mut BlockPool) -> Vec<BlockId> {
        std::iter::from_fn(|| pool.get_new_block()).map(|(block, _)| block).collect()
    }

    #[test]
    fn blocks_without_a_hash_are_reused_first_and_cached_ones_last() {
        let mut pool = BlockPool::new(6);
        let used: Vec<BlockId> = (0..4).map(|_| pool.get_new_block().unwrap().0).collect();
        assert_eq!(used, [1, 2, 3, 4]);
        pool.cache(1, BlockHash::of_external(1));
        pool.cache(2, BlockHash::of_external(2));
        pool.free_blocks(&used);
        assert_eq!(taken(&mut pool), [4, 3, 5, 2, 1]);
        assert_eq!(pool.get_cached_block(&BlockHash::of_external(1)), None);
    }

    #[test]
    fn a_block_in_use_is_not_handed_out() {
        let mut pool = BlockPool::new(4);
        let (block, _) = pool.get_new_block().unwrap();
        pool.cache(block, BlockHash::of_external(1));
        pool.touch(block);
        pool.free_blocks(&[block]);
        assert!(!pool.is_free(block));
        assert_eq!(pool.num_free_blocks(), 2);
        pool.free_blocks(&[block]);
        assert_eq!((pool.num_free_blocks(), pool.usage()), (3, 0.0));
        pool.touch(block);
        assert_eq!(taken(&mut pool), [2, 3]);
    }

    #[test]
    fn only_a_pool_without_blocks_in_use_is_reset() {
        let mut pool = BlockPool::new(4);
        let (block, _) = pool.get_new_block().unwrap();
        pool.cache(block, BlockHash::of_external(1));
        assert!(!pool.reset());
        pool.free_blocks(&[block]);
        assert_eq!(pool.get_cached_block(&BlockHash::of_external(1)), Some(block));
        assert!(pool.reset());
        assert_eq!(pool.get_cached_block(&BlockHash::of_external(1)), None);
        assert_eq!(pool.get_new_block().map(|(_, evicted)| evicted), Some(None));
    }

    #[test]
    fn a_pool_of_the_null_block_is_never_in_use() {
        let mut pool = BlockPool::new(1);
        assert_eq!((pool.usage(), pool.get_new_block()), (0.0, None));
    }
}
