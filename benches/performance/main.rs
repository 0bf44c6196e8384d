//! The measured table of `docs/src/internals/performance.md`, for the machine that this runs on.
//!
//! `cargo bench --bench performance` prints it; `-- --write DIR` also writes `performance.json`, the charts and the
//! tables of `performance.md` there. `-- --peers FILE` measures other servers in the same run: a line is
//! `name<TAB>paced|at-once<TAB>command`, and the command listens on `$PORT`. `-- --only paced,memory` measures some rows,
//! `-- --rounds N` repeats what is about latency and keeps the best. Each row is measured for the [floor](vllm_vcr::benchmark::floor) too, in turns.
//!
//! The servers are child processes, loaded over loopback by one thread of this one. Processor time is the server's own, as
//! the kernel counts it. Limits: Linux; client and server share the machine's cores.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

mod page;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use vllm_vcr::benchmark::{BenchRun, ROWS, best, rows, server::MeasuredServer};

/// Streams of the scaling study, each at 5 tokens a second.
const SIZES: [usize; 5] = [100, 1000, 5000, 10_000, 20_000];

struct Options {
    write: Option<PathBuf>,
    peers: Option<PathBuf>,
    only: Vec<String>,
    rounds: usize,
}

impl Options {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { write: None, peers: None, only: Vec::new(), rounds: 3 };
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--write" => options.write = Some(value.into()),
                "--peers" => options.peers = Some(value.into()),
                "--only" => options.only = value.split(',').map(str::to_owned).collect(),
                "--rounds" => options.rounds = value.parse().map_err(|_| "--rounds needs a number".to_owned())?,
                _ => return Err(format!("{flag} is unknown")),
            }
        }
        Ok(options)
    }

    fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == row)
    }
}

fn main() -> io::Result<()> {
    let options = Options::read(env::args().skip(1)).map_err(io::Error::other)?;
    let limit = vllm_vcr::net::server::raise_descriptor_limit();
    let run = BenchRun {
        binary: Path::new(env!("CARGO_BIN_EXE_vllm-vcr")),
        rounds: options.rounds,
        starts: 9,
        seconds: 6,
        sizes: &SIZES,
        files: limit.map_or(usize::MAX, |limit| limit as usize),
    };
    let names: Vec<&str> = ROWS.iter().map(|(name, _)| *name).filter(|name| options.wants(name)).collect();
    let mut found = run.measure(&names, |name| eprintln!("{name}…"))?;
    if let Some(peers) = options.peers.as_ref().filter(|_| options.wants("peers")) {
        found.insert("peers".to_owned(), measure_peers(&fs::read_to_string(peers)?, run.rounds)?);
    }
    let found = Value::Object(found);
    print!("{}", page::tables(&found));
    match &options.write {
        Some(directory) => page::write(directory, &found),
        None => Ok(()),
    }
}

fn measure_peers(list: &str, rounds: usize) -> io::Result<Value> {
    let mut peers = Map::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [name, mode, command] = line.splitn(3, '\t').collect::<Vec<_>>()[..] else {
            return Err(io::Error::other(format!("no line of peers: {line}")));
        };
        eprintln!("  {name} {mode}");
        let start = || MeasuredServer::peer(command);
        let measured = if mode == "paced" {
            let paced = (0..rounds.clamp(1, 2)).map(|_| rows::paced(start()?, 128)).collect::<io::Result<Vec<_>>>();
            paced.map(|all| vec![("paced", best(all, "gap_error_ms"))])
        } else {
            at_once(start)
        };
        let peer = peers.entry(name).or_insert_with(|| json!({}));
        match measured {
            Ok(rows) => rows.into_iter().for_each(|(row, value)| peer[row] = value),
            Err(error) => eprintln!("  {name}: {error}"),
        }
    }
    Ok(Value::Object(peers))
}

fn at_once(start: impl Fn() -> io::Result<MeasuredServer>) -> io::Result<Vec<(&'static str, Value)>> {
    let server = start()?;
    let started = json!({"start_ms": server.start.as_secs_f64() * 1e3, "idle_bytes": server.resident()});
    Ok(vec![
        ("start", started),
        ("at_once", rows::at_once(server)?),
        ("small", rows::small(start()?)?),
        ("one_by_one", rows::one_by_one(start()?)?),
        ("burst", best((0..3).map(|_| rows::burst(start()?)).collect::<io::Result<_>>()?, "ttft_ms")),
    ])
}
