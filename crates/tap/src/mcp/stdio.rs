//! The tap of an MCP server over stdio: the client's bytes go to the server and the server's to the client, unchanged, and a copy of
//! both to the recorder.
//!
//! The server's errors (stderr) are not touched. The end of the client's input is passed on; the tap ends when the server has ended, with
//! its exit code.

use std::{ffi::OsString, io, os::unix::process::ExitStatusExt, process::ExitStatus, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    process::Child,
    time::timeout,
};

use super::{AT_ONCE, McpTapEnd, McpTapError, RecordingTarget, spawn};
use net::upstream::BodyObserver;
use replay::mcp::Sender;
use replay::mcp_traffic::{ExchangeEnd, ExchangeObserver, McpRecorder};

/// Longest wait for the rest of the output of a server that has ended: its own children may keep it open.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// Longest wait for a server that was asked to end.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A server to start and record.
#[derive(Debug)]
pub struct StdioTap {
    /// The command that starts it.
    pub command: Vec<OsString>,
    /// Where it is recorded.
    pub target: RecordingTarget,
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
        let Self { command, target } = self;
        let cassette = target.cassette.clone();
        let program = command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
        // Before the cassette, so that nothing is left of a server that cannot be started.
        let mut child = spawn(&command).map_err(|source| McpTapError::Command { command: program, source })?;
        let recorder = Arc::new(McpRecorder::of_connection(target.open()?)?);
        let client = (Sender::Client, recorder.side(Sender::Client));
        let server = (Sender::Server, recorder.side(Sender::Server));
        let to_server = child.stdin.take().map(|stdin| tokio::spawn(pass(input, stdin, client)));
        let to_client = child.stdout.take().map(|stdout| tokio::spawn(pass(stdout, output, server)));
        let status = until_ended(&mut child, shutdown).await;
        if let Some(to_client) = to_client {
            let _cut = timeout(REST_WITHIN, to_client).await;
        }
        if let Some(to_server) = to_server {
            to_server.abort();
            // Its end is recorded before the recorder ends.
            let _aborted = to_server.await;
        }
        Ok(McpTapEnd { code: code(&status), recorded: recorder.finish_connection(cassette).await })
    }
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

/// Passes bytes on until there are no more; what the other side does not take any more is recorded still.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    (sender, mut observer): (Sender, ExchangeObserver),
) {
    let (mut to, mut buffer) = (Some(to), vec![0; AT_ONCE]);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = buffer.get(..count).unwrap_or_default();
        observer.data(&Bytes::copy_from_slice(bytes));
        let Some(open) = &mut to else { continue };
        if open.write_all(bytes).await.is_err() || open.flush().await.is_err() {
            if sender == Sender::Client {
                break;
            }
            to = None;
        }
    }
    observer.ended(ExchangeEnd::Whole);
    // A server sees the end of its input by this.
    if let Some(mut open) = to {
        let _gone = open.shutdown().await;
    }
}
