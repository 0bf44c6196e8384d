//! Hashing a prompt's blocks: tokens per microsecond, by algorithm and block size.
//!
//! `cargo bench --bench hashing -- --json FILE`. Each figure is the best of several runs over a prompt of 128,000 tokens.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod shared;

use std::hint::black_box;

use serde_json::json;
use vllm_vcr::text::prompt::{BlockHashAlgorithm, BlockHasher};

const TOKENS: u64 = 128_000;
const ROUNDS: usize = 50;

fn main() {
    let ids: Vec<u32> = (0..TOKENS).map(|at| shared::mixed(at) as u32 % 150_000).collect();
    let mut figures = Vec::new();
    for algorithm in [BlockHashAlgorithm::Fnv1a64, BlockHashAlgorithm::Xxh3_64] {
        for block_size in [16, 64] {
            let hasher = BlockHasher::new(algorithm, block_size);
            let took = shared::best_of(ROUNDS, || drop(black_box(hasher.hash(&ids))));
            let rate = TOKENS as f64 / took.as_secs_f64() / 1e6;
            figures.push(json!({ "hash": algorithm, "block_size": block_size, "tokens_per_us": rate }));
        }
    }
    shared::report("hashing", &figures);
}
