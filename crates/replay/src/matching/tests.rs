mod reference;

use std::{
    sync::{Arc, Barrier},
    thread,
};

use super::*;
use recording::trace::{Chunk, Endpoint, Record};
use text::prompt::{BlockHashAlgorithm, BlockHasher, PromptHashes};

fn hashes(prompt: &[u32]) -> PromptHashes {
    BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 2).hash(prompt)
}

fn record(prompt: &[u32]) -> Record {
    let PromptHashes { blocks, whole } = hashes(prompt);
    let chunks = vec![Chunk { tokens: 1, ..Chunk::default() }];
    Record { output_tokens: 1, chunks, block_hashes: blocks.into(), prompt_hash: whole, ..Record::default() }
}

fn choice(prompt: &[u32], group: &str, choice: u32) -> Record {
    Record { group: Some(group.into()), choice: Some(choice), ..record(prompt) }
}

/// A matcher with one session.
struct One {
    matcher: Matcher,
    session: Consumption,
}

fn one(records: &[Record], rules: MatchRules) -> One {
    let matcher = Matcher::new(records, rules);
    One { session: matcher.session(), matcher }
}

fn by(records: &[Record], order: &[MatchBy]) -> One {
    one(records, MatchRules::by(order))
}

impl One {
    fn select(&self, query: &MatchQuery<'_>) -> Result<RecordSelection, PromptMiss> {
        self.matcher.select(&self.session, query)
    }
}

fn query<'a>(hashes: &'a PromptHashes, choices: usize) -> MatchQuery<'a> {
    MatchQuery { request_id: None, hashes, choices, choices_before: 0, model: None }
}

fn ask(one: &One, prompt: &[u32], choices: usize) -> Option<RecordSelection> {
    one.select(&query(&hashes(prompt), choices)).ok()
}

fn ask_id(one: &One, request_id: &str) -> Option<RecordSelection> {
    one.select(&MatchQuery { request_id: Some(request_id), ..query(&PromptHashes::default(), 1) }).ok()
}

fn records(selection: Option<RecordSelection>) -> Vec<usize> {
    selection.map(|selection| selection.records).unwrap_or_default()
}

#[test]
fn duplicates_at_once_get_each_record_once() {
    const THREADS: usize = 64;
    const EACH: usize = 40;
    // Three sets of duplicates under one shared prefix, and a wide neighbourhood.
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6], &[1, 2, 7, 8]];
    let trace: Vec<Record> = (0..THREADS * EACH).map(|at| record(prompts[at % 3])).collect();
    let matcher = Arc::new(by(&trace, &[MatchBy::Prefix, MatchBy::Next]));
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
    let matcher = Arc::new(by(&trace, &[MatchBy::Prefix]));
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
    let matcher = by(&trace, &[MatchBy::Index]);
    for (id, expected) in [("replay-0", vec![0]), ("chatcmpl-abc-2", vec![2]), ("a--0", vec![0])] {
        assert_eq!(records(ask_id(&matcher, id)), expected, "{id}");
    }
    for id in ["replay-1", "replay-3", "replay-", "replay", "0", "a-+0", "a-0x", "a-99999999999999999999", ""] {
        assert_eq!(ask_id(&matcher, id), None, "{id}");
    }
    assert!(ask_id(&matcher, "replay-0").unwrap().again);
    let next = by(&trace, &[MatchBy::Index, MatchBy::Next]);
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
    let matcher = || by(&trace, &[MatchBy::Prefix]);
    assert_eq!(records(ask(&matcher(), &prompt, 2)), [1, 0], "in order of choices");
    assert_eq!(records(ask(&matcher(), &prompt, 3)), [1, 0, 3]);
    assert_eq!(records(ask(&matcher(), &prompt, 5)), [1, 0, 3, 1, 0]);
    assert_eq!(records(ask(&matcher(), &prompt, 0)), [0]);
    let used = matcher();
    assert_eq!(records(ask(&used, &prompt, 1)), [0]);
    assert_eq!(records(ask(&used, &prompt, 2)), [1, 3], "what was consumed is no sibling any more");
    let again = ask(&used, &prompt, 2).unwrap();
    assert_eq!((again.records, again.again), (vec![3, 3], true), "the last one again");
}

#[test]
fn without_records_nothing_matches() {
    let matcher = by(&[], &[MatchBy::Index, MatchBy::Prefix, MatchBy::Next]);
    assert_eq!(ask(&matcher, &[1, 2, 3], 1), None);
}

#[test]
fn automatically_an_id_names_its_record_and_a_prompt_finds_any_other() {
    let embeddings = Record { endpoint: Some(Endpoint::Embeddings), ..record(&[1, 2, 3]) };
    let trace = [record(&[1, 2, 3]), embeddings, record(&[4, 5, 6]), record(&[7, 8, 9])];
    let matcher = by(&trace, &[MatchBy::Auto]);
    let both = |id: &str, prompt: &[u32]| {
        matcher
            .select(&MatchQuery { request_id: Some(id), ..query(&hashes(prompt), 1) })
            .map(|found| (found.records[0], found.by))
    };
    assert_eq!(both("replay-2", &[1, 2, 3]), Ok((2, MatchBy::Index)), "embeddings before it keep their number");
    assert_eq!(both("chatcmpl-abc-0", &[7, 8, 9]), Ok((3, MatchBy::Prefix)));
    assert_eq!(both("replay-x", &[1, 2, 3]), Ok((0, MatchBy::Prefix)));
    for id in ["replay-1", "replay-4", "replay-99999999999999999999"] {
        assert!(both(id, &[1, 2, 3]).is_err(), "{id} names no record that can be served, and no other is meant");
    }
}

#[test]
fn a_record_has_to_share_enough_of_a_prompt() {
    let trace = [record(&[1, 2, 3, 4, 5, 6]), record(&[1, 2, 9, 9])];
    let found = |least: MinMatch, prompt: &[u32]| {
        let one = one(&trace, MatchRules { least, ..MatchRules::by(&[MatchBy::Prefix]) });
        one.select(&query(&hashes(prompt), 1)).map(|found| (found.records[0], found.matched_blocks, found.whole))
    };
    let blocks = |blocks| MinMatch::Blocks(std::num::NonZeroU32::new(blocks).unwrap());
    let shared: &[u32] = &[1, 2, 7, 7, 7, 7, 7, 7];
    assert_eq!(found(blocks(1), shared), Ok((0, 1, false)));
    assert_eq!(found(MinMatch::Percent(25), shared), Ok((0, 1, false)));
    for least in [MinMatch::Whole, blocks(2), MinMatch::Percent(26)] {
        let miss = found(least, shared).unwrap_err();
        assert_eq!((miss.reason, miss.total_blocks), (MissReason::NoMatch, 4), "{least}");
        assert_eq!(miss.nearest, Some(Nearest { record: 0, matched_blocks: 1 }));
    }
    assert_eq!(found(MinMatch::Whole, &[1, 2, 9, 9]), Ok((1, 2, true)));
    assert!(found(MinMatch::Whole, &[1, 2, 9, 9, 9]).is_err(), "its tail differs");
    assert_eq!(found(MinMatch::Whole, &[8, 8]).unwrap_err().nearest, None);
}

#[test]
fn without_a_hash_of_the_whole_prompt_equal_blocks_are_the_whole() {
    let unhashed = |prompt: &[u32]| Record { prompt_hash: None, ..record(prompt) };
    let trace = [unhashed(&[1, 2, 3, 4, 5, 6]), unhashed(&[1, 2, 3, 4]), record(&[1, 2, 3, 4, 5])];
    let one = one(&trace, MatchRules { least: MinMatch::Whole, ..MatchRules::by(&[MatchBy::Prefix]) });
    assert_eq!(records(ask(&one, &[1, 2, 3, 4], 1)), [1]);
    assert_eq!(records(ask(&one, &[1, 2, 3, 4, 9], 1)), [1], "the rest of it was not recorded");
    assert_eq!(records(ask(&one, &[1, 2, 3, 4, 5], 1)), [2]);
    assert_eq!(ask(&one, &[1, 2], 1), None);
    assert_eq!(ask(&one, &[1, 2, 3, 4, 5, 6, 7, 8], 1), None);
}

#[test]
fn exhausted_records_give_what_is_configured() {
    let trace = [record(&[1, 2]), record(&[3, 4]), record(&[1, 2]), record(&[1, 2])];
    let served = |on_exhausted| {
        let one = one(&trace, MatchRules { on_exhausted, ..MatchRules::by(&[MatchBy::Prefix, MatchBy::Next]) });
        (0..7).map(|_| ask(&one, &[1, 2], 1).map(|found| found.records[0])).collect::<Vec<_>>()
    };
    let fresh = [Some(0), Some(2), Some(3)];
    let then = |rest: [Option<usize>; 4]| [&fresh[..], &rest[..]].concat();
    assert_eq!(served(None), then([Some(3); 4]));
    assert_eq!(served(Some(OnExhausted::Last)), then([Some(3); 4]));
    assert_eq!(served(Some(OnExhausted::Cycle)), then([Some(0), Some(2), Some(3), Some(0)]));
    assert_eq!(served(Some(OnExhausted::Error)), then([None; 4]), "a looser way gets no turn");
}

#[test]
fn a_later_way_may_follow_exhausted_records_before_any_is_repeated() {
    let trace = [record(&[1, 2]), record(&[3, 4])];
    let served = |on_exhausted, loose_after_exhausted| {
        let ways = MatchRules::by(&[MatchBy::Prefix, MatchBy::Next]);
        let one = one(&trace, MatchRules { on_exhausted, loose_after_exhausted, ..ways });
        (0..3).map(|_| ask(&one, &[1, 2], 1).map(|found| (found.records[0], found.by, found.again))).collect::<Vec<_>>()
    };
    let (fresh, other) = (Some((0, MatchBy::Prefix, false)), Some((1, MatchBy::Next, false)));
    let repeated = Some((0, MatchBy::Prefix, true));
    assert_eq!(served(None, false), [fresh, repeated, repeated]);
    assert_eq!(served(None, true), [fresh, other, repeated]);
    assert_eq!(served(Some(OnExhausted::Error), true), [fresh, other, None]);
}

#[test]
fn the_next_in_turn_begins_anew_when_all_are_consumed() {
    let trace: Vec<Record> = (0..12).map(|at| record(&[at, at])).collect();
    let one = by(&trace, &[MatchBy::Next]);
    let served: Vec<usize> = (0..40).map(|_| ask(&one, &[99], 1).unwrap().records[0]).collect();
    assert_eq!(served, (0..40).map(|at| at % 12).collect::<Vec<_>>());
}

#[test]
fn prompts_find_records_of_their_own_model() {
    let of = |model: &str, prompt: &[u32]| Record { model: Some(model.into()), ..record(prompt) };
    let trace = [of("a", &[1, 2, 3]), of("b", &[1, 2, 3]), of("b", &[1, 2, 4])];
    let found = |by_model: bool, model: &str, prompt: &[u32]| {
        let one = one(&trace, MatchRules { by_model, ..MatchRules::by(&[MatchBy::Prefix]) });
        one.select(&MatchQuery { model: Some(model), ..query(&hashes(prompt), 1) }).map(|found| found.records[0])
    };
    assert_eq!(found(true, "b", &[1, 2, 3]), Ok(1));
    assert_eq!(found(true, "a", &[1, 2, 4]), Ok(0), "by its first block");
    assert!(found(true, "c", &[1, 2, 3]).is_err());
    assert_eq!(found(false, "b", &[1, 2, 3]), Ok(0));
}

#[test]
fn sessions_consume_apart() {
    let trace = [record(&[1, 2]), record(&[1, 2])];
    let matcher = Matcher::new(&trace, MatchRules::by(&[MatchBy::Prefix]));
    let (one, other) = (matcher.session(), matcher.session());
    let select = |session: &Consumption| matcher.select(session, &query(&hashes(&[1, 2]), 1)).unwrap().records[0];
    assert_eq!((select(&one), select(&one), select(&other)), (0, 1, 0));
    assert_eq!((one.consumed(), other.consumed(), other.times(0)), (2, 1, 1));
}

#[test]
fn an_index_of_a_request_with_several_prompts_is_its_first_record() {
    let trace = [choice(&[1], "g", 0), choice(&[1], "g", 1), choice(&[2], "g", 2), choice(&[2], "g", 3)];
    let one = by(&trace, &[MatchBy::Auto]);
    let prompt = |at: u32| {
        let hashes = PromptHashes::default();
        let query = MatchQuery { request_id: Some("replay-0"), choices_before: at * 2, ..query(&hashes, 2) };
        one.select(&query).unwrap().records
    };
    assert_eq!((prompt(0), prompt(1)), (vec![0, 1], vec![2, 3]));
}
