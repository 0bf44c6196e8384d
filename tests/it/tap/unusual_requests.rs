//! Requests that stop in the middle, methods that are not for engines, answers without bodies.

use std::{net::SocketAddr, process::Command, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use vllm_vcr::recording::trace::Outcome;

use crate::support::{
    CHAT, free_address,
    peer::{Answer, End, Script, Upstream, answer, event_stream, exchange, parse, post},
    tapping::Tapping,
};

async fn engine() -> Upstream {
    Upstream::start(|_| Script { pieces: answer("200 OK", "{}"), end: End::KeepAlive }).await
}

/// Sends bytes, waits for nothing more to come, and keeps its own side open meanwhile.
async fn half(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut received)).await.unwrap().unwrap();
    parse(&received)
}

#[tokio::test]
async fn a_request_that_pauses_for_too_long_gets_an_error_and_is_recorded() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |setup| setup.idle = Some(Duration::from_millis(200))).await;
    for kind in ["application/json", "text/plain"] {
        for path in [CHAT, "/other"] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: {kind}\r\ncontent-length: 100\r\n\r\n{{\"n\":"
            );
            let told = half(tap.address, &head).await;
            assert_eq!(told.status, 408, "{kind} {path}: {told:?}");
            assert!(told.head.contains("connection: close"), "{}", told.head);
            assert!(told.body().contains("paused for 200ms"), "{}", told.body());
        }
    }
    tap.until_is("vcr_exchanges_total{outcome=\"timed_out\"}", 3.0).await;
    let (_, records) = tap.records().await;
    let told: Vec<_> = records.iter().map(|record| (record.outcome, record.status)).collect();
    assert_eq!(told, [(Some(Outcome::TimedOut), Some(408)); 3]);
}

#[tokio::test]
async fn to_connect_is_refused() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let asked = "CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\nconnection: close\r\n\r\n";
    let told = half(tap.address, asked).await;
    assert_eq!(told.status, 405, "{told:?}");
    assert!(told.body().contains("no proxy"), "{}", told.body());
    assert!(upstream.bodies().is_empty(), "nothing reached the engine");
    tap.stop().await;
}

#[tokio::test]
async fn answers_without_bodies_keep_their_headers() {
    let cases: [(&str, &'static str); 5] = [
        ("HEAD", "200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5"),
        ("HEAD", "200 OK\r\ncontent-type: text/plain"),
        ("HEAD", "200 OK\r\ntransfer-encoding: chunked"),
        ("GET", "304 Not Modified\r\netag: \"x\""),
        ("GET", "204 No Content\r\nx-a: 1"),
    ];
    for (method, head) in cases {
        let upstream = Upstream::start(move |_| Script {
            pieces: vec![format!("HTTP/1.1 {head}\r\n\r\n").into_bytes()],
            end: End::KeepAlive,
        })
        .await;
        let tap = Tapping::start(upstream.address, |_| {}).await;
        let request = format!("{method} /x HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        let lines = |answer: &Answer| {
            let mut lines: Vec<String> = answer.head.lines().map(str::to_owned).collect();
            // A transfer coding is of one connection, and of nothing where there is no body.
            let of_one_hop = ["date:", "connection:", "transfer-encoding:"];
            lines.retain(|line| !of_one_hop.iter().any(|name| line.starts_with(name)));
            lines
        };
        let direct = exchange(upstream.address, request.as_bytes()).await;
        let tapped = exchange(tap.address, request.as_bytes()).await;
        assert_eq!(lines(&tapped), lines(&direct), "{method} {head}");
        assert_eq!(tapped.body(), "", "{method} {head}");
        tap.stop().await;
    }
}

#[test]
fn what_an_operator_can_hardly_mean_is_refused() {
    for (typed, hint) in [
        (&["--trace-out", "t.jsonl", "--only-path", "v1/chat"][..], "`/v1/chat`"),
        (&["--trace-out", "t.jsonl", "--only-path", "*chat"], "`/chat`"),
        (&["--trace-out", "t.jsonl", "--only-path", "/v1?x=1"], "no query"),
        (&["--trace-out", "t.jsonl", "--only-model", ""], "--only-model"),
        (&["--trace-out", "t.jsonl", "--upstream", "model:=http://h:2"], "the model name is missing"),
        (&["--trace-out", "t.jsonl", "--upstream", "/v1=http://h:2", "--upstream", "/v1=http://h:3"], "already"),
        (&["--trace-out", "-", "--rotate-every", "1m"], "standard output"),
        (&["--trace-out", "-", "--append"], "standard output"),
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args(["tap", "--upstream", "http://h:1"])
            .args(typed)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(hint), "{typed:?}: {said}");
    }
}

#[test]
fn a_tap_before_itself_is_refused() {
    let free = free_address();
    for upstream in [format!("http://{free}"), format!("http://localhost:{}/v1", free.port())] {
        let folder = tempfile::tempdir().unwrap();
        let refused = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args(["tap", "--upstream", &upstream, "--listen", &free.to_string(), "--trace-out"])
            .arg(folder.path().join("t.jsonl"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("is the tap's own address"), "{said}");
    }
}

/// An engine may send nothing but line feeds, each of which ends an event.
#[tokio::test]
async fn empty_lines_and_comments_pass_together() {
    let empty = "\n".repeat(60_000) + &":\n\n".repeat(20_000);
    let sent = empty.clone();
    let upstream = Upstream::start(move |request| {
        if request.starts_with(b"GET ") {
            return Script { pieces: answer("200 OK", r#"{"version":"0.32.0"}"#), end: End::KeepAlive };
        }
        let mut pieces = event_stream(&["{\"choices\":[]}", "[DONE]"]);
        pieces.insert(1, format!("{:x}\r\n{sent}\r\n", sent.len()).into_bytes());
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let request = post(CHAT, r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}"#);
    let received = exchange(tap.address, &request).await;
    assert!(received.complete);
    assert_eq!(received.body(), empty + "data: {\"choices\":[]}\n\ndata: [DONE]\n\n");
    assert!(received.pieces.len() < 2000, "{} chunks", received.pieces.len());
    tap.stop().await;
}
