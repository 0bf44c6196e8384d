//! Copies of what clients and MCP servers exchange over HTTP, on their way to the recorder.
//!
//! A request is copied before it is forwarded, so that it is known before its answer. Splitting, parsing and pairing are work of
//! the recorder's thread (`TrafficSink`); what does not fit into its queue is lost for the recording and counted. Where answers are compared
//! (`--mode compare`) that thread compares them in place of recording.

mod events;
mod http_exchange;
mod sink;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header, request::Parts};
use time::OffsetDateTime;
use tokio::time::Instant;

pub use self::events::EventData;
use self::sink::TrafficSink;
use crate::{
    mcp::{Sender, Unrecorded},
    player::{CassettePlayer, RecordPlace},
};
use net::{
    server::{BodyError, media_type},
    upstream::BodyObserver,
};
use recording::{
    cassette::CassetteError,
    recorder::{Progress, Recorder},
};

/// Header that names a session of the protocol's revisions up to 2025-11-25.
pub const SESSION: &str = "mcp-session-id";

/// Counts of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct McpRecorded {
    /// Messages of the client that became records.
    pub records: u64,
    /// Exchanges that took too much work to search them for secrets.
    pub unsearched: u64,
    /// Stretches of bytes that did not fit into the recorder's queue, and messages that were too large.
    pub gaps: u64,
    /// Messages that the server refused or did not receive, by HTTP.
    pub refused: u64,
    /// What could not be recorded for other reasons.
    pub unrecorded: Unrecorded,
}

/// Who notes recorded messages in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalNotes {
    /// The recorder.
    Here,
    /// What forwards them.
    Elsewhere,
}

/// What is observed of HTTP exchanges with MCP servers.
#[derive(Debug)]
pub struct Traffic {
    recorder: Recorder<TrafficSink>,
    player: Arc<CassettePlayer>,
    began: Instant,
    http_exchanges: AtomicU64,
    gaps: AtomicU64,
    ended: OnceLock<McpRecorded>,
}

/// A step of one HTTP exchange.
#[derive(Debug)]
pub(super) struct Observed {
    /// Number of the exchange.
    pub(super) http_exchange: u64,
    /// Milliseconds from the beginning.
    pub(super) at: f64,
    pub(super) step: Step,
}

/// What happened in an exchange.
#[derive(Debug)]
pub(super) enum Step {
    /// A client sent a request.
    Request(Box<ClientRequest>),
    /// The head of the response came.
    Answered {
        status: StatusCode,
        /// The session that it names.
        session: Option<Box<str>>,
        form: Form,
    },
    /// Bytes of the response.
    Bytes(Bytes),
    /// Bytes are missing.
    Lost,
    /// The exchange is over.
    Ended(End),
    /// A line of a client, which is an exchange then, or of a process.
    Line(Box<ProcessLine>),
    /// A process has ended; that is what this side did.
    Closed { process: u64, by: Sender },
}

/// A line that passed between a session and its process.
#[derive(Debug)]
pub(super) struct ProcessLine {
    /// The server's place among all.
    pub(super) server: usize,
    pub(super) process: u64,
    pub(super) sender: Sender,
    pub(super) line: Bytes,
    /// The place of its record.
    pub(super) place: Option<RecordPlace>,
}

/// A client's HTTP request.
#[derive(Debug)]
pub(super) struct ClientRequest {
    /// The server's place among all.
    pub(super) server: usize,
    pub(super) method: Method,
    /// The session that it names.
    pub(super) session: Option<Box<str>>,
    /// `None` where it is too large.
    pub(super) body: Option<Bytes>,
    /// The place of its record.
    pub(super) place: Option<RecordPlace>,
}

/// Form of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Events,
    Json,
    /// It holds no message, or is compressed.
    Other,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All of the response reached the client.
    Whole,
    /// The client closed its connection first.
    ClientLeft,
    /// The server's response ended too early.
    ServerBroke,
    /// There was no response.
    Unanswered,
}

impl Traffic {
    /// Starts the recorder of exchanges with these servers.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(
        servers: Vec<String>,
        player: Arc<CassettePlayer>,
        notes: JournalNotes,
    ) -> Result<Self, CassetteError> {
        let began = Instant::now();
        let sink = TrafficSink::new(servers, Arc::clone(&player), notes, (OffsetDateTime::now_utc(), began));
        let progress = Arc::new(Progress::default());
        progress.set_open(true);
        let recorder = Recorder::start(sink, progress)
            .map_err(|source| CassetteError::Io { path: std::path::PathBuf::from("mcp"), source })?;
        let (http_exchanges, gaps) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { recorder, player, began, http_exchanges, gaps, ended: OnceLock::new() })
    }

    /// The next place among all that is recorded; `None` where nothing is.
    pub fn place(&self) -> Option<RecordPlace> {
        self.player.place()
    }

    /// Begins an exchange at this place; without a body where it was too large.
    pub fn begin(
        self: &Arc<Self>,
        server: usize,
        parts: &Parts,
        body: Option<Bytes>,
        place: Option<RecordPlace>,
    ) -> Copies {
        let request = ClientRequest {
            server,
            method: parts.method.clone(),
            session: session_of(&parts.headers),
            body,
            place: place.filter(|_| parts.method == Method::POST),
        };
        let http_exchange = self.http_exchanges.fetch_add(1, Relaxed);
        let copies = Copies { traffic: Some(Arc::clone(self)), http_exchange, has_ended: false, lacks: false };
        self.submit(http_exchange, Step::Request(Box::new(request)));
        copies
    }

    /// Begins to copy the lines of a process of a server.
    pub fn lines(self: &Arc<Self>, server: usize) -> LineCopies {
        LineCopies { traffic: Arc::clone(self), server, process: self.http_exchanges.fetch_add(1, Relaxed) }
    }

    /// Ends the recording; blocks until everything was handed over. `None` where answers are compared and not recorded, or nothing came.
    pub fn finish(&self) -> Option<McpRecorded> {
        let ended = self.recorder.finish().ok().flatten();
        let mut recorded = *self.ended.get_or_init(|| ended.unwrap_or_default());
        recorded.gaps += self.gaps.load(Relaxed);
        (self.player.is_recording() && self.http_exchanges.load(Relaxed) > 0).then_some(recorded)
    }

    /// Whether it was taken.
    fn submit(&self, http_exchange: u64, step: Step) -> bool {
        let at = self.began.elapsed().as_secs_f64() * 1e3;
        let is_taken = self.recorder.submit(Observed { http_exchange, at, step }).is_ok();
        if !is_taken {
            self.gaps.fetch_add(1, Relaxed);
        }
        is_taken
    }
}

/// Copies of the lines of one process.
#[derive(Debug)]
pub struct LineCopies {
    traffic: Arc<Traffic>,
    server: usize,
    process: u64,
}

impl LineCopies {
    /// Takes a line before it goes on.
    pub fn line(&self, sender: Sender, line: &[u8]) {
        let Self { traffic, server, process } = self;
        let place = if sender == Sender::Client { traffic.player.place() } else { None };
        let line =
            ProcessLine { server: *server, process: *process, sender, line: Bytes::copy_from_slice(line), place };
        traffic.submit(traffic.http_exchanges.fetch_add(1, Relaxed), Step::Line(Box::new(line)));
    }

    /// Takes the end of the process.
    pub fn end(&self, by: Sender) {
        self.traffic.submit(self.process, Step::Closed { process: self.process, by });
    }
}

/// Copies of one exchange. Dropped before its end, the client has left.
#[derive(Debug)]
pub struct Copies {
    /// `None` where nothing is recorded.
    traffic: Option<Arc<Traffic>>,
    http_exchange: u64,
    has_ended: bool,
    /// Bytes were refused, and the recorder does not know it yet.
    lacks: bool,
}

impl Copies {
    /// Copies of an exchange that is not recorded.
    #[must_use]
    pub fn none() -> Self {
        Self { traffic: None, http_exchange: 0, has_ended: true, lacks: false }
    }

    /// Takes the head of the response.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        let is_readable = !headers.contains_key(header::CONTENT_ENCODING);
        let form = match media_type(headers) {
            "text/event-stream" if is_readable => Form::Events,
            "application/json" if is_readable => Form::Json,
            _ => Form::Other,
        };
        self.submit(Step::Answered { status, session: session_of(headers), form });
    }

    /// Takes the end of the exchange.
    pub fn ended(&mut self, end: End) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.submit(Step::Ended(end));
        }
    }

    fn submit(&mut self, step: Step) {
        let Some(traffic) = &self.traffic else { return };
        if self.lacks {
            self.lacks = !traffic.submit(self.http_exchange, Step::Lost);
        }
        self.lacks |= !traffic.submit(self.http_exchange, step);
    }
}

impl BodyObserver for Copies {
    fn data(&mut self, bytes: &Bytes) {
        self.submit(Step::Bytes(bytes.clone()));
    }

    fn end(&mut self, error: Option<&BodyError>) {
        self.ended(if error.is_some() { End::ServerBroke } else { End::Whole });
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.ended(End::ClientLeft);
    }
}

fn session_of(headers: &HeaderMap) -> Option<Box<str>> {
    headers.get(SESSION).and_then(|session| session.to_str().ok()).map(Into::into)
}
