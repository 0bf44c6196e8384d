//! `play --engine --latency-recorded`: the deadlines are those without an engine, and only waiting is added. Times are compared as deadlines,
//! never as they were measured.

use std::{num::NonZeroU32, time::Duration};

use serde_json::json;
use tokio::io::AsyncReadExt;
use vllm_vcr::{
    engine::scheduler::SchedulerConfig,
    play::{Config, EngineConfig, EngineTimes},
    recording::trace::{Chunk, FinishReason, Record},
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
        timing::Pacing,
    },
};

use crate::support::{
    client::{self, get, post},
    play_server::{Server, config, record, start},
    running::vcr,
};

const MS: Duration = Duration::from_millis(1);

/// A record of chunks: what came before each, and its tokens.
fn chunked(chunks: &[(u32, u32)], end: u32) -> Record {
    let ids: Vec<u32> = (0..chunks.iter().map(|(_, tokens)| tokens).sum()).map(|id| 20 + id).collect();
    let chunk = |(gap, tokens): &(u32, u32)| Chunk { gap: MS * *gap, tokens: *tokens, step: None };
    let chunks = chunks.iter().map(chunk).collect();
    Record { chunks, e2e: Some(MS * end), ..record(&ids, MS, FinishReason::Stop) }
}

async fn server(records: Vec<Record>, max_num_seqs: usize, scale: &str) -> Server {
    let engine = EngineConfig {
        scheduler: SchedulerConfig { max_num_seqs, ..SchedulerConfig::default() },
        times: EngineTimes::Recorded,
        ..EngineConfig::default()
    };
    start(Config {
        pacing: Pacing::Recorded { scale: scale.parse().unwrap() },
        engine: Some(engine),
        block_size: NonZeroU32::new(16),
        admin: Admin::Here(Access::default()),
        ..config(&[MatchBy::Next], records)
    })
    .await
}

/// The sum of a family of `/metrics` in microseconds.
async fn sum(server: &Server, family: &str) -> f64 {
    sample(server, &format!("vllm:{family}_seconds_sum{{")).await * 1e6
}

async fn sample(server: &Server, name: &str) -> f64 {
    let page = client::send(server.address, &get("/metrics")).await.text();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 0.5, "{found} is not {wanted}");
}

async fn complete(server: &Server, number: u32, stream: bool) {
    let prompt: Vec<u32> = (0..40).map(|at| 20 + (number * 31 + at) % 200).collect();
    let body = json!({"prompt": prompt, "max_tokens": 900, "stream": stream});
    let answer = client::send(server.address, &post("/v1/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn differences(server: &Server) -> serde_json::Value {
    client::send(server.address, &get("/vcr/engine")).await.json()["differences"].clone()
}

#[tokio::test]
async fn with_places_for_all_the_times_are_those_that_were_recorded() {
    let records: Vec<Record> = (0..6).map(|at| chunked(&[(500 + at, 1), (100, 3), (70, 1), (1, 2)], 900)).collect();
    let server = server(records, 64, "10").await;
    let all = (0..6).map(|number| complete(&server, number, number % 2 == 0));
    futures_util::future::join_all(all).await;
    close(sum(&server, "time_to_first_token").await, 6.0 * 50_000.0 + 1500.0);
    // 671 ms and 0 to 5 ms; the end of an answer is no token's.
    close(sum(&server, "e2e_request_latency").await, 6.0 * 67_100.0 + 1500.0);
    close(sum(&server, "request_decode_time").await, 6.0 * 17_100.0);
    assert_eq!(sample(&server, "vllm:generation_tokens_total{").await, 6.0 * 7.0);
    assert_eq!(sample(&server, "vllm:prefix_cache_queries_total{").await, 240.0);
    assert_eq!(differences(&server).await, json!([]));
}

#[tokio::test]
async fn without_a_place_a_request_waits_and_keeps_its_gaps() {
    let records = (0..2).map(|_| chunked(&[(1, 1), (1000, 1), (1000, 1)], 2001)).collect();
    let server = server(records, 1, "1").await;
    let body = json!({"prompt": [30, 31, 32], "max_tokens": 9, "stream": true});
    let mut first = client::open(server.address, &post("/v1/completions", &body)).await;
    let mut read = [0; 1];
    first.read_exact(&mut read).await.unwrap();
    let second = complete(&server, 2, true);
    let watch = async {
        while sample(&server, "vllm:num_requests_waiting{").await < 1.0 {
            tokio::time::sleep(5 * MS).await;
        }
        assert_eq!(sample(&server, "vllm:num_requests_running{").await, 1.0);
        let mut rest = String::new();
        first.read_to_string(&mut rest).await.unwrap();
        assert!(rest.contains("[DONE]"));
    };
    tokio::join!(second, watch);
    close(sum(&server, "request_decode_time").await, 2.0 * 2_000_000.0);
    assert!(sum(&server, "request_queue_time").await > 0.0);
    assert!(sum(&server, "time_to_first_token").await > 2.0 * 1000.0);
    assert_eq!(differences(&server).await, json!([]));
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    let server = server(vec![chunked(&[(1, 1), (60_000, 1)], 60_001)], 4, "1").await;
    let body = json!({"prompt": [30, 31, 32], "max_tokens": 9, "stream": true});
    let mut stream = client::open(server.address, &post("/v1/completions", &body)).await;
    let mut read = [0; 1];
    stream.read_exact(&mut read).await.unwrap();
    // The engine answers although its next token is a minute away. The response's head may come before its first step.
    while sample(&server, "vllm:num_requests_running{").await < 1.0 {
        tokio::time::sleep(5 * MS).await;
    }
    assert_eq!(differences(&server).await, json!([]));
    drop(stream);
    while sample(&server, "vllm:num_requests_running{").await > 0.0 {
        tokio::time::sleep(5 * MS).await;
    }
    let found = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!((&found["totals"]["aborted"], &found["blocks_in_use"]), (&json!(1), &json!(0)), "{found}");
}

#[test]
fn other_times_and_made_up_tokens_do_not_go_with_recorded_ones() {
    for flags in [&["--latency-profile", "h100-8b"][..], &["--instant"], &["--time-to-first-token", "5ms"]] {
        let refused = vcr(&[&["play", "--engine", "--latency-recorded"], flags].concat());
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && text.contains("--latency-recorded"), "{text}");
    }
    let refused = vcr(&["play", "--engine", "--latency-recorded", "--synthetic", "random"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("made-up tokens have no recorded times"), "{text}");
}
