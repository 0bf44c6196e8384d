//! Prefixes that several prompts share, as a tree: where prompts part, it branches.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

use serde::Serialize;

use crate::inspect::sharing::PromptBlocks;

/// Prefixes of a tree, at most.
const MOST: usize = 200;

/// Prefixes that at least two prompts share.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PrefixTree {
    /// Prompts with block hashes.
    pub prompts: u64,
    /// The prefixes that most prompts share, at most 200; each stands behind the one that it continues.
    pub shared: Vec<SharedPrefix>,
    /// There are further ones, which fewer prompts share.
    pub has_more: bool,
}

/// Blocks that the same prompts share, behind a shorter prefix that more of them share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharedPrefix {
    /// Hash of its last block, in hexadecimal digits.
    pub hash: String,
    /// Place in the list of the prefix that it continues.
    pub parent: Option<usize>,
    /// Prompts that have it.
    pub prompts: u64,
    /// Blocks from the beginning of the prompt to its end.
    pub length: u64,
    /// Blocks that its parent does not have.
    pub own_blocks: u64,
    /// Of these, how many a cache without a limit finds in all prompts: `own_blocks × (prompts − 1)`.
    pub reused_blocks: u64,
}

/// One block, by its hash. Hashes are chained: one stands for all blocks up to it.
#[derive(Debug)]
struct Block {
    prompts: u64,
    parent: Option<u64>,
    length: u64,
    /// The list that was counted last.
    counted: usize,
}

impl PrefixTree {
    pub(in crate::inspect) fn of<'a>(prompts: impl Iterator<Item = &'a PromptBlocks>) -> Self {
        // As in sharing: a list that several prompts share is walked once.
        let mut places = HashMap::new();
        let mut lists: Vec<(&Arc<Vec<u64>>, u64)> = Vec::new();
        for prompt in prompts.filter(|prompt| !prompt.blocks.is_empty()) {
            let place = *places.entry(Arc::as_ptr(&prompt.blocks)).or_insert(lists.len());
            match lists.get_mut(place) {
                Some((_, times)) => *times += 1,
                None => lists.push((&prompt.blocks, 1)),
            }
        }
        let blocks = count(&lists);
        let mut tree = Self { prompts: lists.iter().map(|(_, times)| times).sum(), ..Self::default() };
        tree.has_more = tree.grow(&blocks);
        tree
    }

    /// Adds prefixes, those of most prompts first; returns true if some are left.
    fn grow(&mut self, blocks: &HashMap<u64, Block>) -> bool {
        let branches = branches(blocks);
        let below = |hash: Option<u64>| branches.get(&hash).into_iter().flatten().copied();
        let mut next: BinaryHeap<Next> = BinaryHeap::new();
        let add = |next: &mut BinaryHeap<Next>, from: Option<u64>, parent: Option<usize>| {
            let prompts = |hash: &u64| blocks.get(hash).map_or(0, |block| block.prompts);
            next.extend(below(from).map(|hash| Next { prompts: prompts(&hash), hash: Reverse(hash), parent }));
        };
        add(&mut next, None, None);
        while self.shared.len() < MOST {
            let Some(Next { prompts, hash: Reverse(first), parent }) = next.pop() else { break };
            let mut last = first;
            let mut own_blocks = 1;
            // Where all of the prompts go on with the same block, it is the same prefix.
            while let Some(following) = below(Some(last)).next() {
                if blocks.get(&following).is_none_or(|block| block.prompts < prompts) {
                    break;
                }
                (last, own_blocks) = (following, own_blocks + 1);
            }
            let length = blocks.get(&last).map_or(0, |block| block.length);
            let reused_blocks = own_blocks * (prompts - 1);
            add(&mut next, Some(last), Some(self.shared.len()));
            self.shared.push(SharedPrefix {
                hash: format!("{last:016x}"),
                parent,
                prompts,
                length,
                own_blocks,
                reused_blocks,
            });
        }
        !next.is_empty()
    }
}

/// A prefix that may be added: by prompts, and among equals by hash.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    prompts: u64,
    hash: Reverse<u64>,
    parent: Option<usize>,
}

/// Counts the prompts of each block.
fn count(lists: &[(&Arc<Vec<u64>>, u64)]) -> HashMap<u64, Block> {
    let mut blocks: HashMap<u64, Block> = HashMap::new();
    for (place, (list, times)) in lists.iter().enumerate() {
        let mut parent = None;
        for (length, hash) in (1..).zip(list.iter()) {
            let block = blocks.entry(*hash).or_insert(Block { prompts: 0, parent, length, counted: usize::MAX });
            // A file may name a block twice in one list.
            if block.counted != place {
                (block.prompts, block.counted) = (block.prompts + times, place);
            }
            parent = Some(*hash);
        }
    }
    blocks
}

/// The blocks that follow each block and that several prompts have, those of most prompts first; under `None` those that begin a prompt, or follow
/// what one prompt alone has.
fn branches(blocks: &HashMap<u64, Block>) -> HashMap<Option<u64>, Vec<u64>> {
    let is_shared = |hash: &u64| blocks.get(hash).is_some_and(|block| block.prompts > 1);
    let mut branches: HashMap<Option<u64>, Vec<u64>> = HashMap::new();
    for (hash, block) in blocks.iter().filter(|(_, block)| block.prompts > 1) {
        branches.entry(block.parent.filter(is_shared)).or_default().push(*hash);
    }
    for hashes in branches.values_mut() {
        hashes.sort_by_key(|hash| (Reverse(blocks.get(hash).map_or(0, |block| block.prompts)), *hash));
    }
    branches
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::inspect::sharing;

    fn prompt(blocks: &[u64]) -> PromptBlocks {
        PromptBlocks { blocks: Arc::new(blocks.to_vec()), tokens: 50, whole: None }
    }

    #[test]
    fn a_tree_branches_where_prompts_part() {
        let prompts = [prompt(&[1, 2, 3, 4]), prompt(&[1, 2, 3, 5]), prompt(&[1, 2, 6]), prompt(&[7]), prompt(&[])];
        let tree = PrefixTree::of(prompts.iter());
        let row = |shared: &SharedPrefix| (shared.parent, shared.prompts, shared.length, shared.reused_blocks);
        assert_eq!(tree.shared.iter().map(row).collect::<Vec<_>>(), [(None, 3, 2, 4), (Some(0), 2, 3, 1)]);
        assert_eq!((tree.prompts, tree.has_more, tree.shared[0].hash.as_str()), (4, false, "0000000000000002"));
    }

    #[test]
    fn reused_blocks_are_those_of_the_summary() {
        let mut random = StdRng::seed_from_u64(5);
        // A chain's hash stands for all digits before it, as a block's does.
        let mut chain = || {
            let digits = (0..random.random_range(1..6)).map(|_| random.random_range(1..4_u64));
            digits
                .scan(0, |hash, digit| {
                    *hash = *hash * 10 + digit;
                    Some(*hash)
                })
                .collect::<Vec<_>>()
        };
        let prompts: Vec<PromptBlocks> = (0..300).map(|_| prompt(&chain())).collect();
        let tree = PrefixTree::of(prompts.iter());
        let reused: u64 = tree.shared.iter().map(|shared| shared.reused_blocks).sum();
        assert!(!tree.has_more && reused > 0);
        assert_eq!(reused, sharing::measure(prompts.iter()).shared_blocks);
    }

    #[test]
    fn lists_that_are_no_chains_do_no_harm() {
        let prompts = [prompt(&[1, 1, 1]), prompt(&[2, 1]), prompt(&[1, 2]), prompt(&[3, 2, 1, 3])];
        let tree = PrefixTree::of(prompts.iter());
        assert!(tree.shared.iter().all(|shared| shared.prompts <= 4), "{tree:?}");
        let list = prompt(&(0..1 << 20).collect::<Vec<_>>());
        let tree = PrefixTree::of(std::iter::repeat_n(&list, 1_000_000));
        assert_eq!((tree.prompts, tree.shared.len(), tree.shared[0].length), (1_000_000, 1, 1 << 20));
        let many: Vec<PromptBlocks> = (0..1000).map(|number| prompt(&[number / 2])).collect();
        let tree = PrefixTree::of(many.iter());
        assert_eq!((tree.shared.len(), tree.has_more), (MOST, true));
    }
}
