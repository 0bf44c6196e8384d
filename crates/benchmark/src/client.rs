//! The client: one thread, one epoll, one clock reading per read. It counts the events of streams and when they came.
//!
//! Limits: an event counts as a token where its content or text is not empty, and HTTP is read only as far as servers of
//! this kind speak it: chunked streams, bodies with a `content-length`, or a closed connection.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::ControlFlow,
    time::Duration,
};

use memchr::{memchr, memmem};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::OwnedFd,
};
use tokio::time::Instant;

base::with_defaults! {
    /// Load of a benchmark: its requests, connections and rounds.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct BenchLoad {
        /// Connections, each with one request at a time.
        pub(crate) streams: usize = 1,
        /// Time over which the first requests are spread.
        pub(crate) spread: Duration,
        /// No request begins later than this after the first one.
        pub(crate) time: Duration,
        /// Requests of one connection, at most.
        pub(crate) rounds: usize = 1,
        /// Output tokens that are requested.
        pub(crate) tokens: usize = 1,
        /// True if responses are streams of events.
        pub(crate) is_stream: bool = true,
    }
}

/// Measurements of a load; times in milliseconds.
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
    pub(crate) requested: Duration,
}

struct LoadedConnection {
    socket: TcpStream,
    unread: Vec<u8>,
    sent: Instant,
    rounds: usize,
    response: IncomingResponse,
}

/// A response as far as it was read.
#[derive(Default)]
struct IncomingResponse {
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: usize,
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
    let requested = start.elapsed();
    let seen =
        follow(&poll, address, load, connections.into_iter().map(Some).collect(), |_| ControlFlow::Continue(()))?;
    Ok(BenchSeen { requested, ..seen })
}

/// Runs a load against a server. `watch` is called about every 100 ms, with the number of open connections; a break ends the load.
pub(crate) fn run(
    address: SocketAddr,
    load: &BenchLoad,
    watch: impl FnMut(usize) -> ControlFlow<()>,
) -> io::Result<BenchSeen> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    follow(&poll, address, load, Vec::with_capacity(load.streams), watch)
}

/// A load in progress.
struct RunningLoad<'a> {
    poll: &'a OwnedFd,
    address: SocketAddr,
    load: &'a BenchLoad,
    request: Vec<u8>,
    /// `None` once one is closed.
    connections: Vec<Option<LoadedConnection>>,
    open: usize,
    start: Instant,
    seen: BenchSeen,
}

fn follow(
    poll: &OwnedFd,
    address: SocketAddr,
    load: &BenchLoad,
    connections: Vec<Option<LoadedConnection>>,
    mut watch: impl FnMut(usize) -> ControlFlow<()>,
) -> io::Result<BenchSeen> {
    let (request, open, start) = (request(address, load), connections.len(), Instant::now());
    let mut run = RunningLoad { poll, address, load, request, connections, open, start, seen: BenchSeen::default() };
    let (mut ready, mut bytes) = (Vec::with_capacity(1024), vec![0; 64 * 1024]);
    let (mut watched, mut last_event) = (start, start);
    loop {
        run.open_due();
        if run.open == 0 && run.connections.len() == load.streams {
            break;
        }
        run.wait(&mut ready)?;
        if !ready.is_empty() {
            last_event = Instant::now();
        } else if last_event.elapsed() > SILENCE {
            run.seen.failures += run.open;
            break;
        }
        ready.drain(..).for_each(|event| run.read(event, &mut bytes));
        if watched.elapsed() > Duration::from_millis(100) {
            watched = Instant::now();
            if watch(run.open).is_break() {
                break;
            }
        }
    }
    Ok(BenchSeen { elapsed: start.elapsed(), ..run.seen })
}

impl RunningLoad<'_> {
    /// Opens the connections that are due, each with its first request.
    fn open_due(&mut self) {
        while self.connections.len() < self.load.streams && self.start.elapsed() >= self.due() {
            let opened = connect(self.poll, self.address, self.connections.len());
            let sent = opened.and_then(|mut opened| opened.ask(&self.request).map(|()| opened));
            *(if sent.is_ok() { &mut self.open } else { &mut self.seen.failures }) += 1;
            self.connections.push(sent.ok());
        }
    }

    /// The time of the next connection, from the start.
    fn due(&self) -> Duration {
        self.load.spread.mul_f64(self.connections.len() as f64 / self.load.streams.max(1) as f64)
    }

    /// Waits for events, or for the next connection.
    fn wait(&self, ready: &mut Vec<epoll::Event>) -> io::Result<()> {
        let most = Duration::from_millis(100);
        let is_open = self.connections.len() >= self.load.streams;
        let pause = if is_open { most } else { self.due().saturating_sub(self.start.elapsed()).min(most) };
        let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
        match epoll::wait(self.poll, spare_capacity(ready), Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from a connection; sends its next request or closes it where its response has ended.
    fn read(&mut self, event: epoll::Event, bytes: &mut [u8]) {
        let Self { load, seen, .. } = self;
        let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
        let Some(slot) = self.connections.get_mut(number) else { return };
        let Some(connection) = slot.as_mut() else { return };
        let goes_on = match connection.read(bytes, seen) {
            Read1::More => true,
            Read1::Gone => {
                seen.failures += 1;
                false
            }
            Read1::Answered => {
                connection.account(seen, load.is_stream);
                let is_next = connection.rounds < load.rounds && self.start.elapsed() < load.time;
                is_next && connection.ask(&self.request).is_ok()
            }
        };
        if !goes_on {
            *slot = None;
            self.open -= 1;
        }
    }
}

fn connect(poll: &OwnedFd, address: SocketAddr, number: usize) -> io::Result<LoadedConnection> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    epoll::add(poll, &socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
    let (sent, response) = (Instant::now(), IncomingResponse::default());
    Ok(LoadedConnection { socket, unread: Vec::new(), sent, rounds: 0, response })
}

fn request(address: SocketAddr, load: &BenchLoad) -> Vec<u8> {
    let (stream, prompt) = (load.is_stream, if load.is_stream { "hello" } else { "tiny" });
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
        self.response = IncomingResponse::default();
        self.unread.clear();
        self.rounds += 1;
        self.sent = Instant::now();
        self.socket.write_all(request)
    }

    fn read(&mut self, bytes: &mut [u8], seen: &mut BenchSeen) -> Read1 {
        let read = match self.socket.read(bytes) {
            Ok(0) => {
                let is_whole = self.response.in_body && self.response.length.is_none();
                return if is_whole { Read1::Answered } else { Read1::Gone };
            }
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Read1::More,
            Err(_) => return Read1::Gone,
        };
        let now = Instant::now();
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(&bytes[..read]);
        let (used, outcome) = self.response.digest(&unread, now, seen);
        unread.drain(..used);
        self.unread = unread;
        outcome
    }

    fn account(&self, seen: &mut BenchSeen, is_stream: bool) {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let IncomingResponse { first, last, tokens, .. } = self.response;
        seen.answers += 1;
        seen.tokens += if is_stream { tokens } else { 1 };
        seen.whole.push(millis(self.sent.elapsed()));
        seen.first.extend(first.map(|first| millis(first - self.sent)));
        if let (Some(first), Some(last), true) = (first, last, tokens > 1) {
            seen.means.push(millis(last - first) / (tokens - 1) as f64);
        }
    }
}

impl IncomingResponse {
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
}

/// Whether a text follows the key that is not empty.
fn has_text(line: &[u8], key: &[u8]) -> bool {
    memmem::find_iter(line, key).any(|at| {
        let rest = line[at + key.len()..].trim_ascii_start();
        matches!(rest, [b'"', second, ..] if *second != b'"')
    })
}
