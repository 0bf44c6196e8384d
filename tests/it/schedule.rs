//! `inspect schedule` against the steps of vLLM's own scheduler (`tests/goldens/vllm-0.32.0/scheduler`, made by
//! `tests/fidelity/schedule`), and block hashes against KV events that a real engine sent.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use vllm_vcr::engine::{
    kv_cache::{KvCacheConfig, KvCacheEvent},
    scheduler::{Rejection, Request, Scheduler, SchedulerConfig},
};

use crate::support::tree;

const GOLDENS: &str = "tests/goldens/vllm-0.32.0/scheduler";

fn schedule(workload: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
    command.args(["inspect", "schedule", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(workload.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn steps_are_vllms_byte_for_byte() {
    let steps: Vec<_> = tree::files(GOLDENS, "jsonl");
    assert!(steps.len() >= 8, "{steps:?}");
    for path in steps {
        let workload = path.with_extension("").with_extension("json");
        let output = schedule(&tree::read(&workload));
        let (expected, found) = (tree::read(&path), String::from_utf8(output.stdout).unwrap());
        for (at, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
            assert_eq!(found, expected, "{}:{}", path.display(), at + 1);
        }
        assert_eq!(found.len(), expected.len(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_workload_that_vllm_would_not_run_is_bad_input() {
    let request = r#"{"id":"a","prompt":[1,2],"max_tokens":1}"#;
    let cases = [
        ("{".to_owned(), "-: EOF"),
        (r#"{"config":{"seqs":1},"requests":[]}"#.to_owned(), "unknown field `seqs`"),
        (r#"{"config":{"hash":"md5"},"requests":[]}"#.to_owned(), "`sha256_cbor`"),
        (r#"{"requests":[{"id":"a","prompt":"text","max_tokens":1}]}"#.to_owned(), "a list of token ids, or {"),
        (r#"{"requests":[{"id":"a","prompt":[],"max_tokens":1}]}"#.to_owned(), r#"request "a": the prompt is empty"#),
        (r#"{"requests":[{"id":"a","prompt":[1],"max_tokens":0}]}"#.to_owned(), "max_tokens is at least 1"),
        (format!(r#"{{"requests":[{request},{request}]}}"#), r#"request "a": another request has this id"#),
        (format!(r#"{{"config":{{"max_model_len":2}},"requests":[{request}]}}"#), "has 2 tokens, max_model_len is 2"),
        (r#"{"config":{"max_num_batched_tokens":4},"requests":[]}"#.to_owned(), "(4) must be at least max_num_seqs (8)"),
        (r#"{"config":{"num_blocks":4294967295},"requests":[]}"#.to_owned(), "num_blocks 4194304"),
        (r#"{"config":{"speculative_method":"guess"},"requests":[]}"#.to_owned(), "speculative_method one of ngram"),
        (
            r#"{"requests":[{"id":"a","prompt":{"seed":1,"len":9000000000000000000,"prefix":[[1,9000000000000000000]]},"max_tokens":1}]}"#
                .to_owned(),
            "max_model_len is 2048",
        ),
    ];
    for (workload, part) in cases {
        let output = schedule(&workload);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.contains(part)), (Some(3), true), "{workload}: {stderr}");
        assert!(output.stdout.is_empty());
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(["inspect", "schedule", "/nowhere.json"]).output();
    let stderr = String::from_utf8(missing.unwrap().stderr).unwrap();
    assert!(stderr.contains("cannot read /nowhere.json"), "{stderr}");
}

/// Block hashes of vLLM's default configuration, and of outputs, in the order of `kv_events.json`.
#[test]
fn hashes_are_those_that_an_engine_published() {
    let golden: Value =
        serde_json::from_str(&tree::read(Path::new("tests/goldens/vllm-0.32.0/kv_events.json"))).unwrap();
    let golden = golden.as_array().unwrap();
    let published = golden.iter().flat_map(|frame| frame["decoded"][1].as_array().into_iter().flatten()).take(3);
    let expected: Vec<(u64, Option<u64>)> = published
        .map(|event| (event["block_hashes"][0].as_u64().unwrap(), event["parent_block_hash"].as_u64()))
        .collect();
    let output = golden.iter().find_map(|frame| frame["token_ids"].as_array()).unwrap();
    let output = output.iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect();

    let cache = KvCacheConfig { block_size: 32, enable_kv_cache_events: true, ..KvCacheConfig::default() };
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), cache).unwrap();
    let requests = [
        Request { id: 1, prompt: (100..150).collect(), output, ..Request::default() },
        Request { id: 2, prompt: (100..164).collect(), output: vec![1, 2], ..Request::default() },
    ];
    let mut found = Vec::new();
    for request in requests {
        scheduler.add_request(request).unwrap();
        while scheduler.has_requests() {
            scheduler.step([], &[]);
            found.extend(scheduler.events().map(|event| match event {
                KvCacheEvent::BlockStored(stored) => {
                    (stored.block_hashes[0].external(), stored.parent_block_hash.map(|hash| hash.external()))
                }
                KvCacheEvent::BlockRemoved(_) | KvCacheEvent::AllBlocksCleared => panic!("nothing is evicted"),
            }));
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn the_queue_is_bounded() {
    let config = SchedulerConfig { max_num_queued_reqs: Some(2), ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config, KvCacheConfig::default()).unwrap();
    let request = |id| Request { id, prompt: vec![1, 2, 3], output: vec![7, 8], ..Request::default() };
    let decisions = scheduler.step([1, 2, 3].map(request), &[]);
    assert_eq!(decisions.rejected, [(3, Rejection::QueueFull)]);
    assert_eq!(decisions.outputs.len(), 2);
    assert_eq!(scheduler.step([request(2)], &[1, 2]).rejected, [(2, Rejection::QueueFull)]);
    let decisions = scheduler.step([3, 3, 4].map(request), &[9]);
    assert_eq!(decisions.rejected, [(3, Rejection::DuplicateId)]);
    assert_eq!((decisions.scheduled.len(), decisions.stats.num_running_reqs), (2, 2));
}
