//! The cassette of one connection over stdio.
//!
//! What is not whole yet is at the end of the partial file all the same, twice a second, so that a client that kills the tap loses
//! nothing that is older.

use std::{collections::BTreeMap, error::Error, path::PathBuf, sync::Arc};

use crate::{
    matching::requests::RequestConsumption,
    mcp::{FinishedExchange, ParamRules, RecordIndex, is_by_method, is_list},
    player::{RecordCounts, redact_exchange, redact_named},
};
use base::rate_limited_log::RateLimitedLog;
use recording::{
    canonical::CanonicalRules,
    cassette::{CassetteError, CassetteRecord, CassetteWriter, Header, RecordedExchange, WriteMode, load},
    mcp::McpRecord,
    redaction::{NamedValues, RedactionRules},
};

/// Target of a connection's recording.
#[derive(Debug)]
pub struct RecordingTarget {
    /// The server's name in the cassette.
    pub server: String,
    /// The cassette.
    pub cassette: PathBuf,
    /// Top of a cassette that is rewritten.
    pub header: Header,
    /// Treatment of a cassette that is there.
    pub mode: WriteMode,
    /// What counts as a secret.
    pub secrets: RedactionRules,
}

impl RecordingTarget {
    /// Opens the cassette.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(self) -> Result<OpenedCassette, CassetteError> {
        let known = (self.mode == WriteMode::Append && self.cassette.exists()).then(|| self.known()).transpose()?;
        let writer = CassetteWriter::create(&self.cassette, &self.header, self.mode)?;
        let (named, failing) = (NamedValues::default(), RateLimitedLog::default());
        let counts = RecordCounts::default();
        Ok(OpenedCassette { writer, known, target: self, named, counts, has_news: false, failing })
    }

    fn known(&self) -> Result<KnownRecords, CassetteError> {
        let cassette = load(&self.cassette)?;
        let CanonicalRules { ignored, scrubs, .. } = cassette.header.rules();
        let rules = ParamRules { ignored, scrubs, counts_meta: false };
        let mut index = RecordIndex::new(&self.server, rules, self.secrets.clone());
        // A record that is none of MCP answers nothing here.
        drop(index.add((0, ""), &cassette.records));
        Ok(KnownRecords { index, consumption: RequestConsumption::default() })
    }
}

/// Records of a cassette that is added to, which are not recorded again.
#[derive(Debug)]
struct KnownRecords {
    index: RecordIndex,
    consumption: RequestConsumption,
}

impl KnownRecords {
    /// Whether a message is there already: one that was made before, in this connection's order, or any of a handshake or a list.
    fn take(&mut self, record: &CassetteRecord) -> bool {
        let Some(Ok(McpRecord { method, params, .. })) = McpRecord::read(record) else { return false };
        let identity = self.index.identify(&method, &params);
        if is_by_method(&method) || is_list(&method) {
            return !self.index.of_key(identity.key).is_empty();
        }
        let fresh = self.consumption.first_fresh(&self.index.requests, identity.key);
        fresh.into_iter().for_each(|at| self.consumption.add(at, 0));
        fresh.is_some()
    }
}

/// A cassette that is being written.
#[derive(Debug)]
pub struct OpenedCassette {
    writer: CassetteWriter,
    known: Option<KnownRecords>,
    pub(super) target: RecordingTarget,
    /// Secrets that names show in what was written.
    named: NamedValues,
    counts: RecordCounts,
    /// Something came since the partial file was written.
    pub(super) has_news: bool,
    failing: RateLimitedLog,
}

impl OpenedCassette {
    /// Adds an exchange, and returns true, unless it is there; `None` where it took too much work to search it for secrets.
    pub(super) fn add(&mut self, mut exchange: RecordedExchange) -> Option<bool> {
        let Some(seen) = redact_exchange(&self.target.secrets, &mut exchange) else {
            tracing::warn!("an exchange is not recorded: to search it for secrets would take too much work");
            return None;
        };
        if self.known.as_mut().is_some_and(|known| known.take(&exchange.record)) {
            return Some(false);
        }
        self.named.add(&seen);
        self.counts.add_redacted(&seen);
        self.writer.add(exchange);
        Some(true)
    }

    /// Writes what was added, and what has not ended yet.
    pub(super) fn flush(&mut self, unfinished: impl FnOnce() -> Vec<FinishedExchange>) {
        if !std::mem::take(&mut self.has_news) && self.writer.is_intact() {
            return;
        }
        let mut open = unfinished();
        open.retain_mut(|made| redact_exchange(&self.target.secrets, &mut made.exchange).is_some());
        if let Err(error) = self.writer.flush_with(open.iter().map(|made| &made.exchange))
            && self.failing.due().is_some()
        {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(cause, "{error}: messages pass, what was recorded waits to be written");
        }
    }

    /// Writes the cassette; returns the redacted values by kind.
    pub(super) fn finish(mut self) -> Result<BTreeMap<Arc<str>, u64>, CassetteError> {
        if !self.named.is_empty() {
            self.writer.mend(|whole| redact_named(&self.target.secrets, &self.named, whole))?;
        }
        self.writer.finish()?;
        Ok(self.counts.report().redacted)
    }
}
