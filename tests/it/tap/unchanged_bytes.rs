//! The tap changes no byte: odd shapes of HTTP between a raw client and a scripted upstream, with and without it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use vllm_vcr::recording::trace::Outcome;

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, exchange, post},
    tapping::Tapping,
};

/// Everything that comes back for these bytes; the date, which is the server's own, left out.
async fn raw(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    let text = String::from_utf8_lossy(&received).into_owned();
    text.split_inclusive("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("date:")).collect()
}

/// The lines of a head, sorted, in lower case, without what concerns one connection; and the body.
fn normal(answer: &str) -> (Vec<String>, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let mut lines: Vec<String> = head.lines().map(str::to_ascii_lowercase).collect();
    lines.retain(|line| !line.starts_with("connection:") && !line.starts_with("keep-alive:"));
    lines.sort();
    (lines, body.to_owned())
}

async fn saying(pieces: &'static [&'static [u8]], end: End) -> Upstream {
    Upstream::start(move |request| {
        if request.starts_with(b"GET /version") {
            return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
        }
        Script { pieces: pieces.iter().map(|piece| piece.to_vec()).collect(), end }
    })
    .await
}

fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{headers}\r\n").into_bytes()
}

#[tokio::test]
async fn odd_answers_arrive_as_they_are() {
    let cases: &[(&str, &'static [&'static [u8]], End)] = &[
        ("a chunk cut inside its size line", &[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"0", b"5;ext=1\r", b"\nhello\r\n0\r\n\r\n"], End::KeepAlive),
        ("a body until the connection closes", &[b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nuntil the end"], End::Close),
        ("no content", &[b"HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n"], End::KeepAlive),
        ("not modified", &[b"HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n"], End::KeepAlive),
        ("a redirect", &[b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n"], End::KeepAlive),
        ("a compressed body", &[b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00"], End::KeepAlive),
        ("repeated headers", &[b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 1\r\n\r\nx"], End::KeepAlive),
        ("an informational response first", &[b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"], End::KeepAlive),
        ("events with their head", &[b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n3\r\nx\n\n\r\n0\r\n\r\n"], End::KeepAlive),
        ("events after a cut head", &[b"HTTP/1.1 200 OK\r\ncontent-type: text/event-", b"stream\r\nTransfer-Encoding: Chunked\r\n\r", b"\n0009;a=b\r\ndata: x\n", b"\n\r\n0\r\n", b"\r\n"], End::KeepAlive),
        ("events after an informational response", &[b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n"], End::KeepAlive),
        ("events of a known length", &[b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\ndata:", b" x\n\n"], End::KeepAlive),
        ("events until the connection closes", &[b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: x\n\n"], End::Close),
        ("no events at all", &[b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"], End::KeepAlive),
        ("an unknown status", &[b"HTTP/1.1 299 Odd\r\ncontent-length: 0\r\n\r\n"], End::KeepAlive),
    ];
    for (name, pieces, end) in cases {
        let upstream = saying(pieces, *end).await;
        let tap = Tapping::before(upstream.address).await;
        let direct = raw(upstream.address, &get("/x", "")).await;
        let direct = direct.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&direct).to_owned();
        let tapped = raw(tap.address, &get("/x", "")).await;
        let (direct, tapped) = (normal(&direct), normal(&tapped));
        // How a body is framed concerns one connection.
        let unframed = |(head, body): (Vec<String>, String)| {
            let chunked = head.iter().any(|line| line == "transfer-encoding: chunked");
            let lines: Vec<String> = head.into_iter().filter(|line| !line.starts_with("transfer-encoding")).collect();
            let body = if chunked { body.split("\r\n").skip(1).step_by(2).collect() } else { body };
            (lines, body)
        };
        assert_eq!(unframed(tapped), unframed(direct), "{name}");
        tap.sound().await;
    }
}

#[tokio::test]
async fn trailers_pass_to_a_client_that_takes_them() {
    let pieces: &'static [&'static [u8]] = &[
        b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n",
        b"2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n",
    ];
    let upstream = saying(pieces, End::KeepAlive).await;
    let tap = Tapping::before(upstream.address).await;
    let request = b"GET /x HTTP/1.1\r\nhost: h\r\nte: trailers\r\nconnection: close, te\r\n\r\n";
    let tapped = raw(tap.address, request).await;
    assert!(tapped.ends_with("0\r\nx-sum: 7\r\n\r\n"), "{tapped}");
    tap.sound().await;
    let seen = upstream
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|one| String::from_utf8_lossy(one).into_owned())
        .collect::<Vec<_>>();
    assert!(seen.iter().any(|request| request.contains("te: trailers")), "{seen:?}");
}

#[tokio::test]
async fn a_head_request_tells_the_length_and_sends_nothing() {
    let upstream = saying(&[b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\nx-a: 1\r\n\r\n"], End::KeepAlive).await;
    let tap = Tapping::before(upstream.address).await;
    let tapped = raw(tap.address, b"HEAD /x HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    assert!(tapped.contains("content-length: 1234") && tapped.ends_with("\r\n\r\n"), "{tapped}");
    tap.sound().await;
}

#[tokio::test]
async fn a_client_that_expects_a_word_first_gets_it() {
    let upstream =
        saying(&[b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"], End::KeepAlive).await;
    let tap = Tapping::before(upstream.address).await;
    let mut client = TcpStream::connect(tap.address).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut buffer = [0; 25];
    client.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"{}").await.unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with("\r\n\r\nok"), "{rest}");
    tap.sound().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(|request| {
        let path = String::from_utf8_lossy(request).split(' ').nth(1).unwrap_or_default().to_owned();
        Script { pieces: answer("200 OK", &path), end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let two = ["/a", "/b"].map(|path| format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")).concat();
    let both = raw(tap.address, &[two.into_bytes(), get("/c", "")].concat()).await;
    let places: Vec<_> = ["\r\n\r\n/a", "\r\n\r\n/b", "\r\n\r\n/c"].map(|body| both.find(body)).into();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{both}");
    tap.sound().await;
}

#[tokio::test]
async fn credentials_pass_and_hop_by_hop_headers_do_not() {
    let upstream = saying(&[b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=5\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\ncontent-length: 0\r\n\r\n"], End::KeepAlive).await;
    let tap = Tapping::before(upstream.address).await;
    let tapped = raw(
        tap.address,
        &get("/x", "authorization: Bearer k\r\nx-private: 1\r\nconnection: x-private\r\nproxy-connection: x\r\n"),
    )
    .await;
    assert!(!tapped.contains("x-hop") && !tapped.contains("keep-alive"), "{tapped}");
    let (_, records) = tap.sound().await;
    assert_eq!(records, []);
    let requests = upstream
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|one| String::from_utf8_lossy(one).into_owned())
        .collect::<Vec<_>>();
    let seen = requests.iter().find(|request| request.starts_with("GET /x")).unwrap();
    assert!(seen.contains("authorization: Bearer k\r\n"), "{seen}");
    for gone in ["x-private", "proxy-connection", "connection: "] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
}

#[tokio::test]
async fn a_websocket_passes_in_both_directions() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap_or_default());
                    if head.len() > 4096 {
                        return;
                    }
                }
                let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
                if !(head.contains("upgrade: websocket") && head.contains("connection: upgrade")) {
                    let _closed = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
                    return;
                }
                let agreed = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: x\r\n\r\n";
                stream.write_all(agreed).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ended = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    let tap = Tapping::before(address).await;
    let mut client = TcpStream::connect(tap.address).await.unwrap();
    client
        .write_all(b"GET /v1/realtime HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: k\r\n\r\n")
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("sec-websocket-accept: x"), "{head}");
    client.write_all(b"\x81\x05hello").await.unwrap();
    let mut echoed = [0; 7];
    client.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"\x81\x05hello");
    drop(client);
    tap.sound().await;
}

/// The connections that a tap makes for three streams of events one after the other, each with this in its head.
async fn connections_for_three(header: &'static str) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let opened = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (opened, mut is_new) = (Arc::clone(&opened), true);
            tokio::spawn(async move {
                let mut seen = vec![0; 65536];
                while let Ok(count @ 1..) = stream.read(&mut seen).await {
                    if seen[..count].starts_with(b"GET /version") {
                        return;
                    }
                    opened.fetch_add(usize::from(std::mem::replace(&mut is_new, false)), Ordering::Relaxed);
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{header}");
                    let events = format!("{head}transfer-encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n");
                    stream.write_all(events.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let tap = Tapping::before(address).await;
    for _ in 0..3 {
        let answer = exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
        assert!(answer.body().contains("data: x"), "{}", answer.body());
    }
    let (_, records) = tap.sound().await;
    assert_eq!(records.len(), 3);
    connections.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_stream_unless_the_upstream_closes_it() {
    assert_eq!(connections_for_three("").await, 1);
    assert_eq!(connections_for_three("connection: close\r\n").await, 3);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_off_the_upstream() {
    let (tells, mut told) = tokio::sync::mpsc::channel::<()>(2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let tells = tells.clone();
            tokio::spawn(async move {
                let mut seen = vec![0; 65536];
                let count = stream.read(&mut seen).await.unwrap_or(0);
                if seen[..count].starts_with(b"GET /version") {
                    let _closed = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
                    return;
                }
                // No answer at all: only the end of the connection is waited for.
                let _came = tells.send(()).await;
                while stream.read(&mut seen).await.is_ok_and(|count| count > 0) {}
                let _left = tells.send(()).await;
            });
        }
    });
    let tap = Tapping::before(address).await;
    let mut client = TcpStream::connect(tap.address).await.unwrap();
    client.write_all(&post(CHAT, r#"{"stream":true}"#)).await.unwrap();
    assert_eq!(told.recv().await, Some(()));
    drop(client);
    assert!(tokio::time::timeout(Duration::from_secs(60), told.recv()).await.is_ok());
    let (_, records) = tap.sound().await;
    assert_eq!(records.iter().map(|record| record.outcome).collect::<Vec<_>>(), [Some(Outcome::ClientGone)]);
}

#[tokio::test]
async fn a_slow_client_holds_back_its_upstream_only() {
    let body = vec![b'x'; 64 << 20];
    let upstream = Upstream::start(move |request| {
        if request.starts_with(b"GET /big") {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            return Script { pieces: vec![head.into_bytes(), body.clone()], end: End::KeepAlive };
        }
        Script { pieces: answer("200 OK", "quick"), end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let mut slow = TcpStream::connect(tap.address).await.unwrap();
    slow.write_all(&get("/big", "")).await.unwrap();
    slow.read_exact(&mut [0; 1000]).await.unwrap();
    assert_eq!(exchange(tap.address, &get("/quick", "")).await.body(), "quick");
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() > (64 << 20) - 1000);
    tap.sound().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_and_a_slow_one_delays_no_other() {
    let upstream = saying(&[b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"], End::KeepAlive).await;
    let tap = Tapping::before(upstream.address).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut client = TcpStream::connect(tap.address).await.unwrap();
        client.write_all(b"GET /x HTTP/1.1\r\nx-a").await.unwrap();
        slow.push(client);
    }
    let mut large = TcpStream::connect(tap.address).await.unwrap();
    let _refused_meanwhile =
        large.write_all(format!("GET /x HTTP/1.1\r\nx-a: {}\r\n\r\n", "a".repeat(2 << 20)).as_bytes()).await;
    let mut refused = Vec::new();
    let _reset = large.read_to_end(&mut refused).await;
    assert!(refused.is_empty() || refused.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&refused));
    assert_eq!(exchange(tap.address, &get("/x", "")).await.body(), "ok");
    drop(slow);
    tap.sound().await;
}

#[tokio::test]
async fn informational_responses_come_before_the_response() {
    let pieces: &'static [&'static [u8]] = &[
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\nconnection: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    ];
    let upstream = saying(pieces, End::KeepAlive).await;
    let tap = Tapping::before(upstream.address).await;
    for request in [get("/x", ""), post(CHAT, "{}")] {
        let tapped = raw(tap.address, &request).await;
        let rest = tapped.strip_prefix("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        assert!(rest.is_some_and(|rest| rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with("{}")), "{tapped}");
    }
    // Who does not know them gets none.
    let old = raw(tap.address, b"GET /x HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 OK"), "{old}");
    tap.sound().await;
}

#[tokio::test]
async fn a_post_that_would_become_another_protocol_is_recorded() {
    let upstream =
        saying(&[b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"], End::KeepAlive)
            .await;
    let tap = Tapping::before(upstream.address).await;
    for protocol in ["h2c", "foo"] {
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: h\r\nconnection: close, upgrade\r\nupgrade: {protocol}\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        assert!(raw(tap.address, request.as_bytes()).await.starts_with("HTTP/1.1 200 OK"));
    }
    assert_eq!(tap.sound().await.1.len(), 2);
}

#[tokio::test]
async fn a_recorded_request_keeps_its_trailers_and_its_own_bytes() {
    let upstream =
        saying(&[b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"], End::KeepAlive)
            .await;
    let tap = Tapping::before(upstream.address).await;
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\n\
         trailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nx-sum: 7\r\n\r\n"
    );
    assert!(raw(tap.address, request.as_bytes()).await.starts_with("HTTP/1.1 200 OK"));
    let signed = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-digest: sha-256=:x:\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    assert!(raw(tap.address, signed.as_bytes()).await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(tap.sound().await.1.len(), 2);
    let seen = String::from_utf8_lossy(&upstream.requests.lock().unwrap().concat()).into_owned();
    assert!(seen.contains("2\r\n{}\r\n0\r\nx-sum: 7\r\n\r\n"), "{seen}");
    assert!(!seen.contains("return_token_ids"), "{seen}");
}
