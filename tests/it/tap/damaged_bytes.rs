//! Damaged bytes from both sides: whatever clients and upstreams send, the tap serves on, nothing in it panics, streams pass
//! unchanged and every recorded request has one outcome.
//!
//! Inputs are the files of `tests/fuzz/corpus`, changed at random: what was once wrong is kept there. For longer runs:
//!
//! `VCR_FUZZ_SECONDS=300 cargo test --release --test it -- --ignored --nocapture damaged_bytes`
//!
//! `VCR_FUZZ_SEED` repeats the draws of the run that printed this seed; `tests/fuzz/targets` runs all targets within limits.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use vllm_vcr::net::server::Listener;

use crate::support::{
    CHAT,
    drawn_bytes::{Run, changed, corpus, cut, panics},
    peer::{exchange, post},
    tapping::Tapping,
};

/// Cases that are on their way together.
const TOGETHER: usize = 16;

/// What no case takes.
const LONG: Duration = Duration::from_secs(60);

/// What is answered to what came.
type Answers = dyn Fn(&[u8]) -> Vec<Vec<u8>> + Send + Sync;

/// Writes these pieces as soon as something came, and closes.
async fn upstream(pieces: Arc<Answers>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let pieces = Arc::clone(&pieces);
            tokio::spawn(async move {
                let mut request = vec![0; 65536];
                let count = stream.read(&mut request).await.unwrap_or(0);
                for piece in pieces(&request[..count]) {
                    if stream.write_all(&piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                let _left = stream.shutdown().await;
                let _rest = timeout(Duration::from_secs(1), stream.read_to_end(&mut request)).await;
            });
        }
    });
    address
}

/// What each case was answered with, by the number that its request named.
type Cases = Arc<Mutex<Vec<Vec<Vec<u8>>>>>;

/// An upstream that answers a request for `/case/N`, or one whose id that is, with the pieces of a case.
async fn upstream_of(cases: &Cases) -> SocketAddr {
    let cases = Arc::clone(cases);
    upstream(Arc::new(move |request| {
        let text = String::from_utf8_lossy(request);
        let number = text.split_once("x-request-id: ").and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
        match number.and_then(|number: usize| cases.lock().unwrap().get(number).cloned()) {
            Some(pieces) => pieces,
            None => vec![b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok".to_vec()],
        }
    }))
    .await
}

async fn ask(address: SocketAddr, bytes: &[u8], within: Duration) -> Vec<u8> {
    let mut received = Vec::new();
    let asked = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _refused_meanwhile = stream.write_all(bytes).await;
        let _reset = stream.read_to_end(&mut received).await;
    };
    timeout(within, asked).await.unwrap_or_else(|_| panic!("no end of {:?}", String::from_utf8_lossy(bytes)));
    received
}

fn numbered(number: usize) -> Vec<u8> {
    let request = String::from_utf8(post(CHAT, r#"{"stream":true}"#)).unwrap();
    request.replacen("host: test", &format!("host: test\r\nx-request-id: {number}"), 1).into_bytes()
}

/// The bytes of a chunked body.
fn unchunked(answer: &[u8]) -> Option<Vec<u8>> {
    let mut rest = &answer[answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4..];
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + size)?);
        rest = rest.get(line + 4 + size..)?;
    }
}

fn chunk(piece: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()
}

/// Ends a tap after its cases; every recorded request has one outcome.
async fn ended(tap: Tapping, before: usize) {
    let answer = exchange(tap.address, b"GET /health HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    assert_eq!((answer.status, answer.body().as_str()), (200, "ok"));
    for _ in 0..3000 {
        if tap.metric("vcr_exchanges_in_flight") == 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let outcomes = ["finished", "error", "client_gone", "upstream_failed", "timed_out", "cut"];
    let outcomes: u64 =
        outcomes.map(|name| tap.count(&format!("vcr_exchanges_total{{outcome=\"{name}\"}}"))).iter().sum();
    let skipped = ["kind", "path", "model", "sample", "incomplete", "upgrade"];
    let skipped: u64 =
        skipped.map(|name| tap.count(&format!("vcr_requests_not_recorded_total{{reason=\"{name}\"}}"))).iter().sum();
    assert_eq!(outcomes + skipped, tap.count("vcr_requests_total"));
    let (report, traces) = tap.stop().await;
    assert_eq!((report.recorder.broken, panics()), (0, before));
    assert!(traces.iter().all(|trace| trace.warnings.is_empty()), "{:?}", traces[0].warnings);
    assert!(report.recorder.written >= outcomes, "{report:?}");
}

/// Streams of events, in the engine's name: unchanged where nothing was asked for, and no harm where it was.
async fn streams(mut run: Run) {
    let (inputs, cases, before) = (corpus("sse"), Cases::default(), panics());
    let address = upstream_of(&cases).await;
    let plain = Tapping::start(address, |setup| setup.amends = false).await;
    let asking = Tapping::start(address, |setup| setup.content.text = true).await;
    while run.goes_on() {
        let mut sent = Vec::new();
        *cases.lock().unwrap() = (0..TOGETHER)
            .map(|_| {
                let stream = changed(&inputs, &mut run.random);
                let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
                let pieces = cut(&stream, &mut run.random);
                sent.push(stream);
                let chunks = pieces.iter().map(|piece| chunk(piece));
                [head.to_vec()].into_iter().chain(chunks).chain([b"0\r\n\r\n".to_vec()]).collect()
            })
            .collect();
        let mut asked = JoinSet::new();
        for (number, stream) in sent.into_iter().enumerate() {
            let (plain, asking) = (plain.address, asking.address);
            asked.spawn(async move {
                let tapped = ask(plain, &numbered(number), LONG).await;
                assert_eq!(unchunked(&tapped).as_deref(), Some(&stream[..]), "{:?}", String::from_utf8_lossy(&stream));
                let tapped = ask(asking, &numbered(number), LONG).await;
                let (sent, became) = (String::from_utf8_lossy(&stream), String::from_utf8_lossy(&tapped));
                assert!(unchunked(&tapped).is_some(), "{sent:?} became {became:?}");
            });
        }
        asked.join_all().await;
    }
    ended(plain, before).await;
    ended(asking, before).await;
}

/// Answers that may be no HTTP.
async fn answers(mut run: Run) {
    let (inputs, cases, before) = (corpus("answers"), Cases::default(), panics());
    let tap = Tapping::start(upstream_of(&cases).await, |_| {}).await;
    while run.goes_on() {
        *cases.lock().unwrap() = (0..TOGETHER)
            .map(|_| {
                let answer = changed(&inputs, &mut run.random);
                cut(&answer, &mut run.random)
            })
            .collect();
        let mut asked = JoinSet::new();
        for number in 0..TOGETHER {
            let (address, case) = (tap.address, cases.lock().unwrap()[number].concat());
            asked.spawn(async move {
                let case = String::from_utf8_lossy(&case);
                let asked = timeout(LONG, ask(address, &numbered(number), LONG * 2)).await;
                let answer = asked.unwrap_or_else(|_| panic!("{case:?} had no end"));
                let answer = String::from_utf8_lossy(&answer);
                assert!(answer.starts_with("HTTP/1."), "{case:?} became {answer:?}");
            });
        }
        asked.join_all().await;
    }
    ended(tap, before).await;
}

/// Requests that may be none.
async fn requests(mut run: Run) {
    let (inputs, before) = (corpus("requests"), panics());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, upstream) = (listener.local_addr().unwrap(), upstream_of(&Cases::default()).await);
    let listener = Listener::from(listener).with_http2();
    let tap = Tapping::behind(listener, address, &format!("http://{upstream}"), |_| {}).await;
    while run.goes_on() {
        let mut asked = JoinSet::new();
        for _ in 0..TOGETHER {
            let (address, pieces) = (tap.address, {
                let request = changed(&inputs, &mut run.random);
                cut(&request, &mut run.random)
            });
            asked.spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                for piece in &pieces {
                    if stream.write_all(piece).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                // Nothing more comes: the tap answers, or closes.
                let _closed = stream.shutdown().await;
                let mut received = Vec::new();
                let read = timeout(LONG, stream.read_to_end(&mut received)).await;
                assert!(read.is_ok(), "no end of {:?}", String::from_utf8_lossy(&pieces.concat()));
            });
        }
        asked.join_all().await;
    }
    ended(tap, before).await;
}

#[tokio::test]
async fn damaged_streams_pass_as_they_are() {
    streams(Run::short()).await;
}

#[tokio::test]
async fn damaged_responses_break_no_other_exchange() {
    answers(Run::short()).await;
}

#[tokio::test]
async fn damaged_requests_break_no_other_exchange() {
    requests(Run::short()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs for VCR_FUZZ_SECONDS"]
async fn streams_for_long() {
    streams(Run::long()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs for VCR_FUZZ_SECONDS"]
async fn answers_for_long() {
    answers(Run::long()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs for VCR_FUZZ_SECONDS"]
async fn requests_for_long() {
    requests(Run::long()).await;
}
