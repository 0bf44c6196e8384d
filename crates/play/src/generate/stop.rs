//! Stop strings, found in text as it comes: one automaton for all strings of a request, shared by its choices.
//!
//! The automaton is that of Aho and Corasick. A byte of text costs a few steps however many and however long the strings
//! are; a byte of a string costs 20 bytes of memory. The `aho-corasick` crate copies the matches of a state from its suffixes, which is more
//! than linear in strings that end with each other.

use std::{collections::VecDeque, sync::Arc};

/// No node, and no string.
const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<Arc<str>>,
    /// The first one is the root.
    nodes: Vec<StopNode>,
    pub(crate) longest: usize,
}

/// A prefix of some strings.
#[derive(Debug, Clone)]
struct StopNode {
    /// The last byte of the prefix.
    byte: u8,
    /// The prefixes that are one byte longer are a list.
    first_child: u32,
    next_sibling: u32,
    /// The longest other prefix that this one ends with.
    suffix: u32,
    /// The string that was listed first of those that this prefix ends with.
    ends: u32,
}

impl StopNode {
    fn of(byte: u8) -> Self {
        Self { byte, first_child: NONE, next_sibling: NONE, suffix: 0, ends: NONE }
    }
}

/// Length of a stop string's beginning at the end of the text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StopProgress(u32);

impl StopStrings {
    /// The automaton of some strings; empty ones are never found.
    pub(crate) fn new(strings: &[String]) -> Self {
        let longest = strings.iter().map(|string| string.chars().count()).max().unwrap_or(0);
        let strings: Vec<Arc<str>> = strings.iter().map(|string| string.as_str().into()).collect();
        let mut made = Self { strings, nodes: vec![StopNode::of(0)], longest };
        for at in 0..made.strings.len() {
            made.add(at);
        }
        made.link();
        made
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Takes the next byte of the text, and gives the stop string that it completes: the one that was listed first.
    pub(crate) fn next(&self, progress: &mut StopProgress, byte: u8) -> Option<&Arc<str>> {
        progress.0 = self.step(progress.0, byte);
        let ends = self.node(progress.0)?.ends;
        self.strings.get(usize::try_from(ends).ok()?)
    }

    fn node(&self, at: u32) -> Option<&StopNode> {
        self.nodes.get(usize::try_from(at).ok()?)
    }

    fn node_mut(&mut self, at: u32) -> Option<&mut StopNode> {
        self.nodes.get_mut(usize::try_from(at).ok()?)
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        let mut child = self.node(at)?.first_child;
        loop {
            let node = self.node(child)?;
            if node.byte == byte {
                return Some(child);
            }
            child = node.next_sibling;
        }
    }

    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            if let Some(child) = self.child(at, byte) {
                return child;
            }
            if at == 0 {
                return 0;
            }
            at = self.node(at).map_or(0, |node| node.suffix);
        }
    }

    fn add(&mut self, index: usize) {
        let Some(string) = self.strings.get(index).filter(|string| !string.is_empty()).map(Arc::clone) else { return };
        let mut at = 0;
        for byte in string.bytes() {
            at = match self.child(at, byte) {
                Some(child) => child,
                None => self.put_child(at, byte),
            };
        }
        let index = u32::try_from(index).unwrap_or(NONE);
        if let Some(node) = self.node_mut(at) {
            node.ends = node.ends.min(index);
        }
    }

    fn put_child(&mut self, at: u32, byte: u8) -> u32 {
        let made = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        let mut node = StopNode::of(byte);
        if let Some(parent) = self.node_mut(at) {
            node.next_sibling = std::mem::replace(&mut parent.first_child, made);
        }
        self.nodes.push(node);
        made
    }

    /// Finds each prefix's suffix, the shorter prefixes first.
    fn link(&mut self) {
        let mut open = VecDeque::from([0]);
        while let Some(at) = open.pop_front() {
            let Some(StopNode { suffix, first_child: mut child, .. }) = self.node(at).cloned() else { continue };
            while let Some(StopNode { byte, next_sibling, .. }) = self.node(child).cloned() {
                let link = if at == 0 { 0 } else { self.step(suffix, byte) };
                let inherited = self.node(link).map_or(NONE, |node| node.ends);
                if let Some(node) = self.node_mut(child) {
                    node.suffix = link;
                    node.ends = node.ends.min(inherited);
                }
                open.push_back(child);
                child = next_sibling;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(strings: &[&str], text: &str) -> Vec<(usize, String)> {
        let strings: Vec<String> = strings.iter().map(|string| (*string).to_owned()).collect();
        let stop = StopStrings::new(&strings);
        let mut progress = StopProgress::default();
        let ends = text.bytes().enumerate().map(|(at, byte)| (at + 1, stop.next(&mut progress, byte)));
        ends.filter_map(|(end, found)| Some((end, found?.to_string()))).collect()
    }

    #[test]
    fn every_end_is_found_with_the_string_that_was_listed_first() {
        let all = |pairs: &[(usize, &str)]| pairs.iter().map(|(at, it)| (*at, (*it).to_owned())).collect::<Vec<_>>();
        assert_eq!(found(&["he", "she", "hers"], "ushers"), all(&[(4, "he"), (6, "hers")]));
        assert_eq!(found(&["she", "he"], "she"), all(&[(3, "she")]));
        assert_eq!(found(&["aab", "ab"], "aaab"), all(&[(4, "aab")]));
        assert_eq!(found(&["é", ""], "caféé"), all(&[(5, "é"), (7, "é")]));
        assert_eq!(found(&[], "abc"), all(&[]));
    }

    #[test]
    fn it_finds_what_a_search_finds() {
        let pieces = ["a", "b", "ab", "ba", "aba", "bb", "abba", "aab"];
        for seed in 0_u32..400 {
            let pick = |at: u32| pieces[usize::try_from((seed.wrapping_mul(2_654_435_761) >> (at * 3)) % 8).unwrap()];
            let strings = [pick(0), pick(1), pick(2)];
            let text: String = (0..10).map(pick).collect();
            let ends = (1..=text.len()).filter_map(|end| {
                let first = strings.iter().find(|string| text[..end].ends_with(**string))?;
                Some((end, (*first).to_owned()))
            });
            assert_eq!(found(&strings, &text), ends.collect::<Vec<_>>(), "{strings:?} {text}");
        }
    }

    #[test]
    fn its_memory_is_bounded_by_the_bytes_of_the_strings() {
        let nested: Vec<String> = (1..200).map(|length| "a".repeat(length)).chain(["a".repeat(100_000)]).collect();
        let stop = StopStrings::new(&nested);
        assert_eq!(stop.nodes.len(), 100_001, "what strings share is there once");
        assert!(size_of::<StopNode>() <= 20, "{}", size_of::<StopNode>());
    }
}
