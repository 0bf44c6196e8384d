//! The measured table of `docs/src/internals/performance.md`, for the machine that this runs on.
//!
//! `cargo bench --bench performance` prints it; `-- --write DIR` also writes `performance.json`, the charts and the
//! tables of `performance.md` there. `-- --peers FILE` measures other servers in the same run: a line is
//! `name<TAB>paced|at-once<TAB>command`, and the command listens on `$PORT`. `-- --only paced,memory` measures some rows,
//! `-- --rounds N` repeats what is about latency and keeps the best.
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

mod chart;
mod client;
mod page;
mod rows;
mod server;

use std::{env, fs, io, path::PathBuf};

use serde_json::{Map, Value, json};

use self::server::Server;

/// Streams of the scaling study, each at 5 tokens a second.
const SIZES: [usize; 5] = [100, 1000, 5000, 10_000, 20_000];

struct Options {
    write: Option<PathBuf>,
    peers: Option<PathBuf>,
    only: Vec<String>,
    rounds: usize,
}

impl Options {
    fn read() -> Result<Self, String> {
        let mut options = Self { write: None, peers: None, only: Vec::new(), rounds: 3 };
        let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
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
    let options = Options::read().map_err(io::Error::other)?;
    let most = vllm_vcr::serve::raise_descriptor_limit().map_or(usize::MAX, |most| most as usize);
    let mut found = Map::new();
    found.insert("machine".to_owned(), page::machine());
    let mut measure = |name: &str, row: &dyn Fn() -> io::Result<Value>| {
        if options.wants(name) {
            eprintln!("{name}…");
            found.insert(name.to_owned(), row()?);
        }
        io::Result::Ok(())
    };
    let rounds = options.rounds;
    measure("start", &rows::start)?;
    measure("paced", &|| best(rounds, "gap_error_ms", rows::paced_own))?;
    measure("lateness", &|| best(rounds, "lateness_ms", || rows::sustained(1000, 50_000, 8)))?;
    measure("many", &|| {
        let rates = [75_000, 90_000, 100_000, 110_000, 120_000];
        let row = |rate| best(rounds.min(2), "lateness_ms", || rows::sustained(10_000, rate, 6));
        rates.into_iter().map(row).collect::<io::Result<Vec<_>>>().map(Value::from)
    })?;
    measure("memory", &|| rows::memory(5000))?;
    measure("at_once", &|| rows::at_once(rows::own_at_once()?))?;
    measure("small", &|| rows::small(rows::own_at_once()?))?;
    measure("one_by_one", &|| rows::one_by_one(rows::own_at_once()?))?;
    measure("scaling", &|| {
        // Some files are open besides.
        let row = |streams: usize| {
            let streams = streams.min(most.saturating_sub(200));
            best(rounds.min(2), "lateness_ms", || rows::sustained(streams, streams * 5, 6))
        };
        SIZES.into_iter().map(row).collect::<io::Result<Vec<_>>>().map(Value::from)
    })?;
    if let Some(peers) = &options.peers {
        measure("peers", &|| measure_peers(&fs::read_to_string(peers)?, rounds))?;
    }
    let found = Value::Object(found);
    print!("{}", page::tables(&found));
    match &options.write {
        Some(directory) => page::write(directory, &found),
        None => Ok(()),
    }
}

/// The round with the smallest 99th percentile of a distribution, with those of all rounds.
fn best(rounds: usize, of: &str, row: impl Fn() -> io::Result<Value>) -> io::Result<Value> {
    let all = (0..rounds.max(1)).map(|_| row()).collect::<io::Result<Vec<_>>>()?;
    let p99 = |row: &Value| row[of]["p99"].as_f64().unwrap_or(f64::INFINITY);
    let every: Vec<f64> = all.iter().map(p99).collect();
    let best = all.into_iter().min_by(|one, other| p99(one).total_cmp(&p99(other)));
    let mut best = best.unwrap_or_default();
    best["p99_of_rounds"] = json!(every);
    Ok(best)
}

fn measure_peers(list: &str, rounds: usize) -> io::Result<Value> {
    let mut peers = Map::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [name, mode, command] = line.splitn(3, '\t').collect::<Vec<_>>()[..] else {
            return Err(io::Error::other(format!("no line of peers: {line}")));
        };
        eprintln!("  {name} {mode}");
        let start = || Server::peer(command);
        let measured = if mode == "paced" {
            let paced = || rows::paced(start()?, 128);
            best(rounds.min(2), "gap_error_ms", paced).map(|row| vec![("paced", row)])
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

fn at_once(start: impl Fn() -> io::Result<Server>) -> io::Result<Vec<(&'static str, Value)>> {
    let server = start()?;
    let started = json!({"start_ms": server.start.as_secs_f64() * 1e3, "idle_bytes": server.resident()});
    Ok(vec![
        ("start", started),
        ("at_once", rows::at_once(server)?),
        ("small", rows::small(start()?)?),
        ("one_by_one", rows::one_by_one(start()?)?),
    ])
}
