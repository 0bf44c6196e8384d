//! `play --data-parallel-size`: several engines behind one server.

use std::{num::NonZeroU32, time::Duration};

use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::sleep,
};
use vllm_vcr::play::{Config, Fleet, FleetScript, KvEventsConfig, Player, ServerOptions};

use crate::support::{
    client::{self, Answer, get, open, post},
    free_ports,
    kv_subscriber::replayed,
    play_server::{Server, start},
    running::{Running, vcr},
    simulated::{behind, engine},
};

const MS: Duration = Duration::from_millis(1);
const RANK: &str = "x-data-parallel-rank";

/// A server of made-up tokens with so many engines, whose steps take so long.
fn ranks(count: u32, step: Duration) -> Config {
    Config {
        data_parallel_size: NonZeroU32::new(count).unwrap(),
        server: ServerOptions { dev_mode: true, ..ServerOptions::default() },
        ..behind(engine(step))
    }
}

fn body(tokens: u32) -> Value {
    let prompt: Vec<u32> = (0..100).map(|at| 20 + at).collect();
    json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true})
}

/// A completion on the rank of a header, if any.
async fn complete(server: &Server, rank: Option<&str>) -> Answer {
    let body = body(4);
    let mut request = post("/v1/completions", &body);
    request.headers.extend(rank.map(|rank| (RANK, rank)));
    client::send(server.address, &request).await
}

async fn cached(server: &Server, rank: &str) -> u64 {
    let answer = complete(server, Some(rank)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// An answer of many tokens that is not read; its client leaves when this is dropped.
async fn long(server: &Server, rank: Option<&str>, more: Value) -> TcpStream {
    let mut body = body(900);
    body["stream"] = json!(true);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut request = post("/v1/completions", &body);
    request.headers.extend(rank.map(|rank| (RANK, rank)));
    open(server.address, &request).await
}

async fn metrics(server: &Server) -> String {
    client::send(server.address, &get("/metrics")).await.text()
}

/// A family's values by rank.
fn by_rank(page: &str, family: &str) -> Vec<f64> {
    let begin = format!("{family}{{engine=\"");
    let lines = page.lines().filter_map(|line| line.strip_prefix(&begin)).filter(|line| !line.contains("le="));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

async fn until(server: &Server, family: &str, wanted: &[f64]) {
    let mut found = Vec::new();
    for _ in 0..3000 {
        found = by_rank(&metrics(server).await, family);
        if found == wanted {
            return;
        }
        sleep(10 * MS).await;
    }
    panic!("{family}: {found:?} and not {wanted:?}");
}

async fn snapshot(server: &Server) -> Value {
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
    snapshot
}

#[tokio::test]
async fn requests_take_turns_among_ranks_and_each_rank_has_its_figures() {
    let server = start(ranks(3, 20 * MS)).await;
    let one = long(&server, None, json!({})).await;
    until(&server, "vllm:num_requests_running", &[1.0, 0.0, 0.0]).await;
    let others = [long(&server, None, json!({})).await, long(&server, None, json!({})).await];
    until(&server, "vllm:num_requests_running", &[1.0, 1.0, 1.0]).await;
    // The other ranks have one each.
    drop(one);
    until(&server, "vllm:num_requests_running", &[0.0, 1.0, 1.0]).await;
    let again = long(&server, None, json!({})).await;
    until(&server, "vllm:num_requests_running", &[1.0, 1.0, 1.0]).await;
    drop((others, again));
    until(&server, "vllm:kv_cache_usage_perc", &[0.0; 3]).await;
    let page = metrics(&server).await;
    let lines = |rank: u32| page.lines().filter(|line| line.contains(&format!("engine=\"{rank}\""))).count();
    assert!(lines(0) > 300, "{}", lines(0));
    assert_eq!([lines(0), lines(1), lines(2), lines(3)], [lines(0), lines(0), lines(0), 0]);
    assert_eq!(by_rank(&page, "vllm:time_to_first_token_seconds_count").len(), 3);
    let snapshot = snapshot(&server).await;
    let submitted: Vec<&Value> =
        snapshot["ranks"].as_array().unwrap().iter().map(|rank| &rank["totals"]["submitted"]).collect();
    assert_eq!((submitted, &snapshot["totals"]["submitted"]), (vec![&json!(2), &json!(1), &json!(1)], &json!(4)));
}

#[tokio::test]
async fn a_client_names_its_rank() {
    let server = start(ranks(2, Duration::ZERO)).await;
    let mut found = Vec::new();
    for rank in ["1", "1", "0", "+0_1", "0"] {
        found.push(cached(&server, rank).await);
    }
    assert_eq!(found, [0, 96, 0, 96, 96]);
    assert_eq!(complete(&server, Some("first")).await.status, 200);
    for (rank, shown) in [("2", "2"), ("-1", "-1")] {
        let answer = complete(&server, Some(rank)).await;
        let message = format!("data_parallel_rank {shown} is out of range [0, 2).");
        let expected = json!({"message": message, "type": "BadRequestError", "param": null, "code": 400});
        assert_eq!((answer.status, &answer.json()["error"]), (400, &expected));
    }
    let alone = start(ranks(1, Duration::ZERO)).await;
    assert_eq!(complete(&alone, Some("0")).await.status, 200);
    assert_eq!(
        complete(&alone, Some("1")).await.json()["error"]["message"],
        "data_parallel_rank 1 is out of range [0, 1)."
    );
    let body = json!({"input": "x", "max_output_tokens": 2});
    let mut response = post("/v1/responses", &body);
    response.headers.push((RANK, "1"));
    assert_eq!(client::send(alone.address, &response).await.status, 200, "the engine does not look for it there");
}

#[tokio::test]
async fn choices_of_one_answer_run_on_several_ranks() {
    let server = start(ranks(2, 10 * MS)).await;
    let request = json!({"prompt": [30, 31, 32], "max_tokens": 20, "n": 5, "ignore_eos": true, "seed": 7});
    let answer = client::send(server.address, &post("/v1/completions", &request)).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &answer["usage"]["completion_tokens"]), (5, &json!(100)));
    let page = metrics(&server).await;
    assert_eq!(by_rank(&page, "vllm:generation_tokens_total"), [60.0, 40.0]);
    assert_eq!(by_rank(&page, "vllm:request_params_n_count").iter().sum::<f64>(), 1.0);
    assert_eq!(snapshot(&server).await["totals"]["generated_tokens"], 100);
    let one = client::send(start(ranks(1, MS)).await.address, &post("/v1/completions", &request)).await.json();
    assert_eq!(one["choices"], answer["choices"]);
    let left = long(&server, None, json!({"n": 6})).await;
    let mut running = Vec::new();
    while running.iter().sum::<f64>() < 6.0 {
        sleep(MS).await;
        running = by_rank(&metrics(&server).await, "vllm:num_requests_running");
    }
    assert!(running.iter().all(|count| *count > 0.0), "{running:?}");
    drop(left);
    until(&server, "vllm:kv_cache_usage_perc", &[0.0, 0.0]).await;
    assert_eq!(snapshot(&server).await["totals"]["aborted"], 6);
}

#[tokio::test]
async fn pauses_and_resets_act_on_all_ranks() {
    let server = start(ranks(2, 10 * MS)).await;
    for (rank, expected) in [("0", 0), ("1", 0), ("0", 96), ("1", 96)] {
        assert_eq!(cached(&server, rank).await, expected, "{rank}");
    }
    let dev = async |path: &str| client::send(server.address, &post(path, &json!({}))).await.json();
    assert_eq!(dev("/reset_prefix_cache").await, json!({"success": true}));
    assert_eq!([cached(&server, "0").await, cached(&server, "1").await], [0, 0]);
    dev("/pause?mode=keep").await;
    let held = [long(&server, Some("0"), json!({})).await, long(&server, Some("1"), json!({})).await];
    until(&server, "vllm:num_requests_waiting", &[1.0, 1.0]).await;
    dev("/resume").await;
    until(&server, "vllm:num_requests_running", &[1.0, 1.0]).await;
    drop(held);
    dev("/sleep?level=2").await;
    let asleep = metrics(&server).await;
    let state = |rank: u32| {
        format!("vllm:engine_sleep_state{{engine=\"{rank}\",model_name=\"m\",sleep_state=\"discard_all\"}} 1.0\n")
    };
    assert!(asleep.contains(&state(0)) && asleep.contains(&state(1)));
    dev("/wake_up").await;
    let size = client::send(server.address, &get("/get_world_size")).await.json();
    let without = client::send(server.address, &get("/get_world_size?include_dp=false")).await.json();
    assert_eq!((size, without), (json!({"world_size": 2}), json!({"world_size": 1})));
}

/// Replicas 0 and 1 of two ranks each: their events are at the first port, and the three after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_of_each_replica_publishes_at_a_port_of_its_own() {
    let events = free_ports(8);
    let replay = events + 4;
    let mut config = ranks(2, Duration::ZERO);
    config.engine.as_mut().unwrap().kv_events = Some(KvEventsConfig {
        endpoint: format!("tcp://*:{events}"),
        replay_endpoint: Some(format!("tcp://*:{replay}")),
        ..KvEventsConfig::default()
    });
    let fleet = Fleet::new(Player::load(config).unwrap(), 2, FleetScript::default()).unwrap();
    let (mut listeners, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        servers.push(listener.local_addr().unwrap());
        listeners.push(listener.into());
    }
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { fleet.serve(listeners, async { drop(stopped.await) }).await });
    for (place, (replica, rank)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let prompt = vec![40 + u32::try_from(place).unwrap(); 20];
        let body = json!({"prompt": prompt, "max_tokens": 1});
        let (mut request, name) = (post("/v1/completions", &body), rank.to_string());
        request.headers.push((RANK, &name));
        assert_eq!(client::send(servers[replica], &request).await.status, 200);
        let port = replay + u16::try_from(place).unwrap();
        let batches = replayed(&format!("tcp://127.0.0.1:{port}"), 0).await;
        let [(0, payload)] = &batches[..] else { panic!("{batches:?}") };
        let batch = rmpv::decode::read_value(&mut &payload[..]).unwrap();
        assert_eq!((batch[1][0]["token_ids"][0].as_u64(), batch[2].as_i64()), (Some(prompt[0].into()), Some(rank)));
        let snapshot = client::send(servers[replica], &get("/vcr/engine")).await.json();
        let published = &snapshot["ranks"][usize::try_from(rank).unwrap()]["kv_events"];
        let own = events + u16::try_from(place).unwrap();
        assert_eq!(published["endpoint"], format!("tcp://0.0.0.0:{own}"));
        let sources = client::send(servers[replica], &get("/kv_event_sources")).await.json();
        let source = json!({
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": format!("tcp://*:{own}"),
            "replay_endpoint": format!("tcp://*:{port}"), "buffer_steps": 10_000, "hwm": 100_000,
            "max_queue_size": 100_000, "topic": "",
        });
        assert_eq!((sources.as_object().unwrap().len(), &sources[&name]), (2, &source));
    }
    drop(stop);
}

#[tokio::test]
async fn the_flag_is_vllms() {
    let fixed = ["play", "--synthetic", "random", "--served-model-name", "m", "--instant", "--port", "0"];
    let server = Running::start(&[&fixed[..], &["--engine", "-dp", "2"]].concat());
    let page = client::send(server.address, &get("/metrics")).await.text();
    assert_eq!(by_rank(&page, "vllm:num_requests_running"), [0.0, 0.0]);
    for wrong in ["0", "257", "x"] {
        let output = vcr(&[&fixed[..], &["--engine", "--data-parallel-size", wrong]].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("--data-parallel-size"), "{error}");
    }
    let alone = Running::start(&[&fixed[..], &["--data-parallel-size", "2"]].concat());
    let (_, printed) = alone.stop();
    assert!(printed.contains("--data-parallel-size has no effect without --engine"), "{printed}");
}

#[tokio::test]
async fn memory_is_released_while_requests_are_kept_and_they_are_computed_anew() {
    let server = start(ranks(1, 20 * MS)).await;
    let kept = long(&server, None, json!({})).await;
    until(&server, "vllm:num_requests_running", &[1.0]).await;
    let dev = async |path: &str| client::send(server.address, &post(path, &json!({}))).await;
    assert_eq!(dev("/release_kv_cache_memory").await.status, 500);
    assert_eq!(dev("/pause?mode=keep&clear_cache=false").await.status, 200);
    let released = dev("/release_kv_cache_memory").await;
    assert_eq!((released.status, released.json()), (200, json!({"status": "kv_cache_released"})));
    assert_eq!(dev("/wake_up?tags=weights").await.json()["status"], "sleeping");
    assert_eq!(dev("/wake_up?tags=kv_cache").await.json(), json!({"status": "awake", "tags": ["kv_cache"]}));
    until(&server, "vllm:num_preemptions_total", &[1.0]).await;
    until(&server, "vllm:num_requests_running", &[1.0]).await;
    drop(kept);
    until(&server, "vllm:kv_cache_usage_perc", &[0.0]).await;
    snapshot(&server).await;
}
