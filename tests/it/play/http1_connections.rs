//! What a client of raw sockets sees beside the API. The answers are those of a vLLM 0.32.0 that was asked the same.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Instant, timeout},
};
use vllm_vcr::{
    play::{Config, Player, ServerOptions},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
};

use crate::support::play_server::{Server, config, record, start};

async fn server(idle: Option<Duration>) -> Server {
    let mut played = config(&[MatchBy::Next], vec![record(&[20], Duration::ZERO, FinishReason::Stop)]);
    played.server = ServerOptions { idle, ..ServerOptions::default() };
    start(played).await
}

/// What no server takes for an answer, or for the end of a connection.
const PATIENCE: Duration = Duration::from_secs(60);

/// What comes back on a connection that the server closes, without the date.
async fn say(server: &Server, bytes: &[u8]) -> String {
    let (mut stream, mut told) = (sent(server, bytes).await, Vec::new());
    // A reset after the answer still leaves the answer.
    let _reset = timeout(PATIENCE, stream.read_to_end(&mut told)).await.expect("it closes");
    dateless(told)
}

/// What comes back on a connection that stays open, until nothing comes any more, without the date.
async fn say_and_stay(server: &Server, bytes: &[u8]) -> String {
    let (mut stream, mut told) = (sent(server, bytes).await, Vec::new());
    let mut patience = PATIENCE;
    while let Ok(read) = timeout(patience, stream.read_buf(&mut told)).await {
        assert!(read.unwrap() > 0, "it closed after {}", String::from_utf8_lossy(&told));
        patience = Duration::from_millis(500);
    }
    dateless(told)
}

async fn sent(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

fn dateless(told: Vec<u8>) -> String {
    let told = String::from_utf8(told).unwrap();
    told.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect()
}

const INVALID: &str = "HTTP/1.1 400 Bad Request\r\nserver: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n\
    content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received.";

#[tokio::test]
async fn an_invalid_request_line_gets_an_error() {
    let server = server(None).await;
    let mut long = b"GET /version?".to_vec();
    long.resize(70_000, b'x');
    long.extend_from_slice(b" HTTP/1.1\r\nhost: x\r\n\r\n");
    let requests: &[&[u8]] = &[
        b"hello\r\n\r\n",
        b"GET /version HTTP/1.2\r\nhost: x\r\n\r\n",
        b"get /version HTTP/1.1\r\nhost: x\r\n\r\n",
        b"FOO /version HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET version HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /ver sion HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n",
        b"GET /version HTTP/1.1\r\nabc\r\n\r\n",
        b"GET /version HTTP/1.1\r\na b: c\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: x\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked, Chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        &long,
    ];
    for request in requests {
        let request_text = String::from_utf8_lossy(request).chars().take(60).collect::<String>();
        assert_eq!(say(&server, request).await, INVALID, "{request_text:?}");
    }
}

#[tokio::test]
async fn connections_live_as_long_as_the_engines() {
    let told = |connection: &str| {
        let length = r#"{"version":"0.32.0"}"#.len();
        format!(
            "server: uvicorn\r\ncontent-length: {length}\r\ncontent-type: application/json\r\nvary: Origin\r\n\
             {connection}\r\n{{\"version\":\"0.32.0\"}}"
        )
    };
    let server = server(None).await;
    let answer = say_and_stay(&server, b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(answer, format!("HTTP/1.1 200 OK\r\n{}", told("")));
    let answer = say(&server, b"GET /version HTTP/1.1\r\nconnection: Close\r\n\r\n").await;
    assert_eq!(answer, format!("HTTP/1.1 200 OK\r\n{}", told("connection: close\r\n")));
    // hyper names the version that was asked in.
    let answer = say(&server, b"GET /version HTTP/1.0\r\n\r\n").await;
    assert_eq!(answer, format!("HTTP/1.0 200 OK\r\n{}", told("connection: close\r\n")));
}

#[tokio::test]
async fn an_idle_connection_is_closed_without_a_word() {
    let server = server(Some(Duration::from_millis(200))).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (mut told, begun) = (Vec::new(), Instant::now());
    timeout(PATIENCE, stream.read_to_end(&mut told)).await.unwrap().unwrap();
    let told = String::from_utf8(told).unwrap();
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n") && told.ends_with("vary: Origin\r\n\r\n"), "{told}");
    assert!(begun.elapsed() >= Duration::from_millis(150), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn redirects_and_other_pages_have_the_engines_headers() {
    let server = server(None).await;
    let answer = say_and_stay(&server, b"POST http://foo/v1/models/?a=b HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let redirect = "HTTP/1.1 307 Temporary Redirect\r\nserver: uvicorn\r\ncontent-length: 0\r\n\
        location: http://x/v1/models?a=b\r\nvary: Origin\r\n\r\n";
    assert_eq!(answer, redirect);
    for request in
        ["GET /metrics/ HTTP/1.1\r\n\r\n", "GET /metricsx HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n"]
    {
        let answer = say_and_stay(&server, request.as_bytes()).await;
        let head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n\
            vary: Origin\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(answer.starts_with(head), "{request} {answer:.300}");
    }
    let upgrade = b"GET /version HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let answer = say(&server, upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
}

#[tokio::test]
async fn a_request_that_was_not_sent_whole_delays_no_shutdown() {
    let player = Player::load(Config {
        drain: Duration::from_secs(3600),
        ..config(&[MatchBy::Next], vec![record(&[20], Duration::ZERO, FinishReason::Stop)])
    })
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n";
    client.write_all(format!("{head}content-length: 1000\r\n\r\n").as_bytes()).await.unwrap();
    // The server asks for the body once it waits for it.
    let mut asked = [0; 25];
    client.read_exact(&mut asked).await.unwrap();
    assert!(asked.starts_with(b"HTTP/1.1 100"));
    client.write_all(b"{").await.unwrap();
    stop.send(()).unwrap();
    let report = timeout(Duration::from_secs(20), served).await.expect("nobody waits for the rest").unwrap();
    assert_eq!(report.cut, 0);
}
