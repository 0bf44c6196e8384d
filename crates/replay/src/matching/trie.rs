//! A path-compressed trie over the chained block hashes of records.
//!
//! A hash names everything before it, so one map from the first hash of an edge finds a child of any node, and the end of
//! the part that two chains share is found by binary search. Each distinct hash is kept once, in one flat list that edges
//! point into. A record hangs below the node of its chain: in a leaf of its `prompt_hash`, or at the node itself where it
//! has none. Positions number the records so that each node covers a contiguous range of them, its own records first.
//!
//! Limits: chains that are not chained hashes give wrong matches (never a panic). Equal prompt hashes are taken for equal
//! prompts, whatever the block hashes beside them are.

#![allow(clippy::indexing_slicing)] // node and record numbers are handed out here and only grow

use std::{collections::HashMap, ops::Range};

use base::hash_is_key::BuildHashIsKey;

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// Finds the records that share the most of a prompt.
#[derive(Debug, Default)]
pub(super) struct Trie {
    hashes: Vec<u64>,
    nodes: Vec<TrieNode>,
    by_first_hash: ByHash,
    by_prompt_hash: ByHash,
}

/// The records that share the most of a prompt.
#[derive(Debug)]
pub(super) struct LongestPrefix {
    /// Where they are.
    pub(super) positions: Range<usize>,
    /// The first of them in replay order.
    pub(super) first: u32,
    /// The last of them in replay order.
    pub(super) last: u32,
    /// Blocks that they share with the prompt.
    pub(super) blocks: usize,
    /// Whether their whole prompt is the same.
    pub(super) whole: bool,
}

/// A prompt's hashes, as records are found by them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TriePrompt<'a> {
    /// Chained hashes of its full blocks.
    pub(super) blocks: &'a [u64],
    /// The chained hash of all of it.
    pub(super) whole: Option<u64>,
}

struct Deepest {
    node: u32,
    /// Blocks that its records share with the chain.
    blocks: usize,
    /// Whether the node's own chain has no more.
    is_end: bool,
}

#[derive(Debug)]
struct TrieNode {
    /// The hashes from its parent to it, in [`Trie::hashes`].
    edge: Range<usize>,
    /// The first record in replay order at or below it.
    first: u32,
    last: u32,
    /// The positions of the records at and below it.
    positions: Range<u32>,
    /// How many of them are at it.
    own: u32,
    /// The last one of those in replay order.
    last_own: u32,
}

impl Trie {
    /// Records of equal whole prompts if there are any, else those that share the most blocks; `None` when none shares one.
    pub(super) fn find(&self, prompt: TriePrompt<'_>) -> Option<LongestPrefix> {
        if let Some(leaf) = prompt.whole.and_then(|whole| self.by_prompt_hash.get(&whole)) {
            return Some(self.found(*leaf, prompt.blocks.len(), true));
        }
        let deepest = self.deepest(prompt.blocks)?;
        Some(self.found(deepest.node, deepest.blocks, false))
    }

    /// Records that hold no hash of their whole prompt, but exactly the prompt's blocks.
    pub(super) fn find_equal_blocks(&self, prompt: TriePrompt<'_>) -> Option<LongestPrefix> {
        let Deepest { node, blocks, is_end } = self.deepest(prompt.blocks)?;
        let TrieNode { positions, own, .. } = &self.nodes[node as usize];
        let positions = positions.start as usize..(positions.start + own) as usize;
        let is_equal = is_end && blocks == prompt.blocks.len() && !positions.is_empty();
        is_equal.then(|| LongestPrefix {
            positions,
            last: self.nodes[node as usize].last_own,
            ..self.found(node, blocks, true)
        })
    }

    fn found(&self, node: u32, blocks: usize, whole: bool) -> LongestPrefix {
        let TrieNode { positions, first, last, .. } = &self.nodes[node as usize];
        let positions = positions.start as usize..positions.end as usize;
        LongestPrefix { positions, first: *first, last: *last, blocks, whole }
    }

    /// The node that shares the most of a chain.
    fn deepest(&self, chain: &[u64]) -> Option<Deepest> {
        let (mut deepest, mut rest) = (None, chain);
        while let Some(node) = rest.first().and_then(|first| self.by_first_hash.get(first)) {
            let shared = self.shared(*node, rest);
            rest = &rest[shared..];
            let is_end = shared == self.nodes[*node as usize].edge.len();
            deepest = Some(Deepest { node: *node, blocks: chain.len() - rest.len(), is_end });
            if !is_end {
                break;
            }
        }
        deepest
    }

    /// Returns how many hashes the edge to `node` shares with `chain`; at least 1, for the first one led here.
    fn shared(&self, node: u32, chain: &[u64]) -> usize {
        let edge = &self.hashes[self.nodes[node as usize].edge.clone()];
        let most = edge.len().min(chain.len());
        let (mut equal, mut unequal) = (1, most + 1);
        while equal + 1 < unequal {
            let middle = equal.midpoint(unequal);
            *(if edge[middle - 1] == chain[middle - 1] { &mut equal } else { &mut unequal }) = middle;
        }
        equal
    }
}

/// Takes records in replay order and makes a [`Trie`] of them.
#[derive(Debug)]
pub(super) struct Builder {
    trie: Trie,
    links: Vec<Links>,
    /// The record after each record at the same node.
    next_record: Vec<u32>,
}

/// Records at a node while it is built: heads of linked lists.
#[derive(Debug, Clone, Copy)]
struct Links {
    child: u32,
    sibling: u32,
    record: u32,
}

impl Builder {
    /// For records numbered below `records`.
    pub(super) fn new(records: usize) -> Self {
        let trie = Trie { nodes: vec![TrieNode::new(0..0, NONE)], ..Trie::default() };
        Self { trie, links: vec![Links::NOTHING], next_record: vec![NONE; records] }
    }

    /// Adds a record; each one once, in replay order.
    pub(super) fn insert(&mut self, record: u32, chain: &[u64], prompt_hash: Option<u64>) {
        let known = prompt_hash.and_then(|hash| self.trie.by_prompt_hash.get(&hash).copied());
        let node = match (known, prompt_hash) {
            (Some(leaf), _) => leaf,
            (None, None) => self.path(record, chain),
            (None, Some(hash)) => {
                let parent = self.path(record, chain);
                let leaf = self.child(parent, 0..0, record);
                self.trie.by_prompt_hash.insert(hash, leaf);
                leaf
            }
        };
        let head = &mut self.links[node as usize].record;
        self.next_record[record as usize] = std::mem::replace(head, record);
    }

    /// The node at the end of `chain`, made where it is missing.
    fn path(&mut self, record: u32, mut chain: &[u64]) -> u32 {
        let mut at = ROOT;
        while let Some(first) = chain.first() {
            let Some(node) = self.trie.by_first_hash.get(first).copied() else {
                let start = self.trie.hashes.len();
                self.trie.hashes.extend_from_slice(chain);
                let leaf = self.child(at, start..self.trie.hashes.len(), record);
                self.trie.by_first_hash.insert(*first, leaf);
                return leaf;
            };
            let shared = self.trie.shared(node, chain);
            self.split(node, shared);
            (at, chain) = (node, &chain[shared..]);
        }
        at
    }

    fn child(&mut self, parent: u32, edge: Range<usize>, first: u32) -> u32 {
        let node = self.node(edge, first, Links::NOTHING);
        let sibling = std::mem::replace(&mut self.links[parent as usize].child, node);
        self.links[node as usize].sibling = sibling;
        node
    }

    fn node(&mut self, edge: Range<usize>, first: u32, links: Links) -> u32 {
        let number = u32::try_from(self.trie.nodes.len()).unwrap_or(NONE);
        self.trie.nodes.push(TrieNode::new(edge, first));
        self.links.push(links);
        number
    }

    /// Ends the edge to `node` after `keep` hashes; a new node below takes the rest of it and all that hung there.
    fn split(&mut self, node: u32, keep: usize) {
        let TrieNode { edge, first, .. } = &mut self.trie.nodes[node as usize];
        if keep == edge.len() {
            return;
        }
        let (middle, first) = (edge.start + keep, *first);
        let rest = middle..std::mem::replace(&mut edge.end, middle);
        let below = Links { sibling: NONE, ..self.links[node as usize] };
        let lower = self.node(rest, first, below);
        self.trie.by_first_hash.insert(self.trie.hashes[middle], lower);
        let links = &mut self.links[node as usize];
        (links.child, links.record) = (lower, NONE);
    }

    /// The trie, and the record at each position.
    pub(super) fn finish(mut self) -> (Trie, Vec<u32>) {
        let mut order: Vec<u32> = Vec::with_capacity(self.next_record.len());
        let mut steps = vec![TrieStep::Enter(ROOT)];
        while let Some(step) = steps.pop() {
            let position = u32::try_from(order.len()).unwrap_or(NONE);
            match step {
                TrieStep::Leave(node) => {
                    let children = list(self.links[node as usize].child, |node| self.links[node as usize].sibling);
                    let below = children.map(|child| self.trie.nodes[child as usize].last).max();
                    let node = &mut self.trie.nodes[node as usize];
                    node.positions.end = position;
                    node.last = node.last.max(below.unwrap_or(0));
                }
                TrieStep::Enter(node) => {
                    let links = self.links[node as usize];
                    let before = order.len();
                    order.extend(list(links.record, |record| self.next_record[record as usize]));
                    // The latest record is the head of its list.
                    let last = if links.record == NONE { 0 } else { links.record };
                    let own = u32::try_from(order.len() - before).unwrap_or(NONE);
                    let node_of = &mut self.trie.nodes[node as usize];
                    node_of.positions.start = position;
                    (node_of.own, node_of.last_own, node_of.last) = (own, last, last);
                    steps.push(TrieStep::Leave(node));
                    steps.extend(list(links.child, |node| self.links[node as usize].sibling).map(TrieStep::Enter));
                }
            }
        }
        self.trie.nodes.shrink_to_fit();
        self.trie.hashes.shrink_to_fit();
        (self.trie, order)
    }
}

enum TrieStep {
    Enter(u32),
    Leave(u32),
}

impl TrieNode {
    fn new(edge: Range<usize>, first: u32) -> Self {
        Self { edge, first, last: 0, positions: 0..0, own: 0, last_own: 0 }
    }
}

impl Links {
    const NOTHING: Self = Self { child: NONE, sibling: NONE, record: NONE };
}

fn list(head: u32, next: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    let some = |number| (number != NONE).then_some(number);
    std::iter::successors(some(head), move |number| some(next(*number)))
}

type ByHash = HashMap<u64, u32, BuildHashIsKey>;
