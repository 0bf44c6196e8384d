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
pub(super) struct Prompt {
    pub(super) blocks: Arc<Vec<u64>>,
    pub(super) tokens: u32,
    pub(super) whole: Option<u64>,
}

/// Walks prompts in replay order.
#[allow(clippy::cast_precision_loss)] // a ratio for people
pub(super) fn measure<'a>(prompts: impl Iterator<Item = &'a Prompt>) -> PrefixSharing {
    let mut sharing = PrefixSharing::default();
    let (mut seen, mut whole, mut firsts) = (HashSet::new(), HashSet::new(), HashSet::new());
    // Lists that several prompts share are walked once: a line of a file may name a list of any length.
    let mut walked = HashSet::new();
    for prompt in prompts {
        let is_new = walked.insert(Arc::as_ptr(&prompt.blocks));
        let is_known = |hash: &&u64| seen.contains(*hash);
        let known = if is_new { prompt.blocks.iter().take_while(is_known).count() } else { prompt.blocks.len() };
        let chain = known as u64;
        sharing.blocks += prompt.blocks.len() as u64;
        sharing.shared_blocks += chain;
        sharing.deepest_shared_chain = sharing.deepest_shared_chain.max(chain);
        if is_new {
            firsts.extend(prompt.blocks.first().copied());
            seen.extend(prompt.blocks.iter().skip(known).copied());
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
        let prompt = |blocks: &[u64], whole| Prompt { blocks: Arc::new(blocks.to_vec()), tokens: 50, whole };
        let prompts =
            [prompt(&[1, 2, 3], Some(9)), prompt(&[1, 2, 4], Some(8)), prompt(&[7], None), prompt(&[1, 2, 3], Some(9))];
        let sharing = measure(prompts.iter());
        assert_eq!((sharing.blocks, sharing.shared_blocks, sharing.deepest_shared_chain), (10, 5, 3));
        assert_eq!((sharing.distinct_first_blocks, sharing.duplicate_prompts), (2, 1));
        assert_eq!(measure([].iter()).shared_ratio, None);
    }

    #[test]
    fn a_list_that_many_lines_name_is_walked_once() {
        let blocks = Arc::new((0..1 << 20).collect());
        let first = Prompt { blocks, tokens: 50, whole: None };
        // A million million hashes, were each prompt walked.
        let sharing = measure(std::iter::repeat_n(&first, 1_000_000));
        assert_eq!((sharing.blocks, sharing.shared_blocks), (1_000_000 << 20, 999_999 << 20));
        assert_eq!((sharing.deepest_shared_chain, sharing.distinct_first_blocks), (1 << 20, 1));
    }
}
