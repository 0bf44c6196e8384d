//! What routers trust, broken on purpose: metrics, readiness, KV events, quotas and whole servers.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream, time::sleep};
use zeromq::ZmqResult;

use crate::support::{
    client::{self, Answer, Request, get, post},
    kv_subscriber::{PATIENCE, Subscriber, replayed},
    running::Running,
};

const SOON: Duration = Duration::from_millis(50);

/// The program with an engine, on a free port.
fn play(more: &[&str]) -> Running {
    let usual = ["play", "--port", "0", "--synthetic", "random", "--instant", "--engine", "--kv-cache-size", "64"];
    Running::start(&[usual.as_slice(), more].concat())
}

async fn put(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let request = Request { method: "PUT", ..post(path, body) };
    client::send(address, &request).await
}

async fn page(play: &Running) -> Answer {
    client::send(play.address, &get("/metrics")).await
}

/// The lines of the faults that happened.
async fn hits(play: &Running) -> Vec<String> {
    let faults = play.get("/vcr/faults").await;
    faults["hits"].as_array().unwrap().iter().map(|hit| hit["fault"].as_str().unwrap().to_owned()).collect()
}

/// The value of the first sample of a name.
fn value(page: &str, name: &str) -> String {
    let line = page.lines().find(|line| line.starts_with(name) && !line.starts_with('#')).unwrap();
    line.rsplit_once(' ').unwrap().1.to_owned()
}

async fn complete(address: SocketAddr, first: u32) -> Answer {
    let body = json!({"prompt": (first..first + 40).collect::<Vec<_>>(), "max_tokens": 2, "ignore_eos": true});
    client::send(address, &post("/v1/completions", &body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_metrics_are_refused_cut_and_no_numbers() {
    let play = play(&[
        "--fault",
        "metrics-503 where nth=2",
        "--fault",
        "metrics-absent:vllm:num_requests_waiting where nth=3",
        "--fault",
        "metrics-nan:vllm:kv_cache_usage_perc where nth=3",
        "--fault",
        "metrics-slow:1ms where nth=4",
    ]);
    let pages = [page(&play).await, page(&play).await, page(&play).await, page(&play).await];
    assert_eq!(pages.each_ref().map(|page| page.status), [200, 503, 200, 200]);
    let [whole, _, cut, slow] = pages.map(|page| page.text());
    assert_eq!(value(&whole, "vllm:kv_cache_usage_perc"), "0.0");
    assert_eq!(value(&cut, "vllm:kv_cache_usage_perc"), "NaN");
    assert!(whole.contains("\nvllm:num_requests_waiting{") && !cut.contains("vllm:num_requests_waiting{"), "{cut}");
    assert!(cut.contains("\nvllm:num_requests_waiting_by_reason{"), "another family stays");
    assert!(!cut.contains("# TYPE vllm:num_requests_waiting gauge"));
    assert_eq!(value(&slow, "vllm:kv_cache_usage_perc"), "0.0");
    let hits = hits(&play).await;
    let names: Vec<&str> = hits.iter().map(|line| line.split(' ').next().unwrap()).collect();
    let expected = [
        "metrics-503",
        "metrics-absent:vllm:num_requests_waiting",
        "metrics-nan:vllm:kv_cache_usage_perc",
        "metrics-slow:1ms",
    ];
    assert_eq!(names, expected);
    // A line that is listed repeats its fault alone.
    let lines = json!({"faults": [hits[0]]});
    assert_eq!(put(play.address, "/vcr/faults", &lines).await.status, 200);
    let statuses = [page(&play).await.status, page(&play).await.status, page(&play).await.status];
    assert_eq!(statuses, [200, 503, 200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_page_stays_until_the_fault_is_taken_away() {
    let play = play(&["--fault", "metrics-stuck where first=3 per=all"]);
    let queries = async || value(&page(&play).await.text(), "vllm:prefix_cache_queries_total");
    assert_eq!(queries().await, "0.0");
    assert_eq!(complete(play.address, 0).await.status, 200);
    assert_eq!([queries().await, queries().await, queries().await], ["0.0", "0.0", "40.0"]);
    assert_eq!(hits(&play).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_metrics_are_set_and_given_back() {
    let play = play(&[]);
    let set = json!({"vllm:num_requests_waiting": 30, "vllm:kv_cache_usage_perc": [{"labels": {"engine": "0"}, "value": 0.95}]});
    let shown = put(play.address, "/vcr/metrics", &set).await;
    assert_eq!((shown.status, shown.json()["vllm:num_requests_waiting"].clone()), (200, json!(30)));
    let text = page(&play).await.text();
    assert_eq!(
        [value(&text, "vllm:num_requests_waiting{"), value(&text, "vllm:kv_cache_usage_perc")],
        ["30.0", "0.95"]
    );
    let wrong = put(play.address, "/vcr/metrics", &json!({"vllm:no_such": 1})).await;
    assert!(wrong.status == 400 && wrong.text().contains("vllm:no_such is no family"), "{}", wrong.text());
    let fake = json!({"running-requests": 16, "ttft-buckets-values": [1, 2], "request-success-total": {"stop": 20}});
    let answer = client::send(play.address, &post("/fake_metrics", &fake)).await;
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    let text = page(&play).await.text();
    assert_eq!(value(&text, "vllm:num_requests_running"), "16.0");
    assert_eq!(value(&text, "vllm:num_requests_waiting{"), "30.0", "what is not named stays");
    assert_eq!(value(&text, "vllm:time_to_first_token_seconds_count"), "3.0");
    assert_eq!(value(&text, "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\""), "20.0");
    let clear = Request { method: "DELETE", ..get("/vcr/metrics") };
    assert_eq!(client::send(play.address, &clear).await.text(), "{}");
    assert_eq!(value(&page(&play).await.text(), "vllm:num_requests_running"), "0.0");
    let off = Running::start(&["play", "--port", "0", "--no-admin"]);
    assert_eq!(client::send(off.address, &post("/fake_metrics", &fake)).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_refused_while_answers_come() {
    let play = play(&["--fault", "not-ready where first=2"]);
    let health = async |path: &str| client::send(play.address, &get(path)).await.status;
    assert_eq!([health("/health").await, health("/health").await, health("/health").await], [503, 503, 200]);
    assert_eq!(complete(play.address, 0).await.status, 200);
    assert_eq!(hits(&play).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_refuse_with_the_time_that_is_to_pass() {
    let play = play(&["--fault", "quota:requests=2,tokens=100,per=20m where per=key"]);
    let ask = async |key: &'static str, stream: bool| {
        let body =
            json!({"prompt": (0..40).collect::<Vec<u32>>(), "max_tokens": 30, "ignore_eos": true, "stream": stream});
        let mut request = post("/v1/completions", &body);
        request.headers.push(("authorization", key));
        client::send(play.address, &request).await
    };
    let header = |answer: &Answer, name: &str| answer.header(name).unwrap_or_default().to_owned();
    let first = ask("Bearer a", true).await;
    assert_eq!((first.status, header(&first, "x-ratelimit-limit-requests")), (200, "2".into()));
    assert_eq!(header(&first, "x-ratelimit-remaining-requests"), "1");
    assert_eq!(header(&first, "x-ratelimit-remaining-tokens"), "100");
    let second = ask("Bearer a", false).await;
    assert_eq!((second.status, header(&second, "x-ratelimit-remaining-tokens")), (200, "30".into()), "40 + 30 tokens");
    let refused = ask("Bearer a", false).await;
    assert_eq!((refused.status, header(&refused, "x-ratelimit-remaining-requests")), (429, "0".into()));
    // A request comes back in 10 minutes; tokens are at -40, of which one is there in 8 and some minutes.
    let after: u64 = header(&refused, "retry-after").parse().unwrap();
    assert!((590..=600).contains(&after), "{after}");
    assert!(refused.text().contains("Rate limit reached: 2 requests in 20m0s"), "{}", refused.text());
    assert_eq!(ask("Bearer b", false).await.status, 200, "another key has its own");
    let hits = hits(&play).await;
    assert!(hits.len() == 1 && hits[0].starts_with("429:retry-after="), "{hits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_requests_in_progress_is_given_back_when_clients_leave() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--inter-token-latency",
        "50ms",
        "--fault",
        "quota:concurrent=1",
    ]);
    let body = json!({"prompt": [1, 2], "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut running = client::open(play.address, &post("/v1/completions", &body)).await;
    client::read_until(&mut running, "data: ").await;
    let short = json!({"prompt": [1, 2], "max_tokens": 1});
    let refused = play.send("/v1/completions", &short).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), None, "they are not limited");
    drop(running);
    while play.send("/v1/completions", &short).await.status != 200 {
        sleep(SOON).await;
    }
}

/// A publisher with these faults, and where it publishes and replays.
async fn publisher(faults: &[&str]) -> (Running, String, String) {
    let config = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}"#;
    let faults = faults.iter().flat_map(|fault| ["--fault", *fault]);
    let flags: Vec<&str> = ["--kv-events-config", config].into_iter().chain(faults).collect();
    let play = play(&flags);
    let events = play.get("/vcr/engine").await["kv_events"].clone();
    let text = |key: &str| events[key].as_str().unwrap().to_owned();
    (play, text("endpoint"), text("replay_endpoint"))
}

/// Publishes a batch.
async fn batch(play: &Running, number: u32) {
    let body = json!({"prompt": (number * 7..number * 7 + 40).collect::<Vec<_>>(), "max_tokens": 1});
    assert_eq!(play.send("/v1/completions", &body).await.status, 200);
}

/// Publishes batches until the subscriber gets the last one; how many there are then.
async fn subscribed(play: &Running, endpoint: &str) -> (Subscriber, u32) {
    let mut subscriber = Subscriber::of(endpoint).await;
    for number in 0..200 {
        batch(play, number).await;
        while let Some((seq, _)) = subscriber.next(SOON).await {
            if seq == u64::from(number) {
                return (subscriber, number + 1);
            }
        }
    }
    panic!("no message comes");
}

/// The sequence numbers of so many messages, and of those that come although they should not.
async fn numbers(subscriber: &mut Subscriber, expected: usize) -> Vec<u64> {
    let mut found = Vec::new();
    loop {
        let within = if found.len() < expected { PATIENCE } else { 10 * SOON };
        match subscriber.next(within).await {
            Some((seq, _)) => found.push(seq),
            None => return found,
        }
    }
}

/// Puts faults at places from the next batch on, and publishes so many: which numbers come, and the last that is kept, is expected.
async fn published_with(
    lines: impl Fn(u64) -> Vec<String>,
    batches: u32,
    expected: impl Fn(u64) -> (Vec<u64>, u64),
) -> (u64, Vec<String>, Vec<u64>) {
    let (play, endpoint, replay) = publisher(&[]).await;
    let (mut subscriber, count) = subscribed(&play, &endpoint).await;
    let next = u64::from(count);
    let lines = json!({"faults": lines(next)});
    let answer = put(play.address, "/vcr/faults", &lines).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for number in count..count + batches {
        batch(&play, number).await;
    }
    let (expected, last) = expected(next);
    assert_eq!(numbers(&mut subscriber, expected.len()).await, expected);
    // Batches that no subscriber gets are kept at their time too.
    let mut kept = Vec::new();
    for _ in 0..400 {
        kept = replayed(&replay, 0).await.iter().map(|(seq, _)| *seq).collect();
        if kept.last() == Some(&last) {
            break;
        }
        sleep(SOON).await;
    }
    (next, hits(&play).await, kept)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_dropped_doubled_and_reordered_at_their_numbers() {
    let lines = |next: u64| {
        let at = |name: &str, place: u64| format!("{name} at event {}", next + place);
        vec![at("kv-drop:2", 1), at("kv-double", 4), at("kv-late:20ms", 5), at("kv-reorder", 6)]
    };
    let expected =
        |next: u64| ([0, 3, 4, 4, 5, 7, 6, 8, 9].iter().map(|place| next + place).collect::<Vec<_>>(), next + 9);
    let (next, hits, kept) = published_with(lines, 10, expected).await;
    assert_eq!(kept, (0..next + 10).collect::<Vec<_>>(), "a replay has all of them");
    let places = [("kv-drop", 1), ("kv-drop", 2), ("kv-double", 4), ("kv-late:20ms", 5), ("kv-reorder", 6)];
    let line = |(name, place): (&str, u64)| format!("{name} at event {} where replica=0 rank=0", next + place);
    assert_eq!(hits, places.map(line));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_waits_is_doubled_and_sent_after_the_next_one_that_is() {
    let lines = |next: u64| {
        ["kv-reorder", "kv-double"]
            .iter()
            .zip([1, 1])
            .chain([(&"kv-drop", 2)])
            .map(|(name, place)| format!("{name} at event {}", next + place))
            .collect()
    };
    let expected = |next: u64| ([0, 3, 1, 1, 4].iter().map(|place| next + place).collect::<Vec<_>>(), next + 4);
    let (_, hits, _) = published_with(lines, 5, expected).await;
    assert_eq!(hits.len(), 3, "{hits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_begin_anew_and_a_replay_is_cut() {
    let lines =
        |next: u64| vec![format!("kv-reset at event {}", next + 2), format!("kv-replay-cut:2 at event {}", next + 4)];
    let expected = |next: u64| (vec![next, next + 1, 0, 1, 2, 3], 3);
    let (_, hits, kept) = published_with(lines, 6, expected).await;
    assert_eq!(kept, [2, 3]);
    assert_eq!(hits.len(), 2, "{hits:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_before_a_restart_arrives() {
    // While the first waits the others come, so that the socket is closed at once after the second is sent.
    let lines = |next: u64| vec![format!("kv-late:200ms at event {next}"), format!("kv-restart at event {}", next + 2)];
    let (_, hits, kept) = published_with(lines, 3, |next| (vec![next, next + 1], 0)).await;
    assert_eq!((kept, hits.len()), (vec![0], 2));
}

/// The number of the last message that has come.
async fn last_of(subscriber: &mut Subscriber) -> ZmqResult<Option<u64>> {
    let mut last = None;
    while let Some((seq, _)) = subscriber.next_of_connection(SOON).await? {
        last = Some(seq);
    }
    Ok(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_is_opened_again_is_found_at_its_port() {
    let (play, endpoint, replay) = publisher(&["kv-restart:50ms at event 3"]).await;
    let _first = Subscriber::of(&endpoint).await;
    for number in 0..5 {
        batch(&play, number).await;
    }
    // Its connection has ended.
    let mut again = None;
    for number in 5..200 {
        batch(&play, number).await;
        let subscriber = match &mut again {
            Some(subscriber) => subscriber,
            None => match Subscriber::connect(&endpoint).await {
                Ok(connected) => again.insert(connected),
                Err(_) => {
                    sleep(SOON).await;
                    continue;
                }
            },
        };
        match last_of(subscriber).await {
            Ok(Some(seq)) if seq == u64::from(number) - 3 => break,
            // The last one is late.
            Ok(seq) => assert!(seq.is_none_or(|seq| seq < u64::from(number) - 3), "numbers started again: {seq:?}"),
            // It was still that of before.
            Err(_) => again = None,
        }
    }
    let kept: Vec<u64> = replayed(&replay, 0).await.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(kept.first(), Some(&0));
    assert_eq!(hits(&play).await, ["kv-restart:50ms at event 3 where replica=0 rank=0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_dies_and_starts_cold_and_one_that_refuses_keeps_its_cache() {
    let play = play(&["--enable-prompt-tokens-details"]);
    let cached = async || {
        let answer = complete(play.address, 0).await.json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default()
    };
    let open = async |is_open: bool| {
        while TcpStream::connect(play.address).await.is_ok() != is_open {
            sleep(SOON).await;
        }
    };
    assert_eq!([cached().await, cached().await], [0, 32]);
    for (count, (line, expected)) in (1..).zip([("refuse where until=2s", 32), ("die where until=2s", 0)]) {
        let mut idle = TcpStream::connect(play.address).await.unwrap();
        assert_eq!(put(play.address, "/vcr/faults", &json!({"faults": [line]})).await.status, 200);
        open(false).await;
        let mut rest = Vec::new();
        let _end_or_reset = idle.read_to_end(&mut rest).await;
        open(true).await;
        assert_eq!(cached().await, expected, "{line}");
        let hits = hits(&play).await;
        assert!(hits.len() == count && hits[count - 1].starts_with(line.split(' ').next().unwrap()), "{hits:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_without_free_blocks_lets_requests_wait_until_it_has_some() {
    let play = play(&[]);
    assert_eq!(put(play.address, "/vcr/faults", &json!({"faults": ["kv-exhausted"]})).await.status, 200);
    let address = play.address;
    let waiting = tokio::spawn(async move { complete(address, 0).await });
    loop {
        let text = page(&play).await.text();
        if value(&text, "vllm:num_requests_waiting{") == "1.0" {
            assert_eq!(value(&text, "vllm:kv_cache_usage_perc"), "1.0");
            break;
        }
        sleep(SOON).await;
    }
    assert_eq!(play.get("/vcr/engine").await["differences"], json!([]));
    assert!(!waiting.is_finished());
    assert_eq!(put(play.address, "/vcr/faults", &json!([])).await.status, 200);
    assert_eq!(waiting.await.unwrap().status, 200);
    assert_eq!(play.get("/vcr/engine").await["differences"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_an_engine_does_not_happen_without_one() {
    let usual = ["play", "--port", "0", "--synthetic", "random", "--fault", "slower:3", "--fault", "kv-exhausted"];
    let mut play = Running::start(&usual);
    play.waits_for("`kv-exhausted` is about a simulated engine: nothing happens without --engine");
    let shown = play.get("/vcr/faults").await;
    assert_eq!([&shown["faults"][0]["happened"], &shown["faults"][1]["happened"]], [0, 0]);
    assert_eq!(shown["hits"], json!([]));
    let (_, said) = play.stop();
    assert!(said.contains("`slower:3` is about") && !said.contains("happened; each"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_brown_out_makes_steps_longer() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--engine",
        "--time-to-first-token",
        "20ms",
        "--inter-token-latency",
        "20ms",
    ]);
    assert_eq!(put(play.address, "/vcr/faults", &json!({"faults": ["slower:10 where replica=0"]})).await.status, 200);
    let body = json!({"prompt": [5, 6], "max_tokens": 4, "ignore_eos": true});
    play.send("/v1/completions", &body).await;
    let start = tokio::time::Instant::now();
    play.send("/v1/completions", &body).await;
    assert!(start.elapsed() >= Duration::from_millis(4 * 200), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_cannot_name_a_fault_of_the_whole_server() {
    let play = play(&["--fault-headers"]);
    for fault in ["die", "metrics-503", "kv-drop", "quota:requests=1"] {
        let mut request = post("/v1/completions", &json!({"prompt": [1], "max_tokens": 1}));
        request.headers.push(("x-vcr-fault", fault));
        let answer = client::send(play.address, &request).await;
        assert!(answer.status == 400 && answer.text().contains("no fault of a single request"), "{}", answer.text());
    }
}
