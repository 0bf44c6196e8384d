//! The tap of an MCP server over HTTP for a client over stdio: each line of the client is posted, each message of the server is a line.
//!
//! Requests run side by side; notifications and replies are posted one after the other. A session of the legacy era is kept: its header,
//! the negotiated version, the stream of what belongs to no request, which is opened again where it ended, and its end. In the modern
//! era the headers repeat parts of the message, and a cancelled request is a stream that is closed.
//!
//! What a server refuses by HTTP, and a request that does not reach it, becomes an error with the request's id, which is not recorded: it is not the
//! server's. The server's messages are recorded as they pass through stdio.
//!
//! See docs/decisions/0095-the-bridge-records-lines.md and docs/decisions/0147-a-proxys-error-is-no-answer.md.

mod headers;
pub(super) mod message;
mod post;
mod streams;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc::{Receiver, channel},
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use self::{
    message::OutgoingMessage,
    post::{ClientLine, Post},
};
use super::{AT_ONCE, McpTapEnd, McpTapError, RecordingTarget};
use net::upstream::{BodyObserver, EndpointUrl, Upstream, UpstreamOptions};
use replay::mcp::{LineSplitter, MOST_BYTES, ReadLine, Sender};
use replay::mcp_traffic::{ExchangeEnd, ExchangeObserver, McpRecorder};

/// Lines of the server that wait for the client.
const MOST_LINES: usize = 64;

/// Longest wait for answers after the client has closed its end.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// Longest wait for the end of a session.
const END_WITHIN: Duration = Duration::from_secs(2);

/// A server to call over HTTP and record.
#[derive(Debug)]
pub struct UrlTap {
    /// Its URL.
    pub url: EndpointUrl,
    /// Headers that every request to it gets; they are not recorded.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How it is reached.
    pub reach: UpstreamOptions,
    /// Where it is recorded.
    pub target: RecordingTarget,
}

/// Requests that run, by their ids as JSON.
type RunningRequests = HashMap<String, AbortHandle>;

impl UrlTap {
    /// Passes everything on until the client closes its end, or the shutdown.
    ///
    /// # Errors
    /// When the cassette cannot be written.
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
        let Self { url, headers, reach, target } = self;
        let cassette = target.cassette.clone();
        let recorder = Arc::new(McpRecorder::of_connection(target.open()?)?);
        let (send, lines) = channel(MOST_LINES);
        let upstream = Upstream::new(url.origin().clone(), &reach);
        let writing = tokio::spawn(write(lines, output, recorder.side(Sender::Server)));
        let bridge = Bridge { post: Arc::new(Post::new(upstream, &url, headers, send)), tasks: JoinSet::new() };
        bridge.run(input, recorder.side(Sender::Client), shutdown).await;
        let _written = writing.await;
        Ok(McpTapEnd { code: 0, recorded: recorder.finish_connection(cassette).await })
    }
}

struct Bridge {
    post: Arc<Post>,
    /// Everything that runs beside the client's input.
    tasks: JoinSet<()>,
}

impl Bridge {
    async fn run(
        mut self,
        input: impl AsyncRead + Unpin,
        observer: ExchangeObserver,
        shutdown: impl Future<Output = ()>,
    ) {
        tokio::pin!(shutdown);
        let is_asked_to_end = tokio::select! {
            () = self.pass(input, observer) => false,
            () = &mut shutdown => true,
        };
        if !is_asked_to_end {
            self.post.close();
            tokio::select! {
                () = async { while self.tasks.join_next().await.is_some() {} } => {}
                () = tokio::time::sleep(REST_WITHIN) => {}
                () = shutdown => {}
            }
        }
        self.tasks.shutdown().await;
        let _unanswered = timeout(END_WITHIN, self.post.delete()).await;
    }

    /// Takes the client's lines until there are no more.
    async fn pass(&mut self, mut input: impl AsyncRead + Unpin, mut observer: ExchangeObserver) {
        let (mut lines, mut buffer, mut running) =
            (LineSplitter::new(MOST_BYTES), vec![0; AT_ONCE], RunningRequests::new());
        loop {
            let count = input.read(&mut buffer).await.unwrap_or_default();
            let bytes = buffer.get(..count).unwrap_or_default();
            let read_lines = if count == 0 { lines.finish().into_iter().collect() } else { lines.push(bytes) };
            match count {
                0 => observer.ended(ExchangeEnd::Whole),
                _ => observer.data(&Bytes::copy_from_slice(bytes)),
            }
            for read_line in read_lines {
                match read_line {
                    ReadLine::Line(line) => self.message(line, &mut running).await,
                    ReadLine::Lost => tracing::warn!("a message of the client is too large and is not passed on"),
                }
            }
            if count == 0 {
                return;
            }
        }
    }

    async fn message(&mut self, line: Vec<u8>, running: &mut RunningRequests) {
        running.retain(|_, task| !task.is_finished());
        let Some(outgoing) = OutgoingMessage::read(line) else {
            tracing::warn!("a line of the client is no message and is not passed on");
            return;
        };
        if let Some(id) = outgoing.cancelled()
            && let Some(task) = running.remove(&id)
            && self.post.is_modern(&outgoing)
        {
            return task.abort();
        }
        let post = Arc::clone(&self.post);
        match outgoing.id.clone().filter(|_| !outgoing.opens_session()) {
            // What comes next needs its session, or follows from it.
            None => {
                let opens = outgoing.method.as_deref() == Some("notifications/initialized");
                post.send(outgoing).await;
                if opens {
                    let post = Arc::clone(&self.post);
                    self.tasks.spawn(async move { post.listen().await });
                }
            }
            Some(id) => {
                // Its stream would never end by itself.
                let is_endless = outgoing.method.as_deref() == Some("subscriptions/listen");
                let task = self.tasks.spawn(async move {
                    tokio::select! {
                        () = post.send(outgoing) => {}
                        () = post.until_closed(), if is_endless => {}
                    }
                });
                running.insert(id, task);
            }
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

async fn write(mut lines: Receiver<ClientLine>, mut output: impl AsyncWrite + Unpin, mut observer: ExchangeObserver) {
    let mut is_open = true;
    while let Some(line) = lines.recv().await {
        let ClientLine { bytes, is_own } = line;
        let line = Bytes::from(bytes);
        if is_own {
            observer.unanswered(&line)
        } else {
            observer.data(&line)
        }
        is_open = is_open && output.write_all(&line).await.is_ok() && output.flush().await.is_ok();
    }
    observer.ended(ExchangeEnd::Whole);
}
