//! The cassette of one connection over stdio.
//!
//! What is not whole yet is at the end of the partial file all the same, twice a second, so that a client that kills the tap loses
//! nothing that is older.

use std::{error::Error, path::PathBuf};

use crate::{
    mcp::FinishedExchange,
    player::{redact_exchange, redact_named},
};
use base::rate_limited_log::RateLimitedLog;
use recording::{
    cassette::{CassetteError, CassetteWriter, Header, RecordedExchange, WriteMode},
    redaction::{NamedValues, Rules},
};

/// Where a connection is recorded.
#[derive(Debug)]
pub struct RecordingTarget {
    /// The server's name in the cassette.
    pub server: String,
    /// The cassette.
    pub cassette: PathBuf,
    /// Top of a cassette that is written anew.
    pub header: Header,
    /// Treatment of a cassette that is there.
    pub mode: WriteMode,
    /// What counts as a secret.
    pub secrets: Rules,
}

impl RecordingTarget {
    /// Opens the cassette.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(self) -> Result<OpenedCassette, CassetteError> {
        let writer = CassetteWriter::create(&self.cassette, &self.header, self.mode)?;
        Ok(OpenedCassette { writer, target: self })
    }
}

/// A cassette that is being written.
#[derive(Debug)]
pub struct OpenedCassette {
    writer: CassetteWriter,
    pub(super) target: RecordingTarget,
}

#[derive(Debug)]
pub(super) struct RecordFile {
    writer: CassetteWriter,
    secrets: Rules,
    /// Secrets that names show in what was written.
    named: NamedValues,
    /// Something came since the partial file was written.
    pub(super) has_news: bool,
    failing: RateLimitedLog,
}

impl From<OpenedCassette> for RecordFile {
    fn from(OpenedCassette { writer, target }: OpenedCassette) -> Self {
        Self {
            writer,
            secrets: target.secrets,
            named: NamedValues::default(),
            has_news: false,
            failing: RateLimitedLog::default(),
        }
    }
}

impl RecordFile {
    /// Adds an exchange; false where it took too much work to search it for secrets.
    pub(super) fn add(&mut self, mut exchange: RecordedExchange) -> bool {
        let Some(seen) = redact_exchange(&self.secrets, &mut exchange) else {
            tracing::warn!("an exchange is not recorded: to search it for secrets would take too much work");
            return false;
        };
        self.named.add(&seen);
        self.writer.add(exchange);
        true
    }

    /// Writes what was added, and what has not ended yet.
    pub(super) fn flush(&mut self, unfinished: impl FnOnce() -> Vec<FinishedExchange>) {
        if !std::mem::take(&mut self.has_news) && self.writer.is_intact() {
            return;
        }
        let mut open = unfinished();
        open.retain_mut(|made| redact_exchange(&self.secrets, &mut made.exchange).is_some());
        if let Err(error) = self.writer.flush_with(open.iter().map(|made| &made.exchange))
            && self.failing.due().is_some()
        {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(cause, "{error}: messages pass, what was recorded waits to be written");
        }
    }

    pub(super) fn finish(mut self) -> Result<(), CassetteError> {
        if !self.named.is_empty() {
            self.writer.mend(|whole| redact_named(&self.secrets, &self.named, whole))?;
        }
        self.writer.finish().map(drop)
    }
}
