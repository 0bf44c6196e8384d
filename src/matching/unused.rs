//! Which records are still unused, and the first of them within a range of positions.
//!
//! A tournament tree of atomics: a leaf holds the replay index of its position's record until that record is taken,
//! every other node the least of its two children. No lock is taken.
//!
//! Why it is right under concurrency: values only grow, for a record that was taken never comes back. A node may lag
//! behind its children, and then it holds too small a value; so the least value over a range is never above the first
//! unused record, and taking it either succeeds, and then it was the first one, or finds it taken. Who finds it taken
//! lifts the same path again, so a lagging value is met a bounded number of times.

#![allow(clippy::indexing_slicing)] // every index is a node of the tree or half of one

use std::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};

const TAKEN: u32 = u32::MAX;

/// The unused records.
#[derive(Debug)]
pub(super) struct Unused {
    /// The tree: node 1 is the root, node `i` has the children `2i` and `2i + 1`, the leaves are the upper half.
    least: Box<[AtomicU32]>,
    /// The leaf of each record; 0 for a record that has none.
    leaf_of: Box<[u32]>,
}

impl Unused {
    /// All of `order` unused: the replay indices by position. `records` is one more than the largest of them can be.
    pub(super) fn new(order: &[u32], records: usize) -> Self {
        let leaves = order.len();
        let mut least = vec![TAKEN; leaves * 2];
        let mut leaf_of = vec![0; records].into_boxed_slice();
        for (leaf, record) in (leaves..).zip(order) {
            least[leaf] = *record;
            leaf_of[*record as usize] = u32::try_from(leaf).unwrap_or(0);
        }
        for node in (1..leaves).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        Self { least: least.into_iter().map(AtomicU32::new).collect(), leaf_of }
    }

    /// Takes a record. False when it was taken before, or is none that can be.
    pub(super) fn take(&self, record: u32) -> bool {
        let leaf = self.leaf_of.get(record as usize).map_or(0, |leaf| *leaf as usize);
        if leaf == 0 {
            return false;
        }
        let fresh = self.least[leaf].swap(TAKEN, SeqCst) != TAKEN;
        self.lift(leaf);
        fresh
    }

    /// Takes the first unused record in replay order of those at `positions`.
    pub(super) fn take_first(&self, positions: &Range<usize>) -> Option<u32> {
        loop {
            let record = self.least_of(positions);
            if record == TAKEN {
                return None;
            }
            if self.take(record) {
                return Some(record);
            }
        }
    }

    fn lift(&self, leaf: usize) {
        let mut node = leaf / 2;
        while node > 0 {
            let least = self.least[2 * node].load(SeqCst).min(self.least[2 * node + 1].load(SeqCst));
            self.least[node].fetch_max(least, SeqCst);
            node /= 2;
        }
    }

    fn least_of(&self, positions: &Range<usize>) -> u32 {
        let leaves = self.least.len() / 2;
        let (mut from, mut to) = (leaves + positions.start, leaves + positions.end);
        let mut least = TAKEN;
        while from < to {
            if from % 2 == 1 {
                least = least.min(self.least[from].load(SeqCst));
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                least = least.min(self.least[to].load(SeqCst));
            }
            (from, to) = (from / 2, to / 2);
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_give_their_records_in_replay_order() {
        for leaves in 1..20_usize {
            let order: Vec<u32> = (0..leaves).map(|at| u32::try_from((at * 7) % leaves.max(1)).unwrap()).collect();
            if order.iter().collect::<std::collections::HashSet<_>>().len() < leaves {
                continue; // 7 divides it: no permutation
            }
            for start in 0..leaves {
                let unused = Unused::new(&order, leaves);
                let range = start..leaves;
                let taken: Vec<u32> = std::iter::from_fn(|| unused.take_first(&range)).collect();
                let mut expected = order[start..].to_vec();
                expected.sort_unstable();
                assert_eq!(taken, expected);
            }
        }
    }

    #[test]
    fn a_record_is_taken_once() {
        let unused = Unused::new(&[2, 0], 3);
        assert!(unused.take(2));
        assert!(!unused.take(2));
        assert!(!unused.take(1), "it has no position");
        assert!(!unused.take(9));
        assert_eq!(unused.take_first(&(0..2)), Some(0));
        assert_eq!(unused.take_first(&(0..2)), None);
        assert_eq!(Unused::new(&[], 0).take_first(&(0..0)), None);
    }
}
