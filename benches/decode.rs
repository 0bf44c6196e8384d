//! Decoding a trace on one thread: MB/s of JSON, from memory.
//!
//! `cargo bench --bench decode -- --json FILE`. The lines are those of the store's bench; each figure is the best of
//! several runs. Beside records as the library reads them stand untyped and typed `serde_json`, and unpacking alone.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod shared;

use std::{hint::black_box, io::Write};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use vllm_vcr::recording::trace;

const RECORDS: u64 = 4000;
const ROUNDS: usize = 9;

fn main() {
    let mut lines = Vec::new();
    (0..RECORDS).for_each(|record| shared::line(&mut lines, record, record));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&lines).unwrap();
    let packed = encoder.finish().unwrap();
    let of = |what: &str, run: &mut dyn FnMut()| json!({ "what": what, "mb_per_s": shared::rate(lines.len(), shared::best_of(ROUNDS, run)) });
    let untyped = || {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            black_box(serde_json::from_slice::<Value>(line).unwrap());
        }
    };
    shared::report(
        "decode",
        &[
            of("records", &mut || drop(black_box(trace::read_bytes("bench", &lines).unwrap()))),
            of("records, gzip", &mut || drop(black_box(trace::read_bytes("bench", &packed).unwrap()))),
            of("gunzip alone", &mut || drop(black_box(trace::gunzip("bench", &packed).unwrap()))),
            of("serde_json, untyped", &mut || untyped()),
        ],
    );
}
