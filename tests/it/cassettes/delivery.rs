//! Pace, lateness, comments, pauses, aborts, admission and counters of responses from a cassette: those of a trace's.
//!
//! Nothing here waits for a time: what must not be sent yet is due in an hour.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream, task::yield_now};
use vllm_vcr::{
    play::{Config, ServerOptions, Source, Synthetic, Unmatched},
    recording::{cassette::load, trace::FinishReason},
    replay::{
        matching::MatchBy,
        player::{self, CassettePlayer},
        timing::Pacing,
    },
};

use super::{CHAT, Shelf, chat, record, tape};
use crate::support::{
    client::{self, Request, get, post, read_until},
    play_server::{self, Server, config, start},
};

const HOUR: Duration = Duration::from_secs(3600);

/// The first token at once, the next one in an hour.
const FIRST_ONLY: Pacing = Pacing::Fixed { ttft: Duration::ZERO, itl: HOUR };

/// Nothing within an hour.
const NOTHING: Pacing = Pacing::Fixed { ttft: HOUR, itl: HOUR };

/// Looks at `/metrics` before a value counts as never reached.
const LOOKS: usize = 10_000;

/// A server of a cassette, and of nothing else.
async fn cassette(text: &str, pacing: Pacing, server: ServerOptions) -> Server {
    let shelf = Shelf::with(text);
    let cassettes = vec![load(&shelf.file).unwrap()];
    let cassette_player =
        CassettePlayer::new(player::PlayerConfig { cassettes, pacing, ..player::PlayerConfig::default() }).unwrap();
    start(Config {
        source: Source::Synthetic(Synthetic::Random),
        cassette_player: Some(cassette_player),
        unmatched: Unmatched::Refuse,
        server,
        pacing,
        ..config(&[MatchBy::Next], Vec::new())
    })
    .await
}

/// A server of a trace of two tokens.
async fn trace(pacing: Pacing, server: ServerOptions) -> Server {
    let record = play_server::record(&[20, 21], Duration::ZERO, FinishReason::Stop);
    start(Config { server, pacing, ..config(&[MatchBy::Next], vec![record]) }).await
}

/// Two records of two tokens each.
fn two_records() -> String {
    tape(&[record(&["one"], "Two words"), record(&["two"], "Two more")])
}

fn asked(words: &str, stream: bool) -> Value {
    let mut body = chat(&[words]);
    body["stream"] = stream.into();
    body
}

async fn sample(address: SocketAddr, name: &str) -> f64 {
    let page = client::send(address, &get("/metrics")).await.text();
    let line = page.lines().find(|line| line.starts_with(name));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Looks at a sample until it has a value.
async fn until(address: SocketAddr, name: &str, value: f64) {
    let mut last = f64::NAN;
    for _ in 0..LOOKS {
        last = sample(address, name).await;
        if last == value {
            return;
        }
        yield_now().await;
    }
    panic!("{name} is {last}, not {value}");
}

async fn rest(mut stream: TcpStream) -> String {
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    rest
}

async fn dev(address: SocketAddr, path: &str, body: &Value) {
    assert_eq!(client::send(address, &post(path, body)).await.status, 200, "{path}");
}

#[tokio::test]
async fn a_fixed_pace_counts_tokens_and_a_client_that_leaves_ends_them() {
    for server in [
        cassette(&two_records(), FIRST_ONLY, ServerOptions::default()).await,
        trace(FIRST_ONLY, ServerOptions::default()).await,
    ] {
        let address = server.address;
        let mut stream = client::open(address, &post(CHAT, &asked("one", true))).await;
        read_until(&mut stream, "\"content\":\"").await;
        until(address, "vllm:generation_tokens_total{", 1.0).await;
        assert_eq!(sample(address, "vllm:num_requests_running{").await, 1.0);
        assert_eq!(sample(address, "vllm:time_to_first_token_seconds_count{").await, 1.0);
        drop(stream);
        until(address, "vllm:num_requests_running{", 0.0).await;
        for name in ["vllm:generation_tokens_total{", "vllm:request_generation_tokens_count{"] {
            assert_eq!(sample(address, name).await, f64::from(u8::from(name.contains("_total"))), "{name}");
        }
    }
}

#[tokio::test]
async fn the_tokens_of_a_body_are_counted_at_their_deadlines() {
    for server in [
        cassette(&two_records(), FIRST_ONLY, ServerOptions::default()).await,
        trace(FIRST_ONLY, ServerOptions::default()).await,
    ] {
        let address = server.address;
        let stream = client::open(address, &post(CHAT, &asked("one", false))).await;
        until(address, "vllm:generation_tokens_total{", 1.0).await;
        assert_eq!(sample(address, "vllm:num_requests_running{").await, 1.0);
        drop(stream);
        until(address, "vllm:num_requests_running{", 0.0).await;
    }
}

#[tokio::test]
async fn lateness_is_measured_by_the_origin_of_the_deadlines() {
    let options = || ServerOptions { vcr_metrics: true, ..ServerOptions::default() };
    let fixed = Pacing::Fixed { ttft: Duration::ZERO, itl: Duration::ZERO };
    for (pacing, class) in [(Pacing::Instant, "instant"), (fixed, "fixed"), (Pacing::default(), "recorded")] {
        let server = cassette(&two_records(), pacing, options()).await;
        let answer = client::send(server.address, &post(CHAT, &asked("one", true))).await;
        assert_eq!(answer.status, 200);
        // Everything is due together, and leaves in one write.
        until(server.address, &format!("vcr_event_lateness_seconds_count{{class=\"{class}\"}}"), 1.0).await;
        assert_eq!(client::send(server.address, &post(CHAT, &asked("two", false))).await.status, 200);
        until(server.address, "vcr_event_lateness_seconds_count{class=\"whole\"}", 1.0).await;
    }
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let keep_alive = Some(Duration::from_millis(1));
    let options = || ServerOptions { keep_alive, ..ServerOptions::default() };
    for server in [cassette(&two_records(), NOTHING, options()).await, trace(NOTHING, options()).await] {
        let mut stream = client::open(server.address, &post(CHAT, &asked("one", true))).await;
        let read = read_until(&mut stream, ": keep-alive\n\n").await;
        assert!(!read.contains("data:"), "{read}");
    }
    // A stall of the engine is silence too.
    let stalls = two_records().replacen("answer: {", "answer: {fault: stall, after_events: 1, ", 1);
    let server = cassette(&stalls, Pacing::Instant, options()).await;
    let mut stream = client::open(server.address, &post(CHAT, &asked("one", true))).await;
    let read = read_until(&mut stream, ": keep-alive\n\n").await;
    assert_eq!(read.matches("data: ").count(), 1, "{read}");
}

#[tokio::test]
async fn a_paused_server_holds_requests_back_until_it_resumes() {
    let options = || ServerOptions { dev_mode: true, ..ServerOptions::default() };
    for server in [cassette(&two_records(), Pacing::Instant, options()).await, trace(Pacing::Instant, options()).await]
    {
        let address = server.address;
        dev(address, "/pause", &json!({})).await;
        let mut stream = client::open(address, &post(CHAT, &asked("one", true))).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(!head.contains("data:") && head.contains("200 OK"), "{head}");
        assert_eq!(sample(address, "vllm:generation_tokens_total{").await, 0.0);
        until(address, "vllm:num_requests_running{", 0.0).await;
        dev(address, "/resume", &json!({})).await;
        assert!(rest(stream).await.contains("data: [DONE]"));
        until(address, "vllm:generation_tokens_total{", 2.0).await;
    }
}

#[tokio::test]
async fn an_aborted_request_ends_and_is_counted_where_the_engine_ended_it() {
    let options = || ServerOptions { dev_mode: true, ..ServerOptions::default() };
    let aborted = "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\"";
    for (path, count) in [("/abort_requests", 0.0), ("/pause?mode=abort", 1.0)] {
        for server in [cassette(&two_records(), FIRST_ONLY, options()).await, trace(FIRST_ONLY, options()).await] {
            let address = server.address;
            let headers = vec![("content-type", "application/json"), ("x-request-id", "mine")];
            let body = asked("one", true).to_string().into_bytes();
            let request = Request { method: "POST", path: CHAT, headers, body };
            let mut stream = client::open(address, &request).await;
            read_until(&mut stream, "\"content\":\"").await;
            dev(address, "/abort_requests", &json!({"request_ids": ["chatcmpl-other"]})).await;
            until(address, "vllm:num_requests_running{", 1.0).await;
            dev(address, path, &json!({"request_ids": ["chatcmpl-mine"]})).await;
            rest(stream).await;
            until(address, "vllm:num_requests_running{", 0.0).await;
            assert_eq!(sample(address, aborted).await, count, "{path}");
        }
    }
    // A body has nothing to show for it.
    let server = cassette(&two_records(), NOTHING, options()).await;
    let address = server.address;
    let sent = tokio::spawn(async move { client::send(address, &post(CHAT, &asked("one", false))).await });
    until(address, "vllm:num_requests_running{", 1.0).await;
    dev(address, "/abort_requests", &json!({})).await;
    assert_eq!(sent.await.unwrap().status, 500);
    until(address, "vllm:num_requests_running{", 0.0).await;
    assert_eq!(sample(address, aborted).await, 0.0);
}

#[tokio::test]
async fn one_request_too_many_is_refused_and_consumes_no_record() {
    let options = ServerOptions { max_queued: Some(1), ..ServerOptions::default() };
    let server = cassette(&two_records(), NOTHING, options).await;
    let address = server.address;
    let mut first = client::open(address, &post(CHAT, &asked("one", true))).await;
    read_until(&mut first, "\r\n\r\n").await;
    for stream in [false, true] {
        let refused = client::send(address, &post(CHAT, &asked("two", stream))).await;
        assert_eq!(refused.status, 503);
        assert!(refused.text().contains("currently busy"), "{}", refused.text());
    }
    assert_eq!(sample(address, "vllm:admission_rejections_total{").await, 2.0);
    drop(first);
    until(address, "vllm:num_requests_running{", 0.0).await;
    let mut next = client::open(address, &post(CHAT, &asked("two", true))).await;
    let head = read_until(&mut next, "\r\n\r\n").await;
    assert!(head.contains("x-vcr-record: tape.yaml#1") && !head.contains("again"), "{head}");
}

#[tokio::test]
async fn a_slow_body_has_its_length() {
    let slow = two_records().replacen("usage:", "headers: {x-kept: yes}, usage:", 1);
    let pacing = Pacing::Fixed { ttft: Duration::from_millis(5), itl: Duration::ZERO };
    let server = cassette(&slow, pacing, ServerOptions::default()).await;
    let answer = client::send(server.address, &post(CHAT, &asked("one", false))).await;
    assert_eq!((answer.status, answer.header("x-kept")), (200, Some("yes")));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
}
