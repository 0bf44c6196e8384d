//! Faults: each kind of the catalogue at its exact event or byte, and the choice of requests.

mod choice;
mod hot;
mod kinds;
mod load;
mod mcp;
mod pages;
mod replies;
mod sources;
mod transports;
mod wires;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use vllm_vcr::{
    play::{Config, FaultLines, ServerFaults},
    recording::trace::FinishReason,
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
    },
    text::prompt::SpecialTokens,
};

use crate::support::play_server::{config, record, tokenizer};

/// Path of most requests here.
const COMPLETIONS: &str = "/v1/completions";

/// Text of the answer; it has a character of several bytes.
const TEXT: &str = " one two three four five Zürich six seven";

/// These faults.
fn faults(lines: &[&str], seed: u64) -> Arc<ServerFaults> {
    let faults = lines.iter().map(|line| line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))).collect();
    Arc::new(ServerFaults::new(FaultLines { faults, seed }, false))
}

/// A server of one recorded answer with these faults.
fn served(faults: Arc<ServerFaults>) -> Config {
    let ids = tokenizer().encode(TEXT, SpecialTokens::Skip).unwrap();
    Config {
        faults,
        admin: Admin::Here(Access::default()),
        ..config(&[MatchBy::Next], vec![record(&ids, Duration::ZERO, FinishReason::Stop)])
    }
}

/// A request for a stream with usage at its end.
fn stream_body() -> Value {
    json!({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}})
}

/// The bytes of a request, by which the answer's id is known too.
fn request(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: fixed\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// As its framing says.
    Whole,
    /// The connection ended in the middle.
    Cut,
    /// The connection was reset, or the stream over HTTP/2.
    Reset,
    /// It went on, and nothing came.
    Open,
}

/// What a client saw.
#[derive(Debug, Clone)]
struct Heard {
    head: String,
    /// The chunks of a chunked body, the last one perhaps not whole, or the body as one.
    chunks: Vec<Vec<u8>>,
    ending: Ending,
}

impl Heard {
    fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }
}

/// Sends a request and reads what comes, until it ends, or until so much of the body is there and nothing follows.
async fn hear<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, request: &[u8], at_most: Option<usize>) -> Heard {
    stream.write_all(request).await.unwrap();
    let (mut raw, mut some) = (Vec::new(), vec![0; 65536]);
    let ending = loop {
        let is_all = at_most.is_some_and(|most| !raw.is_empty() && parse(&raw, Ending::Open).body().len() >= most);
        let read = stream.read(&mut some);
        let read = if is_all || at_most == Some(0) {
            match tokio::time::timeout(Duration::from_millis(150), read).await {
                Ok(read) => read,
                Err(_) => break Ending::Open,
            }
        } else {
            read.await
        };
        match read {
            Ok(0) => break Ending::Cut,
            Ok(count) => raw.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break Ending::Reset,
            Err(error) => panic!("{error}"),
        }
    };
    parse(&raw, ending)
}

fn parse(raw: &[u8], ending: Ending) -> Heard {
    let Some(end) = raw.windows(4).position(|window| window == b"\r\n\r\n").map(|end| end + 4) else {
        return Heard { head: String::from_utf8_lossy(raw).into_owned(), chunks: Vec::new(), ending };
    };
    let head = String::from_utf8_lossy(&raw[..end]).to_ascii_lowercase();
    let body = &raw[end..];
    if !head.contains("transfer-encoding: chunked") {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let is_whole = ending == Ending::Cut && length.is_none_or(|length| length == body.len());
        let ending = if is_whole { Ending::Whole } else { ending };
        return Heard { head, chunks: vec![body.to_vec()], ending };
    }
    let (mut chunks, mut rest) = (Vec::new(), body);
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return Heard { head, chunks, ending: if ending == Ending::Cut { Ending::Whole } else { ending } };
        }
        rest = &rest[line + 2..];
        chunks.push(rest[..size.min(rest.len())].to_vec());
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    Heard { head, chunks, ending }
}

/// The same with the time of creation taken out, which is all that differs between two answers.
fn timeless(bytes: &[u8]) -> Vec<u8> {
    let pattern = regex::bytes::Regex::new(r#""(created|created_at|completed_at)":\d+"#).unwrap();
    pattern.replace_all(bytes, &br#""$1":0"#[..]).into_owned()
}

/// Sends a request on a new connection and reads what comes.
async fn ask(address: std::net::SocketAddr, request: &[u8], at_most: Option<usize>) -> Heard {
    let mut stream = TcpStream::connect(address).await.unwrap();
    hear(&mut stream, request, at_most).await
}

/// The lines of what happened.
async fn hits(address: std::net::SocketAddr) -> Vec<String> {
    let shown =
        crate::support::client::send(address, &crate::support::client::get("/vcr/faults?hits=1000000")).await.json();
    let hits = shown["hits"].as_array().unwrap().iter().map(|hit| hit["fault"].as_str().unwrap().to_owned());
    hits.collect()
}
