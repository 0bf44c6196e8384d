//! A small HTTP/1.1 client that shows what was on the wire: headers in order, and each chunk of a chunked body.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// What came back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In order, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The chunks of a chunked body, without the empty last one.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The events of a stream, without their closing empty line.
    pub(crate) fn events(&self) -> Vec<String> {
        self.text().split_terminator("\n\n").map(str::to_owned).collect()
    }
}

/// A request that is about to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn get(path: &str) -> Request<'_> {
    Request { method: "GET", path, headers: Vec::new(), body: Vec::new() }
}

pub(crate) fn post<'a>(path: &'a str, body: &serde_json::Value) -> Request<'a> {
    let headers = vec![("content-type", "application/json")];
    Request { method: "POST", path, headers, body: body.to_string().into_bytes() }
}

/// Sends the request and leaves the connection open for reading.
pub(crate) async fn open(address: SocketAddr, request: &Request<'_>) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
    if !request.headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {address}\r\n"));
    }
    head.push_str("connection: close\r\n");
    for (name, value) in &request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !request.body.is_empty() || request.method == "POST" {
        head.push_str(&format!("content-length: {}\r\n", request.body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server may answer and close before it has read a large body.
    let _ = stream.write_all(&request.body).await;
    stream
}

/// Sends a request and reads the whole answer.
pub(crate) async fn send(address: SocketAddr, request: &Request<'_>) -> Answer {
    let mut stream = open(address, request).await;
    let mut raw = Vec::new();
    // A reset after the answer still leaves the answer.
    let _ = stream.read_to_end(&mut raw).await;
    parse(&raw)
}

fn parse(raw: &[u8]) -> Answer {
    let end = raw.windows(4).position(|window| window == b"\r\n\r\n").expect("the head of an answer") + 4;
    let head = std::str::from_utf8(&raw[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut answer = Answer { status, headers, body: raw[end..].to_vec(), chunks: Vec::new() };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.chunks = chunks(&raw[end..]);
        answer.body = answer.chunks.concat();
    }
    answer
}

fn chunks(rest: &[u8]) -> Vec<Vec<u8>> {
    let (chunks, is_cut) = whole_chunks(rest);
    assert!(!is_cut, "a chunk was cut");
    chunks
}

/// The chunks that are there as a whole, and whether one was cut.
fn whole_chunks(mut rest: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut chunks = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        if rest.len() < line + 4 + size {
            return (chunks, true);
        }
        chunks.push(rest[line + 2..line + 2 + size].to_vec());
        rest = &rest[line + 4 + size..];
    }
    (chunks, false)
}

/// The body of a chunked answer of which this was read, as far as its chunks are there.
pub(crate) fn body_so_far(raw: &[u8]) -> Vec<u8> {
    let head = raw.windows(4).position(|window| window == b"\r\n\r\n");
    head.map(|head| whole_chunks(&raw[head + 4..]).0.concat()).unwrap_or_default()
}

/// Reads until a text was read.
pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = String::new();
    while !read.contains(text) {
        let mut some = [0; 4096];
        let count = stream.read(&mut some).await.unwrap();
        assert!(count > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    read
}
