//! What servers say of themselves is in the report, beside what the client saw.

use serde_json::{Value, json};

use crate::support::{
    running::{Running, vcr},
    traces::Trace,
};

/// Prompts of four blocks, every other one the same.
fn trace() -> Trace {
    let line = |number: u64| {
        let blocks = |from: u64| (from..from + 4).collect::<Vec<u64>>();
        let hashes = if number.is_multiple_of(2) { blocks(10) } else { blocks(100 + number * 10) };
        json!({"prompt_tokens": 70, "output_tokens": 8, "ttft_ms": 2.0, "itl_ms": vec![2.0; 7], "arrival_ms": number * 100,
            "block_hashes": hashes, "finish_reason": "length", "status": 200, "outcome": "finished",
            "endpoint": "completions", "stream": true})
    };
    Trace::of(&(0..20).map(line).collect::<Vec<_>>())
}

fn drive(trace: &Trace, server: &Running, pages: &[&str]) -> Value {
    let (target, path) = (format!("http://{}", server.address), trace.file.to_str().unwrap());
    let pages: Vec<&str> = pages.iter().flat_map(|page| ["--scrape", page]).collect();
    let output = vcr(&[&["replay", path, "--target", &target, "--json", "--speed", "0.8"][..], &pages].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn queue_cache_and_first_tokens_of_the_server_are_in_the_report() {
    let engine =
        ["--engine", "--num-gpu-blocks-override", "500", "--max-model-len", "1024", "--enable-prompt-tokens-details"];
    let times = ["--time-to-first-token", "2ms", "--inter-token-latency", "2ms"];
    let server = Running::start(&[&["play", "--synthetic", "random", "--port", "0"][..], &engine, &times].concat());
    let trace = trace();
    let page = format!("http://{}/metrics", server.address);
    let printed = drive(&trace, &server, &[&page]);
    let side = &printed["server_side"];
    let seen = &side["servers"][0];
    assert_eq!((&seen["failures"], &seen["num_gpu_blocks"], &seen["block_size"]), (&json!(0), &json!(500), &json!(16)));
    // Nine of ten prompts are wholly known in all four blocks of their 70 tokens.
    let shared = 9.0 * 64.0 / (20.0 * 70.0);
    let share = |name: &str| side["cache"][name].as_f64().unwrap();
    for name in ["infinite", "engine"] {
        assert!((share(name) - shared).abs() < 1e-9, "{name} {printed:#}");
    }
    // A first request is sent before it is known what the server can count.
    let reported = share("reported");
    assert!(reported > shared - 1e-9 && reported < 9.0 * 64.0 / (10.0 * 70.0), "{printed:#}");
    assert!((seen["prefix_cache_hit_rate"].as_f64().unwrap() - shared).abs() < 1e-9, "{seen:#}");
    assert_eq!(seen["ttft_count"], 20.0);
    assert!(seen["ttft_mean_ms"].as_f64() > Some(0.0) && side["client_ttft_beyond_ms"].is_number(), "{side:#}");
    let points = seen["points"].as_array().unwrap();
    assert!(points.len() >= 3 && points.iter().all(|point| point["waiting"].is_number()), "{points:#?}");
    let tokens: f64 =
        side["client"].as_array().unwrap().iter().map(|point| point["tokens_per_s"].as_f64().unwrap()).sum();
    assert!((tokens - 160.0).abs() < 1e-6, "{tokens}");
}

#[test]
fn faults_that_happened_in_the_run_are_listed_with_the_lines_that_repeat_them() {
    let server = Running::start(&["play", "--synthetic", "random", "--port", "0", "--fault", "500 where rate=0.4"]);
    let page = format!("http://{}", server.address);
    let printed = drive(&trace(), &server, &[&page]);
    let hits = printed["server_side"]["servers"][0]["faults"]["hits"].as_array().unwrap();
    assert!(!hits.is_empty() && printed["results"]["failed"] == hits.len(), "{printed:#}");
    assert!(hits.iter().all(|hit| hit.as_str().unwrap().starts_with("500 where request=")), "{hits:#?}");
}

#[test]
fn a_page_that_is_not_there_is_named_and_harms_nothing() {
    let trace = trace();
    let server = trace.play(&[]);
    let printed = drive(&trace, &server, &["http://127.0.0.1:1", &format!("http://{}/nothing", server.address)]);
    assert_eq!(printed["results"]["failed"], 0, "{printed:#}");
    let servers = printed["server_side"]["servers"].as_array().unwrap();
    assert!(servers[0]["failures"].as_u64() > Some(0) && servers[0]["failure"].is_string(), "{servers:#?}");
    assert_eq!(servers[1]["failure"], "status 404");
    assert_eq!(servers[1]["faults"]["unknown"], "/vcr/faults: status 404");
    assert_eq!(servers[0]["points"], json!([]));
    let (target, path) = (format!("http://{}", server.address), trace.file.to_str().unwrap());
    let shown = vcr(&["replay", path, "--target", &target, "--speed", "10", "--scrape", "http://127.0.0.1:1"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("server     http://127.0.0.1:1: no page could be read: ") && !shown.contains("cached "),
        "{shown}"
    );
}
