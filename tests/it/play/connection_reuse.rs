//! Connections that go on after a stream, and the lateness in `/metrics`.

use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use vllm_vcr::{
    play::{Config, ServerOptions},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    replay::timing::Pacing,
};

use crate::support::{
    client::{self, get},
    play_server::{config, record, start},
};

const MS: Duration = Duration::from_millis(1);

fn served() -> Config {
    let pacing = Pacing::Fixed { ttft: MS, itl: MS };
    let server = ServerOptions { vcr_metrics: true, ..ServerOptions::default() };
    Config { pacing, server, ..config(&[MatchBy::Next], vec![record(&[20, 21, 22], MS, FinishReason::Stop)]) }
}

fn request(stream: bool, extra: &str) -> Vec<u8> {
    let body = format!(r#"{{"model":"m","prompt":"x","stream":{stream}}}"#);
    let length = body.len();
    format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{extra}\r\n{body}")
        .into_bytes()
}

/// Reads up to and with the end of a chunked answer.
async fn stream(socket: &mut TcpStream) -> String {
    let mut all = Vec::new();
    while !all.ends_with(b"\r\n0\r\n\r\n") {
        all.push(socket.read_u8().await.unwrap());
    }
    let text = String::from_utf8(all).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\ndate: ") && text.contains("data: [DONE]\n\n\r\n"), "{text}");
    text
}

async fn connected(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn a_connection_goes_on_after_a_stream() {
    let server = start(served()).await;
    let mut socket = connected(server.address).await;
    for _ in 0..3 {
        socket.write_all(&request(true, "")).await.unwrap();
        let head = stream(&mut socket).await;
        assert!(!head.contains("connection:"), "{head}");
    }
    socket.write_all(&request(false, "connection: close\r\n")).await.unwrap();
    let mut rest = String::new();
    socket.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n") && rest.contains("content-length: "), "{rest}");
}

#[tokio::test]
async fn requests_that_come_early_are_answered_in_turn() {
    let server = start(served()).await;
    let mut socket = connected(server.address).await;
    let closing = request(true, "connection: keep-alive, close\r\n");
    let all = [request(false, ""), request(true, ""), request(true, "connection: Keep-Alive\r\n"), closing].concat();
    // Cut anywhere, as a network would.
    for part in all.chunks(97) {
        socket.write_all(part).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 4, "{text}");
    assert_eq!(text.matches("data: [DONE]\n\n\r\n0\r\n\r\n").count(), 3, "{text}");
    assert_eq!(text.matches("connection: close\r\n").count(), 1, "{text}");
}

#[tokio::test]
async fn threads_of_their_own_answer_alike() {
    let server = start(Config { threads: NonZeroUsize::new(2), ..served() }).await;
    for _ in 0..4 {
        let mut socket = connected(server.address).await;
        socket.write_all(&request(true, "")).await.unwrap();
        stream(&mut socket).await;
    }
}

#[tokio::test]
async fn lateness_follows_the_engines_metrics_where_it_is_requested() {
    let server = start(served()).await;
    let mut socket = connected(server.address).await;
    socket.write_all(&request(true, "")).await.unwrap();
    stream(&mut socket).await;
    socket.write_all(&request(false, "connection: close\r\n")).await.unwrap();
    socket.read_to_end(&mut Vec::new()).await.unwrap();
    let page = client::send(server.address, &get("/metrics")).await.text();
    let (engine, own) = page.split_once("# HELP vcr_").unwrap();
    assert_eq!(engine.matches("# TYPE ").count(), 92);
    let count = |class: &str| {
        let name = format!("vcr_event_lateness_seconds_count{{class=\"{class}\"}} ");
        own.lines().find_map(|line| line.strip_prefix(&name)).map(|count| count.parse::<f64>().unwrap())
    };
    // Three tokens and the end, of which those that were late may have left together.
    assert!(count("fixed").is_some_and(|events| (1.0..=4.0).contains(&events)), "{own}");
    assert_eq!((count("whole"), count("recorded")), (Some(1.0), None));
    assert!(own.contains("vcr_event_lateness_seconds_bucket{class=\"whole\",le=\"+Inf\"} 1.0\n"));
}
