use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Barrier},
    thread,
};

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::*;
use crate::{
    prompt::{BlockHash, BlockHasher},
    trace::Chunk,
};

type Dice = Xoshiro256PlusPlus;

fn hashes(prompt: &[u32]) -> PromptHashes {
    BlockHasher::new(BlockHash::Xxh3_64, 2).hash(prompt)
}

fn record(prompt: &[u32]) -> Record {
    let PromptHashes { blocks, whole } = hashes(prompt);
    let chunks = vec![Chunk { tokens: 1, ..Chunk::default() }];
    Record { output_tokens: 1, chunks, block_hashes: blocks, prompt_hash: whole, ..Record::default() }
}

fn choice(prompt: &[u32], group: &str, choice: u32) -> Record {
    Record { group: Some(group.into()), choice: Some(choice), ..record(prompt) }
}

fn ask(matcher: &Matcher, prompt: &[u32], choices: usize) -> Option<Selection> {
    matcher.select(&Query { request_id: None, hashes: &hashes(prompt), choices })
}

fn ask_id(matcher: &Matcher, request_id: &str) -> Option<Selection> {
    let hashes = PromptHashes::default();
    matcher.select(&Query { request_id: Some(request_id), hashes: &hashes, choices: 1 })
}

fn records(selection: Option<Selection>) -> Vec<usize> {
    selection.map(|selection| selection.records).unwrap_or_default()
}

/// The rules by the letter, over every record every time.
struct Reference {
    records: Vec<Record>,
    used: HashSet<usize>,
    turn: usize,
}

impl Reference {
    fn servable(&self) -> Vec<usize> {
        (0..self.records.len()).filter(|at| self.records[*at].output_tokens > 0).collect()
    }

    fn depth(&self, at: usize, prompt: &PromptHashes) -> usize {
        let record = &self.records[at];
        let shared = record.block_hashes.iter().zip(&prompt.blocks).take_while(|(a, b)| a == b).count();
        shared + usize::from(record.prompt_hash.is_some() && record.prompt_hash == prompt.whole)
    }

    fn family(&self, of: usize) -> Vec<usize> {
        let key = |at: usize| (&self.records[at].group, self.records[at].prompt_hash, &self.records[at].block_hashes);
        let siblings =
            self.servable().into_iter().filter(|at| *at == of || key(*at).0.is_some() && key(*at) == key(of));
        let mut siblings: Vec<usize> = siblings.collect();
        siblings.sort_by_key(|at| (self.records[*at].choice, *at));
        siblings
    }

    fn add(&mut self, record: usize, chosen: &mut Vec<usize>, choices: usize, again: bool) {
        self.used.insert(record);
        let mut spare = choices - chosen.len() - 1;
        for sibling in self.family(record) {
            if sibling == record {
                chosen.push(record);
            } else if spare > 0 && (self.used.insert(sibling) || again) {
                spare -= 1;
                chosen.push(sibling);
            }
        }
    }

    fn add_unused(&mut self, from: &[usize], choices: usize) -> Vec<usize> {
        let mut chosen = Vec::new();
        while chosen.len() < choices {
            let Some(next) = from.iter().copied().find(|at| !self.used.contains(at)) else { break };
            self.add(next, &mut chosen, choices, false);
        }
        chosen
    }

    fn select(&mut self, by: MatchBy, query: &Query<'_>) -> Option<Selection> {
        let (mut matched_blocks, mut chosen) = (0, Vec::new());
        let again;
        match by {
            MatchBy::Index => {
                let index = query.request_id?.rsplit('-').next()?.parse().ok()?;
                self.servable().contains(&index).then_some(())?;
                again = self.used.contains(&index);
                self.add(index, &mut chosen, query.choices, true);
            }
            MatchBy::Prefix => {
                let servable = self.servable();
                let deepest =
                    servable.iter().map(|at| self.depth(*at, query.hashes)).max().filter(|depth| *depth > 0)?;
                let best: Vec<usize> =
                    servable.into_iter().filter(|at| self.depth(*at, query.hashes) == deepest).collect();
                matched_blocks = deepest.min(query.hashes.blocks.len());
                chosen = self.add_unused(&best, query.choices);
                again = chosen.is_empty();
                if again {
                    self.add(best[0], &mut chosen, query.choices, true);
                }
            }
            MatchBy::Next => {
                let servable = self.servable();
                chosen = self.add_unused(&servable, query.choices);
                again = chosen.is_empty();
                while again && chosen.len() < query.choices {
                    chosen.push(*servable.get(self.turn % servable.len().max(1))?);
                    self.turn += 1;
                }
            }
        }
        let records = chosen.iter().copied().cycle().take(query.choices).collect();
        Some(Selection { records, by, matched_blocks, total_blocks: query.hashes.blocks.len(), again })
    }
}

/// A prompt of few tokens of a small alphabet: shares prefixes, whole blocks and tails with many others.
fn prompt(dice: &mut Dice) -> Vec<u32> {
    let length = dice.random_range(0..9);
    (0..length).map(|_| dice.random_range(0..2)).collect()
}

/// Records of every kind: with and without whole hashes, hashes, output, groups of equal and unequal prompts.
fn any_records(dice: &mut Dice) -> Vec<Record> {
    let mut records = Vec::new();
    for group in 0..dice.random_range(0..12) {
        let mut asked = prompt(dice);
        let siblings = if dice.random_bool(0.3) { dice.random_range(2..5) } else { 1 };
        for index in (0..siblings).rev() {
            let mut record = choice(&asked, &group.to_string(), index);
            if siblings == 1 {
                (record.group, record.choice) = (None, None);
            }
            match dice.random_range(0..8) {
                0 => record.output_tokens = 0,
                1 => record.prompt_hash = None,
                2 => (record.prompt_hash, record.block_hashes) = (None, Vec::new()),
                3 => asked = prompt(dice),
                _ => {}
            }
            records.push(record);
        }
    }
    records
}

#[test]
fn equals_the_rules_by_the_letter() {
    let mut dice = Dice::seed_from_u64(1);
    let mut seen: BTreeMap<(&str, bool), u32> = BTreeMap::new();
    for trial in 0..10_000 {
        let records = any_records(&mut dice);
        // One order of one way at a time, over one state: the ways consume from each other.
        let mut matcher = Matcher::new(&records, &[]);
        let mut reference = Reference { records, used: HashSet::new(), turn: 0 };
        for step in 0..dice.random_range(1..25) {
            let by = [MatchBy::Index, MatchBy::Prefix, MatchBy::Prefix, MatchBy::Prefix, MatchBy::Next]
                [dice.random_range(0..5)];
            let request_id = format!("replay-{}", dice.random_range(0..12));
            let hashes = hashes(&prompt(&mut dice));
            let choices = if dice.random_bool(0.5) { 1 } else { dice.random_range(1..5) };
            let query = Query { request_id: Some(&request_id), hashes: &hashes, choices };
            matcher.order = Box::new([by]);
            let (found, expected) = (matcher.select(&query), reference.select(by, &query));
            assert_eq!(found, expected, "trial {trial} step {step}: {query:?} of {:#?}", reference.records);
            let kind = found.map_or(("none", false), |found| (found.by.name(), found.again));
            *seen.entry(kind).or_default() += 1;
        }
    }
    assert!(seen.len() == 7 && seen.values().all(|count| *count > 1000), "{seen:?}");
}

#[test]
fn duplicates_at_once_get_each_record_once() {
    const THREADS: usize = 64;
    const EACH: usize = 40;
    // Three sets of duplicates under one shared prefix, and a wide neighbourhood.
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6], &[1, 2, 7, 8]];
    let trace: Vec<Record> = (0..THREADS * EACH).map(|at| record(prompts[at % 3])).collect();
    let matcher = Arc::new(Matcher::new(&trace, &[MatchBy::Prefix, MatchBy::Next]));
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (matcher, start) = (Arc::clone(&matcher), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                let ask = |step: usize| match (thread + step) % 4 {
                    0 => ask(&matcher, &[1, 2, 9], 1), // shares one block with all of them
                    kind => ask(&matcher, prompts[kind - 1], 1),
                };
                (0..EACH).filter_map(ask).filter(|found| !found.again).map(|found| found.records[0]).collect()
            })
        })
        .collect();
    let served: Vec<Vec<usize>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut all: Vec<usize> = served.concat();
    let fresh = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), fresh, "no record was served twice as a fresh one");
    let rest = std::iter::from_fn(|| ask(&matcher, &[9, 9], 1).filter(|found| !found.again)).count();
    assert_eq!(fresh + rest, trace.len(), "none was lost");
}

#[test]
fn one_set_of_duplicates_is_served_whole_and_in_order_per_thread() {
    const THREADS: usize = 64;
    const EACH: usize = 1000; // enough for the threads to get in each other's way
    let trace: Vec<Record> = (0..THREADS * EACH).map(|_| record(&[1, 2, 3])).collect();
    let matcher = Arc::new(Matcher::new(&trace, &[MatchBy::Prefix]));
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (matcher, start) = (Arc::clone(&matcher), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                (0..EACH).flat_map(|_| records(ask(&matcher, &[1, 2, 3], 1))).collect::<Vec<_>>()
            })
        })
        .collect();
    let served: Vec<Vec<usize>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(served.iter().all(|own| own.is_sorted()));
    let mut all = served.concat();
    all.sort_unstable();
    assert_eq!(all, (0..trace.len()).collect::<Vec<_>>());
    assert!(ask(&matcher, &[1, 2, 3], 1).unwrap().again);
}

#[test]
fn an_index_is_the_number_after_the_last_dash() {
    let trace = [record(&[1]), Record { output_tokens: 0, ..record(&[2]) }, record(&[3])];
    let matcher = Matcher::new(&trace, &[MatchBy::Index]);
    for (id, expected) in [("replay-0", vec![0]), ("chatcmpl-abc-2", vec![2]), ("a--0", vec![0])] {
        assert_eq!(records(ask_id(&matcher, id)), expected, "{id}");
    }
    for id in ["replay-1", "replay-3", "replay-", "replay", "0", "a-+0", "a-0x", "a-99999999999999999999", ""] {
        assert_eq!(ask_id(&matcher, id), None, "{id}");
    }
    assert!(ask_id(&matcher, "replay-0").unwrap().again);
    let next = Matcher::new(&trace, &[MatchBy::Index, MatchBy::Next]);
    assert_eq!(records(ask_id(&next, "replay-0")), [0]);
    assert_eq!(records(ask_id(&next, "replay-1")), [2], "the index consumed record 0, and 1 cannot be served");
}

#[test]
fn choices_come_from_siblings_then_duplicates_then_repeats() {
    let prompt = [1, 2, 3];
    let trace = [
        choice(&prompt, "a", 1),
        choice(&prompt, "a", 0),
        choice(&[4, 5], "a", 2), // the same request, another of its prompts
        record(&prompt),
    ];
    let matcher = || Matcher::new(&trace, &[MatchBy::Prefix]);
    assert_eq!(records(ask(&matcher(), &prompt, 2)), [1, 0], "in order of choices");
    assert_eq!(records(ask(&matcher(), &prompt, 3)), [1, 0, 3]);
    assert_eq!(records(ask(&matcher(), &prompt, 5)), [1, 0, 3, 1, 0]);
    assert_eq!(records(ask(&matcher(), &prompt, 0)), [0]);
    let used = matcher();
    assert_eq!(records(ask(&used, &prompt, 1)), [0]);
    assert_eq!(records(ask(&used, &prompt, 2)), [1, 3], "what was consumed is no sibling any more");
    let again = ask(&used, &prompt, 2).unwrap();
    assert_eq!((again.records, again.again), (vec![1, 0], true));
}

#[test]
fn without_records_nothing_matches() {
    let matcher = Matcher::new(&[], &[MatchBy::Index, MatchBy::Prefix, MatchBy::Next]);
    assert_eq!(ask(&matcher, &[1, 2, 3], 1), None);
}
