//! Copies of what clients and MCP servers exchange, over HTTP or stdio, on their way to the recorder.
//!
//! A request is copied before it is forwarded, so that it is known before its answer. Splitting, parsing, pairing, redaction and writing are
//! work of the recorder's thread (`McpSink`); what does not fit into its queue is lost for the recording and counted, never waited for.
//! Where answers are compared (`--mode compare`) that thread compares them in place of recording.

mod events;
mod file;
mod observers;
mod sink;
mod source;

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, request::Parts};
use time::OffsetDateTime;
use tokio::time::Instant;

pub use self::{
    events::EventData,
    file::{OpenedCassette, RecordingTarget},
    observers::{ExchangeObserver, ProcessObserver},
};
use self::{
    sink::{McpSink, RecordSink},
    source::{BodyForm, Of, StreamKey},
};
use crate::{
    mcp::{Sender, Unrecorded},
    player::{CassettePlayer, RecordPlace},
};
use recording::{
    cassette::CassetteError,
    recorder::{Recorder, RecorderError, RecorderProgress},
};

/// Header that names a session of the protocol's revisions up to 2025-11-25.
pub const SESSION: &str = "mcp-session-id";

/// Longest wait for what was recorded for a session that ends.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);

/// Counts of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// Redacted values by kind, of one connection; a player counts its own ([`RecordReport`](crate::player::RecordReport)).
    pub redacted: BTreeMap<Arc<str>, u64>,
}

impl McpRecorded {
    /// The counts of two recordings together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.records += other.records;
        self.unsearched += other.unsearched;
        self.gaps += other.gaps;
        self.refused += other.refused;
        self.unrecorded += other.unrecorded;
        other.redacted.into_iter().for_each(|(kind, count)| *self.redacted.entry(kind).or_default() += count);
        self
    }
}

/// The recorder of what clients and MCP servers exchange.
#[derive(Debug)]
pub struct McpRecorder {
    recorder: Arc<Recorder<McpSink>>,
    /// `None` where one connection has a cassette of its own.
    player: Option<Arc<CassettePlayer>>,
    began: Instant,
    /// The next number of an HTTP exchange, a side of a connection, or a process.
    next: AtomicU64,
    gaps: AtomicU64,
    ended: OnceLock<McpRecorded>,
}

#[derive(Debug)]
struct ExchangeStep {
    number: u64,
    at: f64,
    step: TrafficStep,
}

#[derive(Debug)]
enum TrafficStep {
    Request(Box<ClientRequest>),
    /// The head of the response came, with the session that it names.
    Answered {
        status: StatusCode,
        session: Option<Box<str>>,
        form: BodyForm,
    },
    /// A side of a connection over stdio, which is an exchange then.
    Side(Sender),
    /// Bytes of the response, or of the side.
    Bytes(Bytes),
    Lost,
    /// A line that answers a request of the client, and that no server wrote.
    Unanswered(Bytes),
    Ended(ExchangeEnd),
    /// A line of a client, which is an exchange then, or of a process.
    Line(Box<ProcessLine>),
    /// A process has ended; that is what this side did. Without one it never ran, and its client has an error.
    Closed {
        key: StreamKey,
        by: Option<Sender>,
    },
    /// This session of the account ends: what was recorded for it is handed over, and then the sender is dropped.
    AccountEnded(Box<str>, SyncSender<()>),
}

/// A line that passed between a session and its process.
#[derive(Debug)]
struct ProcessLine {
    key: StreamKey,
    /// The server's place among all.
    server: usize,
    sender: Sender,
    line: Bytes,
    place: Option<RecordPlace>,
}

#[derive(Debug)]
struct ClientRequest {
    account: Box<str>,
    /// The server's place among all.
    server: usize,
    method: Method,
    session: Option<Box<str>>,
    /// `None` where it is too large.
    body: Option<Bytes>,
    place: Option<RecordPlace>,
}

/// End of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeEnd {
    /// All of the response reached the client.
    Whole,
    /// The client closed its connection first.
    ClientLeft,
    /// The server's response ended too early.
    ServerBroke,
    /// There was no response.
    Unanswered,
}

impl McpRecorder {
    /// Starts to record exchanges with these servers in the cassette of a player, or to compare them; with `notes` it notes recorded
    /// messages in the journal, which what forwards them may do itself.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn of_servers(servers: Vec<String>, player: &Arc<CassettePlayer>, notes: bool) -> Result<Self, CassetteError> {
        let records = RecordSink::Player { player: Arc::clone(player), notes };
        let started = Self::start(servers, records, Some(Arc::clone(player)))
            .map_err(|source| CassetteError::Io { path: "mcp".into(), source })?;
        let recorder = Arc::downgrade(&started.recorder);
        player.before_sessions_end(Box::new(move |session| {
            let Some(recorder) = recorder.upgrade() else { return };
            let (done, ended) = sync_channel(1);
            let step = ExchangeStep { number: 0, at: 0.0, step: TrafficStep::AccountEnded(session.into(), done) };
            if recorder.submit(step).is_ok() {
                // The sender is dropped once everything before it was handed over.
                let _late = ended.recv_timeout(HAND_OVER_WITHIN);
            }
        }));
        Ok(started)
    }

    /// Starts to record one connection over stdio in a cassette of its own.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn of_connection(cassette: OpenedCassette) -> Result<Self, CassetteError> {
        let (server, path) = (cassette.target.server.clone(), cassette.target.cassette.clone());
        Self::start(vec![server], RecordSink::File(Box::new(cassette)), None)
            .map_err(|source| CassetteError::Io { path, source })
    }

    fn start(servers: Vec<String>, records: RecordSink, player: Option<Arc<CassettePlayer>>) -> io::Result<Self> {
        let began = Instant::now();
        let sink = McpSink::new(servers, records, (OffsetDateTime::now_utc(), began));
        let progress = Arc::new(RecorderProgress::default());
        progress.set_open(true);
        let recorder = Arc::new(Recorder::start(sink, progress)?);
        let (next, gaps) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { recorder, player, began, next, gaps, ended: OnceLock::new() })
    }

    /// The next place in the cassette of a session of the account; `None` where nothing of it is recorded.
    pub fn place(&self, account: &str) -> Option<RecordPlace> {
        self.player.as_ref()?.place_in(account)
    }

    /// Whether messages of a session of the account are recorded or compared.
    pub fn observes(&self, account: &str) -> bool {
        self.player.as_ref().is_some_and(|player| player.observes_mcp(account))
    }

    /// Begins an exchange of a session of the account, with a server, at this place; without a body where it was too large.
    pub fn begin(
        self: &Arc<Self>,
        (account, server): (&str, usize),
        parts: &Parts,
        body: Option<Bytes>,
        place: Option<RecordPlace>,
    ) -> ExchangeObserver {
        let request = ClientRequest {
            account: account.into(),
            server,
            method: parts.method.clone(),
            session: session_of(&parts.headers),
            body,
            place: place.filter(|_| parts.method == Method::POST),
        };
        self.observe(TrafficStep::Request(Box::new(request)))
    }

    /// Begins to copy what a side sends over stdio.
    pub fn side(self: &Arc<Self>, sender: Sender) -> ExchangeObserver {
        self.observe(TrafficStep::Side(sender))
    }

    fn observe(self: &Arc<Self>, step: TrafficStep) -> ExchangeObserver {
        let number = self.next.fetch_add(1, Relaxed);
        let mut observer =
            ExchangeObserver { recorder: Some(Arc::clone(self)), number, has_ended: false, lacks: false };
        observer.submit(step);
        observer
    }

    /// Begins to copy the lines of a process of a server, for a session of the account; `None` where nothing of it is recorded.
    pub fn process(self: &Arc<Self>, (account, server): (&str, usize)) -> Option<ProcessObserver> {
        let key = || StreamKey { account: account.into(), of: Of::Process(self.next.fetch_add(1, Relaxed)) };
        self.observes(account).then(|| ProcessObserver { recorder: Arc::clone(self), key: key(), server })
    }

    /// Ends the recording; blocks until everything was handed over. `None` where answers are compared and not recorded, or nothing came.
    pub fn finish(&self) -> Option<McpRecorded> {
        let ended = self.recorder.finish().ok().flatten().and_then(Result::ok);
        let mut recorded = self.ended.get_or_init(|| ended.unwrap_or_default()).clone();
        recorded.gaps += self.gaps.load(Relaxed);
        let is_recording = recorded.records > 0 || self.player.as_ref().is_some_and(|player| player.is_recording());
        (is_recording && self.next.load(Relaxed) > 0).then_some(recorded)
    }

    /// Ends the recording of a connection; returns when its cassette is written, which has this path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn finish_connection(self: Arc<Self>, path: PathBuf) -> Result<McpRecorded, CassetteError> {
        let io = |error: Box<dyn Error + Send + Sync>| CassetteError::Io { path, source: io::Error::other(error) };
        let finish = move || -> Result<_, RecorderError> {
            let ended = self.recorder.finish()?.unwrap_or_else(|| Ok(McpRecorded::default()));
            Ok(ended.map(|ended| McpRecorded { gaps: ended.gaps + self.gaps.load(Relaxed), ..ended }))
        };
        match tokio::task::spawn_blocking(finish).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(error)) => Err(io(error.into())),
            Err(error) => Err(io(error.into())),
        }
    }

    fn submit(&self, number: u64, step: TrafficStep) -> bool {
        let at = self.began.elapsed().as_secs_f64() * 1e3;
        self.recorder.submit(ExchangeStep { number, at, step }).is_ok()
    }
}

fn session_of(headers: &HeaderMap) -> Option<Box<str>> {
    headers.get(SESSION).and_then(|session| session.to_str().ok()).map(Into::into)
}
