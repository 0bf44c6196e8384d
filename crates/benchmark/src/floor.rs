//! The floor: what this machine allows a program that does nothing but wait and write.
//!
//! Each thread has one epoll, one `timerfd` and one heap of deadlines, and writes the same chunk for every event straight to
//! the socket. Of a request it reads only `max_tokens` and `stream`. It takes
//! the flags of `play` that the rows use, and reports its lateness in the same form, so that both are measured alike.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, binary_heap::PeekMut},
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::fd::{AsRawFd, RawFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use base::lock::Lock;
use base::stats::Durations;
use base::units::parse_duration;
use memchr::memmem;
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::OwnedFd,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};
use serde_json::json;
use tokio::{
    net::TcpSocket,
    signal::unix::{SignalKind, signal},
    time::Instant,
};

/// Deadlines this close are met together, as `play` does it.
const QUANTUM: Duration = Duration::from_micros(50);

const EVENT: &str = "data: {\"id\":\"chatcmpl-8f6d9bd1c2d34e5f\",\"object\":\"chat.completion.chunk\",\
    \"created\":1763740000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"},\
    \"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
const HEAD: &str = "HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 18:00:00 GMT\r\nserver: uvicorn\r\n\
    content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const END: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

/// The timer's data in epoll's events; connections have their file descriptor.
const TIMER: u64 = u64::MAX;

struct FloorOptions {
    first: Duration,
    gap: Duration,
    threads: usize,
    stats: Option<PathBuf>,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the system gives no socket, timer or thread, or a flag is wrong.
pub fn run(arguments: impl Iterator<Item = String>) -> io::Result<()> {
    let options = FloorOptions::read(arguments)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let (mut pollers, mut workers) = (Vec::new(), Vec::new());
    for _ in 0..options.threads {
        let worker = FloorWorker::new(&options)?;
        pollers.push(worker.poller.clone());
        let is_over = Arc::clone(&is_over);
        workers.push(thread::spawn(move || worker.run(&is_over)));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(accept(&pollers))?;
    is_over.store(true, Relaxed);
    let mut lateness = Durations::default();
    for worker in workers {
        lateness.add(&worker.join().map_err(|_| io::Error::other("a thread panicked"))??);
    }
    let figures = json!({"lateness_ms": {"fixed": lateness.summary()}});
    options.stats.map_or(Ok(()), |file| fs::write(file, figures.to_string()))
}

/// Assigns connections to the threads in turn until SIGTERM.
async fn accept(pollers: &[ConnectionPoller]) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(4096)?;
    let mut end = signal(SignalKind::terminate())?;
    writeln!(io::stderr(), "play on http://{}", listener.local_addr()?)?;
    for poller in pollers.iter().cycle() {
        tokio::select! {
            accepted = listener.accept() => poller.add(accepted?.0.into_std()?)?,
            _ = end.recv() => break,
        }
    }
    Ok(())
}

/// The connections of a thread, and the epoll that polls them.
#[derive(Clone)]
struct ConnectionPoller {
    poll: Arc<OwnedFd>,
    connections: Arc<Lock<HashMap<RawFd, TcpStream>>>,
}

impl ConnectionPoller {
    fn add(&self, connection: TcpStream) -> io::Result<()> {
        connection.set_nodelay(true)?;
        connection.set_nonblocking(true)?;
        let number = connection.as_raw_fd();
        let mut connections = self.connections.lock();
        let connection = connections.entry(number).insert_entry(connection);
        let data = epoll::EventData::new_u64(number as u64);
        Ok(epoll::add(&*self.poll, connection.get(), data, epoll::EventFlags::IN)?)
    }
}

impl FloorOptions {
    fn read(mut arguments: impl Iterator<Item = String>) -> io::Result<Self> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self { first: Duration::ZERO, gap: Duration::ZERO, threads, stats: None };
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| io::Error::other(format!("{flag} needs a value")));
            match flag.as_str() {
                "--time-to-first-token" => options.first = parse_duration(&value()?).map_err(io::Error::other)?,
                "--inter-token-latency" => options.gap = parse_duration(&value()?).map_err(io::Error::other)?,
                "--threads" => options.threads = value()?.parse().map_err(io::Error::other)?,
                "--stats-json" => options.stats = Some(value()?.into()),
                _ => drop(value()?),
            }
        }
        Ok(options)
    }
}

/// A stream in progress: when its next event is due, its connection, and how many events are left.
type FloorDue = Reverse<(Instant, RawFd, usize)>;

struct FloorWorker {
    first: Duration,
    gap: Duration,
    poller: ConnectionPoller,
    timer: OwnedFd,
    armed: Option<Instant>,
    waiting: BinaryHeap<FloorDue>,
    lateness: Durations,
    chunk: Vec<u8>,
    whole: Vec<u8>,
}

impl FloorWorker {
    fn new(options: &FloorOptions) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poll, &timer, epoll::EventData::new_u64(TIMER), edge)?;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
        Ok(Self {
            first: options.first,
            gap: options.gap,
            poller: ConnectionPoller { poll: Arc::new(poll), connections: Arc::default() },
            timer,
            armed: None,
            waiting: BinaryHeap::new(),
            lateness: Durations::default(),
            chunk: format!("{:x}\r\n{EVENT}\r\n", EVENT.len()).into_bytes(),
            whole: format!("{head}{}\r\n\r\n{EVENT}", EVENT.len()).into_bytes(),
        })
    }

    fn run(mut self, is_over: &AtomicBool) -> io::Result<Durations> {
        let (mut ready, mut bytes) = (Vec::with_capacity(64), vec![0; 64 * 1024]);
        let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        while !is_over.load(Relaxed) {
            match epoll::wait(&*self.poller.poll, spare_capacity(&mut ready), Some(&pause)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in ready.drain(..) {
                let event: epoll::Event = event;
                match event.data.u64() {
                    TIMER => self.armed = None,
                    connection => self.read(RawFd::try_from(connection).unwrap_or(-1), &mut bytes),
                }
            }
            self.write_due();
            self.arm()?;
        }
        Ok(self.lateness)
    }

    fn read(&mut self, number: RawFd, bytes: &mut [u8]) {
        let mut connections = self.poller.connections.lock();
        let Some(connection) = connections.get_mut(&number) else { return };
        let read = match connection.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => {
                connections.remove(&number);
                return;
            }
            Ok(read) => read,
        };
        let request = &bytes[..read];
        if memmem::find(request, b"\"stream\":true").is_none() {
            let _ = connection.write(&self.whole);
            return;
        }
        let after = memmem::find(request, b"\"max_tokens\":").map_or(&[][..], |at| &request[at + 13..]);
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit());
        let tokens = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
        let _ = connection.write(HEAD.as_bytes());
        self.waiting.push(Reverse((Instant::now() + self.first, number, tokens)));
    }

    fn write_due(&mut self) {
        let mut connections = self.poller.connections.lock();
        let mut limit = Instant::now() + QUANTUM;
        while let Some(mut next) = self.waiting.peek_mut() {
            let Reverse((due, number, left)) = *next;
            if due > limit {
                break;
            }
            let written = connections.get_mut(&number).map(|connection| {
                let written = connection.write(&self.chunk);
                if left <= 1 {
                    let _ = connection.write(END.as_bytes());
                }
                written
            });
            let now = Instant::now();
            limit = now + QUANTUM;
            self.lateness.record(now.saturating_duration_since(due));
            if left <= 1 || !matches!(written, Some(Ok(_))) {
                PeekMut::pop(next);
            } else {
                *next = Reverse((due + self.gap, number, left - 1));
            }
        }
    }

    fn arm(&mut self) -> io::Result<()> {
        let Some(Reverse((first, _, _))) = self.waiting.peek() else { return Ok(()) };
        if self.armed.is_some_and(|armed| armed <= *first) {
            return Ok(());
        }
        let delay = first.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value = Timespec::try_from(delay).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.armed = Some(*first);
        Ok(())
    }
}
