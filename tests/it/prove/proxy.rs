//! A proxy for streams with one seeded bug.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};
use vllm_vcr::net::wire::{SseSplitter, encode_event, event_data, event_name};

/// What the proxy does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// Nothing: reads pass as they come.
    Nothing,
    /// The fourth event is lost.
    Drop,
    /// The third event comes twice.
    Double,
    /// The second and the third event change places.
    Reorder,
    /// Each read becomes text by itself.
    CutCharacter,
    /// Events end in two line feeds only.
    DeafToCrlf,
    /// Events without `data: ` are ignored.
    DeafToNoSpace,
    /// One token too many is counted.
    UsageOff,
    /// An event waits in one place for all streams.
    Mixed,
    /// A stream that fails ends with `stop`.
    ErrorToStop,
    /// A line of more than 64 KiB breaks the stream.
    LineLimit,
}

/// Where the upstream is, once it is known.
type UpstreamAddress = watch::Sender<Option<SocketAddr>>;

/// A running proxy.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    pub(super) upstream: UpstreamAddress,
    /// How many connections there were.
    pub(super) accepted: watch::Receiver<usize>,
}

impl Proxy {
    pub(super) async fn start(bug: Bug) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (upstream, known) = watch::channel(None);
        let (count, accepted) = watch::channel(0);
        let place = Arc::new(Mutex::new(Bytes::new()));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                let (mut known, place) = (known.clone(), Arc::clone(&place));
                tokio::spawn(async move {
                    let Some(upstream) = known.wait_for(Option::is_some).await.ok().and_then(|known| *known) else {
                        return;
                    };
                    pass(client, upstream, EventProxy::new(bug, place)).await;
                });
            }
        });
        Self { address, upstream, accepted }
    }
}

/// Passes one exchange; a client that leaves ends it.
async fn pass(mut client: TcpStream, upstream: SocketAddr, mut events: EventProxy) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut request = Vec::new();
    while !is_whole(&request) {
        if client.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
    let mut server = TcpStream::connect(upstream).await.ok()?;
    server.write_all(&request).await.ok()?;
    let mut head = Vec::new();
    let end = loop {
        if let Some(end) = find(&head, b"\r\n\r\n") {
            break end + 4;
        }
        if server.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    };
    let mut rest = head.split_off(end);
    head.truncate(end - 2);
    head.extend_from_slice(b"connection: close\r\n\r\n");
    client.write_all(&head).await.ok()?;
    if !String::from_utf8_lossy(&head).to_ascii_lowercase().contains("transfer-encoding: chunked") {
        client.write_all(&rest).await.ok()?;
        tokio::io::copy(&mut server, &mut client).await.ok()?;
        return None;
    }
    let is_proper = loop {
        let mut is_last = false;
        while let Some((chunk, used)) = next_chunk(&rest) {
            rest.drain(..used);
            if chunk.is_empty() {
                is_last = true;
                break;
            }
            if !send(&mut client, events.push(chunk).await?).await? {
                return None;
            }
        }
        if is_last {
            break true;
        }
        let mut next = [0];
        let received = tokio::select! {
            received = server.read_buf(&mut rest) => received,
            // The client has left.
            _ = client.peek(&mut next) => return None,
        };
        if received.map_or(true, |count| count == 0) {
            break false;
        }
    };
    let (last, is_proper) = events.end(is_proper);
    send(&mut client, last).await?;
    if is_proper {
        client.write_all(b"0\r\n\r\n").await.ok()?;
    }
    Some(())
}

async fn send(client: &mut TcpStream, parts: Vec<Bytes>) -> Option<bool> {
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let chunk = [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
        client.write_all(&chunk).await.ok()?;
    }
    Some(true)
}

fn is_whole(request: &[u8]) -> bool {
    let Some(end) = find(request, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
    request.len() >= end + 4 + length.unwrap_or(0_usize)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, what)
}

/// The first chunk, and the bytes that it takes; an empty one is the last.
fn next_chunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let line = find(bytes, b"\r\n")?;
    let size = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
    let end = line + 2 + size + 2;
    (bytes.len() >= end).then(|| (bytes[line + 2..end - 2].to_vec(), end))
}

/// A stream on its way through the proxy.
struct EventProxy {
    bug: Bug,
    splitter: SseSplitter,
    /// What has no end yet, for the reader of its own.
    partial: Vec<u8>,
    /// Events with data so far.
    count: usize,
    held: Option<Bytes>,
    has_failed: bool,
    /// The place of all streams.
    place: Arc<Mutex<Bytes>>,
}

impl EventProxy {
    fn new(bug: Bug, place: Arc<Mutex<Bytes>>) -> Self {
        let splitter = SseSplitter::default();
        Self { bug, splitter, partial: Vec::new(), count: 0, held: None, has_failed: false, place }
    }

    /// What becomes of a read; `None` where the stream breaks.
    async fn push(&mut self, read: Vec<u8>) -> Option<Vec<Bytes>> {
        match self.bug {
            Bug::Nothing => return Some(vec![read.into()]),
            Bug::CutCharacter => return Some(vec![String::from_utf8_lossy(&read).into_owned().into()]),
            Bug::LineLimit => {
                self.partial.extend_from_slice(&read);
                let rest = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let is_long = self.partial[..rest].split(|byte| *byte == b'\n').any(|line| line.len() > 64 << 10);
                self.partial.drain(..rest);
                return (!is_long && self.partial.len() <= 64 << 10).then(|| vec![read.into()]);
            }
            Bug::DeafToCrlf => {
                self.partial.extend_from_slice(&read);
                let mut events = Vec::new();
                while let Some(end) = find(&self.partial, b"\n\n") {
                    events.push(self.partial.drain(..end + 2).collect::<Vec<u8>>().into());
                }
                return Some(events);
            }
            _ => self.splitter.push(read.into()),
        }
        let mut out = Vec::new();
        while let Some(event) = self.splitter.next_event() {
            out.extend(self.event(event.raw).await);
        }
        Some(out)
    }

    async fn event(&mut self, event: Bytes) -> Vec<Bytes> {
        let Some(data) = event_data(&event) else { return vec![event] };
        self.count += 1;
        match (self.bug, self.count) {
            (Bug::Drop, 4) => Vec::new(),
            (Bug::Double, 3) => vec![event.clone(), event],
            (Bug::Reorder, 2) => {
                self.held = Some(event);
                Vec::new()
            }
            (Bug::Reorder, 3) => [event].into_iter().chain(self.held.take()).collect(),
            (Bug::DeafToNoSpace, _) if !event.starts_with(b"data: ") => Vec::new(),
            (Bug::UsageOff, _) => vec![with_one_more(&event, &data).unwrap_or(event)],
            (Bug::Mixed, _) => {
                *self.place.lock().unwrap() = event;
                sleep(Duration::from_millis(20)).await;
                vec![self.place.lock().unwrap().clone()]
            }
            (Bug::ErrorToStop, _) if self.has_failed || find(&data, b"\"error\":").is_some() => {
                self.has_failed = true;
                Vec::new()
            }
            _ => vec![event],
        }
    }

    /// What comes after the last read, and whether the body ends properly.
    fn end(mut self, is_proper: bool) -> (Vec<Bytes>, bool) {
        if self.bug == Bug::ErrorToStop && (self.has_failed || !is_proper) {
            let stop = "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}";
            return (vec![encode_event(None, stop), encode_event(None, "[DONE]")], true);
        }
        (self.held.take().into_iter().collect(), is_proper)
    }
}

/// The event with one output token more in its usage.
fn with_one_more(event: &[u8], data: &[u8]) -> Option<Bytes> {
    let mut value: Value = serde_json::from_slice(data).ok()?;
    let tokens = value.get_mut("usage")?.get_mut("completion_tokens")?;
    *tokens = (tokens.as_u64()? + 1).into();
    let name = event_name(event).map(|name| String::from_utf8_lossy(name).into_owned());
    Some(encode_event(name.as_deref(), &value.to_string()))
}

#[test]
fn chunks_are_found() {
    assert_eq!(next_chunk(b"3\r\nabc\r\n0\r\n\r\n"), Some((b"abc".to_vec(), 8)));
    assert_eq!(next_chunk(b"3\r\nab"), None);
}
