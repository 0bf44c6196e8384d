//! A recording is driven at the server that plays it: what comes back is what was recorded, and the figures say so.

use serde_json::Value;

use crate::support::{
    running::{Running, vcr},
    traces::json_lines,
    tree,
};

const TRACE: &str = "traces/builtin.jsonl.gz";

/// Drives the built-in trace at `play`, and returns the printed object.
fn drive(server: &Running, flags: &[&str]) -> (Option<i32>, Value) {
    let trace = tree::root().join(TRACE);
    let target = format!("http://{}", server.address);
    let mut arguments = vec!["replay", trace.to_str().unwrap(), "--target", &target, "--json"];
    arguments.extend(flags);
    let output = vcr(&arguments);
    let printed = serde_json::from_slice(&output.stdout);
    (output.status.code(), printed.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr))))
}

#[test]
fn tokens_come_back_by_their_ids_and_the_result_is_a_trace() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("run.jsonl");
    let (code, printed) = drive(&server, &["--arrivals", "burst", "--out", out.to_str().unwrap()]);
    is_sound(code, &printed);
    let results = &printed["results"];
    let counted = results["counted_by"].as_object().unwrap();
    assert_eq!(counted.keys().collect::<Vec<_>>(), ["token_ids"], "{results:#}");
    let (sent, came) = (records(&tree::root().join(TRACE)), records(&out));
    assert_eq!(came.len(), sent.len());
    assert!(came.iter().all(|record| record["intended_ms"].is_number()));
    let ids = |records: &[Value]| {
        let mut ids: Vec<String> = records.iter().map(|record| record["output_token_ids"].to_string()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&came), ids(&sent));
}

#[test]
fn a_run_is_compared_with_its_recording_and_a_gate_decides() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let server = Running::start(&["play", "--port", "0", "--instant"]);
    let run = path("run.jsonl");
    drive(&server, &["--arrivals", "burst", "--out", &run]);
    let trace = tree::root().join(TRACE).to_str().unwrap().to_owned();
    for (gate, code, said) in [
        (
            "[output_tokens_mean]\nmax_increase = '0%'\nmax_decrease = '0%'\n[e2e_p50]\nmax_increase = '5%'\n",
            0,
            "e2e_p50",
        ),
        ("[e2e_p50]\nmax_decrease = '50%'\n", 1, "it fell by"),
        ("[goodness]\nmin = '1'\n", 1, "there is no such metric"),
        ("[e2e_p50]\nmost = '1'\n", 3, "gate.toml: "),
    ] {
        std::fs::write(path("gate.toml"), gate).unwrap();
        let (gate, junit, table) = (path("gate.toml"), path("gate.xml"), path("table.md"));
        let written = ["--gate", &gate, "--junit", &junit, "--markdown", &table];
        let output = vcr(&[&["inspect", "compare", &trace, &run][..], &written].concat());
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.contains(said), "{said}: {printed}");
        let failures = format!("failures=\"{}\"", u8::from(code == 1));
        assert!(code == 3 || std::fs::read_to_string(&junit).unwrap().contains(&failures));
        assert!(code == 3 || std::fs::read_to_string(&table).unwrap().contains("| ttft_p99 | "));
    }
}

#[test]
fn a_closed_loop_sends_everything_once() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let (code, printed) = drive(&server, &["--concurrency", "3"]);
    is_sound(code, &printed);
    assert_eq!(printed["results"]["failed"], 0);
    assert_eq!(printed["results"]["by_status"], serde_json::json!({"200": printed["results"]["requests"]}));
}

#[test]
fn a_run_in_which_every_request_failed_is_not_valid() {
    let server = Running::start(&["play", "--instant", "--port", "0", "--api-key", "right"]);
    let (code, printed) = drive(&server, &["--arrivals", "burst", "--api-key", "wrong"]);
    assert_eq!(code, Some(1));
    assert_eq!(printed["verdict"]["reasons"][0]["reason"], "all_failed");
    assert_eq!(printed["results"]["requests"], printed["results"]["by_status"]["401"]);
}

/// Nothing is wrong but, on a busy machine, that the client was too slow.
fn is_sound(code: Option<i32>, printed: &Value) {
    let reasons = printed["verdict"]["reasons"].as_array().unwrap();
    assert!(reasons.iter().all(|reason| reason["reason"].as_str().unwrap().starts_with("client_")), "{printed:#}");
    assert_eq!(code, Some(i32::from(!reasons.is_empty())));
}

fn records(path: &std::path::Path) -> Vec<Value> {
    let lines = if path.extension().is_some_and(|end| end == "gz") {
        let packed = std::fs::read(path).unwrap();
        let text = vllm_vcr::recording::trace::gunzip("trace", &packed).unwrap();
        String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    } else {
        json_lines(path)
    };
    lines.into_iter().filter(|line: &Value| line.get("ttft_ms").is_some()).collect()
}
