//! What the benches of traces and matching share: a trace of a known shape, arguments, figures and their JSON.

#![allow(dead_code)] // every bench uses its part

use std::{fs, io::Write, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::{
    replay::matching::{MatchQuery, Matcher},
    text::prompt::PromptHashes,
};

/// Exact duplicates of every prompt.
pub(crate) const DUPLICATES: u64 = 50;
/// Blocks that all prompts share.
pub(crate) const SHARED: u64 = 60;
/// Blocks of a prompt.
pub(crate) const BLOCKS: u64 = 100;
/// Tokens of an answer.
pub(crate) const TOKENS: u64 = 200;
/// Bytes of a record's ids (u32), gaps (u32) and hashes (u64).
pub(crate) const BARE: u64 = TOKENS * 4 + TOKENS * 4 + BLOCKS * 8;
const SELECTIONS: u64 = 200_000;

/// The arguments, without the one that cargo adds.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| argument != "--bench").collect()
}

/// What follows `name` in the arguments.
pub(crate) fn option(arguments: &[String], name: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).cloned()
}

/// Prints the figures, a line each, and writes them to the file that `--json` names.
pub(crate) fn report(bench: &str, figures: &[Value]) {
    for figure in figures {
        println!("{figure}");
    }
    if let Some(path) = option(&arguments(), "--json") {
        let report = json!({ "bench": bench, "machine": machine(), "figures": figures });
        fs::write(path, format!("{report:#}\n")).unwrap();
    }
}

fn machine() -> Value {
    let file = |path| fs::read_to_string(path).unwrap_or_default();
    let info = file("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    json!({
        "cpu": model, "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": file("/proc/sys/kernel/osrelease").trim(), "load_before": file("/proc/loadavg").split(' ').next(),
    })
}

/// The best of several runs.
pub(crate) fn best_of(rounds: usize, mut run: impl FnMut()) -> Duration {
    let mut once = || {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..rounds).map(|_| once()).min().unwrap_or_default()
}

/// Bytes per second, in MB.
pub(crate) fn rate(bytes: usize, took: Duration) -> f64 {
    (bytes as f64 / took.as_secs_f64() / 1e5).round() / 10.0
}

/// A number that nothing tells from a random one.
pub(crate) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The prompt of a group of duplicates.
pub(crate) fn prompt(group: u64) -> PromptHashes {
    let own = (SHARED..BLOCKS).map(|block| mixed((group + 1) * 1000 + block));
    PromptHashes { blocks: (0..SHARED).map(mixed).chain(own).collect(), whole: Some(mixed((group + 1) * 1000)) }
}

/// The group of a record: no two records of one are near each other.
pub(crate) fn group(record: u64, records: u64) -> u64 {
    record * 7919 % records / DUPLICATES
}

/// A record as a line of a trace.
pub(crate) fn line(out: &mut Vec<u8>, record: u64, group: u64) {
    let PromptHashes { blocks, whole } = prompt(group);
    let mut random = mixed(record + 1);
    let mut next = |most: u64| {
        random = mixed(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        random % most
    };
    let ttft = 20 + next(80);
    write!(
        out,
        r#"{{"prompt_tokens":1605,"cached_tokens":960,"output_tokens":{TOKENS},"ttft_ms":{ttft}.25,"itl_ms":["#
    )
    .unwrap();
    list(out, (1..TOKENS).map(|_| format!("{}.{:03}", 5 + next(15), next(1000))));
    write!(out, r#"],"arrival_ms":{record}.5,"block_hashes":["#).unwrap();
    list(out, blocks.iter().map(u64::to_string));
    out.extend_from_slice(b"],\"output_token_ids\":[");
    list(out, (0..TOKENS).map(|_| next(150_000).to_string()));
    let whole = whole.unwrap();
    writeln!(out, r#"],"finish_reason":"length","prompt_hash":{whole},"request_id":"r-{record}"}}"#).unwrap();
}

fn list(out: &mut Vec<u8>, values: impl Iterator<Item = String>) {
    for (at, value) in values.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(value.as_bytes());
    }
}

/// The times of selections, in microseconds: of prompts that are recorded, and of prompts that share the common blocks.
pub(crate) fn matches(matcher: &Matcher, records: u64) -> (Value, Value) {
    let groups = records.div_ceil(DUPLICATES);
    (times(matcher, |at| prompt(mixed(at) % groups)), times(matcher, |at| prompt(groups + at)))
}

fn times(matcher: &Matcher, prompt: impl Fn(u64) -> PromptHashes) -> Value {
    let session = matcher.session();
    let select = |at| {
        let hashes = prompt(at);
        let start = Instant::now();
        let query = MatchQuery { request_id: None, hashes: &hashes, choices: 1, choices_before: 0, model: None };
        let selection = matcher.select(&session, &query);
        let took = start.elapsed();
        assert!(selection.is_ok());
        took
    };
    let mut sorted: Vec<Duration> = (0..SELECTIONS).map(select).collect();
    sorted.sort_unstable();
    let at =
        |permille: usize| sorted.get(sorted.len() * permille / 1000).map_or(0.0, |took| took.as_nanos() as f64 / 1e3);
    json!({ "p50": at(500), "p99": at(990), "p99.9": at(999) })
}

/// A figure of the process's memory in MB; 0 where the system does not tell.
pub(crate) fn memory(key: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).map_or(0.0, |kib: f64| kib / 1024.0)
}

/// Seconds of CPU that the process took so far; 0 where the system does not tell.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}
