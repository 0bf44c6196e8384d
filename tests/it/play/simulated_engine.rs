//! `play --engine`: contents as without it, times, counts and metrics by vLLM's scheduler and KV cache.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream};
use vllm_vcr::{
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::{SchedulerConfig, SchedulingPolicy},
    },
    play::{AnswerOptions, Config, EngineConfig, Player, ServerOptions, Source, Synthetic},
    recording::trace::FinishReason,
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
    },
};

use crate::support::{
    client::{self, Answer, get, post},
    play_server::{self, Server, config, record, start, tokenizer},
    running::{Running, vcr},
    simulated::{engine, until},
};

const MS: Duration = Duration::from_millis(1);

/// A server of made-up tokens behind an engine.
async fn server(engine: EngineConfig) -> Server {
    start(synthetic(engine)).await
}

fn synthetic(engine: EngineConfig) -> Config {
    Config {
        source: Source::Synthetic(Synthetic::Random),
        prompt_tokens_details: true,
        block_size: NonZeroU32::new(16),
        engine: Some(engine),
        max_model_len: Some(1024),
        ..config(&[MatchBy::Next], Vec::new())
    }
}

fn at_once(most: usize) -> SchedulerConfig {
    SchedulerConfig { max_num_seqs: most, ..SchedulerConfig::default() }
}

/// A prompt of so many ids that begins with a number of its own.
fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 20 + (number * 31 + at) % 200).collect()
}

async fn complete(server: &Server, body: Value) -> Answer {
    let answer = client::send(server.address, &post("/v1/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// Reads a stream up to its first event.
async fn until_first_token(stream: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.windows(6).any(|window| window == b"data: ") {
        read.push(stream.read_u8().await.unwrap());
    }
}

const IDLE: [(&str, f64); 3] =
    [("vllm:num_requests_running", 0.0), ("vllm:num_requests_waiting", 0.0), ("vllm:kv_cache_usage_perc", 0.0)];

#[tokio::test]
async fn the_same_prompt_is_cached_but_for_its_last_block() {
    let blocks_of_32 = Config { block_size: NonZeroU32::new(32), ..synthetic(engine(Duration::ZERO)) };
    let server = start(blocks_of_32).await;
    let ids = prompt(1, 543);
    let mut cached = Vec::new();
    for _ in 0..3 {
        let body = json!({"prompt": ids, "max_tokens": 4});
        let usage = complete(&server, body).await.json()["usage"].clone();
        cached.push(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    assert_eq!(cached, [0, 512, 512]);
    let found = until(&server, &IDLE).await;
    assert_eq!(found["vllm:prefix_cache_queries_total"], 3.0 * 543.0);
    assert_eq!(found["vllm:prefix_cache_hits_total"], 2.0 * 512.0);
    assert_eq!(found["vllm:prompt_tokens_cached_total"], 2.0 * 512.0);
    assert_eq!(found["vllm:request_prefill_kv_computed_tokens_sum"], 543.0 + 2.0 * 31.0);
    // Each runs alone: a step for its prompt and first token, and one for each further token.
    assert_eq!(found["vllm:iteration_tokens_total_count"], 12.0);
    assert_eq!(found["vllm:iteration_tokens_total_sum"], 12.0 + 543.0 + 2.0 * 31.0);
}

/// vLLM's own scheduler finds as many; with blocks of 128 tokens, which it takes on CPUs, as many as with 32.
#[tokio::test]
async fn as_many_tokens_are_cached_as_fit_whole_blocks_before_the_last_token() {
    for (block_size, expected) in [(16, 528), (32, 512), (128, 512)] {
        let server =
            start(Config { block_size: NonZeroU32::new(block_size), ..synthetic(engine(Duration::ZERO)) }).await;
        let ids = prompt(1, 543);
        for cached in [0, expected, expected] {
            let usage = complete(&server, json!({"prompt": ids, "max_tokens": 4})).await.json()["usage"].clone();
            assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached, "blocks of {block_size}");
        }
    }
}

#[tokio::test]
async fn streams_report_what_was_cached_too_and_a_salt_keeps_prompts_apart() {
    let server = start(Config { scale_out: true, ..synthetic(engine(Duration::ZERO)) }).await;
    let ids = prompt(2, 100);
    let options = json!({"include_usage": true});
    let mut cached = Vec::new();
    for salt in ["a", "a", "b"] {
        let body =
            json!({"prompt": ids, "max_tokens": 2, "stream": true, "stream_options": options, "cache_salt": salt});
        let events = complete(&server, body).await.events();
        let last: Value = serde_json::from_str(events[events.len() - 2].strip_prefix("data: ").unwrap()).unwrap();
        cached.push(last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    for salt in ["c", "c", "d"] {
        let body = json!({"token_ids": ids, "sampling_params": {"max_tokens": 2}, "cache_salt": salt});
        let answer = client::send(server.address, &post("/inference/v1/generate", &body)).await.json();
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    assert_eq!(cached, [0, 96, 0, 0, 96, 0]);
}

#[tokio::test]
async fn requests_wait_where_the_batch_is_full_and_leave_nothing_when_their_clients_go() {
    let server = server(EngineConfig { scheduler: at_once(1), ..engine(20 * MS) }).await;
    let body = |number| json!({"prompt": prompt(number, 40), "max_tokens": 900, "stream": true, "ignore_eos": true});
    let mut first = client::open(server.address, &post("/v1/completions", &body(1))).await;
    first.read_u8().await.unwrap();
    let second = client::open(server.address, &post("/v1/completions", &body(2))).await;
    let running = ("vllm:num_requests_running", 1.0);
    let capacity = r#"vllm:num_requests_waiting_by_reason{reason="capacity"}"#;
    let found = until(&server, &[running, ("vllm:num_requests_waiting", 1.0), (capacity, 1.0)]).await;
    let usage = found["vllm:kv_cache_usage_perc"];
    assert!(usage > 0.0 && usage < 0.1, "{usage}");
    drop(second);
    until(&server, &[running, ("vllm:num_requests_waiting", 0.0)]).await;
    drop(first);
    let found = until(&server, &IDLE).await;
    assert_eq!(found[r#"vllm:request_success_total{finished_reason="length"}"#], 0.0);
}

#[tokio::test]
async fn the_lowest_priority_runs_first() {
    let scheduler = SchedulerConfig { policy: SchedulingPolicy::Priority, ..at_once(1) };
    let server = server(EngineConfig { scheduler, ..engine(20 * MS) }).await;
    let body = |number: u32, priority: i64, tokens: u32| json!({"prompt": prompt(number, 20), "max_tokens": tokens, "priority": priority, "stream": true});
    let mut blocker = client::open(server.address, &post("/v1/completions", &body(1, -9, 900))).await;
    blocker.read_u8().await.unwrap();
    let mut streams = Vec::new();
    for (waiting, priority) in [(1.0, 5), (2.0, 1), (3.0, 3)] {
        let number = u32::try_from(priority).unwrap();
        streams.push(client::open(server.address, &post("/v1/completions", &body(number, priority, 30))).await);
        until(&server, &[("vllm:num_requests_waiting", waiting)]).await;
    }
    let (sender, mut firsts) = tokio::sync::mpsc::unbounded_channel();
    for (mut stream, priority) in streams.into_iter().zip([5, 1, 3]) {
        let sender = sender.clone();
        tokio::spawn(async move {
            until_first_token(&mut stream).await;
            sender.send(priority).unwrap();
        });
    }
    drop(blocker);
    // Each runs when the one before it has ended, 30 tokens of 20 ms later.
    let order = [firsts.recv().await, firsts.recv().await, firsts.recv().await].map(Option::unwrap);
    assert_eq!(order, [1, 3, 5]);
}

#[tokio::test]
async fn a_small_cache_preempts_and_all_tokens_come_all_the_same() {
    let kv_cache = KvCacheConfig { num_gpu_blocks: 17, ..KvCacheConfig::default() };
    let config = EngineConfig { kv_cache, ..engine(5 * MS) };
    let server = start(Config { max_model_len: Some(256), ..synthetic(config) }).await;
    let body = |number| json!({"prompt": prompt(number, 100), "max_tokens": 100, "ignore_eos": true});
    let (one, other) = tokio::join!(complete(&server, body(1)), complete(&server, body(2)));
    for answer in [one, other] {
        assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
    }
    let found = until(&server, &IDLE).await;
    assert!(found["vllm:num_preemptions_total"] >= 1.0);
    assert_eq!(found["vllm:request_num_preemptions_sum"], found["vllm:num_preemptions_total"]);
    assert_eq!(found["vllm:generation_tokens_total"], 200.0);
}

#[tokio::test]
async fn contents_are_those_of_the_record_or_of_the_seed() {
    let records = || vec![record(&[20, 21, 22, 23, 24], 30 * MS, FinishReason::Length)];
    let plain = start(config(&[MatchBy::Next], records())).await;
    let large = KvCacheConfig { num_gpu_blocks: 2000, ..KvCacheConfig::default() };
    let large = EngineConfig { kv_cache: large, ..engine(Duration::ZERO) };
    let simulated = start(Config { engine: Some(large), ..config(&[MatchBy::Next], records()) }).await;
    let made_up = start(Config { engine: None, ..synthetic(engine(Duration::ZERO)) }).await;
    let scheduled = server(engine(Duration::ZERO)).await;
    for (one, other) in [(&plain, &simulated), (&made_up, &scheduled)] {
        for more in [
            json!({}),
            json!({"n": 3}),
            json!({"stop_token_ids": [22]}),
            json!({"max_tokens": 2}),
            json!({"logprobs": 1}),
            json!({"echo": true, "max_tokens": 0}),
            json!({"prompt": ["one", "two"]}),
        ] {
            let mut body = json!({"prompt": "hello", "max_tokens": 9, "seed": 3, "return_token_ids": true});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let choices = async |server: &Server| complete(server, body.clone()).await.json()["choices"].clone();
            let (expected, found) = (choices(one).await, choices(other).await);
            assert_eq!(expected, found, "{more}");
        }
    }
}

#[tokio::test]
async fn a_stream_has_an_event_for_each_token_and_waits_for_its_interval() {
    let server = server(engine(MS)).await;
    let events = async |interval: Option<u32>| {
        let body = json!({"prompt": prompt(1, 30), "max_tokens": 7, "stream": true, "return_token_ids": true, "stream_interval": interval});
        let events = complete(&server, body).await.events();
        let parsed =
            events.iter().filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok());
        parsed.map(|event| event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len)).collect::<Vec<_>>()
    };
    assert_eq!(events(None).await, [1; 7]);
    assert_eq!(events(Some(3)).await, [1, 3, 3]);
}

#[tokio::test]
async fn a_stop_string_ends_the_request_of_the_engine() {
    let server = server(engine(5 * MS)).await;
    let words = complete(&server, json!({"prompt": prompt(4, 30), "max_tokens": 20, "seed": 1})).await.json();
    let text = words["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop = text.split_whitespace().nth(2).unwrap();
    let body = json!({"prompt": prompt(4, 30), "max_tokens": 900, "seed": 1, "stop": [stop]});
    assert_eq!(complete(&server, body).await.json()["choices"][0]["finish_reason"], "stop");
    until(&server, &IDLE).await;
}

#[tokio::test]
async fn the_times_of_a_request_say_that_it_waited() {
    let config = EngineConfig { scheduler: at_once(1), ..engine(10 * MS) };
    let answers = AnswerOptions { request_metrics: true, ..AnswerOptions::default() };
    let server = start(Config { answers, ..synthetic(config) }).await;
    let body = |number: u32, tokens: u32| json!({"prompt": prompt(number, 30), "max_tokens": tokens});
    let second = async {
        until(&server, &[("vllm:num_requests_running", 1.0)]).await;
        complete(&server, body(2, 5)).await
    };
    let (one, other) = tokio::join!(complete(&server, body(1, 300)), second);
    let times = |answer: &Answer, key: &str| answer.json()["metrics"][key].as_f64().unwrap();
    assert!(times(&other, "queue_time_ms") > 0.0);
    for answer in [&one, &other] {
        let first = times(answer, "time_to_first_token_ms");
        assert!(first >= 10.0 - 1e-6, "a prompt takes one step: {first}");
    }
    let found = until(&server, &IDLE).await;
    // Steps are never shorter than they should be, however slow the machine is.
    assert!(found["vllm:request_decode_time_seconds_sum"] >= 2.99 + 0.04 - 1e-6);
    assert!(found["vllm:request_prefill_time_seconds_sum"] >= 0.02 - 1e-6);
    assert!(found["vllm:request_queue_time_seconds_sum"] > 0.0);
}

#[tokio::test]
async fn facts_about_the_cache_are_those_of_the_engine() {
    let kv_cache = KvCacheConfig { num_gpu_blocks: 90, enable_prefix_caching: false, ..KvCacheConfig::default() };
    let server = server(EngineConfig { kv_cache, ..engine(Duration::ZERO) }).await;
    let page = client::send(server.address, &get("/metrics")).await.text();
    for fact in [r#"num_gpu_blocks="90""#, r#"enable_prefix_caching="False""#, r#"kv_cache_size_tokens="1440""#] {
        assert!(page.contains(fact), "{fact}");
    }
    assert_eq!(page.lines().filter(|line| line.starts_with("# TYPE ")).count(), 92);
}

#[tokio::test]
async fn requests_blocks_and_tokens_add_up_at_any_time() {
    let kv_cache = KvCacheConfig { num_gpu_blocks: 33, ..KvCacheConfig::default() };
    let config = EngineConfig { kv_cache, scheduler: at_once(3), ..engine(2 * MS) };
    let admin = Admin::Here(Access::default());
    let server = start(Config { max_model_len: Some(256), admin, ..synthetic(config) }).await;
    let checked = async || {
        let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
        assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
        snapshot
    };
    let body = |number: u32| json!({"prompt": prompt(number % 3, 60 + number), "max_tokens": 40, "stream": number.is_multiple_of(2), "n": 1 + number % 2});
    let requests = futures_util::future::join_all((0..12).map(|number| complete(&server, body(number))));
    let watch = async {
        for _ in 0..30 {
            checked().await;
            tokio::time::sleep(5 * MS).await;
        }
    };
    let (answers, ()) = tokio::join!(requests, watch);
    until(&server, &IDLE).await;
    let totals = checked().await["totals"].clone();
    assert_eq!((totals["submitted"].clone(), totals["finished"].clone()), (json!(18), json!(18)));
    assert_eq!(totals["generated_tokens"], 18 * 40);
    assert_eq!(answers.len(), 12);
}

#[tokio::test]
async fn an_engine_that_ended_before_its_answer_met_a_stop_string_adds_up() {
    let admin = Admin::Here(Access::default());
    let server = start(Config { admin, ..synthetic(engine(Duration::ZERO)) }).await;
    let letters: Vec<String> = "aeio".chars().map(String::from).collect();
    for number in 0..8 {
        let body = json!({"prompt": prompt(number, 30), "max_tokens": 64, "stop": letters});
        let answer = complete(&server, body).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        until(&server, &IDLE).await;
        let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
        assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
    }
}

#[tokio::test]
async fn prompts_that_a_pause_aborts_before_their_first_token_are_not_counted() {
    let config = synthetic(EngineConfig { scheduler: at_once(1), ..engine(40 * MS) });
    let options = ServerOptions { dev_mode: true, ..config.server.clone() };
    let server = start(Config { admin: Admin::Here(Access::default()), server: options, ..config }).await;
    let requests = futures_util::future::join_all((0..4).map(|number| {
        let body = json!({"prompt": prompt(number, 101), "max_tokens": 200});
        let address = server.address;
        async move { client::send(address, &post("/v1/completions", &body)).await }
    }));
    let pause = async {
        until(&server, &[("vllm:prompt_tokens_total", 101.0), ("vllm:num_requests_waiting", 3.0)]).await;
        client::send(server.address, &post("/pause?mode=abort", &json!({}))).await
    };
    let (answers, paused) = tokio::join!(requests, pause);
    assert_eq!(paused.status, 200);
    assert!(answers.iter().all(|answer| answer.json()["choices"][0]["finish_reason"] == "abort"));
    let found = until(&server, &IDLE).await;
    assert_eq!(found["vllm:prompt_tokens_total"], 101.0);
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!((&snapshot["differences"], &snapshot["shown"]["others"]), (&json!([]), &json!(0)), "{snapshot}");
}

#[tokio::test]
async fn what_was_aborted_adds_up_too() {
    let admin = Admin::Here(Access::default());
    let server = start(Config { admin, ..synthetic(engine(30 * MS)) }).await;
    let body = json!({"prompt": prompt(1, 30), "max_tokens": 900, "stream": true});
    let left = client::open(server.address, &post("/v1/completions", &body)).await;
    until(&server, &[("vllm:num_requests_running", 1.0)]).await;
    drop(left);
    until(&server, &IDLE).await;
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!((&snapshot["totals"]["aborted"], &snapshot["differences"]), (&json!(1), &json!([])), "{snapshot}");
    let mut foreign = get("/vcr/engine");
    foreign.headers.push(("host", "evil.example"));
    assert_eq!(client::send(server.address, &foreign).await.status, 403);
}

#[tokio::test]
async fn prompts_that_are_scored_are_computed_whole_and_responses_have_what_was_cached() {
    let server = server(engine(Duration::ZERO)).await;
    let cached = async |body: Value| {
        let usage = complete(&server, body).await.json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let ids = prompt(5, 100);
    assert_eq!(cached(json!({"prompt": ids, "max_tokens": 1})).await, 0);
    assert_eq!(cached(json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": 1})).await, 0);
    assert_eq!(cached(json!({"prompt": ids, "max_tokens": 1})).await, 96);
    let input = "word ".repeat(60);
    let mut found = Vec::new();
    for _ in 0..2 {
        let body = json!({"model": "m", "input": input, "max_output_tokens": 4});
        let answer = client::send(server.address, &post("/v1/responses", &body)).await;
        found.push(answer.json()["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    assert!(found[0] < found[1], "{found:?}");
}

#[tokio::test]
async fn earlier_names_are_there_on_request() {
    let server = server(EngineConfig { legacy_metrics: true, ..engine(Duration::ZERO) }).await;
    let body = json!({"prompt": prompt(1, 40), "max_tokens": 2});
    complete(&server, body.clone()).await;
    complete(&server, body).await;
    let found = until(&server, &IDLE).await;
    assert_eq!(found["vllm:gpu_prefix_cache_queries_total"], 80.0);
    assert_eq!(found["vllm:gpu_prefix_cache_hits_total"], 32.0);
    assert_eq!(found["vllm:gpu_cache_usage_perc"], 0.0);
    assert_eq!(found["vllm:time_per_output_token_seconds_count"], 2.0);
}

#[test]
fn a_cache_that_a_request_does_not_fit_is_refused_or_bounds_the_length() {
    let config = |length| {
        let kv_cache = KvCacheConfig { num_gpu_blocks: 9, ..KvCacheConfig::default() };
        let engine = EngineConfig { kv_cache, ..engine(Duration::ZERO) };
        Config { max_model_len: length, tokenizer: play_server::config(&[], Vec::new()).tokenizer, ..synthetic(engine) }
    };
    assert!(tokenizer().token_id("hello").is_some());
    let error = Player::load(config(Some(129))).unwrap_err().to_string();
    assert!(error.contains("--max-model-len 129") && error.contains("128 tokens"), "{error}");
    assert!(Player::load(config(None)).is_ok());
}

#[tokio::test]
async fn the_command_line_starts_an_engine() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--engine",
        "--max-num-seqs",
        "4",
        "--kv-cache-size",
        "100",
        "--block-size",
        "32",
        "--enable-prompt-tokens-details",
        "--time-to-first-token",
        "2ms",
        "--time-scale",
        "2",
        "--prefix-caching-hash-algo",
        "xxhash_cbor",
    ]);
    let models = play.get("/v1/models").await;
    assert_eq!(models["data"][0]["max_model_len"], 99 * 32, "as long as fits the cache");
    let body = json!({"prompt": prompt(1, 70), "max_tokens": 3});
    for cached in [0, 64] {
        let usage = play.send("/v1/completions", &body).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
    }
}

#[test]
fn flags_of_the_engine_need_it() {
    let refused = vcr(&["play", "--prefill-overhead", "5ms"]);
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("--prefill-overhead needs the simulated engine") && text.contains("--engine"), "{text}");
    let needing = ["--kv-cache-metrics", "--max-loras", "2", "--max-cpu-loras", "2", "--port", "0"];
    let (code, text) = Running::start(&[&["play", "--synthetic", "random"], &needing[..]].concat()).stop();
    let named = [
        "--kv-cache-metrics shows families that stay zero without --engine",
        "--max-loras has no effect without --enable-lora",
    ];
    assert!(code == 0 && named.iter().all(|named| text.contains(named)), "{text}");
    let small = vcr(&["play", "--engine", "--max-num-seqs", "300", "--max-num-batched-tokens", "200"]);
    assert_ne!(small.status.code(), Some(0));
    let text = String::from_utf8_lossy(&small.stderr).into_owned();
    assert!(text.contains("--max-num-batched-tokens (200) must be at least --max-num-seqs (300)"), "{text}");
}

#[tokio::test]
async fn blocks_that_are_used_again_show_how_long_they_were_in_the_cache() {
    let kv_cache = KvCacheConfig { num_gpu_blocks: 9, kv_cache_metrics_sample: Some(1.0), ..KvCacheConfig::default() };
    let config = synthetic(EngineConfig { kv_cache, ..engine(Duration::ZERO) });
    let shown = ServerOptions { kv_cache_metrics: true, ..config.server.clone() };
    let server = start(Config { max_model_len: Some(128), server: shown, ..config }).await;
    // Seven of eight blocks; the first six are found by the next two requests.
    for _ in 0..3 {
        complete(&server, json!({"prompt": prompt(1, 98), "max_tokens": 1})).await;
    }
    let counts = |found: &BTreeMap<String, f64>| {
        ["lifetime", "idle_before_evict", "reuse_gap"].map(|name| found[&format!("vllm:kv_block_{name}_seconds_count")])
    };
    let before = counts(&until(&server, &IDLE).await);
    assert_eq!(before[2], 0.0, "no block that was found was evicted: {before:?}");
    complete(&server, json!({"prompt": prompt(2, 98), "max_tokens": 1})).await;
    let after = counts(&until(&server, &IDLE).await);
    // Of the seven blocks that it takes one or two held a last part, and the others were found twice each: one gap.
    assert_eq!(after[0], after[1]);
    assert_eq!(after[2], 5.0, "{before:?} {after:?}");
}
