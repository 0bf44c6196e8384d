//! The published benchmark: loads on `play` and on a floor, in turns, on this machine.
//!
//! The [floor] is what the machine allows a program that does nothing but wait and write, so a figure means something beside it. Both are child
//! processes of one binary, loaded over loopback by one thread of this one ([`client`]); processor time is the server's own, as the kernel counts it
//! ([`server`]). [`rows`] has the loads, [`table`] and [`chart`] show them.
//!
//! Limits: Linux only, elsewhere the crate is empty; client and server share the machine's cores.
//!
//! See docs/decisions/0139-the-machine-is-measured-where-it-stands.md.

#![cfg(target_os = "linux")]
#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a load client and a floor without bounds of their own; what is wrong is a panic of a measurement"
)]

pub mod chart;
pub mod client;
pub mod floor;
pub mod rows;
pub mod server;
pub mod table;

use std::{io, path::Path};

use serde_json::{Value, json};

use server::{BenchProgram, Contender};

/// Measures a row of the binary in so many rounds: for `play`, and for the floor; null where it has none.
pub type BenchRow = fn(&Path, usize) -> io::Result<[Value; 2]>;

/// The rows of the published table that take a minute together, by their names.
pub const QUICK: [(&str, BenchRow); 7] = [
    ("start", |binary, _| both(binary, 1, "start_ms", |program| rows::start(program, 3))),
    ("paced", |binary, rounds| both(binary, rounds, "gap_error_ms", rows::paced_own)),
    ("lateness", |binary, rounds| {
        both(binary, rounds, "lateness_ms", |program| rows::sustained(program, 1000, rows::HALF_CARRIES, 4))
    }),
    ("at_once", at_once),
    ("small", |binary, rounds| both(binary, rounds, "e2e_ms", |program| rows::small(rows::own_at_once(program)?))),
    ("one_by_one", |binary, rounds| {
        both(binary, rounds, "ttft_ms", |program| rows::one_by_one(rows::own_at_once(program)?))
    }),
    ("burst", |binary, rounds| both(binary, rounds, "ttft_ms", |program| rows::burst(rows::own_at_once(program)?))),
];

/// Streams of the short scaling study, each at 5 tokens a second.
const SIZES: [(usize, usize); 3] = [(100, 500), (1000, 5000), (5000, 25_000)];

/// The short scaling study, with no more streams than files may be open.
///
/// # Errors
/// When a server does not start, or a load cannot be put on it.
pub fn scaling(binary: &Path, most: usize) -> io::Result<[Value; 2]> {
    let loads: Vec<(usize, usize)> = SIZES.into_iter().filter(|(streams, _)| *streams <= most).collect();
    several(binary, 1, &loads, 3)
}

/// Tokens without any delay. The floor has a write for each event, and nothing to put together: it has no such row.
///
/// # Errors
/// When a server does not start, or a load cannot be put on it.
pub fn at_once(binary: &Path, _rounds: usize) -> io::Result<[Value; 2]> {
    let program = Contender { binary, program: BenchProgram::Play };
    Ok([rows::at_once(rows::own_at_once(program)?)?, Value::Null])
}

/// Both programs in turns, the best round of each.
///
/// # Errors
/// When a server does not start, or a load cannot be put on it.
pub fn both(
    binary: &Path,
    rounds: usize,
    of: &str,
    row: impl Fn(Contender<'_>) -> io::Result<Value>,
) -> io::Result<[Value; 2]> {
    let (mut own, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        own.push(row(Contender { binary, program: BenchProgram::Play })?);
        floor.push(row(Contender { binary, program: BenchProgram::Floor })?);
    }
    Ok([own, floor].map(|all| best(all, of)))
}

/// So many streams at so many events a second in all, for some seconds each.
///
/// # Errors
/// When a server does not start, or a load cannot be put on it.
pub fn several(binary: &Path, rounds: usize, loads: &[(usize, usize)], seconds: usize) -> io::Result<[Value; 2]> {
    let mut all = [Vec::new(), Vec::new()];
    for &(streams, rate) in loads {
        let measured =
            both(binary, rounds.min(2), "lateness_ms", |program| rows::sustained(program, streams, rate, seconds))?;
        all.iter_mut().zip(measured).for_each(|(all, one)| all.push(one));
    }
    Ok(all.map(Value::from))
}

/// The round with the smallest 99th percentile of a distribution, with those of all rounds.
/// Of no rounds it is null.
#[must_use]
pub fn best(all: Vec<Value>, of: &str) -> Value {
    let p99 = |row: &Value| row[of]["p99"].as_f64().unwrap_or(f64::INFINITY);
    let every: Vec<f64> = all.iter().map(p99).collect();
    let best = all.into_iter().min_by(|one, other| p99(one).total_cmp(&p99(other)));
    let mut best = best.unwrap_or_default();
    best["p99_of_rounds"] = json!(every);
    best
}
