//! The prefix cache: which blocks hold the content that a hash names.

#![allow(clippy::indexing_slicing)] // ids of blocks are those of the pool, which has made the table

use std::collections::{HashMap, hash_map::Entry};

use super::{BlockHash, BlockId};
use base::hash_is_key::BuildHashIsKey;

/// Blocks by hash. Blocks with the same content are a chain in the order in which they were cached; its first is a hit.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    chains: HashMap<BlockHash, BlockChain, BuildHashIsKey>,
    /// Per block, its neighbours in its chain.
    neighbours: Vec<Neighbours>,
}

#[derive(Debug, Clone, Copy)]
struct BlockChain {
    first: BlockId,
    last: BlockId,
}

/// 0, the null block, where there is none.
#[derive(Debug, Clone, Copy, Default)]
struct Neighbours {
    previous: BlockId,
    next: BlockId,
}

impl CachedBlocks {
    /// A cache without blocks for a pool of `blocks`.
    pub(super) fn new(blocks: u32) -> Self {
        Self { chains: HashMap::default(), neighbours: vec![Neighbours::default(); blocks as usize] }
    }

    /// Finds the block that was first cached under a hash.
    pub(super) fn get_one_block(&self, hash: &BlockHash) -> Option<BlockId> {
        self.chains.get(hash).map(|chain| chain.first)
    }

    /// Caches a block that is not cached.
    pub(super) fn insert(&mut self, hash: BlockHash, block: BlockId) {
        let mut previous = 0;
        match self.chains.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(BlockChain { first: block, last: block });
            }
            Entry::Occupied(mut entry) => {
                previous = std::mem::replace(&mut entry.get_mut().last, block);
                self.neighbours[previous as usize].next = block;
            }
        }
        self.neighbours[block as usize] = Neighbours { previous, next: 0 };
    }

    /// Takes out all blocks.
    pub(super) fn clear(&mut self) {
        self.chains.clear();
        self.neighbours.fill(Neighbours::default());
    }

    /// Takes out a block that is cached under this hash.
    pub(super) fn pop(&mut self, hash: &BlockHash, block: BlockId) {
        let Neighbours { previous, next } = std::mem::take(&mut self.neighbours[block as usize]);
        if (previous, next) == (0, 0) {
            self.chains.remove(hash);
            return;
        }
        if previous != 0 {
            self.neighbours[previous as usize].next = next;
        }
        if next != 0 {
            self.neighbours[next as usize].previous = previous;
        }
        if let Some(chain) = self.chains.get_mut(hash) {
            if previous == 0 {
                chain.first = next;
            }
            if next == 0 {
                chain.last = previous;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_equal_blocks_is_a_hit() {
        let hash = BlockHash::of_external(7);
        let mut cached = CachedBlocks::new(6);
        for block in [3, 1, 5, 2] {
            cached.insert(hash, block);
        }
        assert_eq!(cached.get_one_block(&BlockHash::of_external(8)), None);
        let mut hits = Vec::new();
        for block in [1, 3, 2, 5] {
            hits.push(cached.get_one_block(&hash));
            cached.pop(&hash, block);
        }
        assert_eq!(hits, [Some(3), Some(3), Some(5), Some(5)]);
        assert_eq!(cached.get_one_block(&hash), None);
        cached.insert(hash, 1);
        assert_eq!(cached.get_one_block(&hash), Some(1));
    }
}
