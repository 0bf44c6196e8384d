//! The prefix index at a million records of 100 chained hashes: 60 blocks shared by all, groups of 50 exact duplicates.
//!
//! `cargo bench --bench matching`. Reports the time to build it, its memory, and the time of one selection: of prompts
//! that are recorded, with and without whole-prompt hashes, and of prompts that share the common blocks only.

#![allow(clippy::print_stdout, clippy::cast_possible_truncation)]

use std::{fs, time::Duration};

use tokio::time::Instant;
use vllm_vcr::{
    matching::{MatchBy, Matcher, Query},
    prompt::PromptHashes,
    trace::{Chunk, Record},
};

const RECORDS: u64 = 1_000_000;
const DUPLICATES: u64 = 50;
const GROUPS: u64 = RECORDS / DUPLICATES;
const SHARED: u64 = 60;
const BLOCKS: u64 = 100;
const SELECTIONS: u64 = 200_000;

fn main() {
    for whole in [Some(()), None] {
        println!("prompt hashes: {}", if whole.is_some() { "yes" } else { "no" });
        let records: Vec<Record> = (0..RECORDS).map(|at| record(at * 7919 % RECORDS / DUPLICATES, whole)).collect();
        let before = resident_kib();
        let start = Instant::now();
        let matcher = Matcher::new(&records, &[MatchBy::Prefix]);
        println!("  build {:?}, resident +{} MB", start.elapsed(), (resident_kib().saturating_sub(before)) / 1024);
        report("exact", &time(&matcher, |at| prompt(mixed(at) % GROUPS)));
        report("shared prefix only", &time(&matcher, |at| prompt(GROUPS + at)));
    }
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn prompt(group: u64) -> PromptHashes {
    let own = (SHARED..BLOCKS).map(|block| mixed((group + 1) * 1000 + block));
    PromptHashes { blocks: (0..SHARED).map(mixed).chain(own).collect(), whole: Some(mixed((group + 1) * 1000)) }
}

fn record(group: u64, whole: Option<()>) -> Record {
    let PromptHashes { blocks, whole: hash } = prompt(group);
    let chunks = vec![Chunk { tokens: 1, ..Chunk::default() }];
    Record { output_tokens: 1, chunks, block_hashes: blocks, prompt_hash: whole.and(hash), ..Record::default() }
}

fn time(matcher: &Matcher, prompt: impl Fn(u64) -> PromptHashes) -> Vec<Duration> {
    let select = |at| {
        let hashes = prompt(at);
        let start = Instant::now();
        let selection = matcher.select(&Query { request_id: None, hashes: &hashes, choices: 1 });
        let took = start.elapsed();
        std::hint::black_box(selection);
        took
    };
    let mut times: Vec<Duration> = (0..SELECTIONS).map(select).collect();
    times.sort_unstable();
    times
}

fn report(name: &str, sorted: &[Duration]) {
    let at = |permille: usize| sorted.get(sorted.len() * permille / 1000).copied().unwrap_or_default();
    println!("  {name}: p50 {:?} p99 {:?} p99.9 {:?}", at(500), at(990), at(999));
}

/// The process's resident memory; 0 where the system does not tell.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
