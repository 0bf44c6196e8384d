//! Parts of a load: together they are the whole.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    running::{Running, vcr},
    traces::{Trace, json_lines},
    tree,
};

fn replay(server: &Running, flags: &[&str]) -> (Option<i32>, String) {
    let trace = tree::root().join("traces/builtin.jsonl.gz");
    let target = format!("http://{}", server.address);
    let output = vcr(&[&["replay", trace.to_str().unwrap(), "--target", &target, "--json"][..], flags].concat());
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

fn records(path: &Path) -> Vec<Value> {
    json_lines(path).into_iter().filter(|line| line.get("ttft_ms").is_some()).collect()
}

fn ids(records: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = records.iter().map(|record| record["request_id"].to_string()).collect();
    ids.sort();
    ids
}

#[test]
fn merged_parts_are_the_whole_on_one_clock() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let out = |name: &str| path(name).to_str().unwrap().to_owned();
    replay(&server, &["--speed", "1000", "--out", &out("one.jsonl")]);
    let shards: Vec<String> = (0..3).map(|part| out(&format!("shard-{part}.jsonl"))).collect();
    for (part, file) in shards.iter().enumerate() {
        replay(&server, &["--speed", "1000", "--shard", &format!("{part}/3"), "--out", file]);
    }
    let whole = out("whole.jsonl");
    let named: Vec<&str> = shards.iter().map(String::as_str).collect();
    // The earliest start is that of the whole, whichever file comes first.
    let named: Vec<&str> = named.into_iter().rev().collect();
    let merge = |flags: &[&str]| vcr(&[&["inspect", "merge", "-o", &whole, "--json"], &named[..], flags].concat());
    let output = merge(&[]);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let merged = records(&path("whole.jsonl"));
    assert_eq!(ids(&merged), ids(&records(&path("one.jsonl"))));
    assert_eq!(printed["records"], merged.len());
    // The parts ran one after the other, and so they are in the whole.
    let arrivals = |part: usize| -> Vec<f64> {
        let own = ids(&records(Path::new(&shards[part])));
        let is_own = |record: &&Value| own.contains(&record["request_id"].to_string());
        merged.iter().filter(is_own).map(|record| record["arrival_ms"].as_f64().unwrap()).collect()
    };
    let last = |part: usize| arrivals(part).into_iter().fold(0.0, f64::max);
    let first = |part: usize| arrivals(part).into_iter().fold(f64::MAX, f64::min);
    assert!(last(0) < first(1) && last(1) < first(2), "{:?}", (last(0), first(1), last(1), first(2)));
    // When a request was to be sent is on that clock too.
    let lateness = |records: &[Value]| -> Vec<(String, String)> {
        let ms = |record: &Value, key: &str| record[key].as_f64().unwrap();
        let late = |record: &Value| format!("{:.3}", ms(record, "arrival_ms") - ms(record, "intended_ms"));
        let mut all: Vec<_> = records.iter().map(|record| (record["request_id"].to_string(), late(record))).collect();
        all.sort();
        all
    };
    let own: Vec<Value> = shards.iter().flat_map(|shard| records(Path::new(shard))).collect();
    assert_eq!(lateness(&merged), lateness(&own));
    let start = |path: &Path| json_lines(path)[0]["meta"]["started_at"].clone();
    assert_eq!(start(&path("whole.jsonl")), start(Path::new(&shards[0])));
    assert_eq!(start(&path("whole.jsonl")), printed["meta"]["started_at"]);
    let again = merge(&[]);
    assert_eq!(again.status.code(), Some(2), "{}", String::from_utf8_lossy(&again.stderr));
}

#[test]
fn traces_without_a_start_are_not_merged() {
    let line = json!({"prompt_tokens": 4, "output_tokens": 1, "ttft_ms": 2.0, "itl_ms": [], "arrival_ms": 0});
    let (one, other) = (Trace::of(std::slice::from_ref(&line)), Trace::of(&[line]));
    let out = one.path("whole.jsonl");
    let named = [&one.file, &other.file, &out].map(|path| path.to_str().unwrap());
    let output = vcr(&["inspect", "merge", named[0], named[1], "-o", named[2]]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("day.jsonl: its first line has no `started_at`"), "{said}");
    assert!(!out.exists());
}

#[test]
fn the_places_of_a_closed_loop_are_all_parts_together() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let (code, said) = replay(&server, &["--concurrency", "2", "--shard", "2/3"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("--concurrency 2 is less than the 3 parts of --shard"), "{said}");
    let (_, said) = replay(&server, &["--concurrency", "3", "--shard", "2/3"]);
    assert!(said.contains("\"verdict\""), "{said}");
}
