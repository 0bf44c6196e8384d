//! Hashes of a prompt for blocks of another size.
//!
//! A hash stands for all tokens up to the end of its block. So a block of another size has the hash of the block that ends where it ends. Where none
//! ends there, it has the hash of the block around its end with the distance: prompts that share this block share both, and those that differ in it
//! are taken to differ before.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::trace::Record;

/// Hashes of the blocks of one prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Regrouped {
    /// Of all blocks, the last one perhaps not full.
    pub(super) blocks: Vec<u64>,
    /// Blocks of which nothing is known: they have hashes of their own.
    pub(super) unknown: u64,
}

/// Makes hashes for blocks of `to` tokens, and for a last block that is not full where `tails` are wanted; `number` distinguishes the request from all others.
pub(super) fn regroup(record: &Record, from: u32, to: u32, tails: bool, number: u64) -> Regrouped {
    let (from, to, tokens) = (u64::from(from.max(1)), u64::from(to.max(1)), u64::from(record.prompt_tokens));
    let (hashes, mut unknown) = (&record.block_hashes, 0);
    let full = hashes.len() as u64 * from;
    let at = |block: u64| usize::try_from(block).ok().and_then(|block| hashes.get(block)).copied();
    let known = |end: u64| match (end % from, end) {
        (0, end) if end <= full => at(end / from - 1),
        (inside, end) if end < full => at(end / from).map(|hash| xxh3_64_with_seed(&hash.to_le_bytes(), inside)),
        (_, end) if end == tokens => record.prompt_hash,
        (_, end) => record.prompt_hash.map(|hash| xxh3_64_with_seed(&hash.to_le_bytes(), end)),
    };
    let count = if tails { tokens.div_ceil(to) } else { tokens / to };
    let own = |block: u64| xxh3_64_with_seed(&number.to_le_bytes(), !block);
    let one = |block: u64| {
        let end = ((block + 1) * to).min(tokens);
        known(end).unwrap_or_else(|| {
            unknown += 1;
            own(block)
        })
    };
    let blocks = (0..count).map(one).collect();
    Regrouped { blocks, unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(tokens: u32, hashes: &[u64], whole: Option<u64>, (from, to): (u32, u32), tails: bool) -> (Vec<u64>, u64) {
        let record = Record {
            prompt_tokens: tokens,
            block_hashes: hashes.to_vec().into(),
            prompt_hash: whole,
            ..Record::default()
        };
        let made = regroup(&record, from, to, tails, 7);
        (made.blocks, made.unknown)
    }

    #[test]
    fn blocks_of_the_same_size_stay_and_larger_ones_have_the_last_hash() {
        assert_eq!(blocks(50, &[1, 2, 3], Some(9), (16, 16), true), (vec![1, 2, 3, 9], 0));
        assert_eq!(blocks(50, &[1, 2, 3], Some(9), (16, 16), false), (vec![1, 2, 3], 0));
        assert_eq!(blocks(70, &[1, 2, 3, 4], Some(9), (16, 32), true), (vec![2, 4, 9], 0));
        assert_eq!(blocks(70, &[1, 2, 3, 4], None, (16, 32), false), (vec![2, 4], 0));
        let (own, unknown) = blocks(70, &[1, 2, 3, 4], None, (16, 32), true);
        assert_eq!((own[..2].to_vec(), unknown), (vec![2, 4], 1));
        assert_eq!(blocks(u32::MAX, &[], None, (16, 1 << 30), false).1, 3);
    }

    #[test]
    fn smaller_blocks_are_shared_as_far_as_the_larger_ones_were() {
        let (one, other) = (blocks(96, &[1, 2, 3], None, (32, 8), false), blocks(96, &[1, 2, 4], None, (32, 8), false));
        assert_eq!((one.0.len(), one.1), (12, 0));
        assert_eq!(one.0.iter().zip(&other.0).take_while(|(one, other)| one == other).count(), 8);
        assert_eq!((one.0[3], one.0[7], one.0[11]), (1, 2, 3));
        // The last block of the larger size is not full: it names what is in it.
        let tail = |whole| blocks(80, &[1, 2], Some(whole), (32, 8), true).0;
        assert_eq!(tail(9), tail(9));
        assert_eq!(tail(9).iter().zip(&tail(8)).take_while(|(one, other)| one == other).count(), 8);
    }

    #[test]
    fn there_and_back_shares_the_same() {
        let hashes: Vec<u64> = (1..=32).collect();
        let (coarse, _) = blocks(512, &hashes, None, (16, 64), false);
        assert_eq!(coarse, (1..=8).map(|at| at * 4).collect::<Vec<u64>>());
    }
}
