//! The endpoints of a server in development mode. The answers are those of a vLLM 0.32.0 that was asked the same.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use vllm_vcr::{
    play::ServerOptions, recording::trace::FinishReason, replay::matching::MatchBy, replay::timing::Pacing,
};

use crate::support::{
    client::{self, Answer, Request},
    play_server::{Server, config, record, start},
};

/// What a server takes for anything, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of twenty tokens with a gap before each.
async fn server(gap: Duration) -> Server {
    let mut config = config(&[MatchBy::Next], vec![record(&[20; 20], gap, FinishReason::Stop)]);
    config.pacing = Pacing::default();
    config.server = ServerOptions { dev_mode: true, ..ServerOptions::default() };
    start(config).await
}

async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> Answer {
    let headers = if body.is_empty() { vec![] } else { vec![("content-type", "application/json")] };
    let body = body.as_bytes().to_vec();
    client::send(address, &Request { method, path, headers, body }).await
}

async fn said(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let answer = send(address, method, path, body).await;
    (answer.status, answer.text())
}

async fn get(address: SocketAddr, path: &str) -> String {
    said(address, "GET", path, "").await.1
}

async fn post(address: SocketAddr, path: &str) -> String {
    said(address, "POST", path, "").await.1
}

fn finish_reason(answer: &Answer) -> Value {
    serde_json::from_str::<Value>(&answer.text()).unwrap()["choices"][0]["finish_reason"].clone()
}

/// Waits until a sample of `/metrics` has this value or more.
async fn until(address: SocketAddr, sample: &str, value: f64) {
    let sample = format!("vllm:{sample}{{engine=\"0\",model_name=\"m\"}} ");
    for _ in 0..1000 {
        let page = get(address, "/metrics").await;
        let found = page.lines().find_map(|line| line.strip_prefix(&sample)).unwrap();
        if found.parse::<f64>().unwrap() >= value {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{sample} did not become {value}");
}

const COMPLETION: &str = r#"{"prompt":"x","max_tokens":99}"#;
const STREAM: &str = r#"{"prompt":"x","max_tokens":99,"stream":true}"#;

#[tokio::test]
async fn new_requests_wait_until_the_server_resumes() {
    let server = server(Duration::ZERO).await;
    let address = server.address;
    assert_eq!(post(address, "/pause").await, r#"{"status":"paused"}"#);
    assert_eq!(get(address, "/is_paused").await, r#"{"is_paused":true}"#);
    assert_eq!(get(address, "/is_sleeping").await, r#"{"is_sleeping":true}"#);
    let held = tokio::spawn(async move { send(address, "POST", "/v1/completions", STREAM).await });
    sleep(Duration::from_millis(100)).await;
    assert!(!held.is_finished());
    assert!(get(address, "/metrics").await.contains("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n"));
    // What is refused does not wait.
    assert_eq!(said(address, "POST", "/v1/completions", r#"{"prompt":"x","model":"nope"}"#).await.0, 404);
    assert_eq!(post(address, "/resume").await, r#"{"status":"resumed"}"#);
    let answer = timeout(PATIENCE, held).await.unwrap().unwrap();
    assert!(answer.text().contains(r#""finish_reason":"stop""#), "{}", answer.text());
    assert_eq!(get(address, "/is_paused").await, r#"{"is_paused":false}"#);
}

#[tokio::test]
async fn a_pause_ends_what_is_on_its_way() {
    let server = server(Duration::from_millis(300)).await;
    let address = server.address;
    let running = tokio::spawn(async move { send(address, "POST", "/v1/completions", COMPLETION).await });
    until(address, "generation_tokens_total", 1.0).await;
    assert_eq!(said(address, "POST", "/reset_prefix_cache", "").await.1, r#"{"success":false}"#);
    assert_eq!(
        said(address, "POST", "/reset_prefix_cache?reset_running_requests=yes", "").await.1,
        r#"{"success":true}"#
    );
    post(address, "/pause?mode=abort").await;
    let answer = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!(finish_reason(&answer), "abort");
}

#[tokio::test]
async fn a_pause_may_hold_what_is_on_its_way_or_let_it_go_on() {
    let server = server(Duration::from_millis(100)).await;
    let address = server.address;
    let running = tokio::spawn(async move { send(address, "POST", "/v1/completions", COMPLETION).await });
    until(address, "num_requests_running", 1.0).await;
    post(address, "/pause?mode=keep").await;
    sleep(Duration::from_millis(2200)).await;
    assert!(!running.is_finished(), "it is held");
    post(address, "/resume").await;
    let answer = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!(finish_reason(&answer), "stop");

    let running = tokio::spawn(async move { send(address, "POST", "/v1/completions", COMPLETION).await });
    until(address, "num_requests_running", 1.0).await;
    post(address, "/pause?mode=wait").await;
    assert!(running.is_finished() || running.await.is_ok_and(|answer| finish_reason(&answer) == "stop"));
    assert_eq!(get(address, "/is_paused").await, r#"{"is_paused":true}"#);
}

#[tokio::test]
async fn requests_are_aborted_by_their_id() {
    let server = server(Duration::from_millis(200)).await;
    let address = server.address;
    let running = tokio::spawn(async move {
        let headers = vec![("content-type", "application/json"), ("x-request-id", "mine")];
        let request = Request { method: "POST", path: "/v1/completions", headers, body: STREAM.as_bytes().to_vec() };
        client::send(address, &request).await
    });
    until(address, "generation_tokens_total", 1.0).await;
    let abort = |ids: Value| async move { said(address, "POST", "/abort_requests", &ids.to_string()).await };
    assert_eq!(abort(json!({"request_ids": ["other"]})).await.1, r#"{"status":"aborted","aborted":1}"#);
    until(address, "generation_tokens_total", 4.0).await;
    assert!(!running.is_finished());
    assert_eq!(abort(json!({"request_ids": ["cmpl-mine-0"]})).await.0, 200);
    let answer = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert!(answer.text().contains(r#""finish_reason":"abort""#), "{}", answer.text());
    assert_eq!(abort(json!({})).await.1, r#"{"status":"aborted","aborted":0}"#);
    let (status, body) = abort(json!({"request_ids": 5})).await;
    assert_eq!((status, body.as_str()), (500, r#"{"error":"Failed to abort requests: 'int' object is not iterable"}"#));
}

#[tokio::test]
async fn sleep_has_levels_and_memory_wakes_up_in_parts() {
    let server = server(Duration::ZERO).await;
    let address = server.address;
    let state = |page: &str| {
        let lines = page.lines().filter(|line| line.starts_with("vllm:engine_sleep_state{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    for (level, shown) in [("0", "0.0 0.0 0.0"), ("1", "0.0 1.0 0.0"), ("2", "0.0 0.0 1.0"), ("%2B1", "0.0 1.0 0.0")] {
        let asleep = post(address, &format!("/sleep?level={level}")).await;
        assert!(asleep.starts_with(r#"{"status":"sleeping","level":"#), "{asleep}");
        assert_eq!(state(&get(address, "/metrics").await), shown);
        assert_eq!(get(address, "/is_sleeping").await, r#"{"is_sleeping":true}"#);
        assert_eq!(post(address, "/wake_up").await, r#"{"status":"awake","tags":null}"#);
        assert_eq!(state(&get(address, "/metrics").await), "1.0 0.0 0.0");
    }
    post(address, "/sleep").await;
    for (tags, status) in [
        ("tags=weights", r#"{"status":"sleeping","tags":["weights"]}"#),
        ("tags=nope", r#"{"status":"sleeping","tags":["nope"]}"#),
        ("tags=kv_cache", r#"{"status":"awake","tags":["kv_cache"]}"#),
    ] {
        assert_eq!(post(address, &format!("/wake_up?{tags}")).await, status);
    }
    assert_eq!(get(address, "/is_paused").await, r#"{"is_paused":false}"#);
    let refused = send(address, "POST", "/release_kv_cache_memory", "").await;
    assert_eq!((refused.status, refused.header("vary")), (500, None));
    let message =
        "Call to release_kv_cache_memory method failed: release_kv_cache_memory() requires a completed pause first";
    assert_eq!(
        refused.text(),
        format!(r#"{{"error":{{"message":"{message}","type":"InternalServerError","param":null,"code":500}}}}"#)
    );
}

/// Faults in the engine's words.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "/sleep?level=3",
        "",
        r#"{"error":{"message":"1 validation error:\n  {'type': 'less_than_equal', 'loc': 'query.level', 'msg': 'Input should be less than or equal to 2', 'input': '3', 'ctx': {'le': 2}}","type":"Bad Request","param":"query.level","code":400}}"#,
    ),
    (
        "/sleep?level=-1",
        "",
        r#"{"error":{"message":"1 validation error:\n  {'type': 'greater_than_equal', 'loc': 'query.level', 'msg': 'Input should be greater than or equal to 0', 'input': '-1', 'ctx': {'ge': 0}}","type":"Bad Request","param":"query.level","code":400}}"#,
    ),
    (
        "/sleep?level=x&mode=zz",
        "",
        r#"{"error":{"message":"2 validation errors:\n  {'type': 'int_parsing', 'loc': 'query.level', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}\n  {'type': 'literal_error', 'loc': 'query.mode', 'msg': \"Input should be 'abort', 'wait' or 'keep'\", 'input': 'zz', 'ctx': {'expected': \"'abort', 'wait' or 'keep'\"}}","type":"Bad Request","param":"query.level","code":400}}"#,
    ),
    (
        "/pause?clear_cache=zz",
        "",
        r#"{"error":{"message":"1 validation error:\n  {'type': 'bool_parsing', 'loc': 'query.clear_cache', 'msg': 'Input should be a valid boolean, unable to interpret input', 'input': 'zz'}","type":"Bad Request","param":"query.clear_cache","code":400}}"#,
    ),
    (
        "/collective_rpc",
        "{",
        r#"{"error":{"message":"JSON decode error: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)","type":"Bad Request","param":null,"code":400}}"#,
    ),
    (
        "/collective_rpc",
        "[]",
        r#"{"error":{"message":"Request body must be a JSON object","type":"Bad Request","param":null,"code":400}}"#,
    ),
    (
        "/collective_rpc",
        "{}",
        r#"{"error":{"message":"Missing 'method' in request body","type":"Bad Request","param":null,"code":400}}"#,
    ),
    (
        "/update_weight_version",
        "[]",
        r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.new_version', 'msg': 'Field required', 'input': 'None'}","type":"Bad Request","param":"body.new_version","code":400}}"#,
    ),
    (
        "/update_weights",
        r#"{"update_info": 5}"#,
        r#"{"error":{"message":"2 validation errors:\n  {'type': 'dict_type', 'loc': 'body.update_info', 'msg': 'Input should be a valid dictionary', 'input': '5'}\n  {'type': 'list_type', 'loc': 'body.update_info', 'msg': 'Input should be a valid list', 'input': '5'}","type":"Bad Request","param":"body.update_info","code":400}}"#,
    ),
    (
        "/weight_checker",
        r#"{"action": "zz"}"#,
        r#"{"error":{"message":"1 validation error:\n  {'type': 'literal_error', 'loc': 'body.action', 'msg': \"Input should be 'checksum', 'reset' or 'compare'\", 'input': 'zz', 'ctx': {'expected': \"'checksum', 'reset' or 'compare'\"}}","type":"Bad Request","param":"body.action","code":400}}"#,
    ),
    (
        "/weight_checker",
        r#"{"action": "compare"}"#,
        r#"{"error":{"message":"action='compare' requires a 'baseline' object","type":"Bad Request","param":null,"code":400}}"#,
    ),
    (
        "/scale_elastic_ep",
        r#"{"new_data_parallel_size": 1, "drain_timeout": 0}"#,
        r#"{"error":{"message":"drain_timeout must be a positive integer","type":"Bad Request","param":null,"code":400}}"#,
    ),
];

#[tokio::test]
async fn faults_have_the_engines_error_bodies() {
    let server = server(Duration::ZERO).await;
    for (path, body, told) in REFUSED {
        assert_eq!(said(server.address, "POST", path, body).await, (400, (*told).to_owned()), "{path} {body}");
    }
    let unknown = said(server.address, "GET", "/server_info?config_format=x", "").await.1;
    assert!(unknown.contains(r#"\"Input should be 'text' or 'json'\""#), "{unknown}");
}

#[tokio::test]
async fn weights_have_a_version_and_cannot_be_transferred() {
    let server = server(Duration::ZERO).await;
    let address = server.address;
    assert_eq!(get(address, "/weight_info").await, r#"{"weight_version":"default"}"#);
    let set = said(address, "POST", "/update_weight_version", r#"{"new_version":"v2"}"#).await.1;
    assert_eq!(set, r#"{"success":true,"new_version":"v2"}"#);
    assert_eq!(get(address, "/weight_info").await, r#"{"weight_version":"v2"}"#);
    let (status, failed) = said(address, "POST", "/start_weight_update", "").await;
    assert_eq!(status, 500);
    assert!(failed.contains("Worker failed with error 'Weight transfer not configured."), "{failed}");
    assert_eq!(post(address, "/shutdown_weight_transfer_engine").await, r#"{"message":"Weight transfer shut down"}"#);
    let called = said(address, "POST", "/collective_rpc", r#"{"method":"sleep"}"#).await.1;
    assert_eq!(called, r#"{"results":[null]}"#);
    assert_eq!(get(address, "/get_world_size?include_dp=false").await, r#"{"world_size":1}"#);
    assert!(get(address, "/server_info").await.starts_with(r#"{"vllm_config":"#));
}

#[tokio::test]
async fn nothing_of_it_is_served_otherwise() {
    let server = start(config(&[MatchBy::Next], vec![record(&[20], Duration::ZERO, FinishReason::Stop)])).await;
    for path in ["/pause", "/sleep", "/collective_rpc", "/weight_checker"] {
        let (status, body) = said(server.address, "POST", path, "").await;
        assert_eq!((status, body.as_str()), (404, r#"{"detail":"Not Found"}"#), "{path}");
    }
}
