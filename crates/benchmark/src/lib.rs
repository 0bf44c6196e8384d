//! The published benchmark: loads on `play` and on a floor, in turns, on this machine.
//!
//! The [floor] is what the machine allows a program that does nothing but wait and write, so a figure means something beside it. Both are child
//! processes of one binary, loaded over loopback by one thread of this one (`client`); processor time is the server's own, as the kernel counts it
//! ([`server`]). [`rows`] has the loads, [`table`] shows the figures.
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

mod client;
pub mod floor;
pub mod rows;
pub mod server;
pub mod table;

use std::{io, path::Path};

use serde_json::{Map, Value, json};

use server::{BenchProgram, Contender};

/// Files that are open beside connections.
const OTHER_FILES: usize = 200;

/// Connections of the rows that fit a minute.
const FEWEST_CONNECTIONS: usize = 1000;

/// Subject of a benchmark, and its repetitions.
#[derive(Debug, Clone, Copy)]
pub struct BenchRun<'a> {
    /// The program `vllm-vcr`, which is the floor too.
    pub binary: &'a Path,
    /// Times that what is about latency is measured; the best one counts.
    pub rounds: usize,
    /// Starts that are timed.
    pub starts: usize,
    /// Seconds of a load of many streams.
    pub seconds: usize,
    /// Numbers of streams of the scaling study, each at 5 tokens a second.
    pub sizes: &'a [usize],
    /// Files that may be open.
    pub files: usize,
}

/// Measures a row: for `play`, and for the floor; null where it has none.
pub type BenchRow = fn(&BenchRun<'_>) -> io::Result<[Value; 2]>;

/// The rows of the published table by their names, and the scaling study.
pub const ROWS: [(&str, BenchRow); 10] = [
    ("start", |run| BenchRun { rounds: 1, ..*run }.both("start_ms", |program| rows::start(program, run.starts))),
    ("paced", |run| run.both("gap_error_ms", rows::paced_own)),
    ("lateness", |run| {
        run.both("lateness_ms", |program| rows::sustained(program, 1000, rows::HALF_CARRIES, run.seconds + 2))
    }),
    ("many", |run| run.several([50, 75, 90, 100, 110, 120].map(|thousands| (10_000, thousands * 1000)))),
    ("memory", |run| Ok([rows::memory(run.play(), 5000)?, Value::Null])),
    // The floor has a write for each event, and nothing to put together.
    ("at_once", |run| Ok([rows::at_once(rows::own_at_once(run.play())?)?, Value::Null])),
    ("small", |run| run.both("e2e_ms", |program| rows::small(rows::own_at_once(program)?))),
    ("one_by_one", |run| run.both("ttft_ms", |program| rows::one_by_one(rows::own_at_once(program)?))),
    ("burst", |run| run.both("ttft_ms", |program| rows::burst(rows::own_at_once(program)?))),
    ("scaling", |run| {
        let sizes = run.sizes.iter().map(|streams| *streams.min(&run.files.saturating_sub(OTHER_FILES)));
        run.several(sizes.map(|streams| (streams, streams * 5)))
    }),
];

impl<'a> BenchRun<'a> {
    /// Measures rows, and names each before it begins; returns the machine and their figures by name, those of the floor under `floor`.
    ///
    /// # Errors
    /// When too few files may be open, there is no such row, a server does not start, or a load cannot be put on it.
    pub fn measure(&self, names: &[&str], begins: impl Fn(&str)) -> io::Result<Map<String, Value>> {
        if self.files < FEWEST_CONNECTIONS + OTHER_FILES {
            let text = format!(
                "{} files may be open, and the benchmark has {FEWEST_CONNECTIONS} connections: ulimit -n 4096",
                self.files
            );
            return Err(io::Error::other(text));
        }
        let (mut found, mut floors) = (Map::new(), Map::new());
        found.insert("machine".to_owned(), table::machine());
        for name in names {
            let failed = |error: io::Error| io::Error::other(format!("{name}: {error}"));
            let row = ROWS.iter().find(|(row, _)| row == name).map(|(_, row)| row);
            let row = row.ok_or_else(|| failed(io::Error::other("no such row")))?;
            begins(name);
            let [own, floor] = row(self).map_err(failed)?;
            found.insert((*name).to_owned(), own);
            floors.insert((*name).to_owned(), floor);
        }
        found.insert("floor".to_owned(), Value::Object(floors));
        Ok(found)
    }

    fn play(&self) -> Contender<'a> {
        Contender { binary: self.binary, program: BenchProgram::Play }
    }

    /// Both programs in turns, the best round of each.
    fn both(&self, of: &str, row: impl Fn(Contender<'_>) -> io::Result<Value>) -> io::Result<[Value; 2]> {
        let (mut own, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds.max(1) {
            own.push(row(self.play())?);
            floor.push(row(Contender { program: BenchProgram::Floor, ..self.play() })?);
        }
        Ok([own, floor].map(|all| best(all, of)))
    }

    /// So many streams at so many events a second in all, for each pair.
    fn several(&self, loads: impl IntoIterator<Item = (usize, usize)>) -> io::Result<[Value; 2]> {
        let run = BenchRun { rounds: self.rounds.min(2), ..*self };
        let mut all = [Vec::new(), Vec::new()];
        for (streams, rate) in loads {
            let row = |program: Contender<'_>| rows::sustained(program, streams, rate, run.seconds);
            all.iter_mut().zip(run.both("lateness_ms", row)?).for_each(|(all, one)| all.push(one));
        }
        Ok(all.map(Value::from))
    }
}

/// The round with the smallest 99th percentile of a distribution, with those of all rounds.
#[must_use]
pub fn best(all: Vec<Value>, of: &str) -> Value {
    let p99 = |row: &Value| row[of]["p99"].as_f64().unwrap_or(f64::INFINITY);
    let every: Vec<f64> = all.iter().map(p99).collect();
    let best = all.into_iter().min_by(|one, other| p99(one).total_cmp(&p99(other)));
    let mut best = best.unwrap_or_default();
    best["p99_of_rounds"] = json!(every);
    best
}
