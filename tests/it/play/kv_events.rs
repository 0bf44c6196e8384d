//! KV events over ZeroMQ: a subscriber knows the cache exactly, whatever it missed.

use std::{io::ErrorKind, num::NonZeroU32, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};
use vllm_vcr::{
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{Knobs, StepTimes},
    },
    play::{Config, EngineConfig, EngineTimes, KvEventsConfig, Player, ServerOptions, Source, Synthetic},
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
    },
};
use zeromq::{Socket, SubSocket, ZmqError};

use crate::support::{
    client::{self, get, post},
    free_ports,
    kv_subscriber::{Cache, Subscriber, replayed},
    play_server::{Server, config, start},
    running::{Running, vcr},
};

const BLOCK: usize = 16;
const SOON: Duration = Duration::from_millis(50);

fn events() -> KvEventsConfig {
    KvEventsConfig {
        endpoint: "tcp://*:0".to_owned(),
        replay_endpoint: Some("tcp://*:0".to_owned()),
        topic: "kv@{ip}:{port}@{model}".to_owned(),
        ..KvEventsConfig::default()
    }
}

/// A server in development mode with an engine of so many blocks whose steps take no time.
fn simulated(blocks: u32, events: KvEventsConfig) -> Config {
    let engine = EngineConfig {
        scheduler: SchedulerConfig { max_num_seqs: 4, ..SchedulerConfig::default() },
        kv_cache: KvCacheConfig { num_gpu_blocks: blocks, ..KvCacheConfig::default() },
        times: EngineTimes::Given(StepTimes::Instant),
        kv_events: Some(events),
        ..EngineConfig::default()
    };
    Config {
        source: Source::Synthetic(Synthetic::Random),
        prompt_tokens_details: true,
        block_size: NonZeroU32::new(16),
        engine: Some(engine),
        max_model_len: Some(256),
        admin: Admin::Here(Access::default()),
        server: ServerOptions { dev_mode: true, vcr_metrics: true, ..ServerOptions::default() },
        ..config(&[MatchBy::Next], Vec::new())
    }
}

/// What `/vcr/engine` has of the publisher.
async fn published(server: &Server) -> (String, String, u64) {
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!(snapshot["differences"], json!([]));
    let events = &snapshot["kv_events"];
    let text = |key: &str| events[key].as_str().unwrap().to_owned();
    (text("endpoint"), text("replay_endpoint"), events["published"].as_u64().unwrap())
}

/// Tokens of a prompt that the engine found cached.
async fn cached(server: &Server, prompt: &[u32], tokens: u32) -> usize {
    let body = json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true});
    let answer = client::send(server.address, &post("/v1/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let details = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    usize::try_from(details).unwrap()
}

/// A prompt of one of five families, as long as it has to be.
fn prompt(number: u32) -> Vec<u32> {
    let family = number * 7 % 5;
    let shared = (0..20 + family * 16).map(|at| 30 + family * 40 + at % 37);
    shared.chain((0..number % 50).map(|at| 300 + number + at)).collect()
}

/// Sends requests until the subscriber is known to the publisher.
async fn until_subscribed(server: &Server, subscriber: &mut Subscriber) -> (u64, bytes::Bytes) {
    for number in 0..400 {
        cached(server, &(number..number + 20).collect::<Vec<_>>(), 1).await;
        if let Some(message) = subscriber.next(SOON).await {
            return message;
        }
    }
    panic!("no message comes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_knows_what_is_cached_before_each_request() {
    let server = start(simulated(30, events())).await;
    let (endpoint, replay, _) = published(&server).await;
    let mut subscriber = Subscriber::of(&endpoint).await;
    // What was published before it was there is missing.
    let (seq, payload) = until_subscribed(&server, &mut subscriber).await;
    subscriber.cache.replay(&replay).await;
    subscriber.cache.take(seq, &payload);
    let mut hits = 0;
    for number in 0..60 {
        let (_, _, next_seq) = published(&server).await;
        subscriber.catch_up(next_seq - 1, &replay).await;
        let prompt = prompt(number);
        let expected = subscriber.cache.cached(&prompt, BLOCK);
        assert_eq!(cached(&server, &prompt, 1 + number % 40).await, expected, "request {number}");
        hits += usize::from(expected > 0);
    }
    let cache = &subscriber.cache;
    assert!(hits > 10 && cache.removed > 50, "{hits} hits, {} evictions", cache.removed);
    assert!(cache.len() <= 29, "{} blocks", cache.len());
    assert_eq!(cache.topic, format!("kv@127.0.0.1:{}@m", server.address.port()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_once_leave_a_cache_that_is_known_too() {
    let server = start(simulated(40, events())).await;
    for round in 0..5 {
        let prompts: Vec<Vec<u32>> = (0..8).map(|number| prompt(round * 8 + number)).collect();
        futures_util::future::join_all(prompts.iter().map(|prompt| cached(&server, prompt, 20))).await;
    }
    let (_, replay, next_seq) = published(&server).await;
    let mut cache = Cache::default();
    cache.replay(&replay).await;
    assert_eq!(cache.next_seq, next_seq);
    for number in 0..20 {
        let prompt = prompt(number);
        assert_eq!(cached(&server, &prompt, 1).await, cache.cached(&prompt, BLOCK), "request {number}");
        cache.replay(&replay).await;
    }
}

#[tokio::test]
async fn the_last_batches_are_replayed_from_any_number() {
    let server = start(simulated(30, KvEventsConfig { buffer_steps: 5, ..events() })).await;
    for number in 0..12 {
        cached(&server, &[number; 40], 1).await;
    }
    let (_, replay, next_seq) = published(&server).await;
    let numbers = async |first: u64| replayed(&replay, first).await.iter().map(|(seq, _)| *seq).collect::<Vec<_>>();
    assert_eq!(next_seq, 12);
    assert_eq!(numbers(0).await, [7, 8, 9, 10, 11]);
    assert_eq!(numbers(10).await, [10, 11]);
    assert_eq!(numbers(12).await, [0; 0]);
    let page = client::send(server.address, &get("/metrics")).await.text();
    assert!(page.contains("\nvcr_kv_event_batches_total 12.0\n"), "{page}");
    assert!(page.contains("\nvcr_kv_event_batches_dropped_total 0.0\n"), "{page}");
    assert!(page.contains("\nvcr_kv_event_peers_disconnected_total 0.0\n"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_with_a_host_connects_and_comes_back() {
    let listen = async |endpoint: &str| {
        let mut socket = SubSocket::new();
        let bound = loop {
            match socket.bind(endpoint).await {
                Ok(bound) => break bound.to_string(),
                // The socket before it leaves the port a little later.
                Err(ZmqError::Network(error)) if error.kind() == ErrorKind::AddrInUse => sleep(SOON).await,
                Err(error) => panic!("{error}"),
            }
        };
        (Subscriber::with(socket).await, bound)
    };
    let (mut subscriber, endpoint) = listen("tcp://127.0.0.1:0").await;
    let config = KvEventsConfig { endpoint: endpoint.clone(), data_parallel_rank: 0, ..events() };
    let server = start(simulated(30, config)).await;
    assert_eq!(published(&server).await.0, endpoint);
    let (first, _) = until_subscribed(&server, &mut subscriber).await;
    drop(subscriber);
    let (mut again, _) = listen(&endpoint).await;
    let (seq, _) = until_subscribed(&server, &mut again).await;
    assert!(seq > first);
}

#[tokio::test]
async fn a_rank_has_ports_of_its_own_and_is_in_each_batch() {
    let free = free_ports(1);
    let endpoint = format!("tcp://*:{}", free - 3);
    let config = KvEventsConfig { endpoint, data_parallel_rank: 3, ..events() };
    let server = start(simulated(30, config.clone())).await;
    cached(&server, &[9; 40], 1).await;
    let (bound, replay, _) = published(&server).await;
    assert_eq!(bound, format!("tcp://0.0.0.0:{free}"));
    let batch = rmpv::decode::read_value(&mut &*replayed(&replay, 0).await[0].1).unwrap();
    assert_eq!(batch[2].as_u64(), Some(3));
    let error = Player::load(simulated(30, config)).unwrap_err().to_string();
    assert!(error.contains(&format!("cannot listen on tcp://0.0.0.0:{free} for KV events")), "{error}");
}

#[tokio::test]
async fn the_command_line_publishes_in_vllms_words() {
    let json = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0",
        "buffer_steps": 100, "hwm": 100000, "max_queue_size": 1000, "topic": "kv"}"#;
    let play = |more: &[&str]| {
        let usual = ["play", "--port", "0", "--synthetic", "random", "--instant", "--engine", "--kv-cache-size", "100"];
        Running::start(&[usual.as_slice(), more].concat())
    };
    let replay = async |play: &Running| {
        let body = json!({"prompt": vec![9; 40], "max_tokens": 1});
        assert_eq!(play.send("/v1/completions", &body).await.status, 200);
        let events = play.get("/vcr/engine").await["kv_events"].clone();
        assert_eq!(events["published"], 1, "{events}");
        match events["replay_endpoint"].as_str() {
            Some(endpoint) => rmpv::decode::read_value(&mut &*replayed(endpoint, 0).await[0].1).unwrap()[1][0].clone(),
            None => rmpv::Value::Nil,
        }
    };
    let event = replay(&play(&["--kv-events-config", json])).await;
    assert_eq!(event["type"].as_str(), Some("BlockStored"));
    let forms = ["--kv-events-encoding", "array", "--kv-events-block-hashes", "bytes"];
    let event = replay(&play(&[["--kv-events-config", json].as_slice(), &forms].concat())).await;
    assert_eq!((event[0].as_str(), event[1][0].as_slice().map(<[u8]>::len)), (Some("BlockStored"), Some(32)));
    let short =
        ["--enable-kv-cache-events", "--kv-events-endpoint", "tcp://*:0", "--kv-events-topic", "kv@{ip}@{model}"];
    assert_eq!(replay(&play(&short)).await, rmpv::Value::Nil);
}

#[test]
fn misused_flags_are_named() {
    let refused = |arguments: &[&str]| {
        let ended = vcr(&[["play", "--port", "0", "--synthetic", "random"].as_slice(), arguments].concat());
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    for (arguments, code, parts) in [
        (vec!["--enable-kv-cache-events"], 2, ["--enable-kv-cache-events needs the simulated engine", "--engine"]),
        (vec!["--engine", "--kv-events-topic", "kv"], 2, ["--kv-events-topic", "--enable-kv-cache-events"]),
        (
            vec!["--engine", "--kv-events-config", r#"{"enable": true}"#],
            2,
            ["unknown field `enable`", "KVEventsConfig"],
        ),
        (
            vec!["--engine", "--enable-kv-cache-events", "--kv-events-endpoint", "5557"],
            2,
            [r#""5557" is no endpoint"#, "tcp://HOST:PORT"],
        ),
    ] {
        let (found, text) = refused(&arguments);
        assert_eq!(found, Some(code), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[tokio::test]
async fn nothing_is_published_unless_it_is_asked_for() {
    let mut config = simulated(30, events());
    config.engine.as_mut().unwrap().kv_events = None;
    let server = start(config).await;
    let snapshot: Value = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!(snapshot.get("kv_events"), None);
    assert!(!client::send(server.address, &get("/metrics")).await.text().contains("vcr_kv_event"));
}

/// A server whose steps take so long.
async fn slow(step: Duration) -> Server {
    let mut config = simulated(30, events());
    let times = EngineTimes::Given(StepTimes::Knobs(Knobs::constant(step, step)));
    config.engine = config.engine.map(|engine| EngineConfig { times, ..engine });
    start(config).await
}

async fn dev(server: &Server, path: &str) -> Value {
    client::send(server.address, &post(path, &json!({}))).await.json()
}

async fn until_running(server: &Server, wanted: &str) {
    for _ in 0..1000 {
        let page = client::send(server.address, &get("/metrics")).await.text();
        let running = page.lines().find(|line| line.starts_with("vllm:num_requests_running{")).unwrap();
        if running.ends_with(&format!(" {wanted}")) {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{wanted} requests do not run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_forgets_the_cache_unless_blocks_are_in_use() {
    let server = slow(Duration::from_millis(25)).await;
    let (_, replay, _) = published(&server).await;
    let prompt = [9; 40];
    assert_eq!((cached(&server, &prompt, 1).await, cached(&server, &prompt, 1).await), (0, 32));
    assert_eq!(dev(&server, "/reset_prefix_cache").await, json!({"success": true}));
    assert_eq!(cached(&server, &prompt, 1).await, 0);
    let mut cache = Cache::default();
    cache.replay(&replay).await;
    assert_eq!((cache.cleared, cache.len()), (1, 2));
    let body = json!({"prompt": prompt.as_slice(), "max_tokens": 200, "ignore_eos": true, "stream": true});
    let running = client::open(server.address, &post("/v1/completions", &body)).await;
    until_running(&server, "1.0").await;
    assert_eq!(dev(&server, "/reset_prefix_cache").await, json!({"success": false}));
    assert_eq!(dev(&server, "/reset_prefix_cache?reset_running_requests=true").await, json!({"success": true}));
    drop(running);
    until_running(&server, "0.0").await;
    let page = client::send(server.address, &get("/metrics")).await.text();
    let preempted = page.lines().find(|line| line.starts_with("vllm:num_preemptions_total{")).unwrap();
    assert!(preempted.ends_with(" 1.0"), "{preempted}");
    cache.replay(&replay).await;
    assert_eq!(cache.cleared, 2);
    published(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_ends_keeps_or_waits_for_what_runs() {
    // What runs does so for two seconds: it is seen to run, and stopped, on a busy machine too.
    let server = slow(Duration::from_millis(10)).await;
    let body = |tokens: u32| json!({"prompt": vec![9; 40], "max_tokens": tokens, "ignore_eos": true});
    let address = server.address;
    let send = move |tokens: u32| {
        tokio::spawn(async move { client::send(address, &post("/v1/completions", &body(tokens))).await.json() })
    };
    let reason = |answer: &Value| answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
    let kept = send(200);
    until_running(&server, "1.0").await;
    assert_eq!(dev(&server, "/pause?mode=keep").await, json!({"status": "paused"}));
    // Its blocks were taken with the cache, so it waits like one that comes now.
    until_running(&server, "0.0").await;
    let late = send(3);
    sleep(Duration::from_millis(40)).await;
    assert!(!kept.is_finished() && !late.is_finished());
    assert_eq!(dev(&server, "/resume").await, json!({"status": "resumed"}));
    for answer in [kept.await.unwrap(), late.await.unwrap()] {
        assert_eq!(reason(&answer), "length");
    }
    let awaited = send(200);
    until_running(&server, "1.0").await;
    assert_eq!(dev(&server, "/pause?mode=wait").await, json!({"status": "paused"}));
    assert_eq!(reason(&awaited.await.unwrap()), "length");
    let late = send(3);
    sleep(Duration::from_millis(40)).await;
    assert!(!late.is_finished());
    dev(&server, "/resume").await;
    let answer = late.await.unwrap();
    assert_eq!(
        (reason(&answer).as_str(), &answer["usage"]["prompt_tokens_details"]["cached_tokens"]),
        ("length", &json!(0))
    );
    let aborted = send(200);
    until_running(&server, "1.0").await;
    assert_eq!(dev(&server, "/pause?clear_cache=false").await, json!({"status": "paused"}));
    assert_eq!(reason(&aborted.await.unwrap()), "abort");
    dev(&server, "/resume").await;
    assert_eq!(cached(&server, &[9; 40], 1).await, 32, "the cache is kept");
    let (_, replay, _) = published(&server).await;
    let mut cache = Cache::default();
    cache.replay(&replay).await;
    assert_eq!(cache.cleared, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_announces_endless_frames_is_left_and_others_are_served() {
    let server = start(simulated(30, events())).await;
    let (endpoint, replay, _) = published(&server).await;
    let mut subscriber = Subscriber::of(&endpoint).await;
    for port in [&endpoint, &replay].map(|endpoint| endpoint.rsplit_once(':').unwrap().1) {
        for length in [1_u64 << 33, 1 << 61, u64::MAX] {
            let mut peer = TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
            let greeting = [b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".as_slice(), &[0; 48]].concat();
            let ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB";
            peer.write_all(&[&greeting, ready.as_slice(), &[2], &length.to_be_bytes()].concat()).await.unwrap();
            let mut rest = Vec::new();
            let _reset = timeout(Duration::from_secs(20), peer.read_to_end(&mut rest)).await.expect("it is left");
        }
    }
    let (seq, payload) = until_subscribed(&server, &mut subscriber).await;
    subscriber.cache.replay(&replay).await;
    subscriber.cache.take(seq, &payload);
    assert!(subscriber.cache.len() > 0);
}

/// What a DEALER sends first.
const DEALER: &[u8] = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_what_is_replayed_delay_nobody() {
    let server = start(simulated(300, events())).await;
    let (endpoint, replay, _) = published(&server).await;
    for number in 0..60 {
        cached(&server, &(number..number + 240).collect::<Vec<_>>(), 1).await;
    }
    let mut subscriber = Subscriber::of(&endpoint).await;
    let port = replay.rsplit_once(':').unwrap().1;
    let mut silent = Vec::new();
    for _ in 0..5 {
        let mut client = TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
        let greeting = [b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL".as_slice(), &[0; 48]].concat();
        let requests = b"\x01\0\0\x08\0\0\0\0\0\0\0\0".repeat(200);
        client.write_all(&[&greeting, DEALER, &requests].concat()).await.unwrap();
        silent.push(client);
    }
    sleep(SOON).await;
    for is_closed in [false, true] {
        if is_closed {
            silent.clear();
        }
        let first = until_subscribed(&server, &mut subscriber).await.0;
        let last = replayed(&replay, first).await;
        assert_eq!(last.first().map(|(seq, _)| *seq), Some(first), "closed: {is_closed}");
        while subscriber.next(SOON).await.is_some() {}
    }
}

#[tokio::test]
async fn events_name_the_session_and_report_cached_blocks_where_a_request_asks_for_it() {
    let server = start(simulated(30, events())).await;
    let (_, replay, _) = published(&server).await;
    let send = async |more: Value, header: Option<&str>| {
        let mut body = json!({"prompt": vec![9; 40], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut request = post("/v1/completions", &body);
        request.headers.extend(header.map(|session| ("x-session-id", session)));
        assert_eq!(client::send(server.address, &request).await.status, 200);
        let last = replayed(&replay, 0).await.pop().unwrap();
        let batch = rmpv::decode::read_value(&mut &*last.1).unwrap();
        let event = batch[1][0].as_map().unwrap().clone();
        let sessions = event.iter().filter(|(key, _)| key.as_str() == Some("session_id"));
        let session = sessions.map(|(_, value)| value.as_str().unwrap().to_owned()).next();
        (last.0, batch[1].as_array().unwrap().len(), session)
    };
    let report = json!({"vllm_xargs": {"kv_cache_report_mode": "full", "session_id": "c"}});
    assert_eq!(send(json!({"session_id": "a"}), Some("b")).await, (0, 1, Some("a".to_owned())));
    assert_eq!(send(json!({}), None).await, (0, 1, Some("a".to_owned())), "nothing new");
    assert_eq!(send(report, None).await, (1, 1, Some("c".to_owned())));
    assert_eq!(send(json!({"cache_salt": "x"}), Some("b")).await, (2, 1, Some("b".to_owned())));
    assert_eq!(send(json!({"cache_salt": "y"}), None).await, (3, 1, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_an_address_is_warned_of_once() {
    let endpoint = format!("tcp://{}.invalid:5557", "x".repeat(64));
    let mut running = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--engine",
        "--instant",
        "--enable-kv-cache-events",
        "--kv-events-endpoint",
        &endpoint,
    ]);
    running.waits_for("KV events reach nobody");
    for first in 0..3 {
        let prompt: Vec<u32> = (first * 100..first * 100 + 64).collect();
        assert_eq!(running.send("/v1/completions", &json!({"prompt": prompt, "max_tokens": 2})).await.status, 200);
    }
    let (code, said) = running.stop();
    assert_eq!((code, said.matches("KV events reach nobody").count()), (0, 1), "{said}");
    assert!(said.contains(&endpoint) && said.contains("--kv-events-endpoint"), "{said}");
}
