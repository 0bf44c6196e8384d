//! The tap of an MCP server over stdio: the client's bytes go to the server and the server's to the client, unchanged, and a copy of
//! both to the recorder.
//!
//! A copy is handed over before its bytes go on, so that a request is known before its answer comes. Splitting, parsing,
//! redaction and writing are work of the recorder's thread (`McpSink`); what does not fit into its queue is lost for the
//! recording and counted, never waited for.
//!
//! The server's errors (stderr) are not touched. The end of the client's input is passed on; the tap ends when the server has ended, with
//! its exit code.

mod sink;

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use time::OffsetDateTime;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    process::{Child, Command},
    time::{Instant, timeout},
};

use self::sink::{Chunk, Copied, McpSink};
use crate::{
    recording::cassette::{CassetteError, CassetteWriter, Header, WriteMode},
    recording::recorder::{Progress, Recorder},
    recording::redaction::Rules,
    replay::mcp::{Sender, Unrecorded},
};

/// Bytes that are read at once.
const AT_ONCE: usize = 64 << 10;

/// Longest wait for the rest of the output of a server that has ended: its own children may keep it open.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// Longest wait for a server that was asked to end.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A server to record.
#[derive(Debug)]
pub struct StdioTap {
    /// The server's name in the cassette.
    pub server: String,
    /// The command that starts it.
    pub command: Vec<OsString>,
    /// The cassette.
    pub cassette: PathBuf,
    /// Top of a cassette that is written anew.
    pub header: Header,
    /// Treatment of a cassette that is there.
    pub mode: WriteMode,
    /// What counts as a secret.
    pub secrets: Rules,
}

/// Reason for which a server cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum McpTapError {
    /// The cassette cannot be written.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The server cannot be started.
    #[error("cannot run {command}")]
    Command {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
}

/// What a tap came to.
#[derive(Debug)]
pub struct McpTapEnd {
    /// The server's exit code, as a shell shows it.
    pub code: u8,
    /// What was recorded.
    pub recorded: Result<McpRecorded, CassetteError>,
}

/// Counts of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct McpRecorded {
    /// Messages of the client that became records.
    pub records: u64,
    /// Exchanges that took too much work to search them for secrets.
    pub unsearched: u64,
    /// Stretches of bytes that did not fit into the recorder's queue.
    pub gaps: u64,
    /// What could not be recorded for other reasons.
    pub unrecorded: Unrecorded,
}

impl StdioTap {
    /// Starts the server and passes everything on until it has ended, or is ended because of the shutdown.
    ///
    /// # Errors
    /// When the cassette cannot be written, or the server not be started.
    pub async fn run<I, O>(
        self,
        input: I,
        output: O,
        shutdown: impl Future<Output = ()>,
    ) -> Result<McpTapEnd, McpTapError>
    where
        I: AsyncRead + Send + Unpin + 'static,
        O: AsyncWrite + Send + Unpin + 'static,
    {
        let Self { server, command, cassette, header, mode, secrets } = self;
        let writer = CassetteWriter::create(&cassette, &header, mode)?;
        let mut child = start(&command)?;
        let progress = Arc::new(Progress::default());
        progress.set_open(true);
        let sink = McpSink::new(writer, &server, secrets, OffsetDateTime::now_utc());
        let io = |source| CassetteError::Io { path: cassette.clone(), source };
        let recorder = Arc::new(Recorder::start(sink, progress).map_err(io)?);
        let began = Instant::now();
        let copy = |sender| Copies { sender, began, recorder: Arc::clone(&recorder), lacks: false };
        let to_server = child.stdin.take().map(|stdin| tokio::spawn(pass(input, stdin, copy(Sender::Client))));
        let to_client = child.stdout.take().map(|stdout| tokio::spawn(pass(stdout, output, copy(Sender::Server))));
        let status = until_ended(&mut child, shutdown).await;
        if let Some(to_client) = to_client {
            let _cut = timeout(REST_WITHIN, to_client).await;
        }
        to_server.iter().for_each(tokio::task::JoinHandle::abort);
        let ending = tokio::task::spawn_blocking(move || recorder.finish()).await;
        let recorded = match ending {
            Ok(Ok(ending)) => ending.unwrap_or(Ok(McpRecorded::default())),
            Ok(Err(error)) => Err(io(io::Error::other(error))),
            Err(error) => Err(io(io::Error::other(error))),
        };
        Ok(McpTapEnd { code: code(&status), recorded })
    }
}

fn start(command: &[OsString]) -> Result<Child, McpTapError> {
    let no_command = || McpTapError::Command { command: String::new(), source: io::ErrorKind::InvalidInput.into() };
    let (program, arguments) = command.split_first().ok_or_else(no_command)?;
    let mut child = Command::new(program);
    child.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let command = program.to_string_lossy().into_owned();
    child.spawn().map_err(|source| McpTapError::Command { command, source })
}

/// Waits until a server ends, or ends it.
async fn until_ended(child: &mut Child, shutdown: impl Future<Output = ()>) -> io::Result<ExitStatus> {
    tokio::select! {
        ended = child.wait() => return ended,
        () = shutdown => {}
    }
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(id) = id {
        let _gone = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    if let Ok(ended) = timeout(END_WITHIN, child.wait()).await {
        return ended;
    }
    child.kill().await?;
    child.wait().await
}

/// The exit code that a shell would show.
fn code(status: &io::Result<ExitStatus>) -> u8 {
    let Ok(status) = status else { return 1 };
    let signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Copies of what one side sends.
struct Copies {
    sender: Sender,
    began: Instant,
    recorder: Arc<Recorder<McpSink>>,
    /// Bytes were refused, and the sink does not know it yet.
    lacks: bool,
}

impl Copies {
    fn submit(&mut self, content: Copied) {
        let at = self.began.elapsed().as_secs_f64() * 1e3;
        if self.lacks {
            self.lacks = self.recorder.submit(Chunk { sender: self.sender, at, content: Copied::Lost }).is_err();
        }
        self.lacks |= self.recorder.submit(Chunk { sender: self.sender, at, content }).is_err();
    }
}

/// Passes bytes on until there are no more; what the other side does not take any more is recorded still.
async fn pass(mut from: impl AsyncRead + Unpin, to: impl AsyncWrite + Unpin, mut copies: Copies) {
    let (mut to, mut buffer) = (Some(to), vec![0; AT_ONCE]);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = buffer.get(..count).unwrap_or_default();
        copies.submit(Copied::Bytes(bytes.into()));
        let Some(open) = &mut to else { continue };
        if open.write_all(bytes).await.is_err() || open.flush().await.is_err() {
            if copies.sender == Sender::Client {
                break;
            }
            to = None;
        }
    }
    copies.submit(Copied::End);
    // A server sees the end of its input by this.
    if let Some(mut open) = to {
        let _gone = open.shutdown().await;
    }
}
