//! The sink of an MCP tap: cuts the copied bytes into lines, puts them together to records, redacts and writes these.
//!
//! What is not whole yet is at the end of the partial file all the same, twice a second, so that a client that kills the tap loses
//! nothing that is older.

use std::panic::{AssertUnwindSafe, catch_unwind};

use time::OffsetDateTime;

use super::McpRecorded;
use base::rate_limited_log::RateLimitedLog;
use recording::{
    cassette::{CassetteError, CassetteWriter, RecordedExchange},
    recorder::Sink,
    redaction::Rules,
};
use replay::{
    mcp::{Lines, MOST_BYTES, Observer, Passed, ReadLine, Sender},
    player::redact_exchange,
};

/// Bytes that an item holds besides its own.
const EACH: usize = 64;

/// Bytes of exchanges that have not ended, up to which they are written all the same.
const MOST_UNFINISHED: usize = 1 << 20;

/// Something that one side sent.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) sender: Sender,
    /// Milliseconds from the beginning.
    pub(super) at: f64,
    pub(super) content: Copied,
}

/// Copy of a part of a stream.
#[derive(Debug)]
pub(super) enum Copied {
    Bytes(Box<[u8]>),
    /// Bytes are missing here.
    Lost,
    /// There are no more.
    End,
}

/// Writer of one connection.
#[derive(Debug)]
pub(super) struct McpSink {
    writer: CassetteWriter,
    secrets: Rules,
    observer: Observer,
    of_client: Lines,
    of_server: Lines,
    /// The side that ended first.
    left: Option<Sender>,
    /// Something came since the partial file was written.
    has_news: bool,
    recorded: McpRecorded,
    failing: RateLimitedLog,
}

impl McpSink {
    pub(super) fn new(writer: CassetteWriter, server: &str, secrets: Rules, began: OffsetDateTime) -> Self {
        Self {
            writer,
            secrets,
            observer: Observer::new(server, began),
            of_client: Lines::new(MOST_BYTES),
            of_server: Lines::new(MOST_BYTES),
            left: None,
            has_news: false,
            recorded: McpRecorded::default(),
            failing: RateLimitedLog::default(),
        }
    }

    fn lines(&mut self, sender: Sender) -> &mut Lines {
        match sender {
            Sender::Client => &mut self.of_client,
            Sender::Server => &mut self.of_server,
        }
    }

    fn take(&mut self, Chunk { sender, at, content }: Chunk) {
        let read_lines = match content {
            Copied::Bytes(bytes) => self.lines(sender).push(&bytes),
            Copied::Lost => {
                self.recorded.gaps += 1;
                self.lines(sender).lose();
                Vec::new()
            }
            Copied::End => {
                self.left.get_or_insert(sender);
                self.lines(sender).finish().into_iter().collect()
            }
        };
        for read_line in read_lines {
            match read_line {
                ReadLine::Line(line) => {
                    self.observer.line(Passed { sender, http_exchange: None, at }, &line);
                }
                ReadLine::Lost => self.observer.lost(),
            }
            for made in self.observer.take() {
                self.write(made.exchange);
            }
        }
    }

    fn write(&mut self, mut exchange: RecordedExchange) {
        if redact_exchange(&self.secrets, &mut exchange) {
            self.writer.add(exchange);
            self.recorded.records += 1;
        } else {
            tracing::warn!("an exchange is not recorded: to search it for secrets would take too much work");
            self.recorded.unsearched += 1;
        }
    }
}

impl Sink for McpSink {
    type Item = Chunk;
    type Ending = Result<McpRecorded, CassetteError>;

    fn weight(chunk: &Chunk) -> usize {
        EACH + match &chunk.content {
            Copied::Bytes(bytes) => bytes.len(),
            Copied::Lost | Copied::End => 0,
        }
    }

    fn record(&mut self, chunk: Chunk) {
        self.has_news = true;
        if catch_unwind(AssertUnwindSafe(|| self.take(chunk))).is_err() {
            tracing::error!("a message could not be recorded; please report this");
            self.observer.lost();
        }
    }

    fn flush(&mut self) {
        if !std::mem::take(&mut self.has_news) && self.writer.is_intact() {
            return;
        }
        // Much that waits is not searched again and again.
        let is_little = self.observer.waiting() <= MOST_UNFINISHED;
        let mut open = if is_little { self.observer.unfinished() } else { Vec::new() };
        open.retain_mut(|made| redact_exchange(&self.secrets, &mut made.exchange));
        if let Err(error) = self.writer.flush_with(open.iter().map(|made| &made.exchange))
            && self.failing.due().is_some()
        {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(cause, "{error}: messages pass, what was recorded waits to be written");
        }
    }

    fn finish(mut self) -> Result<McpRecorded, CassetteError> {
        for made in self.observer.finish(self.left.unwrap_or(Sender::Client)) {
            self.write(made.exchange);
        }
        self.recorded.unrecorded = self.observer.unrecorded();
        self.writer.finish()?;
        Ok(self.recorded)
    }
}
