//! The matcher gives what the rules give when they are applied to every record, one after the other.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::*;

type Dice = Xoshiro256PlusPlus;

/// The rules by the letter, over every record every time.
struct Reference {
    records: Vec<Record>,
    served: BTreeMap<usize, u64>,
}

impl Reference {
    fn servable(&self) -> Vec<usize> {
        (0..self.records.len()).filter(|at| self.records[*at].output_tokens > 0).collect()
    }

    fn take(&mut self, record: usize) -> bool {
        let times = self.served.entry(record).or_default();
        *times += 1;
        *times == 1
    }

    fn times(&self, record: usize) -> u64 {
        self.served.get(&record).copied().unwrap_or_default()
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
        self.take(record);
        let mut spare = choices - chosen.len() - 1;
        for sibling in self.family(record) {
            if sibling == record {
                chosen.push(record);
            } else if spare > 0 && (self.take(sibling) || again) {
                spare -= 1;
                chosen.push(sibling);
            }
        }
    }

    fn add_unused(&mut self, from: &[usize], choices: usize) -> Vec<usize> {
        let mut chosen = Vec::new();
        while chosen.len() < choices {
            let Some(next) = from.iter().copied().find(|at| self.times(*at) == 0) else { break };
            self.add(next, &mut chosen, choices, false);
        }
        chosen
    }

    fn select(&mut self, by: MatchBy, query: &MatchQuery<'_>) -> Option<RecordSelection> {
        let (mut matched_blocks, mut whole, mut chosen) = (0, false, Vec::new());
        let again;
        match by {
            MatchBy::Auto | MatchBy::Index => {
                let index = query.request_id?.rsplit('-').next()?.parse().ok()?;
                self.servable().contains(&index).then_some(())?;
                again = self.times(index) > 0;
                self.add(index, &mut chosen, query.choices, true);
            }
            MatchBy::Prefix => {
                let servable = self.servable();
                let deepest =
                    servable.iter().map(|at| self.depth(*at, query.hashes)).max().filter(|depth| *depth > 0)?;
                let best: Vec<usize> =
                    servable.into_iter().filter(|at| self.depth(*at, query.hashes) == deepest).collect();
                matched_blocks = deepest.min(query.hashes.blocks.len());
                whole = best.iter().all(|at| {
                    let own = self.records[*at].prompt_hash;
                    own.is_some() && own == query.hashes.whole
                });
                chosen = self.add_unused(&best, query.choices);
                again = chosen.is_empty();
                if again {
                    self.add(*best.last()?, &mut chosen, query.choices, true);
                }
            }
            MatchBy::Next => {
                let servable = self.servable();
                chosen = self.add_unused(&servable, query.choices);
                again = chosen.is_empty();
                while again && chosen.len() < query.choices {
                    let least = servable.iter().copied().min_by_key(|at| self.times(*at))?;
                    self.add(least, &mut chosen, query.choices, true);
                }
            }
        }
        let records = chosen.iter().copied().cycle().take(query.choices).collect();
        Some(RecordSelection { records, by, matched_blocks, total_blocks: query.hashes.blocks.len(), whole, again })
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
        let mut requested = prompt(dice);
        let siblings = if dice.random_bool(0.3) { dice.random_range(2..5) } else { 1 };
        for index in (0..siblings).rev() {
            let mut record = choice(&requested, &group.to_string(), index);
            if siblings == 1 {
                (record.group, record.choice) = (None, None);
            }
            match dice.random_range(0..8) {
                0 => record.output_tokens = 0,
                1 => record.prompt_hash = None,
                2 => (record.prompt_hash, record.block_hashes) = (None, Vec::new().into()),
                3 => requested = prompt(dice),
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
        let mut matcher = by(&records, &[]);
        let mut reference = Reference { records, served: BTreeMap::new() };
        for step in 0..dice.random_range(1..25) {
            let way = [MatchBy::Index, MatchBy::Prefix, MatchBy::Prefix, MatchBy::Prefix, MatchBy::Next]
                [dice.random_range(0..5)];
            let request_id = format!("replay-{}", dice.random_range(0..12));
            let hashes = hashes(&prompt(&mut dice));
            let choices = if dice.random_bool(0.5) { 1 } else { dice.random_range(1..5) };
            let query = MatchQuery { request_id: Some(&request_id), ..query(&hashes, choices) };
            matcher.matcher.rules.order = vec![way];
            let (found, expected) = (matcher.select(&query).ok(), reference.select(way, &query));
            assert_eq!(found, expected, "trial {trial} step {step}: {query:?} of {:#?}", reference.records);
            let kind = found.map_or(("none", false), |found| (found.by.name(), found.again));
            *seen.entry(kind).or_default() += 1;
        }
    }
    assert!(seen.len() == 7 && seen.values().all(|count| *count > 1000), "{seen:?}");
}
