//! Disaggregated serving: engines that prefill and engines that decode, as a router's proxy uses them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpListener, sync::oneshot};
use vllm_vcr::{
    engine::{
        scheduler::SchedulerConfig,
        step_clock::{Spread, TransferTimes},
    },
    play::{Config, EngineConfig, Fleet, FleetScript, KvRole, KvTransferConfig, Player},
};

use crate::support::{
    client::{self, Answer, get, post},
    play_server::{Server, start},
    running::vcr,
    simulated::{behind, engine, samples, until},
};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn connector(name: &str, role: KvRole) -> KvTransferConfig {
    KvTransferConfig {
        engine_id: name.to_owned(),
        role,
        host: "127.0.0.1".to_owned(),
        port: 0,
        peers: Vec::new(),
        lease: HOUR,
        times: TransferTimes::default(),
    }
}

/// A server of made-up tokens behind an engine, with its steps' duration and its connector.
fn synthetic(step: Duration, kv_transfer: Option<KvTransferConfig>) -> Config {
    Config { scale_out: true, ..behind(EngineConfig { kv_transfer, ..engine(step) }) }
}

async fn prefill() -> Server {
    start(synthetic(Duration::ZERO, Some(connector("prefill", KvRole::Producer)))).await
}

/// An engine whose transfers take so long.
async fn decode(latency: Duration) -> Server {
    let times = TransferTimes { latency: Spread::exactly(latency), ..TransferTimes::default() };
    start(synthetic(Duration::ZERO, Some(KvTransferConfig { times, ..connector("decode", KvRole::Consumer) }))).await
}

fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 20 + (number * 31 + at) % 200).collect()
}

fn request(number: u32, params: &Value) -> Value {
    let ids = prompt(number, 100);
    json!({"prompt": ids, "max_tokens": 5, "seed": 1, "ignore_eos": true, "kv_transfer_params": params})
}

async fn send(address: std::net::SocketAddr, path: &str, body: &Value) -> Answer {
    let answer = client::send(address, &post(path, body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// The parameters of a prefill, as vLLM's proxies ask for it.
async fn prefilled(at: std::net::SocketAddr, path: &str, body: &Value) -> Value {
    let mut first = body.clone();
    first["max_tokens"] = json!(1);
    first["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null});
    send(at, path, &first).await.json()["kv_transfer_params"].clone()
}

#[tokio::test]
async fn prompts_of_any_length_leave_no_blocks_behind() {
    let (first, second) = (prefill().await, decode(Duration::ZERO).await);
    for tokens in [1, 2, 15, 16, 17, 32] {
        let body = json!({"prompt": prompt(tokens, tokens), "max_tokens": 3, "ignore_eos": true});
        let usage = through(&first, &second, "/v1/completions", &body).await.json()["usage"].clone();
        assert_eq!(usage["completion_tokens"], 3);
        for server in [&first, &second] {
            until(server, &IDLE).await;
            sound(server).await;
        }
    }
}

/// Sends a request as a proxy does: to one engine for its prompt, to the other one for its output.
async fn through(prefill: &Server, decode: &Server, path: &str, body: &Value) -> Answer {
    let mut second = body.clone();
    second["kv_transfer_params"] = prefilled(prefill.address, path, body).await;
    send(decode.address, path, &second).await
}

async fn sound(server: &Server) -> Value {
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
    snapshot
}

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const USAGE: &str = "vllm:kv_cache_usage_perc";
const IDLE: [(&str, f64); 3] = [(RUNNING, 0.0), (WAITING, 0.0), (USAGE, 0.0)];

#[tokio::test]
async fn a_prefill_keeps_its_blocks_until_the_other_engine_has_read_them() {
    let (first, second) = (prefill().await, decode(Duration::ZERO).await);
    let plain = start(synthetic(Duration::ZERO, None)).await;
    let body = request(1, &Value::Null);
    let params = prefilled(first.address, "/v1/completions", &body).await;
    let names: Vec<&String> = params.as_object().unwrap().keys().collect();
    let expected = [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "remote_blocks_expiry_time",
        "transfer_mode",
        "remote_prefill_cached_tokens",
    ];
    let (mut names, mut expected) = (names, expected.iter().map(ToString::to_string).collect::<Vec<_>>());
    names.sort();
    expected.sort();
    assert_eq!(names, expected.iter().collect::<Vec<_>>());
    assert_eq!(params["remote_block_ids"], json!([[1, 2, 3, 4, 5, 6, 7]]), "100 tokens in blocks of 16");
    assert_eq!((&params["remote_num_tokens"], &params["remote_engine_id"]), (&json!(100), &json!("prefill")));
    let name = params["remote_request_id"].as_str().unwrap();
    assert!(name.starts_with("cmpl-") && name.rsplit('-').next().unwrap().len() == 8, "{name}");
    let held = until(&first, &[(RUNNING, 0.0)]).await;
    assert!((held[USAGE] - 7.0 / 1023.0).abs() < 1e-9, "{}", held[USAGE]);
    assert!(sound(&first).await["blocks_held"] == 7);

    let mut rest = body.clone();
    rest["kv_transfer_params"] = params;
    let answer = send(second.address, "/v1/completions", &rest).await.json();
    assert_eq!(answer["kv_transfer_params"], Value::Null);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "as many as were cached at the prefill");
    let whole = send(plain.address, "/v1/completions", &body).await.json();
    assert_eq!(whole["choices"], answer["choices"]);
    until(&first, &IDLE).await;
    let found = until(&second, &IDLE).await;
    for (sample, value) in [
        ("vllm:external_prefix_cache_queries_total", 100.0),
        ("vllm:external_prefix_cache_hits_total", 100.0),
        (r#"vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}"#, 100.0),
        (r#"vllm:prompt_tokens_by_source_total{source="local_compute"}"#, 0.0),
        (r#"vllm:prompt_tokens_cached_by_source_total{source="p2p"}"#, 100.0),
        ("vllm:prompt_tokens_cached_total", 100.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 0.0),
        // Five steps of one token each.
        ("vllm:iteration_tokens_total_sum", 5.0),
        ("vllm:nixl_xfer_time_seconds_count", 1.0),
        ("vllm:nixl_num_failed_notifications_total", 0.0),
        (r#"vllm:num_requests_kv_fetch_by_stage{stage="in_progress"}"#, 0.0),
    ] {
        assert_eq!(found.get(sample), Some(&value), "{sample}");
    }
    assert!(!samples(&first).await.contains_key(r#"vllm:num_requests_kv_fetch_by_stage{stage="in_progress"}"#));
    assert!(!samples(&plain).await.keys().any(|name| name.contains("nixl")));
    sound(&second).await;
}

#[tokio::test]
async fn chats_streams_and_prompts_that_are_cached_on_either_side_go_through_too() {
    let (first, second) = (prefill().await, decode(MS).await);
    let chat = json!({"messages": [{"role": "user", "content": "word ".repeat(60)}], "max_tokens": 4});
    let mut usages = Vec::new();
    for _ in 0..2 {
        let answer = through(&first, &second, "/v1/chat/completions", &chat).await.json();
        usages.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    assert!(usages[0] == 0 && usages[1] > 0 && usages[1] % 16 == 0, "{usages:?}");
    let found = until(&second, &IDLE).await;
    let (queries, hits) = (found["vllm:prefix_cache_queries_total"], found["vllm:prefix_cache_hits_total"]);
    assert!(hits > 0.0 && queries == hits + found["vllm:external_prefix_cache_hits_total"]);
    let mut stream = chat.clone();
    stream["stream"] = json!(true);
    stream["kv_transfer_params"] = prefilled(first.address, "/v1/chat/completions", &chat).await;
    let events = send(second.address, "/v1/chat/completions", &stream).await.events();
    assert!(events.iter().all(|event| !event.contains("kv_transfer_params")) && events.len() > 4, "{events:?}");
    // A prefill that is a stream says nothing of its blocks, as in vLLM; they are kept all the same.
    stream["kv_transfer_params"] = json!({"do_remote_decode": true});
    until(&first, &IDLE).await;
    let events = send(first.address, "/v1/chat/completions", &stream).await.events();
    assert!(events.iter().all(|event| !event.contains("kv_transfer_params")));
    assert!(until(&first, &[(RUNNING, 0.0)]).await[USAGE] > 0.0);
    for server in [&first, &second] {
        sound(server).await;
    }
}

#[tokio::test]
async fn tokens_go_through_as_completions_do() {
    let (first, second) = (prefill().await, decode(Duration::ZERO).await);
    let body = json!({"token_ids": prompt(1, 100), "sampling_params": {"max_tokens": 3, "ignore_eos": true}});
    let answer = through(&first, &second, "/inference/v1/generate", &body).await.json();
    assert_eq!((&answer["usage"]["completion_tokens"], &answer["kv_transfer_params"]), (&json!(3), &Value::Null));
    until(&first, &IDLE).await;
    assert_eq!(until(&second, &IDLE).await["vllm:external_prefix_cache_hits_total"], 100.0);
}

#[tokio::test]
async fn a_request_waits_in_its_blocks_for_its_prompt_and_its_client_may_leave() {
    let (first, second) = (prefill().await, decode(HOUR).await);
    let mut body = request(1, &Value::Null);
    body["kv_transfer_params"] = prefilled(first.address, "/v1/completions", &body).await;
    let left = client::open(second.address, &post("/v1/completions", &body)).await;
    let deferred = r#"vllm:num_requests_waiting_by_reason{reason="deferred"}"#;
    let fetching = r#"vllm:num_requests_kv_fetch_by_stage{stage="in_progress"}"#;
    let found = until(&second, &[(WAITING, 1.0), (deferred, 1.0), (fetching, 1.0), (RUNNING, 0.0)]).await;
    assert!((found[USAGE] - 7.0 / 1023.0).abs() < 1e-9);
    sound(&second).await;
    // Others run meanwhile.
    send(second.address, "/v1/completions", &request(2, &Value::Null)).await;
    drop(left);
    let found = until(&second, &[(WAITING, 0.0), (fetching, 0.0)]).await;
    assert!(found[USAGE] > 0.0, "its blocks are written to until the transfer ends");
    sound(&second).await;
    assert!(samples(&first).await[USAGE] > 0.0, "they are still being read");
    sound(&first).await;
}

#[tokio::test]
async fn who_leaves_before_the_transfer_begins_gives_the_blocks_up() {
    let busy = SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::default() };
    let config = synthetic(20 * MS, Some(connector("decode", KvRole::Both)));
    let engine = config.engine.clone().map(|engine| EngineConfig { scheduler: busy, ..engine });
    let (first, second) = (prefill().await, start(Config { engine, ..config }).await);
    let mut running = request(2, &Value::Null);
    running["max_tokens"] = json!(900);
    running["stream"] = json!(true);
    let mut running = client::open(second.address, &post("/v1/completions", &running)).await;
    running.read_u8().await.unwrap();
    let mut body = request(1, &Value::Null);
    body["kv_transfer_params"] = prefilled(first.address, "/v1/completions", &body).await;
    let left = client::open(second.address, &post("/v1/completions", &body)).await;
    let to_start = r#"vllm:num_requests_kv_fetch_by_stage{stage="waiting_to_start"}"#;
    until(&second, &[(WAITING, 1.0), (to_start, 1.0)]).await;
    drop(left);
    until(&first, &IDLE).await;
    drop(running);
    until(&second, &IDLE).await;
    for server in [&first, &second] {
        sound(server).await;
    }
}

#[tokio::test]
async fn blocks_that_no_engine_reads_are_released_and_a_prefill_that_is_aborted_keeps_none() {
    let short = KvTransferConfig { lease: 50 * MS, ..connector("prefill", KvRole::Producer) };
    let first = start(synthetic(Duration::ZERO, Some(short))).await;
    let params = prefilled(first.address, "/v1/completions", &request(1, &Value::Null)).await;
    until(&first, &[("vllm:nixl_num_kv_expired_reqs_total", 1.0), (USAGE, 0.0)]).await;
    let second = decode(Duration::ZERO).await;
    send(second.address, "/v1/completions", &request(1, &params)).await;
    until(&first, &[("vllm:nixl_num_notifications_after_expiry_total", 1.0)]).await;
    sound(&first).await;
    let slow = start(synthetic(50 * MS, Some(connector("prefill", KvRole::Producer)))).await;
    let mut body = request(1, &json!({"do_remote_decode": true}));
    body["max_tokens"] = json!(900);
    let left = client::open(slow.address, &post("/v1/completions", &body)).await;
    until(&slow, &[(RUNNING, 1.0)]).await;
    drop(left);
    until(&slow, &IDLE).await;
    sound(&slow).await;
}

#[tokio::test]
async fn an_engine_that_waits_long_keeps_the_lease_alive() {
    let short = KvTransferConfig { lease: Duration::from_secs(2), ..connector("prefill", KvRole::Producer) };
    let lease = short.lease;
    let first = start(synthetic(Duration::ZERO, Some(short.clone()))).await;
    let times = TransferTimes { latency: Spread::exactly(2 * lease), ..TransferTimes::default() };
    let second = KvTransferConfig { times, engine_id: "decode".to_owned(), ..short };
    let second = start(synthetic(Duration::ZERO, Some(second))).await;
    through(&first, &second, "/v1/completions", &request(1, &Value::Null)).await;
    let found = until(&first, &IDLE).await;
    assert_eq!(found["vllm:nixl_num_kv_expired_reqs_total"], 0.0);
    assert_eq!(found["vllm:nixl_num_notifications_after_expiry_total"], 0.0);
}

#[tokio::test]
async fn params_that_are_no_transfer_change_nothing() {
    let servers = [decode(HOUR).await, start(synthetic(Duration::ZERO, None)).await];
    let whole = json!({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1, 2]],
        "remote_engine_id": "none", "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 9});
    let mut hostile = vec![json!({}), json!({"do_remote_prefill": "yes"}), json!({"remote_block_ids": [[1]]})];
    for (name, value) in [
        ("remote_block_ids", json!([])),
        ("remote_engine_id", json!([1])),
        ("remote_request_id", Value::Null),
        ("remote_host", json!({"a": 1})),
        ("remote_host", json!("h".repeat(5000))),
        ("remote_port", json!(1e9)),
        ("remote_port", json!("x")),
    ] {
        let mut params = whole.clone();
        params[name] = value;
        hostile.push(params);
    }
    for server in &servers {
        for params in &hostile {
            let answer = send(server.address, "/v1/completions", &request(1, params)).await.json();
            assert_eq!(answer["usage"]["completion_tokens"], 5, "{params}");
            assert_eq!(answer["kv_transfer_params"], Value::Null, "{params}");
        }
        sound(server).await;
    }
    let plain = send(servers[1].address, "/v1/completions", &request(1, &whole)).await.json();
    assert_eq!(plain["usage"]["completion_tokens"], 5, "without a connector nothing is waited for");
    let wrong = client::send(servers[0].address, &post("/v1/completions", &request(1, &json!([1])))).await;
    assert_eq!(wrong.status, 400);
}

#[tokio::test]
async fn an_unknown_engine_and_a_huge_list_of_blocks_are_no_harm() {
    let second = decode(Duration::ZERO).await;
    let blocks: Vec<u32> = (0..200_000).collect();
    for (host, port) in [("127.0.0.1", 9), ("no.such.host.invalid", 5600), ("::1", 1), ("", 0)] {
        let params = json!({"do_remote_prefill": true, "remote_block_ids": [blocks], "remote_engine_id": "none",
            "remote_request_id": "r", "remote_host": host, "remote_port": port});
        let answer = send(second.address, "/v1/completions", &request(port, &params)).await.json();
        assert_eq!(answer["usage"]["completion_tokens"], 5);
    }
    until(&second, &IDLE).await;
    sound(&second).await;
}

/// A request names a host of a network that nobody has; what is sent there is lost without an error.
#[tokio::test]
async fn datagrams_go_where_a_request_says_only_if_the_host_is_a_peer() {
    let listed = KvTransferConfig { peers: vec!["192.0.2.1".to_owned()], ..connector("listed", KvRole::Consumer) };
    for (config, failed) in [(connector("decode", KvRole::Consumer), 1.0), (listed, 0.0)] {
        let second = start(synthetic(Duration::ZERO, Some(config))).await;
        let params = json!({"do_remote_prefill": true, "remote_block_ids": [[1]], "remote_engine_id": "none",
            "remote_request_id": "r", "remote_host": "192.0.2.1", "remote_port": 9});
        let answer = send(second.address, "/v1/completions", &request(1, &params)).await.json();
        assert_eq!(answer["usage"]["completion_tokens"], 5);
        let found = until(&second, &IDLE).await;
        assert_eq!(found["vllm:nixl_num_failed_notifications_total"], failed);
    }
}

#[tokio::test]
async fn replicas_of_one_process_are_engines_of_their_own() {
    let config = synthetic(Duration::ZERO, Some(connector("engine", KvRole::Both)));
    let fleet = Fleet::new(Player::load(config).unwrap(), 2, FleetScript::default()).unwrap();
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        listeners.push(listener.into());
    }
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { fleet.serve(listeners, async { drop(stopped.await) }).await });
    let body = request(1, &Value::Null);
    for (from, to, name) in [(0, 1, "engine"), (1, 0, "engine_1")] {
        let params = prefilled(addresses[from], "/v1/completions", &body).await;
        assert_eq!(params["remote_engine_id"], name);
        let mut rest = body.clone();
        rest["kv_transfer_params"] = params;
        send(addresses[to], "/v1/completions", &rest).await;
        let mut usage = 1.0;
        for _ in 0..3000 {
            let page = client::send(addresses[from], &get("/metrics")).await.text();
            let line = page.lines().find(|line| line.starts_with(USAGE)).unwrap();
            usage = line.rsplit(' ').next().unwrap().parse().unwrap();
            if usage == 0.0 {
                break;
            }
            tokio::time::sleep(10 * MS).await;
        }
        assert_eq!(usage, 0.0, "{name} was told that its blocks were read");
    }
    drop(stop);
}

#[test]
fn the_command_line_names_what_is_wrong_with_a_connector() {
    let flags = |role: &str| format!(r#"{{"kv_connector":"NixlConnector","kv_role":"{role}"}}"#);
    let refused = vcr(&[
        "play",
        "--engine",
        "--kv-transfer-config",
        r#"{"kv_connector":"P2pNcclConnector","kv_role":"kv_both"}"#,
    ]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("P2pNcclConnector is not simulated"), "{text}");
    let refused = vcr(&["play", "--kv-transfer-config", &flags("kv_both")]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("--kv-transfer-config needs the simulated engine"), "{text}");
}
