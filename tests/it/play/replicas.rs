//! `play --replicas`: engines of one process with ports, caches and metrics of their own, and the script of their lives.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::Instant,
};
use vllm_vcr::play::{Config, FaultLines, Fleet, FleetScript, Player, ServerFaults, ServerOptions};

use crate::support::{
    client::{self, get, post},
    play_server::start,
    running::{Running, vcr},
    simulated::{behind, engine},
};

const MS: Duration = Duration::from_millis(1);

/// A server of made-up tokens behind an engine whose steps take so long.
fn synthetic(step: Duration) -> Config {
    behind(engine(step))
}

/// Running replicas; they stop when this is dropped.
struct Replicas {
    addresses: Vec<SocketAddr>,
    _stop: oneshot::Sender<()>,
}

async fn fleet(replicas: u32, script: &str, step: Duration) -> Replicas {
    fleet_of(synthetic(step), replicas, script).await
}

async fn fleet_of(config: Config, replicas: u32, script: &str) -> Replicas {
    let script = if script.is_empty() { FleetScript::default() } else { FleetScript::parse(script, replicas).unwrap() };
    let fleet = Fleet::new(Player::load(config).unwrap(), replicas, script).unwrap();
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..replicas {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        listeners.push(listener.into());
    }
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { fleet.serve(listeners, async { drop(stopped.await) }).await });
    Replicas { addresses, _stop: stop }
}

fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 20 + at % 200).collect()
}

/// Cached tokens of a prompt of 100 tokens.
async fn cached(address: SocketAddr) -> u64 {
    let body = json!({"prompt": prompt(100), "max_tokens": 2});
    let answer = client::send(address, &post("/v1/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Waits until a port takes connections, or no longer does.
async fn until_open(address: SocketAddr, is_open: bool) {
    while TcpStream::connect(address).await.is_ok() != is_open {
        tokio::time::sleep(10 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_have_caches_metrics_and_engines_of_their_own() {
    let replicas = fleet(3, "", Duration::ZERO).await;
    let [first, second, third] = replicas.addresses[..] else { panic!() };
    let found = [cached(first).await, cached(first).await, cached(second).await];
    assert_eq!(found, [0, 96, 0]);
    for (address, queries, submitted) in [(first, 200.0, 2), (second, 100.0, 1), (third, 0.0, 0)] {
        let page = client::send(address, &get("/metrics")).await.text();
        let line = page.lines().find(|line| line.starts_with("vllm:prefix_cache_queries_total")).unwrap();
        assert_eq!(line.rsplit(' ').next().unwrap().parse::<f64>().unwrap(), queries, "{line}");
        let state = client::send(address, &get("/vcr/engine")).await.json();
        assert_eq!(state["totals"]["submitted"], submitted, "{state}");
        assert_eq!(state["differences"], json!([]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_list_which_of_them_a_fault_happened_at() {
    let lines = FaultLines::parse("- 503 where replica=1", "body", 0).unwrap();
    let config = Config { faults: Arc::new(ServerFaults::new(lines, false)), ..synthetic(Duration::ZERO) };
    let replicas = fleet_of(config, 2, "").await;
    let body = json!({"prompt": [5, 6], "max_tokens": 1});
    for (number, status) in [(0, 200), (1, 503)] {
        let address = replicas.addresses[number];
        assert_eq!(client::send(address, &post("/v1/completions", &body)).await.status, status);
    }
    for (number, address) in replicas.addresses.iter().enumerate() {
        let listed = client::send(*address, &get("/vcr/faults")).await.json();
        assert_eq!((&listed["replica"], &listed["hits"][0]["replica"]), (&json!(number), &json!(1)), "{listed}");
        assert!(listed["hits"][0]["fault"].as_str().unwrap().ends_with(" nth=2 replica=1"), "{listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_dies_cuts_its_streams_refuses_and_comes_back_cold() {
    let script = "- {at: 5s, replica: 1, do: die}\n- {at: 8s, replica: 1, do: start}\n";
    let replicas = fleet(2, script, 10 * MS).await;
    let [first, second] = replicas.addresses[..] else { panic!() };
    assert_eq!([cached(first).await, cached(second).await, cached(second).await], [0, 0, 96]);
    // 800 tokens take 8 seconds.
    let body = json!({"prompt": [5, 6], "max_tokens": 800, "ignore_eos": true, "stream": true});
    let mut stream = client::open(second, &post("/v1/completions", &body)).await;
    let mut read = Vec::new();
    let _end_or_reset = stream.read_to_end(&mut read).await;
    let text = String::from_utf8_lossy(&read).into_owned();
    assert!(text.contains("data: ") && !text.contains("[DONE]"), "{text}");
    until_open(second, false).await;
    assert_eq!(cached(first).await, 96);
    until_open(second, true).await;
    assert_eq!([cached(second).await, cached(second).await], [0, 96]);
    let state = client::send(second, &get("/vcr/engine")).await.json();
    assert_eq!([&state["totals"]["submitted"], &state["totals"]["aborted"]], [2, 0], "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slower_replica_takes_longer_for_each_step() {
    let replicas = fleet(2, "- {at: 0, replica: 1, slower: 10}", 20 * MS).await;
    let body = json!({"prompt": [5, 6], "max_tokens": 4});
    // The event happens when the fleet begins to serve, at the latest beside its first step.
    client::send(replicas.addresses[1], &post("/v1/completions", &body)).await;
    let start = Instant::now();
    client::send(replicas.addresses[1], &post("/v1/completions", &body)).await;
    assert!(start.elapsed() >= 4 * 200 * MS, "{:?}", start.elapsed());
}

#[tokio::test]
async fn nothing_but_metrics_answers_until_the_start_up_is_over() {
    let starting = |startup| Config { server: ServerOptions { startup, ..ServerOptions::default() }, ..synthetic(MS) };
    let server = start(starting(3_600_000 * MS)).await;
    let body = json!({"prompt": [5, 6], "max_tokens": 1});
    let answer = client::send(server.address, &post("/v1/completions", &body)).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].as_u64()), (503, Some(503)));
    for (path, status) in [("/health", 503), ("/v1/models", 503), ("/metrics", 200), ("/vcr/engine", 200)] {
        assert_eq!(client::send(server.address, &get(path)).await.status, status, "{path}");
    }
    let server = start(starting(50 * MS)).await;
    while client::send(server.address, &get("/health")).await.status == 503 {
        tokio::time::sleep(5 * MS).await;
    }
    assert_eq!(client::send(server.address, &post("/v1/completions", &body)).await.status, 200);
}

#[test]
fn the_program_prints_every_port_and_refuses_what_does_not_go_together() {
    let running = Running::start(&["play", "--synthetic", "random", "--engine", "--replicas", "3", "--port", "0"]);
    let (code, text) = running.stop();
    assert_eq!((code, text.matches("replica ").count()), (0, 2), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("life.yaml");
    fs::write(&path, "- {at: 1s, replica: 0, do: die}\n- {at: 2s, replica: 5, do: die}\n").unwrap();
    let script = path.to_str().unwrap();
    let engine = ["play", "--synthetic", "random", "--engine", "--port", "0"];
    for (flags, code, part) in [
        (vec!["--replicas", "2", "--script", script], 3, "life.yaml:2: `replica` is a number from 0 to 1"),
        (vec!["--script", "/no/such.yaml"], 3, "/no/such.yaml"),
        (vec!["--replicas", "2", "--uds", "/tmp/no.sock"], 2, "--replicas cannot be used with --uds"),
        (vec!["--replicas", "0"], 2, "--replicas"),
        (vec!["--replicas", "2", "--script", "/dev/null"], 3, "/dev/null:1: a list of events"),
    ] {
        let output = vcr(&[&engine[..], &flags].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.contains(part)), (Some(code), true), "{flags:?}: {text}");
    }
    let output = vcr(&["play", "--synthetic", "random", "--engine", "--replicas", "2", "--port", "65535"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_in_use = text.contains("in use");
    assert!(text.contains("beyond 65535") || is_in_use, "{text}");
    assert!(!output.status.success() && !text.contains("play on"), "no banner of a server that does not start: {text}");
    let output = vcr(&["play", "--synthetic", "random", "--replicas", "2"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), text.contains("--replicas needs the simulated engine")),
        (Some(2), true),
        "{text}"
    );
}

#[tokio::test]
async fn replicas_have_the_addresses_that_they_are_given() {
    let fixed = ["play", "--synthetic", "random", "--engine", "--instant"];
    let addresses = "127.0.0.1:0,127.0.0.2:0,127.0.0.1:0";
    let running = Running::start(&[&fixed[..], &["--replica-addresses", addresses]].concat());
    assert!(running.address.ip().to_string().ends_with("127.0.0.1"), "{}", running.address);
    assert_eq!(client::send(running.address, &get("/health")).await.status, 200);
    let (code, text) = running.stop();
    let printed = |number: u32, host: &str| text.contains(&format!("replica {number} on http://{host}:"));
    assert_eq!(
        (code, printed(1, "127.0.0.2"), printed(2, "127.0.0.1"), printed(3, "")),
        (0, true, true, false),
        "{text}"
    );
    for (flags, part) in [
        (vec!["--replica-addresses", "127.0.0.1:0", "--replicas", "2"], "--replicas"),
        (vec!["--replica-addresses", "127.0.0.1:0", "--port", "1"], "--port"),
        (vec!["--replica-addresses", "8000"], "is not HOST:PORT"),
        (vec!["--replica-addresses", "203.0.113.1:0,127.0.0.1:0"], "203.0.113.1"),
    ] {
        let output = vcr(&[&fixed[..], &flags].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(part), "{flags:?}: {text}");
    }
}
