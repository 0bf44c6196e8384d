//! How often each record was served in one session, and the least served one within a range of positions.
//!
//! A tournament tree of atomics: a leaf holds how often its position's record was served and, below that, its replay
//! index, so that less served records come first and equally served ones in replay order; every other node holds the
//! least of its two children. No lock is taken.
//!
//! Why it is right under concurrency: values only grow, for nothing is taken back. A node may lag behind its children,
//! and then it holds too small a value; so the least value over a range is never above the first record that is wanted,
//! and taking it either succeeds, and then it was the first one, or finds it changed. A caller that finds it changed lifts the same
//! path again, so a lagging value is met a bounded number of times.
//!
//! Limits: 16 bytes of memory for each record that can be served. A record that was served four billion times has its count start again.

#![allow(clippy::indexing_slicing)] // every index is a node of the tree or half of one

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

/// Once served, in a leaf.
const ONCE: u64 = 1 << 32;
/// More than any leaf.
const NONE: u64 = u64::MAX;
/// Bounds of [`Consumption::take_least`]: only records that were not served yet, and all of them.
pub(super) const FRESH: u64 = ONCE;
pub(super) const ANY: u64 = NONE;

/// The leaf of each record: the same for every session.
#[derive(Debug, Clone)]
pub(super) struct LeafPlaces {
    /// By record; 0 for one that has none.
    leaf_of: Arc<[u32]>,
    leaves: usize,
}

impl LeafPlaces {
    /// For `order`, the replay indices by position; `records` is one more than the largest of them can be.
    pub(super) fn new(order: &[u32], records: usize) -> Self {
        let leaves = order.len();
        let mut leaf_of = vec![0; records];
        for (leaf, record) in (leaves..).zip(order) {
            leaf_of[*record as usize] = u32::try_from(leaf).unwrap_or(0);
        }
        Self { leaf_of: leaf_of.into(), leaves }
    }

    /// Bytes that one session takes.
    pub(super) fn bytes(&self) -> usize {
        self.leaves * 2 * size_of::<u64>()
    }
}

/// The consumption of one session.
#[derive(Debug)]
pub struct Consumption {
    /// The tree: node 1 is the root, node `i` has the children `2i` and `2i + 1`, the leaves are the upper half.
    least: Box<[AtomicU64]>,
    places: LeafPlaces,
    consumed: AtomicUsize,
}

impl Consumption {
    /// Nothing was served yet.
    pub(super) fn new(places: &LeafPlaces) -> Self {
        let leaves = places.leaves;
        let mut least = vec![NONE; leaves * 2];
        for (record, leaf) in (0_u64..).zip(&*places.leaf_of).filter(|(_, leaf)| **leaf > 0) {
            least[*leaf as usize] = record;
        }
        for node in (1..leaves).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        let least = least.into_iter().map(AtomicU64::new).collect();
        Self { least, places: places.clone(), consumed: AtomicUsize::new(0) }
    }

    /// Returns how many records were served at least once.
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed.load(Relaxed)
    }

    /// Returns how often a record was served.
    #[must_use]
    pub fn times(&self, record: usize) -> u64 {
        let leaf = self.leaf(record);
        if leaf == 0 { 0 } else { self.least[leaf].load(SeqCst) / ONCE }
    }

    /// Takes a record. False when it was taken before, or is none that can be.
    pub(super) fn take(&self, record: u32) -> bool {
        let leaf = self.leaf(record as usize);
        if leaf == 0 {
            return false;
        }
        let before = self.least[leaf].fetch_add(ONCE, SeqCst);
        self.taken(leaf, before)
    }

    /// Takes the first in replay order of the least served records at `positions`, if its leaf is below a bound.
    pub(super) fn take_least(&self, positions: &Range<usize>, below: u64) -> Option<u32> {
        loop {
            let least = self.least_of(positions);
            if least >= below {
                return None;
            }
            #[allow(clippy::cast_possible_truncation)] // the upper half is its count
            let record = least as u32;
            let leaf = self.leaf(record as usize);
            if self.least[leaf].compare_exchange(least, least.wrapping_add(ONCE), SeqCst, SeqCst).is_ok() {
                self.taken(leaf, least);
                return Some(record);
            }
            self.lift(leaf);
        }
    }

    /// The first record in replay order at `positions` that was not served yet.
    pub(super) fn first_fresh(&self, positions: &Range<usize>) -> Option<usize> {
        let least = self.least_of(positions);
        #[allow(clippy::cast_possible_truncation)] // the upper half is its count
        (least < ONCE).then_some(least as u32 as usize)
    }

    fn leaf(&self, record: usize) -> usize {
        self.places.leaf_of.get(record).map_or(0, |leaf| *leaf as usize)
    }

    fn taken(&self, leaf: usize, before: u64) -> bool {
        let is_fresh = before < ONCE;
        if is_fresh {
            self.consumed.fetch_add(1, Relaxed);
        }
        self.lift(leaf);
        is_fresh
    }

    fn lift(&self, leaf: usize) {
        let mut node = leaf / 2;
        while node > 0 {
            let least = self.least[2 * node].load(SeqCst).min(self.least[2 * node + 1].load(SeqCst));
            self.least[node].fetch_max(least, SeqCst);
            node /= 2;
        }
    }

    fn least_of(&self, positions: &Range<usize>) -> u64 {
        let leaves = self.least.len() / 2;
        let (mut from, mut to) = (leaves + positions.start, leaves + positions.end);
        let mut least = NONE;
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
    fn ranges_give_their_records_in_replay_order_again_and_again() {
        for leaves in 1..20_usize {
            let order: Vec<u32> = (0..leaves).map(|at| u32::try_from((at * 7) % leaves.max(1)).unwrap()).collect();
            if order.iter().collect::<std::collections::HashSet<_>>().len() < leaves {
                continue; // 7 divides it: no permutation
            }
            let places = LeafPlaces::new(&order, leaves);
            for start in 0..leaves {
                let consumption = Consumption::new(&places);
                let range = start..leaves;
                let taken: Vec<u32> = std::iter::from_fn(|| consumption.take_least(&range, FRESH)).collect();
                let mut expected = order[start..].to_vec();
                expected.sort_unstable();
                assert_eq!(taken, expected);
                assert_eq!(consumption.consumed(), expected.len());
                let round = |_| consumption.take_least(&range, ANY).unwrap();
                assert_eq!((0..expected.len()).map(round).collect::<Vec<u32>>(), expected, "a second round");
                assert_eq!(consumption.times(expected[0] as usize), 2);
            }
        }
    }

    #[test]
    fn a_record_without_a_place_is_never_taken() {
        let consumption = Consumption::new(&LeafPlaces::new(&[2, 0], 3));
        assert!(!consumption.take(1) && !consumption.take(9));
        assert!(consumption.take(2) && !consumption.take(2));
        assert_eq!((consumption.times(2), consumption.times(0), consumption.consumed()), (2, 0, 1));
    }
}
