//! `play --engine` with draft tokens: bursts, counters and sums.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use serde_json::{Value, json};
use vllm_vcr::{
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::{SchedulerConfig, Speculation},
        step_clock::StepTimes,
    },
    play::{Config, EngineConfig, EngineTimes, Source, Synthetic},
    recording::trace::{Chunk, FinishReason, Record},
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
    },
};

use crate::support::{
    client::{self, get, post},
    play_server::{Server, config, record, start},
    running::{Running, vcr},
};

const MS: Duration = Duration::from_millis(1);

fn engine(rates: &[f64]) -> EngineConfig {
    let speculation = Speculation::of_method("eagle", 3).unwrap();
    let speculation = Some(Speculation { acceptance_rates: rates.to_vec(), ..speculation });
    EngineConfig {
        scheduler: SchedulerConfig { speculation, ..SchedulerConfig::default() },
        kv_cache: KvCacheConfig { num_gpu_blocks: 4000, ..KvCacheConfig::default() },
        times: EngineTimes::Given(StepTimes::Instant),
        ..EngineConfig::default()
    }
}

async fn made_up(rates: &[f64]) -> Server {
    start(Config {
        source: Source::Synthetic(Synthetic::Random),
        block_size: NonZeroU32::new(16),
        engine: Some(engine(rates)),
        max_model_len: Some(1024),
        admin: Admin::Here(Access::default()),
        ..config(&[MatchBy::Next], Vec::new())
    })
    .await
}

/// Tokens of each event of a stream.
async fn events(server: &Server, more: &Value) -> Vec<usize> {
    let mut body = json!({"prompt": [20, 21, 22, 23], "max_tokens": 10, "stream": true, "return_token_ids": true,
        "ignore_eos": true, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = client::send(server.address, &post("/v1/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let parsed = answer.events();
    let parsed = parsed.iter().filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok());
    parsed.map(|event| event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len)).collect()
}

async fn drafts(server: &Server) -> BTreeMap<String, f64> {
    let page = client::send(server.address, &get("/metrics")).await.text();
    let samples = page.lines().filter_map(|line| line.strip_prefix("vllm:spec_decode_num_"));
    let samples = samples.filter(|line| !line.contains("_created")).map(|line| line.rsplit_once(' ').unwrap());
    let plain = |name: &str| name.replace("engine=\"0\",model_name=\"m\"", "").replace("{}", "").replace("{,", "{");
    samples.map(|(name, value)| (plain(name), value.parse().unwrap())).collect()
}

async fn sound(server: &Server) -> Value {
    let mut snapshot = Value::Null;
    for _ in 0..10_000 {
        snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
        if snapshot["shown"]["unfinished"] == 0 {
            break;
        }
        tokio::time::sleep(MS).await;
    }
    assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
    snapshot
}

#[tokio::test]
async fn a_step_gives_what_is_accepted_and_one_more_as_one_event() {
    let all = made_up(&[1.0]).await;
    assert_eq!(events(&all, &json!({})).await, [1, 4, 4, 1]);
    let found = drafts(&all).await;
    let expected = [
        ("drafts_total", 3.0),
        ("draft_tokens_total", 9.0),
        ("accepted_tokens_total", 9.0),
        ("accepted_tokens_per_pos_total{position=\"0\"}", 3.0),
        ("accepted_tokens_per_pos_total{position=\"2\"}", 3.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name}: {found:?}");
    }
    assert_eq!(sound(&all).await["totals"]["generated_tokens"], 10);
    let none = made_up(&[0.0]).await;
    assert_eq!(events(&none, &json!({})).await, [1; 10]);
    let found = drafts(&none).await;
    assert_eq!((found["draft_tokens_total"], found["accepted_tokens_total"]), (27.0, 0.0));
    let first = made_up(&[1.0, 0.0]).await;
    assert_eq!(events(&first, &json!({})).await, [1, 2, 2, 2, 2, 1]);
}

#[tokio::test]
async fn contents_are_those_without_speculation_and_ends_come_where_they_do() {
    let speculating = made_up(&[0.6]).await;
    let plain = Config {
        source: Source::Synthetic(Synthetic::Random),
        max_model_len: Some(1024),
        ..config(&[MatchBy::Next], Vec::new())
    };
    let plain = start(plain).await;
    let choices = async |server: &Server, more: &Value| {
        let mut body = json!({"prompt": "hello", "max_tokens": 40, "seed": 3, "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client::send(server.address, &post("/v1/completions", &body)).await.json()["choices"].clone()
    };
    let whole = choices(&plain, &json!({})).await;
    let text = whole[0]["text"].as_str().unwrap().to_owned();
    let stop = text.split_whitespace().nth(5).unwrap();
    let id = whole[0]["token_ids"][7].clone();
    for more in
        [json!({}), json!({"n": 4}), json!({"stop": [stop]}), json!({"stop_token_ids": [id]}), json!({"max_tokens": 2})]
    {
        assert_eq!(choices(&plain, &more).await, choices(&speculating, &more).await, "{more}");
    }
    sound(&speculating).await;
}

#[tokio::test]
async fn an_interval_waits_for_as_many_tokens_at_least() {
    let server = made_up(&[1.0, 0.0]).await;
    assert_eq!(events(&server, &json!({"stream_interval": 3})).await, [1, 4, 4, 1]);
}

#[tokio::test]
async fn recorded_bursts_come_as_they_were_recorded() {
    let ids: Vec<u32> = (20..32).collect();
    let chunks = [1, 3, 1, 4, 2, 1].map(|tokens| Chunk { gap: MS, tokens, step: None });
    let bursts = Record { chunks: chunks.to_vec(), ..record(&ids, MS, FinishReason::Length) };
    let single = record(&ids, MS, FinishReason::Length);
    let server = start(Config { engine: Some(engine(&[1.0])), ..config(&[MatchBy::Next], vec![bursts, single]) }).await;
    assert_eq!(events(&server, &json!({"max_tokens": 12})).await, [1, 3, 1, 4, 2, 1]);
    assert_eq!(events(&server, &json!({"max_tokens": 12})).await, [1, 4, 4, 3], "chunks of one token say nothing");
}

#[tokio::test]
async fn the_command_line_speculates() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--engine",
        "--instant",
        "--speculative-config",
        r#"{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4}"#,
        "--speculative-acceptance-rate",
        "1",
    ]);
    let body = json!({"prompt": [20, 21, 22], "max_tokens": 7, "ignore_eos": true});
    let answer = play.send("/v1/completions", &body).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 7);
    let refused = vcr(&["play", "--engine", "--speculative-config", r#"{"method":"ngram"}"#]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("num_speculative_tokens"), "{text}");
}
