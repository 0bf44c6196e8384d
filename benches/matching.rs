//! The prefix index at a million records of 100 chained hashes: 60 blocks shared by all, groups of 50 exact duplicates.
//!
//! `cargo bench --bench matching -- --json FILE`. Reports the time to build it, its memory, and the time of one
//! selection: of prompts that are recorded, with and without whole-prompt hashes, and of prompts that share the common
//! blocks only; with every prompt recorded once and 50 and 5,000 times.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod shared;

use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::{
    recording::trace::{Chunk, Record},
    replay::matching::{MatchBy, MatchRules, Matcher},
    text::prompt::PromptHashes,
};

const RECORDS: u64 = 1_000_000;

fn main() {
    let kinds = [(50, true), (50, false), (1, true), (5000, true)];
    shared::report("matching", &kinds.map(|(duplicates, whole)| measure(duplicates, whole)));
}

fn measure(duplicates: u64, has_whole: bool) -> Value {
    let records: Vec<Record> = (0..RECORDS).map(|at| record(at * 7919 % RECORDS / duplicates, has_whole)).collect();
    let (before, start) = (shared::memory("VmRSS:"), Instant::now());
    let matcher = Matcher::new(&records, MatchRules::by(&[MatchBy::Prefix]));
    let (build, index) = (start.elapsed().as_secs_f64(), shared::memory("VmRSS:") - before);
    let (exact, shared) = shared::matches(&matcher, RECORDS / duplicates * shared::DUPLICATES);
    json!({
        "records": RECORDS, "duplicates": duplicates, "prompt_hashes": has_whole, "index_s": build, "index_mb": index,
        "exact_match_us": exact, "shared_prefix_match_us": shared,
    })
}

fn record(group: u64, has_whole: bool) -> Record {
    let PromptHashes { blocks, whole } = shared::prompt(group);
    let chunks = vec![Chunk { tokens: 1, ..Chunk::default() }];
    let prompt_hash = whole.filter(|_| has_whole);
    Record { output_tokens: 1, chunks, block_hashes: blocks.into(), prompt_hash, ..Record::default() }
}
