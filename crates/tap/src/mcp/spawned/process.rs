//! One process of an MCP server over stdio, for one session.

use std::{
    ffi::OsString,
    io,
    process::ExitStatus,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout},
    sync::{
        Notify,
        mpsc::{Receiver, Sender as Queue, channel},
    },
    time::timeout,
};

use super::routes::Routes;
use crate::mcp::{AT_ONCE, as_line, bridge::message::OutgoingMessage, spawn};
use base::lock::Lock;
use replay::mcp::{LineSplitter, MOST_BYTES, ReadLine, Sender};
use replay::mcp_traffic::ProcessObserver;

/// Messages that wait for the server to read them.
const MOST_QUEUED: usize = 64;

/// Longest wait for a server whose input was closed.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A process, as its session sees it.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// The server in messages.
    shown: String,
    /// What the process ended with, once that is known.
    status: OnceLock<ExitStatus>,
    has_answered: AtomicBool,
    /// `None` once it is closed.
    input: Lock<Option<Queue<Vec<u8>>>>,
    routes: Lock<Routes>,
    observer: Option<ProcessObserver>,
    closed: Notify,
}

/// Starts a process; it runs as long as the future is polled.
pub(super) fn start(
    command: &[OsString],
    shown: String,
    observer: Option<ProcessObserver>,
) -> io::Result<(Arc<Process>, impl Future<Output = ()> + Send + use<>)> {
    let mut child = spawn(command)?;
    let (send, lines) = channel(MOST_QUEUED);
    let input = Lock::new(Some(send));
    let process = Arc::new(Process { shown, input, observer, ..Process::default() });
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let running = Arc::clone(&process);
    Ok((process, async move {
        let writing = stdin.map(|stdin| tokio::spawn(write(stdin, lines)));
        if let Some(stdout) = stdout {
            running.read(stdout, &mut child).await;
        }
        writing.iter().for_each(tokio::task::JoinHandle::abort);
        running.ended();
    }))
}

impl Process {
    /// Hands a message over that wants no answer; false where the process has ended.
    pub(super) async fn send(&self, outgoing: OutgoingMessage) -> bool {
        let Some(input) = self.input.lock().clone() else { return false };
        let line = as_line(outgoing.line);
        self.observer.iter().for_each(|observer| observer.line(Sender::Client, &line));
        input.send(line).await.is_ok()
    }

    /// Hands a request over; gives what belongs to it. `None` where the process has ended.
    pub(super) async fn ask(&self, outgoing: OutgoingMessage, takes_events: bool) -> Option<Receiver<Bytes>> {
        let token = outgoing.params.get("_meta").and_then(|meta| meta.get("progressToken")).cloned();
        let messages = self.routes.lock().open(outgoing.id.as_deref().unwrap_or_default(), token, takes_events)?;
        self.send(outgoing).await.then_some(messages)
    }

    /// Gives what belongs to no request.
    pub(super) async fn listen(&self) -> Receiver<Bytes> {
        let (messages, queue, waited) = self.routes.lock().listen();
        // More than fits waits on, for the next listener.
        for message in waited {
            if let Err(full) = queue.try_send(message) {
                self.routes.lock().wait(full.into_inner());
            }
        }
        messages
    }

    /// Closes the input of the process; one that does not end then is killed.
    pub(super) fn close(&self) {
        self.input.lock().take();
        self.closed.notify_one();
    }

    /// Takes the lines of the process until there are no more.
    async fn read(&self, mut stdout: ChildStdout, child: &mut Child) {
        let (mut lines, mut buffer) = (LineSplitter::new(MOST_BYTES), vec![0; AT_ONCE]);
        let reading = async {
            while let Ok(count @ 1..) = stdout.read(&mut buffer).await {
                for read_line in lines.push(buffer.get(..count).unwrap_or_default()) {
                    if let ReadLine::Line(line) = read_line {
                        self.message(line).await;
                    }
                }
            }
        };
        let closing = async {
            self.closed.notified().await;
            tokio::time::sleep(END_WITHIN).await;
        };
        tokio::select! {
            () = reading => {}
            () = closing => {}
        }
        match timeout(END_WITHIN, child.wait()).await {
            Ok(Ok(status)) => drop(self.status.set(status)),
            Ok(Err(_)) => {}
            Err(_) => drop(child.kill().await),
        }
    }

    async fn message(&self, line: Vec<u8>) {
        self.observer.iter().for_each(|observer| observer.line(Sender::Server, &line));
        self.has_answered.store(true, Relaxed);
        let message = match serde_json::from_slice::<Value>(&line) {
            Ok(message) if message.is_object() => message,
            Ok(_) | Err(_) => {
                tracing::debug!("a line of an MCP server is no message");
                return;
            }
        };
        let (line, queue) = (Bytes::from(line), self.routes.lock().of(&message));
        let unsent = match queue {
            Some(queue) => queue.send(line).await.err().map(|unsent| unsent.0),
            None => Some(line),
        };
        // An answer whose client has left goes nowhere else.
        if let Some(line) = unsent.filter(|_| message.get("method").is_some()) {
            self.routes.lock().wait(line);
        }
    }

    fn ended(&self) {
        let was_closed = self.input.lock().take().is_none();
        if !was_closed {
            tracing::warn!("{} ended by itself{}", self.shown, self.status());
        }
        self.observer.iter().for_each(|observer| match was_closed {
            true => observer.end(Some(Sender::Client)),
            false if self.has_answered.load(Relaxed) => observer.end(Some(Sender::Server)),
            // A server that never ran is none that could be replayed.
            false => observer.end(None),
        });
        self.routes.lock().end();
    }

    /// What it ended with, as the end of a sentence; nothing where that is not known.
    pub(super) fn status(&self) -> String {
        self.status.get().map(|status| format!(": {status}")).unwrap_or_default()
    }
}

/// Writes lines to a process until there are no more; then its input is closed.
async fn write(mut stdin: ChildStdin, mut lines: Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}
