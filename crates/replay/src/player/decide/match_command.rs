//! The command of `--match exec:COMMAND`: a process that chooses the record of a request. For each request that no stricter way
//! matches, it reads a line of JSON and writes one.
//!
//! Limits: one request is decided at a time; an answer has at most [`LONGEST_ANSWER`] bytes. A command that fails is ended, and begun
//! again for the next request.
//!
//! See docs/decisions/0068-a-command-that-matches.md.

use std::{io, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Mutex, MutexGuard},
    time::timeout,
};

/// Maximum bytes of an answer.
const LONGEST_ANSWER: u64 = 64 << 10;

/// Time that a command has for an answer, its start included.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A command that chooses records. It is started with the first request that needs it.
#[derive(Debug)]
pub struct MatchCommand {
    command: String,
    patience: Duration,
    running: Mutex<Option<RunningCommand>>,
}

/// A command that runs. When it is dropped, the command and what it started are killed.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Failure of a command that is to choose a record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchCommandError {
    #[error("it cannot be started: {0}")]
    Start(io::Error),
    #[error("it ended, or closed its output, without an answer")]
    Ended,
    #[error("it cannot be written to or read from: {0}")]
    Pipe(io::Error),
    #[error("it gave no answer in {0:?}")]
    Slow(Duration),
    #[error("its answer has to be a line with {{\"id\": NUMBER}} or {{\"id\": null}}, not `{0}`")]
    Answer(String),
    #[error("it chose {0}, which is none of the candidates")]
    Unknown(u64),
}

impl MatchCommand {
    /// Makes it of a command line for `sh`, which has this long for each answer.
    #[must_use]
    pub fn new(command: &str, patience: Duration) -> Self {
        Self { command: command.to_owned(), patience, running: Mutex::new(None) }
    }

    /// Ends the command, unless it is deciding a request.
    pub(crate) fn end(&self) {
        if let Ok(mut running) = self.running.try_lock() {
            *running = None;
        }
    }

    /// Waits until no other request is being decided.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Option<RunningCommand>> {
        self.running.lock().await
    }

    /// Sends a request to the command and reads its choice. The command is ended if it fails or if the future is dropped.
    pub(crate) async fn choose(
        &self,
        guard: &mut Option<RunningCommand>,
        request: &Value,
    ) -> Result<Option<u64>, MatchCommandError> {
        let mut running = match guard.take() {
            Some(running) => running,
            None => RunningCommand::start(&self.command).map_err(MatchCommandError::Start)?,
        };
        let slow = |_| MatchCommandError::Slow(self.patience);
        let answer = timeout(self.patience, running.send(request)).await.map_err(slow)??;
        let chosen = read_choice(&answer)?;
        *guard = Some(running);
        Ok(chosen)
    }
}

impl RunningCommand {
    fn start(command: &str) -> io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What it starts is ended with it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let missing = || io::Error::other("it has no pipes");
        let (input, output) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    async fn send(&mut self, request: &Value) -> Result<String, MatchCommandError> {
        let line = request.to_string() + "\n";
        // One that ended has a closed input; the end is the cause, and the error names it.
        let closed = |error: io::Error| match error.kind() {
            io::ErrorKind::BrokenPipe => MatchCommandError::Ended,
            _ => MatchCommandError::Pipe(error),
        };
        self.input.write_all(line.as_bytes()).await.map_err(closed)?;
        self.input.flush().await.map_err(closed)?;
        let mut answer = String::new();
        let mut output = (&mut self.output).take(LONGEST_ANSWER);
        let read = output.read_line(&mut answer).await.map_err(MatchCommandError::Pipe)?;
        if read == 0 { Err(MatchCommandError::Ended) } else { Ok(answer) }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(id) = id {
            let _gone = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
        }
    }
}

/// Reads an answer: `{"id": 3}`, `{"id": null}`, or the number or null alone.
fn read_choice(answer: &str) -> Result<Option<u64>, MatchCommandError> {
    let wrong = || MatchCommandError::Answer(answer.trim().chars().take(100).collect());
    let parsed: Value = serde_json::from_str(answer).map_err(|_| wrong())?;
    match parsed.as_object().map_or(Some(&parsed), |fields| fields.get("id")) {
        Some(Value::Null) => Ok(None),
        Some(id) => id.as_u64().map(Some).ok_or_else(wrong),
        None => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn choose(command: &MatchCommand) -> Result<Option<u64>, String> {
        let mut guard = command.lock().await;
        command.choose(&mut guard, &json!({"request": {}})).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn one_command_answers_many_requests() {
        let counting =
            MatchCommand::new("n=0; while read -r line; do echo \"{\\\"id\\\": $n}\"; n=$((n+1)); done", PATIENCE);
        for number in 0..3 {
            assert_eq!(choose(&counting).await, Ok(Some(number)));
        }
        let none = MatchCommand::new("while read -r line; do echo null; done", PATIENCE);
        assert_eq!(choose(&none).await, Ok(None));
    }

    #[tokio::test]
    async fn failures_are_named_and_the_command_is_begun_again() {
        for (line, part) in [
            ("exit 3", "it ended"),
            ("read -r line; echo what", "not `what`"),
            ("read -r line; echo '{\"record\": 1}'", "has to be a line with"),
            ("read -r line; echo -1", "not `-1`"),
        ] {
            let command = MatchCommand::new(line, PATIENCE);
            for _ in 0..2 {
                let error = choose(&command).await.unwrap_err();
                assert!(error.contains(part), "{line}: {error}");
            }
        }
        let slow = MatchCommand::new("sleep 1000", Duration::from_millis(50));
        assert_eq!(choose(&slow).await, Err("it gave no answer in 50ms".to_owned()));
    }
}
