//! Files of other tools, driven at the simulated engine: prompts are cached as the file's blocks imply, and sub-agents overlap as recorded.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    running::{Running, vcr},
    traces::json_lines,
};

/// Tokens of the file's blocks, and of the engine's.
const SIZES: [(usize, usize); 3] = [(64, 16), (64, 64), (64, 128)];

/// Start and duration, prompt tokens, ids of the blocks, the sub-agent's list that it stands in.
type FileRequest = (u32, u32, usize, &'static [u64], Option<&'static str>);

/// A session's requests, times in milliseconds.
const REQUESTS: [FileRequest; 7] = [
    (0, 100, 200, &[1, 2, 3], None),
    (150, 200, 256, &[1, 2, 3, 4], None),
    (400, 500, 300, &[1, 2, 20, 21], Some("a")),
    (410, 300, 192, &[1, 2, 30], Some("b")),
    (750, 100, 256, &[1, 2, 30, 31], Some("b")),
    (1000, 50, 400, &[1, 2, 3, 4, 5, 6], None),
    (1100, 50, 400, &[1, 2, 3, 4, 5, 6], None),
];

/// Two conversations with the same ids, of which the second begins as the first does.
fn weka() -> String {
    let request = |(start, took, tokens, ids, _): &(u32, u32, usize, &[u64], Option<&str>)| json!({"t": f64::from(*start) / 1e3, "type": "s", "model": "m", "in": tokens, "out": 3, "hash_ids": ids, "api_time": f64::from(*took) / 1e3});
    let of = |agent: Option<&str>| REQUESTS.iter().filter(|one| one.4 == agent).map(request).collect::<Vec<_>>();
    let mut requests = of(None);
    for agent in ["a", "b"] {
        let own = of(Some(agent));
        requests.push(json!({"t": own[0]["t"], "type": "subagent", "agent_id": agent, "requests": own}));
    }
    ["one", "two"].map(|id| json!({"id": id, "block_size": 64, "requests": requests}).to_string() + "\n").concat()
}

/// Tokens that a prompt has cached after those before it, by the file's blocks of one size and the engine's of another.
fn implied(blocks: &[u64], tokens: usize, before: &[&[u64]], (theirs, own): (usize, usize)) -> usize {
    let prefix = |other: &[u64]| blocks.iter().zip(other).take_while(|(one, other)| one == other).count();
    let shared = before.iter().map(|other| prefix(other)).max().unwrap_or(0) * theirs;
    // The engine computes one token at least.
    shared.min(tokens - 1) / own * own
}

fn drive(server: &Running, trace: &Path, out: &Path) -> Vec<Value> {
    let target = format!("http://{}", server.address);
    let arguments = [
        "replay",
        trace.to_str().unwrap(),
        "--target",
        &target,
        "--concurrency",
        "1",
        "--out",
        out.to_str().unwrap(),
        "--json",
    ];
    let output = vcr(&arguments);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["results"]["failed"], 0, "{printed:#}");
    let mut records: Vec<Value> = json_lines(out).into_iter().filter(|line| line.get("ttft_ms").is_some()).collect();
    let number =
        |record: &Value| record["request_id"].as_str().unwrap().trim_start_matches("replay-").parse::<usize>().unwrap();
    records.sort_by_key(number);
    records
}

#[test]
fn prompts_are_cached_as_the_blocks_of_the_file_imply() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("agents.json"), weka()).unwrap();
    let (from, trace) = (path("agents.json"), path("agents.jsonl"));
    let converted = vcr(&["inspect", "convert", from.to_str().unwrap(), "-o", trace.to_str().unwrap()]);
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    for sizes in SIZES {
        let size = sizes.1.to_string();
        let flags = [
            "--port",
            "0",
            "--synthetic",
            "random",
            "--engine",
            "--served-model-name",
            "m",
            "--enable-prompt-tokens-details",
        ];
        let server =
            Running::start(&[&["play"], &flags[..], &["--block-size", &size, "--inter-token-latency", "5ms"]].concat());
        let records = drive(&server, &trace, &path(&format!("run-{size}.jsonl")));
        // By their arrivals the two conversations take turns.
        let mut order: Vec<usize> = (0..REQUESTS.len()).collect();
        order.sort_by_key(|at| REQUESTS[*at].0);
        for conversation in 0..2 {
            let own: Vec<&Value> = records.iter().skip(conversation).step_by(2).collect();
            assert_eq!(own.len(), REQUESTS.len());
            for (at, record) in own.iter().enumerate() {
                let (_, _, tokens, ids, _) = REQUESTS[order[at]];
                let before: Vec<&[u64]> = order[..at].iter().map(|before| REQUESTS[*before].3).collect();
                assert_eq!(record["prompt_tokens"], tokens);
                assert_eq!(
                    record["cached_tokens"],
                    implied(ids, tokens, &before, sizes),
                    "{sizes:?}, conversation {conversation}, request {at}"
                );
            }
            overlap_as_recorded(&own, &order);
        }
    }
}

/// What was sent together after the same turn is sent together again, and what came after all of it waits for all.
fn overlap_as_recorded(own: &[&Value], order: &[usize]) {
    let intended = |at: usize| own[at]["intended_ms"].as_f64().unwrap();
    let end = |at: usize| own[at]["arrival_ms"].as_f64().unwrap() + own[at]["e2e_ms"].as_f64().unwrap();
    let starts: Vec<u32> = order.iter().map(|at| REQUESTS[*at].0).collect();
    assert_eq!(starts, [0, 150, 400, 410, 750, 1000, 1100]);
    // Both sub-agents begin by the end of the same turn, 10 ms apart.
    assert!((intended(3) - intended(2) - 10.0).abs() < 0.01, "{} {}", intended(2), intended(3));
    // Each goes on by itself; the parent by the end of both.
    assert!(own[5]["arrival_ms"].as_f64().unwrap() >= end(2).max(end(4)));
}
