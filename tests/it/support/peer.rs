//! A scripted upstream and a raw client: bytes in, bytes out, nothing interpreted.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

/// What the scripted upstream does with one request.
#[derive(Clone)]
pub(crate) struct Script {
    /// Bytes to write, each piece in a write of its own.
    pub(crate) pieces: Vec<Vec<u8>>,
    /// What happens after the last piece.
    pub(crate) end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The connection stays open for the next request.
    KeepAlive,
    /// The connection is closed.
    Close,
    /// Nothing more comes until the peer closes.
    Silence,
}

/// What to do with a request.
type Answering = dyn Fn(&[u8]) -> Script + Send + Sync;

/// An upstream on a port of its own that answers as `script` says. It runs in a thread of its own: a test that waits for the end
/// of a tap blocks its runtime, and the tap may ask once more before it ends.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Every request it received, head and body.
    pub(crate) requests: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Its end ends the upstream.
    _running: oneshot::Sender<()>,
}

impl Upstream {
    pub(crate) async fn start(script: impl Fn(&[u8]) -> Script + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), script)
    }

    /// As [`start`](Self::start), on this listener.
    pub(crate) fn on(listener: TcpListener, script: impl Fn(&[u8]) -> Script + Send + Sync + 'static) -> Self {
        Self::answering(listener, Arc::new(script))
    }

    /// One copy of this code for all scripts: what is spawned is compiled anew for each type.
    fn answering(listener: TcpListener, script: Arc<Answering>) -> Self {
        let address = listener.local_addr().unwrap();
        let listener = listener.into_std().unwrap();
        let requests: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let (running, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.spawn(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(converse(stream, Arc::clone(&seen), Arc::clone(&script)));
                }
            });
            runtime.block_on(async { drop(ended.await) });
        });
        Self { address, requests, _running: running }
    }

    /// The bodies of the requests, but those that the tap makes by itself.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .map(|request| String::from_utf8_lossy(request).into_owned())
            .filter(|request| !request.starts_with("GET /version") && !request.contains("user-agent: vllm-vcr/"))
            .map(|request| request.split_once("\r\n\r\n").unwrap().1.to_owned())
            .collect()
    }
}

async fn converse(mut stream: TcpStream, seen: Arc<Mutex<Vec<Vec<u8>>>>, script: Arc<Answering>) {
    stream.set_nodelay(true).unwrap();
    while let Some(request) = read_message(&mut stream).await {
        let closes = String::from_utf8_lossy(&request).contains("\r\nconnection: close\r\n");
        let answer = script(&request);
        seen.lock().unwrap().push(request);
        for piece in &answer.pieces {
            if stream.write_all(piece).await.is_err() {
                return;
            }
        }
        match answer.end {
            End::KeepAlive if closes => return,
            End::KeepAlive => {}
            End::Close => return,
            End::Silence => {
                let _closed = stream.read(&mut [0; 16]).await;
                return;
            }
        }
    }
}

/// Head and body (by content-length) of the next message; `None` when the peer has closed.
async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        if let Some(head_end) = message.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&message[..head_end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"))
                .map_or(0, |value| value.trim().parse::<usize>().unwrap());
            if message.len() >= head_end + 4 + length {
                return Some(message);
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => message.extend_from_slice(&buffer[..count]),
        }
    }
}

/// A POST request with a JSON body, to be closed after its answer.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// An event stream, chunked, one chunk per event.
pub(crate) fn event_stream(events: &[&str]) -> Vec<Vec<u8>> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = |event: &&str| format!("{:x}\r\ndata: {event}\n\n\r\n", event.len() + 8).into_bytes();
    std::iter::once(head.as_bytes().to_vec()).chain(events.iter().map(chunk)).chain([b"0\r\n\r\n".to_vec()]).collect()
}

/// A whole answer with a length.
pub(crate) fn answer(status: &str, body: &str) -> Vec<Vec<u8>> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    vec![head.into_bytes(), body.as_bytes().to_vec()]
}

/// What one HTTP answer was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// The chunks of a chunked body, or the body as one.
    pub(crate) pieces: Vec<String>,
    /// Whether the body ended as its framing says.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn body(&self) -> String {
        self.pieces.concat()
    }
}

/// Sends raw bytes on a new connection and reads until the peer closes.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap_or_default();
    parse(&received)
}

pub(crate) fn parse(received: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(received);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let head = head.to_ascii_lowercase();
    if !head.contains("transfer-encoding: chunked") {
        return Answer { status, head, pieces: vec![body.to_owned()], complete: true };
    }
    let mut pieces = Vec::new();
    let mut rest = body.as_bytes();
    let complete = loop {
        let Some(line_end) = rest.windows(2).position(|window| window == b"\r\n") else { break false };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line_end]).unwrap(), 16).unwrap();
        let Some(piece) = rest.get(line_end + 2..line_end + 2 + size) else { break false };
        if size == 0 {
            break true;
        }
        pieces.push(String::from_utf8_lossy(piece).into_owned());
        rest = &rest[line_end + 4 + size..];
    };
    Answer { status, head, pieces, complete }
}
