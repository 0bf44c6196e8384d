//! Unix sockets and HTTP/2.

use std::{fs, time::Duration};

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    time::timeout,
};
use vllm_vcr::{
    net::server::{BindError, bind, bind_unix, raise_descriptor_limit},
    play::Player,
    recording::trace::FinishReason,
    replay::matching::MatchBy,
};

use crate::support::play_server::{config, record, start};

fn played() -> vllm_vcr::play::Config {
    config(&[MatchBy::Next], vec![record(&[20, 21, 22], Duration::from_millis(1), FinishReason::Stop)])
}

#[tokio::test]
async fn a_unix_socket_serves_and_is_not_taken_from_a_living_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("play.sock");
    // What a killed server leaves behind.
    drop(bind_unix(&path).await.unwrap());
    let listener = bind_unix(&path).await.unwrap();
    assert!(matches!(bind_unix(&path).await, Err(BindError::InUse { .. })));
    let player = Player::load(played()).unwrap();
    let (_stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(r#"{"version":"0.32.0"}"#), "{answer}");
}

/// As many connections as may wait: 2,000, or what this machine allows.
fn burst() -> usize {
    let limit = fs::read_to_string("/proc/sys/net/core/somaxconn").ok().and_then(|text| text.trim().parse().ok());
    let files = raise_descriptor_limit().and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    2_000.min(limit.unwrap_or(128)).min(files / 2)
}

/// A connection attempt that finds the queue full is repeated by the system a second later, again and again.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn thousands_of_clients_connect_before_the_first_is_accepted() {
    let listener = bind("localhost:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients = Vec::new();
    for count in 0..burst() {
        let connected = timeout(PATIENCE, TcpStream::connect(address)).await;
        clients.push(connected.unwrap_or_else(|_| panic!("only {count} connections wait")).unwrap());
    }
    let player = Player::load(played()).unwrap();
    let (_stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });
    for client in &mut clients {
        client.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    }
    for client in &mut clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn thousands_of_clients_of_a_unix_socket_connect_before_the_first_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("play.sock");
    let _listener = bind_unix(&path).await.unwrap();
    let mut clients = Vec::new();
    for count in 0..burst() {
        let connected = UnixStream::connect(&path).await;
        clients.push(connected.unwrap_or_else(|error| panic!("only {count} connections wait: {error}")));
    }
}

#[tokio::test]
async fn a_file_is_not_replaced_by_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "x").unwrap();
    assert!(matches!(bind_unix(&path).await, Err(BindError::NoSocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "x");
}

#[tokio::test]
async fn a_client_may_begin_with_http_2_and_stream() {
    let server = start(played()).await;
    let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{}/v1/completions", server.address))
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from_static(br#"{"prompt":"x","stream":true}"#)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (http::Version::HTTP_2, 200));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let events: Vec<&str> = std::str::from_utf8(&body).unwrap().split_terminator("\n\n").collect();
    assert_eq!((events.len(), events.last()), (4, Some(&"data: [DONE]")));
}
