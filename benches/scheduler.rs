//! Steps of the simulated engine's scheduler per second, in small batches.
//!
//! `cargo bench --bench scheduler -- --json FILE`. Requests of 64 prompt and 256 output tokens; whenever one ends, another
//! arrives, so that `batch` of them run in every step. The prefix cache is off, on with each kind of hash, or on with
//! events. Each figure is the best of several runs.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod shared;

use std::hint::black_box;

use serde_json::{Value, json};
use vllm_vcr::engine::{
    kv_cache::{HashAlgorithm, KvCacheConfig},
    scheduler::{Request, Scheduler, SchedulerConfig},
};

const STEPS: u64 = 200_000;
const ROUNDS: usize = 5;
const PROMPT: u64 = 64;
const OUTPUT: u64 = 256;

fn main() {
    let off = KvCacheConfig { enable_prefix_caching: false, num_gpu_blocks: 4096, ..KvCacheConfig::default() };
    let with = |prefix_caching_hash_algo, enable_kv_cache_events| KvCacheConfig {
        enable_prefix_caching: true,
        prefix_caching_hash_algo,
        enable_kv_cache_events,
        ..off.clone()
    };
    let caches = [
        ("off", off.clone()),
        ("xxhash_cbor", with(HashAlgorithm::XxhashCbor, false)),
        ("sha256", with(HashAlgorithm::Sha256, false)),
        ("sha256 with events", with(HashAlgorithm::Sha256, true)),
    ];
    let figures: Vec<Value> = caches
        .iter()
        .flat_map(|(name, cache)| {
            [1, 4, 16].map(|batch| json!({ "prefix_cache": name, "batch": batch, "steps_per_s": rate(cache, batch) }))
        })
        .collect();
    shared::report("scheduler", &figures);
}

fn rate(cache: &KvCacheConfig, batch: u64) -> f64 {
    let took = shared::best_of(ROUNDS, || {
        black_box(run(cache, batch));
    });
    (STEPS as f64 / took.as_secs_f64()).round()
}

/// Runs the steps; the number of tokens that they sampled.
fn run(cache: &KvCacheConfig, batch: u64) -> usize {
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), cache.clone()).unwrap();
    let (mut next, mut lacking, mut tokens) = (0, batch, 0);
    for _ in 0..STEPS {
        let arrivals = (next..next + lacking).map(request);
        let decisions = scheduler.step(arrivals, &[]);
        next += lacking;
        tokens += decisions.outputs.len();
        lacking = decisions.outputs.iter().filter(|output| output.finish_reason.is_some()).count() as u64;
        black_box(scheduler.events().count());
    }
    tokens
}

/// A request of which a quarter of the prompt is shared by all.
fn request(id: u64) -> Request {
    let prompt =
        (0..PROMPT).map(|at| shared::mixed(if at < PROMPT / 4 { at } else { id * PROMPT + at }) as u32 % 150_000);
    Request { id, prompt: prompt.collect(), output: vec![id as u32 % 150_000; OUTPUT as usize], ..Request::default() }
}
