//! An MCP server over stdio that answers from a cassette: lines in, lines out.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep, sleep_until},
};

use replay::mcp::{LineSplitter, MOST_BYTES, McpSession, ReadLine, SessionStep};

/// Bytes that are read at once.
const AT_ONCE: usize = 64 << 10;

/// Farthest deadline, where there is none.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// Pause between the messages of one record: some clients drop progress that is read together with its answer.
pub(super) const PAUSE: Duration = Duration::from_millis(3);

/// Pauses because of one message of the client.
pub(super) const MOST_PAUSES: u64 = 50;

/// Reason for the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpEnd {
    /// The client closed it, or the program is to end.
    Closed,
    /// The recorded server ended here.
    AsRecorded,
}

/// Failure of standard input or output.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client's messages cannot be read.
    #[error("cannot read stdin: {0}")]
    Read(#[source] io::Error),
    /// Answers cannot be written.
    #[error("cannot write stdout: {0}")]
    Write(#[source] io::Error),
}

/// Answers a client until it closes its end, or the shutdown.
///
/// # Errors
/// When the client's messages cannot be read, or answers not be written. A client that takes none any more has closed the connection.
pub async fn play_stdio(
    session: &mut McpSession,
    mut input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    shutdown: impl Future<Output = ()>,
) -> Result<McpEnd, StdioError> {
    let (began, mut lines, mut buffer) = (Instant::now(), LineSplitter::new(MOST_BYTES), vec![0; AT_ONCE]);
    tokio::pin!(shutdown);
    loop {
        let deadline = began + session.next_deadline().unwrap_or(NEVER);
        let steps = tokio::select! {
            read = input.read(&mut buffer) => {
                let count = read.map_err(StdioError::Read)?;
                let bytes = buffer.get(..count).unwrap_or_default();
                let read_lines = if count == 0 { lines.finish().into_iter().collect() } else { lines.push(bytes) };
                let ended = answer(session, read_lines, began.elapsed(), &mut output).await?;
                match ended {
                    Some(end) => return Ok(end),
                    None if count == 0 => return Ok(McpEnd::Closed),
                    None => continue,
                }
            }
            () = sleep_until(deadline) => session.expire(began.elapsed()),
            () = &mut shutdown => return Ok(McpEnd::Closed),
        };
        if let Some(end) = send(steps, &mut output).await? {
            return Ok(end);
        }
    }
}

/// Answers lines one by one; gives the end, where it came to one.
async fn answer(
    session: &mut McpSession,
    read_lines: Vec<ReadLine>,
    now: Duration,
    output: &mut (impl AsyncWrite + Unpin),
) -> Result<Option<McpEnd>, StdioError> {
    for read_line in read_lines {
        let steps = match read_line {
            ReadLine::Line(line) => session.line(&line, now),
            ReadLine::Lost => session.lost(),
        };
        if let Some(end) = send(steps, output).await? {
            return Ok(Some(end));
        }
    }
    Ok(None)
}

async fn send(steps: Vec<SessionStep>, output: &mut (impl AsyncWrite + Unpin)) -> Result<Option<McpEnd>, StdioError> {
    for (at, step) in (0_u64..).zip(steps) {
        let sent = match step {
            SessionStep::Send(sent) => sent,
            // Nothing is forwarded over stdio.
            SessionStep::Done(_) | SessionStep::Forward(_) => continue,
            SessionStep::End => return Ok(Some(McpEnd::AsRecorded)),
        };
        if (1..MOST_PAUSES).contains(&at) {
            sleep(PAUSE).await;
        }
        let line = sent.message.to_string() + "\n";
        let written = output.write_all(line.as_bytes()).await;
        match if written.is_ok() { output.flush().await } else { written } {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Some(McpEnd::Closed)),
            Err(error) => return Err(StdioError::Write(error)),
        }
    }
    Ok(None)
}
