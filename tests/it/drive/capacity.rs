//! What the client reaches, and what a server does at most.

use serde_json::{Value, json};

use crate::support::{
    running::{Running, vcr},
    tree,
};

/// Drives the built-in trace, and returns the printed object.
fn drive(server: &Running, flags: &[&str]) -> (Option<i32>, Value) {
    let trace = tree::root().join("traces/builtin.jsonl.gz");
    let target = format!("http://{}", server.address);
    let fixed = ["replay", trace.to_str().unwrap(), "--target", &target, "--json"];
    let output = vcr(&[&fixed[..], flags].concat());
    let printed = serde_json::from_slice(&output.stdout);
    (output.status.code(), printed.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr))))
}

fn reasons(printed: &Value) -> Vec<&str> {
    let reasons = printed["verdict"]["reasons"].as_array().unwrap();
    reasons.iter().map(|reason| reason["reason"].as_str().unwrap()).collect()
}

#[test]
fn the_ceiling_is_reported_and_a_run_near_it_is_bound_by_the_client() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    for flags in [&["--speed", "1000"][..], &["--concurrency", "64"]] {
        let (code, printed) = drive(&server, &[&["--calibrate"], flags].concat());
        let (ceiling, results) = (&printed["ceiling"], &printed["results"]);
        let number = |object: &Value, name: &str| object[name].as_f64().unwrap();
        assert!(number(ceiling, "requests_per_s") > 0.0 && number(ceiling, "tokens_per_s") > 0.0, "{printed:#}");
        let in_requests = number(results, "request_throughput") / number(ceiling, "requests_per_s");
        let in_tokens = number(results, "output_throughput") / number(ceiling, "tokens_per_s");
        let share = in_requests.max(in_tokens);
        let reasons = reasons(&printed);
        assert_eq!(reasons.contains(&"client_bound"), share > 0.8, "{share} {printed:#}");
        assert!(reasons.iter().all(|reason| reason.starts_with("client_")), "{printed:#}");
        assert_eq!(code, Some(i32::from(!reasons.is_empty())));
    }
}

#[test]
fn no_ceiling_is_reported_where_none_was_measured() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let (_, printed) = drive(&server, &["--arrivals", "burst"]);
    assert_eq!(printed.get("ceiling"), None);
}

/// An engine of four sequences and steps of 5 ms.
fn engine() -> Running {
    let engine = ["--engine", "--max-num-seqs", "4", "--time-to-first-token", "5ms", "--inter-token-latency", "5ms"];
    Running::start(&[&["play", "--synthetic", "random", "--port", "0"][..], &engine].concat())
}

#[test]
fn the_ladder_ends_at_saturation_and_its_rungs_are_in_the_report() {
    let (server, folder) = (engine(), tempfile::tempdir().unwrap());
    let saved = ["a.json", "b.csv"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let saves = ["--save", &saved[0], "--save", &saved[1]];
    let (_, printed) = drive(&server, &[&["--find-max", "--rung", "2s", "--limit", "40"][..], &saves].concat());
    let found = &printed["find_max"];
    let rungs = found["rungs"].as_array().unwrap();
    let [json, table] = saved.map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["find_max"], *found);
    let run =
        ["max_concurrency", "rung_ms", "limit", "concurrency", "arrivals", "planned"].map(|key| &printed["run"][key]);
    assert_eq!(json!(run), json!([4096, 2000.0, 40, null, null, null]));
    assert_eq!(table.lines().count(), rungs.len() + 1);
    assert!(rungs.len() <= 10 && rungs.iter().all(|rung| rung["requests"].as_u64() > Some(0)), "{printed:#}");
    let concurrency: Vec<u64> = rungs.iter().map(|rung| rung["concurrency"].as_u64().unwrap()).collect();
    assert!(concurrency.is_sorted() && concurrency[0] == 1, "{concurrency:?}");
    // Four at once are four times as much as one, and more are no more than that, however busy the machine is.
    assert_eq!(found["ended"], "saturated", "{printed:#}");
    assert!(found["knee"].as_u64().unwrap() <= 16, "{printed:#}");
    assert_eq!((&found["slo_concurrency"], &rungs[0]["slo_share"]), (&Value::Null, &Value::Null));
}

#[test]
fn limits_that_no_request_keeps_end_the_ladder_at_once() {
    let server = engine();
    // Long enough for whole answers on a busy machine: a rung without one has failed.
    let (_, printed) = drive(&server, &["--find-max", "--rung", "5s", "--slo", "ttft=1us", "--limit", "40"]);
    let found = &printed["find_max"];
    assert_eq!((found["ended"].as_str(), found["rungs"].as_array().unwrap().len()), (Some("slo_broken"), 1));
    assert_eq!((&found["slo_concurrency"], &found["best"]), (&Value::Null, &Value::Null));
}

#[test]
fn flags_that_mean_another_load_are_refused() {
    let trace = tree::root().join("traces/builtin.jsonl.gz");
    for flags in [&["--concurrency", "3"][..], &["--rate", "3"], &["--out", "run.jsonl"], &["--shard", "0/2"]] {
        let fixed = ["replay", trace.to_str().unwrap(), "--target", "http://127.0.0.1:1", "--find-max"];
        let output = vcr(&[&fixed[..], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
    }
}
