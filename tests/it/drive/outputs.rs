//! What a run is saved as, what other tools would print of it, and what is left of one that is stopped.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use vllm_vcr::recording::yaml;

use crate::support::{
    running::{Running, vcr},
    traces::{Trace, json_lines},
    tree,
};

/// Saves a run of the built-in trace in every format and prints it as two other tools would.
fn run(folder: &Path) -> Value {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let target = format!("http://{}", server.address);
    let trace = tree::root().join("traces/builtin.jsonl.gz");
    let mut arguments = vec!["replay", trace.to_str().unwrap(), "--target", &target, "--json", "--arrivals", "burst"];
    arguments.extend(["--print-as", "vllm,inference-perf"]);
    let files = ["a.json", "b.csv", "c.hlog", "d.yaml", "e.jsonl"].map(|name| folder.join(name).display().to_string());
    for file in &files[..4] {
        arguments.extend(["--save", file]);
    }
    arguments.extend(["--out", &files[4]]);
    let output = vcr(&arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_run_is_saved_in_every_format_with_the_same_figures() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&read("a.json")).unwrap(), printed);
    let requests = printed["results"]["requests"].as_u64().unwrap();
    let table = read("b.csv");
    assert_eq!(table.lines().count() as u64, requests + 1);
    assert!(table.starts_with("request,intended_ms,sent_ms,"));
    let log = read("c.hlog");
    let tags = ["late", "ttft", "ttft_intended", "itl", "chunk_gap", "tpot", "e2e", "e2e_intended"];
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), tags.len());
    assert!(lines.iter().zip(tags).all(|(line, tag)| line.starts_with(&format!("Tag={tag},0.000,"))), "{log}");
    let report = yaml::parse(&read("d.yaml")).unwrap().value();
    assert_eq!(report["version"], "0.2.1");
    let aggregate = &report["results"]["request_performance"]["aggregate"];
    assert_eq!(aggregate["requests"]["total"], json!(requests));
    assert_eq!(aggregate["latency"]["time_to_first_token"]["units"], "ms");
    assert_eq!(report["scenario"]["load"]["native"]["config"]["verdict"]["valid"], printed["verdict"]["valid"]);
}

#[test]
fn results_name_the_build_and_a_file_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path());
    let version = String::from_utf8(vcr(&["--version"]).stdout).unwrap();
    let commit = printed["commit"].as_str().unwrap();
    assert_eq!(version.trim(), format!("vllm-vcr {} ({commit})", printed["version"].as_str().unwrap()));
    let meta = &json_lines(&folder.path().join("e.jsonl"))[0]["meta"];
    assert_eq!(meta["recorder_commit"], printed["commit"]);
    let build: Value = serde_json::from_slice(&vcr(&["--version", "--json"]).stdout).unwrap();
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(folder.path().join("a.json")).unwrap()).unwrap();
    assert_eq!((&printed["build"], &saved["build"]), (&build, &build));
    let lock = std::fs::read(tree::root().join("Cargo.lock")).unwrap();
    let digits = ring::digest::digest(&ring::digest::SHA256, &lock);
    let digits: String = digits.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(build["lock"], format!("sha256:{digits}"));
    assert_eq!(build["version"], printed["version"]);
    assert!(
        build["features"].is_array() && build["target"].as_str().is_some_and(|target| target.contains('-')),
        "{build}"
    );
    let taken = folder.path().join("a.json").display().to_string();
    let output = vcr(&["replay", "--target", "http://127.0.0.1:9", "--save", &taken]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("a.json: exists already; choose another name"));
    let output = vcr(&["replay", "x.jsonl", "--target", "http://127.0.0.1:9", "--save", "figures.txt"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("use .json, .csv, .hlog or .yaml"));
}

#[test]
fn other_tools_get_their_own_names() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path());
    let [vllm, inference_perf] = [0, 1].map(|tool| &printed["printed_as"][tool]);
    assert_eq!((&vllm["tool"], &inference_perf["tool"]), (&json!("vllm"), &json!("inference-perf")));
    let good = printed["results"]["by_outcome"]["finished"].as_f64().unwrap();
    assert_eq!(vllm["figures"]["completed"], json!(good));
    assert!(vllm["figures"]["e2el_ms"]["p99"].as_f64().unwrap() > 0.0);
    assert_eq!(inference_perf["figures"]["successes.count"], json!(good));
}

#[test]
fn ctrl_c_ends_a_run_with_what_there_is() {
    let record = |arrival: u32| {
        json!({"prompt_tokens": 4, "output_tokens": 3, "ttft_ms": 1.0, "itl_ms": [1.0, 1.0], "arrival_ms": arrival,
            "output_token_ids": [arrival % 100, 1, 2], "finish_reason": "length", "status": 200, "outcome": "finished",
            "endpoint": "completions", "stream": true})
    };
    let trace = Trace::of(&[record(0), record(3_600_000)]);
    let server = trace.play(&[]);
    let target = format!("http://{}", server.address);
    let mut replay = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["replay", trace.file.to_str().unwrap(), "--target", &target, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Without a terminal there is a line each second.
    let mut lines = BufReader::new(replay.stderr.take().unwrap()).lines().map_while(Result::ok);
    let shown = lines.find(|line| line.contains("] 1/2 ")).unwrap();
    assert!(shown.contains(" 0 failed TTFT "), "{shown}");
    let id = rustix::process::Pid::from_child(&replay);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let mut printed = String::new();
    replay.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(replay.wait().unwrap().code(), Some(1));
    let reasons = printed["verdict"]["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|reason| reason["reason"] == "stopped"), "{printed:#}");
    assert_eq!((&printed["results"]["requests"], &printed["results"]["failed"]), (&json!(1), &json!(0)));
}
