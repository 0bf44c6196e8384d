//! Prefix sharing: the part of the prompts that earlier prompts had, by their chained block hashes.

use std::{collections::HashSet, sync::Arc};

use serde::Serialize;

/// Prefix sharing, with prompts taken in replay order: what an unbounded prefix cache could reuse.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PrefixSharing {
    /// Full blocks of all prompts.
    pub blocks: u64,
    /// Blocks that an earlier prompt had too.
    pub shared_blocks: u64,
    /// `shared_blocks / blocks`; `None` without blocks.
    pub shared_ratio: Option<f64>,
    /// Distinct first blocks: how many families of prompts there are.
    pub distinct_first_blocks: u64,
    /// Prompts that came before in full, recognised by their whole-prompt hash, or by length and last block without one.
    pub duplicate_prompts: u64,
    /// Blocks of the longest prefix that came before.
    pub deepest_shared_chain: u64,
}

/// One prompt: its block hashes and what identifies the whole prompt.
#[derive(Debug, Clone)]
pub(super) struct PromptBlocks {
    pub(super) blocks: Arc<Vec<u64>>,
    pub(super) tokens: u32,
    pub(super) whole: Option<u64>,
}

/// Blocks of the prompts before. Each names its whole prefix, so that whatever the order of the prompts, all blocks are hits but
/// the first of each.
#[derive(Debug)]
pub(super) struct KnownBlocks {
    seen: HashSet<u64>,
    /// Distinct blocks that are kept; of more, one in `2^skipped_bits` is, drawn by its hash (adaptive sampling: Flajolet 1990, "On adaptive
    /// sampling"). With 2^21 of them kept the error is about 0.1 %.
    most: usize,
    skipped_bits: u32,
    blocks: u64,
}

impl KnownBlocks {
    /// Keeps so many at the most, and counts the others by an estimate.
    pub(super) fn bounded(most: usize) -> Self {
        Self { seen: HashSet::new(), most: most.max(1), skipped_bits: 0, blocks: 0 }
    }

    /// Length of the longest prefix of these blocks that came before; exact while nothing is estimated.
    fn prefix(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|hash| self.seen.contains(*hash)).count()
    }

    /// Adds the blocks of a prompt.
    pub(super) fn insert(&mut self, blocks: &[u64]) {
        self.blocks += blocks.len() as u64;
        for block in blocks {
            if is_drawn(*block, self.skipped_bits) && self.seen.insert(*block) && self.seen.len() > self.most {
                self.skipped_bits += 1;
                let bits = self.skipped_bits;
                self.seen.retain(|block| is_drawn(*block, bits));
            }
        }
    }

    /// Number of blocks, each time that one came.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn is_estimated(&self) -> bool {
        self.skipped_bits > 0
    }

    /// Share of the blocks that had come before; `None` without blocks.
    pub(super) fn repeated(&self) -> Option<f64> {
        let distinct = self.seen.len() as f64 * f64::from(self.skipped_bits).exp2();
        (self.blocks > 0).then(|| (1.0 - distinct / self.blocks as f64).max(0.0))
    }
}

/// Draws one block in `2^bits`; the factor spreads hashes that are small numbers.
fn is_drawn(block: u64, bits: u32) -> bool {
    bits == 0 || block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits.min(63)) == 0
}

/// Walks prompts in replay order.
pub(super) fn measure<'a>(prompts: impl Iterator<Item = &'a PromptBlocks>) -> PrefixSharing {
    let mut sharing = PrefixSharing::default();
    let (mut known, mut whole, mut firsts) = (KnownBlocks::bounded(usize::MAX), HashSet::new(), HashSet::new());
    // Lists that several prompts share are walked once: a line of a file may name a list of any length.
    let mut walked = HashSet::new();
    for prompt in prompts {
        let is_new = walked.insert(Arc::as_ptr(&prompt.blocks));
        let chain = if is_new { known.prefix(&prompt.blocks) } else { prompt.blocks.len() };
        sharing.blocks += prompt.blocks.len() as u64;
        sharing.shared_blocks += chain as u64;
        sharing.deepest_shared_chain = sharing.deepest_shared_chain.max(chain as u64);
        if is_new {
            firsts.extend(prompt.blocks.first().copied());
            known.insert(prompt.blocks.get(chain..).unwrap_or_default());
        }
        if let Some(hash) = prompt.whole.or(prompt.blocks.last().copied()) {
            sharing.duplicate_prompts += u64::from(!whole.insert((prompt.tokens, hash)));
        }
    }
    sharing.distinct_first_blocks = firsts.len() as u64;
    sharing.shared_ratio = (sharing.blocks > 0).then(|| sharing.shared_blocks as f64 / sharing.blocks as f64);
    sharing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_counts_leading_blocks_that_came_before() {
        let prompt = |blocks: &[u64], whole| PromptBlocks { blocks: Arc::new(blocks.to_vec()), tokens: 50, whole };
        let prompts =
            [prompt(&[1, 2, 3], Some(9)), prompt(&[1, 2, 4], Some(8)), prompt(&[7], None), prompt(&[1, 2, 3], Some(9))];
        let sharing = measure(prompts.iter());
        assert_eq!((sharing.blocks, sharing.shared_blocks, sharing.deepest_shared_chain), (10, 5, 3));
        assert_eq!((sharing.distinct_first_blocks, sharing.duplicate_prompts), (2, 1));
        assert_eq!(measure([].iter()).shared_ratio, None);
    }

    #[test]
    fn more_blocks_than_are_kept_are_estimated() {
        // 300,000 different blocks, each of which comes twice, first small numbers and then any.
        for spread in [1, 0x1234_5678_9abc_def1] {
            let (mut exact, mut bounded) = (KnownBlocks::bounded(usize::MAX), KnownBlocks::bounded(1 << 14));
            for number in 0..600_000_u64 {
                let block = (number % 300_000).wrapping_mul(spread);
                exact.insert(&[block]);
                bounded.insert(&[block]);
            }
            assert_eq!((exact.repeated(), exact.is_estimated()), (Some(0.5), false));
            assert!(bounded.is_estimated() && bounded.seen.len() <= 1 << 14);
            assert!((bounded.repeated().unwrap() - 0.5).abs() < 0.02, "{:?}", bounded.repeated());
        }
    }

    #[test]
    fn a_list_that_many_lines_name_is_walked_once() {
        let blocks = Arc::new((0..1 << 20).collect());
        let first = PromptBlocks { blocks, tokens: 50, whole: None };
        // A million million hashes, were each prompt walked.
        let sharing = measure(std::iter::repeat_n(&first, 1_000_000));
        assert_eq!((sharing.blocks, sharing.shared_blocks), (1_000_000 << 20, 999_999 << 20));
        assert_eq!((sharing.deepest_shared_chain, sharing.distinct_first_blocks), (1 << 20, 1));
    }
}
