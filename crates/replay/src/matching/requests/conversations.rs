//! Recorded conversations as a tree of messages: each record is at its last message, below those that it shares with others.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use xxhash_rust::xxh3::xxh3_128;

use super::super::MinMatch;
use recording::canonical::Identity;

/// The tree, by each message's hash over all messages up to it and its boundary.
#[derive(Debug, Default)]
pub(super) struct Conversations(HashMap<u128, ConversationNode>);

#[derive(Debug)]
struct ConversationNode {
    /// Records that end here, in recorded order.
    records: Vec<usize>,
    next: Vec<u128>,
    /// The first record here or below.
    first: usize,
}

/// Records that a way found, in recorded order.
#[derive(Debug)]
pub(super) enum Candidates<'a> {
    /// These.
    Listed(Cow<'a, [usize]>),
    Below(&'a Conversations, u128),
}

impl Candidates<'_> {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Listed(records) => records.is_empty(),
            Self::Below(..) => false,
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Listed(records) => Box::new(records.iter().copied()),
            Self::Below(tree, hash) => Box::new(tree.in_order(*hash)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NextRecord {
    Conversation(u128),
    Record,
}

fn boundary_of(boundary: &str) -> u128 {
    xxh3_128(boundary.as_bytes())
}

impl Conversations {
    /// Adds a record after all others: only messages that no earlier one had are gone through.
    pub(super) fn push(&mut self, identity: &Identity, at: usize) {
        let boundary = boundary_of(&identity.boundary);
        let mut below = None;
        for hash in identity.chain.backward().map(|link| link.hash ^ boundary) {
            let is_known = self.0.contains_key(&hash);
            let node = self.0.entry(hash).or_insert_with(|| ConversationNode {
                records: Vec::new(),
                next: Vec::new(),
                first: at,
            });
            match below.replace(hash) {
                Some(below) => node.next.push(below),
                None => node.records.push(at),
            }
            if is_known {
                return;
            }
        }
    }

    /// Returns the records of the longest part of a conversation that was recorded, where that is long enough.
    pub(super) fn longest(&self, identity: &Identity, min_match: MinMatch) -> Candidates<'_> {
        let boundary = boundary_of(&identity.boundary);
        let total = identity.chain.len();
        let hashes = identity.chain.backward().map(|link| link.hash ^ boundary);
        match hashes.enumerate().find(|(_, hash)| self.0.contains_key(hash)) {
            Some((left, hash)) if left == 0 || min_match.is_reached(total - left, total) => {
                Candidates::Below(self, hash)
            }
            _ => Candidates::Listed(Cow::default()),
        }
    }

    /// Returns how many messages each record has in common with a request, of those that have any, whatever their boundary.
    pub(super) fn shared(&self, identity: &Identity, boundaries: &[&str]) -> HashMap<usize, usize> {
        let mut shared = HashMap::new();
        for boundary in boundaries.iter().map(|boundary| boundary_of(boundary)) {
            let length = identity.chain.len();
            let (mut depth, mut seen) = (length + 1, None);
            for hash in identity.chain.backward().map(|link| link.hash ^ boundary) {
                depth -= 1;
                if !self.0.contains_key(&hash) {
                    continue;
                }
                let mut below = vec![hash];
                while let Some(node) = below.pop().and_then(|hash| self.0.get(&hash)) {
                    shared.extend(node.records.iter().map(|record| (*record, depth)));
                    // What has more in common was seen before.
                    below.extend(node.next.iter().filter(|hash| seen != Some(**hash)));
                }
                seen = Some(hash);
            }
        }
        shared
    }

    /// The records of a conversation and of all that go on from it, in recorded order; no more is looked at than is asked for.
    fn in_order(&self, hash: u128) -> impl Iterator<Item = usize> {
        let mut heap = BinaryHeap::new();
        heap.extend(self.0.get(&hash).map(|node| Reverse((node.first, NextRecord::Conversation(hash)))));
        std::iter::from_fn(move || {
            loop {
                let Reverse((first, next)) = heap.pop()?;
                let NextRecord::Conversation(hash) = next else { return Some(first) };
                let Some(node) = self.0.get(&hash) else { continue };
                heap.extend(node.records.iter().map(|record| Reverse((*record, NextRecord::Record))));
                let below = node.next.iter().filter_map(|hash| Some((self.0.get(hash)?.first, *hash)));
                heap.extend(below.map(|(first, hash)| Reverse((first, NextRecord::Conversation(hash)))));
            }
        })
    }
}
