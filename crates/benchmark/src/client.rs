//! The client: one thread, one epoll, one clock reading per read. It counts the events of streams and when they came.
//!
//! Limits: an event counts as a token where its content or text is not empty, and HTTP is read only as far as servers of
//! this kind speak it: chunked streams, bodies with a `content-length`, or a closed connection.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use memchr::{memchr, memmem};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::OwnedFd,
};
use tokio::time::Instant;

/// What is asked, how often and by how many.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchLoad {
    /// Connections, each with one request at a time.
    pub(crate) streams: usize,
    /// Time over which the first requests are spread.
    pub(crate) spread: Duration,
    /// No request begins later than this after the first one.
    pub(crate) time: Duration,
    /// Requests of one connection, at most.
    pub(crate) rounds: usize,
    /// Output tokens that are asked for.
    pub(crate) tokens: usize,
    /// Whether answers are streams.
    pub(crate) stream: Stream,
}

/// Whether an answer is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// As events.
    Yes,
    /// As one body.
    No,
}

/// What was seen; times in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct BenchSeen {
    /// Whole answers.
    pub(crate) answers: usize,
    /// Requests without one.
    pub(crate) failures: usize,
    /// Tokens of whole answers; an answer that is no stream counts as one.
    pub(crate) tokens: usize,
    /// Times to the first token.
    pub(crate) first: Vec<f64>,
    /// Times between two tokens of a stream.
    pub(crate) gaps: Vec<f64>,
    /// Mean gap of each stream.
    pub(crate) means: Vec<f64>,
    /// Times of whole answers.
    pub(crate) whole: Vec<f64>,
    /// Time of the whole load.
    pub(crate) elapsed: Duration,
    /// From the first request of a burst to the last.
    pub(crate) asked: Duration,
}

struct LoadedConnection {
    socket: TcpStream,
    unread: Vec<u8>,
    sent: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: usize,
    rounds: usize,
    /// Bytes left of a body with a `content-length`.
    length: Option<usize>,
    in_body: bool,
    zero_chunk: bool,
}

enum Read1 {
    More,
    Answered,
    Gone,
}

/// After so long without a byte the open answers have failed.
const SILENCE: Duration = Duration::from_secs(30);

/// Whether a load goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Go {
    /// It does.
    On,
    /// All connections are closed.
    Home,
}

/// One request on each of so many connections, which are all open and accepted before. All are written as fast as one
/// thread can, and none is read before.
pub(crate) fn burst(address: SocketAddr, load: &BenchLoad) -> io::Result<BenchSeen> {
    let request = request(address, load);
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let open = |number| connect(&poll, address, number);
    let mut connections = (0..load.streams).map(open).collect::<io::Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    for connection in &mut connections {
        connection.ask(&request)?;
    }
    let asked = start.elapsed();
    let seen = follow(&poll, address, load, connections.into_iter().map(Some).collect(), |_| Go::On)?;
    Ok(BenchSeen { asked, ..seen })
}

/// Runs a load against a server. `watch` is called about every 100 ms, with how many connections are open.
pub(crate) fn run(address: SocketAddr, load: &BenchLoad, watch: impl FnMut(usize) -> Go) -> io::Result<BenchSeen> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    follow(&poll, address, load, Vec::with_capacity(load.streams), watch)
}

fn follow(
    poll: &OwnedFd,
    address: SocketAddr,
    load: &BenchLoad,
    mut connections: Vec<Option<LoadedConnection>>,
    mut watch: impl FnMut(usize) -> Go,
) -> io::Result<BenchSeen> {
    let request = request(address, load);
    let (mut seen, mut ready, mut bytes) = (BenchSeen::default(), Vec::with_capacity(1024), vec![0; 64 * 1024]);
    let start = Instant::now();
    let (mut open, mut watched, mut last_event) = (connections.len(), start, start);
    loop {
        while connections.len() < load.streams && start.elapsed() >= due(load, connections.len()) {
            let number = connections.len();
            connections.push(match open_one(poll, address, number, &request) {
                Ok(connection) => {
                    open += 1;
                    Some(connection)
                }
                Err(_) => {
                    seen.failures += 1;
                    None
                }
            });
        }
        if open == 0 && connections.len() == load.streams {
            break;
        }
        wait(poll, &mut ready, load, connections.len(), start)?;
        if !ready.is_empty() {
            last_event = Instant::now();
        } else if last_event.elapsed() > SILENCE {
            seen.failures += open;
            break;
        }
        for event in ready.drain(..) {
            let event: epoll::Event = event;
            let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let Some(slot) = connections.get_mut(number) else { continue };
            let Some(connection) = slot.as_mut() else { continue };
            let goes_on = match connection.read(&mut bytes, &mut seen) {
                Read1::More => true,
                Read1::Gone => {
                    seen.failures += 1;
                    false
                }
                Read1::Answered => {
                    connection.account(&mut seen, load.stream);
                    connection.rounds < load.rounds && start.elapsed() < load.time && connection.ask(&request).is_ok()
                }
            };
            if !goes_on {
                *slot = None;
                open -= 1;
            }
        }
        if watched.elapsed() > Duration::from_millis(100) {
            watched = Instant::now();
            if watch(open) == Go::Home {
                break;
            }
        }
    }
    seen.elapsed = start.elapsed();
    Ok(seen)
}

fn due(load: &BenchLoad, number: usize) -> Duration {
    load.spread.mul_f64(number as f64 / load.streams.max(1) as f64)
}

fn wait(
    poll: &OwnedFd,
    ready: &mut Vec<epoll::Event>,
    load: &BenchLoad,
    opened: usize,
    start: Instant,
) -> io::Result<()> {
    let most = Duration::from_millis(100);
    let pause = if opened < load.streams { due(load, opened).saturating_sub(start.elapsed()).min(most) } else { most };
    let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
    match epoll::wait(poll, spare_capacity(ready), Some(&pause)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_one(poll: &OwnedFd, address: SocketAddr, number: usize, request: &[u8]) -> io::Result<LoadedConnection> {
    let mut connection = connect(poll, address, number)?;
    connection.ask(request)?;
    Ok(connection)
}

fn connect(poll: &OwnedFd, address: SocketAddr, number: usize) -> io::Result<LoadedConnection> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    epoll::add(poll, &socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
    Ok(LoadedConnection {
        socket,
        unread: Vec::new(),
        sent: Instant::now(),
        first: None,
        last: None,
        tokens: 0,
        rounds: 0,
        length: None,
        in_body: false,
        zero_chunk: false,
    })
}

fn request(address: SocketAddr, load: &BenchLoad) -> Vec<u8> {
    let (stream, prompt) = if load.stream == Stream::Yes { (true, "hello") } else { (false, "tiny") };
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":{},"stream":{stream}}}"#,
        load.tokens
    );
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Authorization: Bearer x\r\nAccept: */*\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

impl LoadedConnection {
    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        (self.first, self.last, self.tokens, self.length) = (None, None, 0, None);
        (self.in_body, self.zero_chunk) = (false, false);
        self.unread.clear();
        self.rounds += 1;
        self.sent = Instant::now();
        self.socket.write_all(request)
    }

    fn read(&mut self, bytes: &mut [u8], seen: &mut BenchSeen) -> Read1 {
        let read = match self.socket.read(bytes) {
            Ok(0) => return if self.in_body && self.length.is_none() { Read1::Answered } else { Read1::Gone },
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Read1::More,
            Err(_) => return Read1::Gone,
        };
        let now = Instant::now();
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(&bytes[..read]);
        let (used, outcome) = self.digest(&unread, now, seen);
        unread.drain(..used);
        self.unread = unread;
        outcome
    }

    /// How many bytes were understood.
    fn digest(&mut self, unread: &[u8], now: Instant, seen: &mut BenchSeen) -> (usize, Read1) {
        let mut used = 0;
        if !self.in_body {
            let Some(end) = memmem::find(unread, b"\r\n\r\n") else { return (0, Read1::More) };
            let head = String::from_utf8_lossy(&unread[..end]).to_ascii_lowercase();
            if !head.starts_with("http/1.1 200") {
                return (0, Read1::Gone);
            }
            self.length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            self.in_body = true;
            used = end + 4;
        }
        if let Some(length) = self.length {
            let whole = unread.len() >= used + length;
            return if whole { (unread.len(), Read1::Answered) } else { (used, Read1::More) };
        }
        while let Some(end) = memchr(b'\n', &unread[used..]) {
            let line = &unread[used..used + end];
            used += end + 1;
            if line.starts_with(b"data:") {
                self.event(line, now, seen);
            } else if self.zero_chunk && line == b"\r" {
                return (used, Read1::Answered);
            } else if line != b"\r" && !line.is_empty() {
                self.zero_chunk = line == b"0\r";
            }
        }
        (used, Read1::More)
    }

    fn event(&mut self, line: &[u8], now: Instant, seen: &mut BenchSeen) {
        // A token may have no text of its own, as the first half of a character; a role has none either.
        let is_blank = memmem::find(line, b"\"content\":\"\"").is_some() && memmem::find(line, b"\"role\"").is_none();
        if !(is_blank || has_text(line, b"\"content\":") || has_text(line, b"\"text\":")) {
            return;
        }
        self.tokens += 1;
        self.first.get_or_insert(now);
        if let Some(last) = self.last.replace(now) {
            seen.gaps.push((now - last).as_secs_f64() * 1e3);
        }
    }

    fn account(&self, seen: &mut BenchSeen, stream: Stream) {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        seen.answers += 1;
        seen.tokens += if stream == Stream::Yes { self.tokens } else { 1 };
        seen.whole.push(millis(self.sent.elapsed()));
        seen.first.extend(self.first.map(|first| millis(first - self.sent)));
        if let (Some(first), Some(last), true) = (self.first, self.last, self.tokens > 1) {
            seen.means.push(millis(last - first) / (self.tokens - 1) as f64);
        }
    }
}

/// Whether a text follows the key that is not empty.
fn has_text(line: &[u8], key: &[u8]) -> bool {
    memmem::find_iter(line, key).any(|at| {
        let rest = line[at + key.len()..].trim_ascii_start();
        matches!(rest, [b'"', second, ..] if *second != b'"')
    })
}
