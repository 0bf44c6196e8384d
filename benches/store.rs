//! Loading a large trace and matching in it: MB/s of JSON, resident memory, the index, and the time of one match.
//!
//! `cargo bench --bench store -- 1000000` (records; 100,000 where none is said) writes a trace of that many records (200
//! ids, 199 gaps and 100 chained hashes each; 60 blocks shared by all, groups of 50 exact duplicates) below the temporary
//! directory, plain, as one gzip member and as members of 8 MB, loads each in a process of its own, and prints one JSON
//! object per load. Needs 6.5 GB of disk for a million records; the files are deleted at the end.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::{
    matching::{MatchBy, Matcher, Query},
    prompt::PromptHashes,
    trace,
};

const DUPLICATES: u64 = 50;
const SHARED: u64 = 60;
const BLOCKS: u64 = 100;
const TOKENS: u64 = 200;
const SELECTIONS: u64 = 200_000;
const MEMBER: usize = 8 << 20;
/// Bytes of a record's ids (u32), gaps (u32 µs) and hashes (u64).
const BARE: u64 = TOKENS * 4 + TOKENS * 4 + BLOCKS * 8;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [verb, path, records, bytes] = args.as_slice()
        && verb == "measure"
    {
        println!("{}", measure(Path::new(path), records.parse().unwrap(), bytes.parse().unwrap()));
        return;
    }
    let records: u64 = args.first().map_or(100_000, |count| count.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("vcr-store-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    for (name, members) in [("plain.jsonl", None), ("one.jsonl.gz", Some(usize::MAX)), ("many.jsonl.gz", Some(MEMBER))]
    {
        let path = dir.join(name);
        let bytes = generate(&path, records, members);
        for _ in 0..2 {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["measure", path.to_str().unwrap(), &records.to_string(), &bytes.to_string()])
                .status()
                .unwrap();
            assert!(status.success(), "the load failed");
        }
        fs::remove_file(&path).unwrap();
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// Loads one file and matches in it.
fn measure(path: &Path, records: u64, bytes: u64) -> Value {
    let before = memory("VmRSS:");
    let start = Instant::now();
    let trace = trace::load(path).unwrap();
    let load = start.elapsed();
    let (loaded, peak) = (memory("VmRSS:").saturating_sub(before), memory("VmHWM:").saturating_sub(before));
    let start = Instant::now();
    let matcher = Matcher::new(trace.iter(), &[MatchBy::Prefix]);
    let build = start.elapsed();
    let index = memory("VmRSS:").saturating_sub(before).saturating_sub(loaded);
    let groups = records.div_ceil(DUPLICATES);
    let exact = times(&matcher, |at| prompt(mixed(at) % groups));
    let shared = times(&matcher, |at| prompt(groups + at));
    json!({
        "file": path.file_name().unwrap().to_str(), "records": trace.len(), "json_mb": bytes / 1_000_000,
        "load_s": load.as_secs_f64(), "mb_per_s": bytes as f64 / 1e6 / load.as_secs_f64(),
        "resident_kb_per_record": loaded as f64 / records as f64, "peak_kb_per_record": peak as f64 / records as f64,
        "resident_by_bare": loaded as f64 * 1024.0 / (records * BARE) as f64,
        "index_s": build.as_secs_f64(), "index_mb": index as f64 / 1024.0,
        "exact_match_us": quantiles(&exact), "shared_prefix_match_us": quantiles(&shared),
    })
}

fn times(matcher: &Matcher, prompt: impl Fn(u64) -> PromptHashes) -> Vec<Duration> {
    let select = |at| {
        let hashes = prompt(at);
        let start = Instant::now();
        let selection = matcher.select(&Query { request_id: None, hashes: &hashes, choices: 1 });
        let took = start.elapsed();
        assert!(selection.is_some());
        took
    };
    let mut times: Vec<Duration> = (0..SELECTIONS).map(select).collect();
    times.sort_unstable();
    times
}

fn quantiles(sorted: &[Duration]) -> Value {
    let at = |permille: usize| sorted[sorted.len() * permille / 1000].as_nanos() as f64 / 1e3;
    json!({ "p50": at(500), "p99": at(990), "p99.9": at(999) })
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

/// Writes the trace; `members` is the JSON per gzip member, `None` for a plain file. Returns the bytes of JSON.
fn generate(path: &PathBuf, records: u64, members: Option<usize>) -> u64 {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let (mut block, mut bytes) = (Vec::with_capacity(1 << 24), 0);
    let mut encoder = members.map(|_| GzEncoder::new(Vec::new(), Compression::fast()));
    let mut in_member = 0;
    for at in 0..records {
        block.clear();
        line(&mut block, at, at * 7919 % records / DUPLICATES);
        bytes += block.len() as u64;
        let (Some(encoder), Some(most)) = (&mut encoder, members) else {
            file.write_all(&block).unwrap();
            continue;
        };
        encoder.write_all(&block).unwrap();
        in_member += block.len();
        file.write_all(&std::mem::take(encoder.get_mut())).unwrap();
        if in_member >= most {
            let ended = std::mem::replace(encoder, GzEncoder::new(Vec::new(), Compression::fast()));
            file.write_all(&ended.finish().unwrap()).unwrap();
            in_member = 0;
        }
    }
    if let Some(encoder) = encoder {
        file.write_all(&encoder.finish().unwrap()).unwrap();
    }
    file.flush().unwrap();
    bytes
}

fn line(out: &mut Vec<u8>, at: u64, group: u64) {
    let PromptHashes { blocks, whole } = prompt(group);
    let mut random = mixed(at + 1);
    let mut next = |most: u64| {
        random = mixed(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        random % most
    };
    write!(
        out,
        r#"{{"prompt_tokens":1605,"cached_tokens":960,"output_tokens":{TOKENS},"ttft_ms":{}.25,"itl_ms":["#,
        20 + next(80)
    )
    .unwrap();
    list(out, (1..TOKENS).map(|_| format!("{}.{:03}", 5 + next(15), next(1000))));
    write!(out, r#"],"arrival_ms":{at}.5,"block_hashes":["#).unwrap();
    list(out, blocks.iter().map(u64::to_string));
    out.extend_from_slice(b"],\"output_token_ids\":[");
    list(out, (0..TOKENS).map(|_| next(150_000).to_string()));
    writeln!(out, r#"],"finish_reason":"length","prompt_hash":{},"request_id":"r-{at}"}}"#, whole.unwrap()).unwrap();
}

fn list(out: &mut Vec<u8>, values: impl Iterator<Item = String>) {
    for (at, value) in values.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(value.as_bytes());
    }
}

/// A line of the process's memory figures in KiB; 0 where the system does not tell.
fn memory(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
