//! Loading a large trace and matching in it: MB/s of JSON, resident memory, the index, and the time of one match.
//!
//! `cargo bench --bench store -- --records 1000000 --json FILE` (100,000 records where none is said) writes a trace of
//! that many records (200 ids, 199 gaps and 100 chained hashes each; 60 blocks shared by all, groups of 50 exact
//! duplicates) below the temporary directory: plain, as one gzip member, and as members of 8 MB. Each is loaded in a
//! process of its own, several times (`--rounds`, 3), and once by typed `serde_json`, line by line, for comparison. A
//! million records need 5 GB of disk.
//!
//! `cargo bench --bench store -- --scaling --json FILE` loads 10,000, 100,000, a million and five million records of
//! plain JSON instead; the five million are the million five times, through a pipe.
//!
//! The files are deleted at the end.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

mod shared;

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use flate2::{Compression, bufread::MultiGzDecoder, write::GzEncoder};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shared::{BARE, cpu_seconds, memory, option};
use tokio::time::Instant;
use vllm_vcr::{
    recording::trace::{self, LoadProgress},
    replay::matching::{MatchBy, MatchRules, Matcher},
};

const MEMBER: usize = 8 << 20;

fn main() {
    let arguments = shared::arguments();
    if let [verb, way, path] = arguments.as_slice()
        && verb == "measure"
    {
        println!("{}", measure(way, Path::new(path)));
        return;
    }
    let dir = std::env::temp_dir().join(format!("vcr-store-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let figures = if arguments.iter().any(|argument| argument == "--scaling") {
        scaling(&dir)
    } else {
        let number = |name, default: u64| option(&arguments, name).map_or(default, |number| number.parse().unwrap());
        kinds(&dir, number("--records", 100_000), number("--rounds", 3))
    };
    fs::remove_dir_all(&dir).unwrap();
    shared::report("store", &figures);
}

/// One trace in every kind of file.
fn kinds(dir: &Path, records: u64, rounds: u64) -> Vec<Value> {
    let kinds = [("plain.jsonl", None), ("one.jsonl.gz", Some(usize::MAX)), ("many.jsonl.gz", Some(MEMBER))];
    let mut figures = Vec::new();
    for (name, member) in kinds {
        let path = dir.join(name);
        generate(&path, records, member);
        figures.extend((0..rounds).map(|_| child("store", &path, 0)));
        figures.push(child("serde", &path, 0));
        fs::remove_file(&path).unwrap();
    }
    figures
}

/// Ever more records.
fn scaling(dir: &Path) -> Vec<Value> {
    let mut figures = Vec::new();
    for (records, times) in [(10_000, 0), (100_000, 0), (1_000_000, 0), (1_000_000, 5)] {
        let path = dir.join(format!("{records}.jsonl"));
        if !path.exists() {
            generate(&path, records, None);
        }
        figures.push(child("store", &path, times));
    }
    figures
}

/// Measures in a process of its own, which reads the file, or is fed with it so many times.
fn child(way: &str, path: &Path, times: usize) -> Value {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let source = if times == 0 { path } else { Path::new("-") };
    command.args(["measure", way]).arg(source).stdout(Stdio::piped());
    command.stdin(if times == 0 { Stdio::null() } else { Stdio::piped() });
    let mut child = command.spawn().unwrap();
    if let Some(mut stdin) = child.stdin.take() {
        for _ in 0..times {
            io::copy(&mut File::open(path).unwrap(), &mut stdin).unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the load failed");
    let mut figure: Map<String, Value> = serde_json::from_slice(&output.stdout).unwrap();
    figure.insert("way".into(), way.into());
    let name = if times == 0 { path.file_name().unwrap().to_str().into() } else { "stdin".into() };
    figure.insert("file".into(), name);
    figure.into()
}

fn measure(way: &str, path: &Path) -> Value {
    if way == "store" { measure_store(path) } else { measure_serde(path) }
}

fn measure_store(path: &Path) -> Value {
    let (before, start, progress) = (memory("VmRSS:"), Instant::now(), Arc::new(LoadProgress::default()));
    let mut store = trace::load(path, &progress).unwrap();
    let (load, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds());
    let (loaded, peak) = (memory("VmRSS:") - before, memory("VmHWM:") - before);
    let start = Instant::now();
    let matcher = Matcher::new(store.iter(), MatchRules::by(&[MatchBy::Prefix]));
    let (build, index) = (start.elapsed().as_secs_f64(), memory("VmRSS:") - before - loaded);
    store.forget_chains();
    let (records, megabytes) = (store.len() as u64, progress.now().json as f64 / 1e6);
    let served = memory("VmRSS:") - before;
    let (exact, shared) = shared::matches(&matcher, records);
    json!({
        "records": records, "json_mb": megabytes.round(), "load_s": load, "mb_per_s": megabytes / load,
        "cpu_s": cpu, "resident_bytes_per_record": per(loaded, records), "peak_bytes_per_record": per(peak, records),
        "resident_by_bare": per(loaded, records) / BARE as f64, "index_s": build, "index_mb": index,
        "bytes_per_record_with_index": per(served, records), "exact_match_us": exact, "shared_prefix_match_us": shared,
    })
}

fn per(megabytes: f64, records: u64) -> f64 {
    (megabytes * 1_048_576.0 / records as f64).round()
}

/// A record as its line spells it.
#[derive(Deserialize)]
#[allow(dead_code)] // it is there to be held
struct Typed {
    prompt_tokens: u32,
    cached_tokens: Option<u32>,
    output_tokens: u32,
    ttft_ms: f64,
    itl_ms: Vec<f64>,
    arrival_ms: f64,
    block_hashes: Vec<u64>,
    output_token_ids: Vec<u32>,
    finish_reason: String,
    prompt_hash: u64,
    request_id: String,
}

/// The usual way: one thread, typed `serde_json`, a struct of vectors per record.
fn measure_serde(path: &Path) -> Value {
    let (before, start) = (memory("VmRSS:"), Instant::now());
    let file = BufReader::with_capacity(1 << 18, File::open(path).unwrap());
    let mut input: Box<dyn BufRead> = match path.extension().is_some_and(|extension| extension == "gz") {
        true => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))),
        false => Box::new(file),
    };
    let (mut line, mut bytes, mut records) = (Vec::new(), 0, Vec::<Typed>::new());
    while input.read_until(b'\n', &mut line).unwrap() > 0 {
        bytes += line.len();
        records.push(serde_json::from_slice(&line).unwrap());
        line.clear();
    }
    let (load, megabytes) = (start.elapsed().as_secs_f64(), bytes as f64 / 1e6);
    let (loaded, count) = (memory("VmRSS:") - before, records.len() as u64);
    json!({
        "records": count, "json_mb": megabytes.round(), "load_s": load, "mb_per_s": megabytes / load,
        "cpu_s": cpu_seconds(), "resident_bytes_per_record": per(loaded, count),
        "resident_by_bare": per(loaded, count) / BARE as f64,
    })
}

/// Writes the trace; `member` is the JSON per gzip member, `None` for a plain file.
fn generate(path: &PathBuf, records: u64, member: Option<usize>) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let mut lines = Vec::with_capacity(1 << 24);
    let new_encoder = || member.map(|_| GzEncoder::new(Vec::new(), Compression::fast()));
    let (mut encoder, mut in_member) = (new_encoder(), 0);
    for record in 0..records {
        lines.clear();
        shared::line(&mut lines, record, shared::group(record, records));
        let Some(packing) = &mut encoder else {
            file.write_all(&lines).unwrap();
            continue;
        };
        packing.write_all(&lines).unwrap();
        file.write_all(&std::mem::take(packing.get_mut())).unwrap();
        in_member += lines.len();
        if member.is_some_and(|most| in_member >= most) {
            let ended = std::mem::replace(&mut encoder, new_encoder());
            file.write_all(&ended.unwrap().finish().unwrap()).unwrap();
            in_member = 0;
        }
    }
    if let Some(encoder) = encoder {
        file.write_all(&encoder.finish().unwrap()).unwrap();
    }
    file.flush().unwrap();
}
