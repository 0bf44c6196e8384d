//! What was recorded, and what was not and why.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

use base::lock::Lock;
use xxhash_rust::xxh3::xxh3_64;

use recording::redaction::SeenSecrets;

/// Counts of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordReport {
    /// New records.
    pub recorded: usize,
    /// Those of them that are messages to MCP servers.
    pub of_mcp: usize,
    /// Records that were dropped with sessions that failed or were not ended.
    pub discarded: usize,
    /// Sessions that have recorded in cassettes of their own; their counts are in the others.
    pub sessions: usize,
    /// Exchanges that were not recorded because of their status.
    pub skipped: u64,
    /// Exchanges dropped because too many waited.
    pub queue_full: u64,
    /// Exchanges dropped because those that waited held too many bytes.
    pub queue_bytes: u64,
    /// Exchanges that were not recorded because their responses were compressed, or too large.
    pub unreadable: u64,
    /// Exchanges that were not recorded because to search them for secrets would have taken too much work.
    pub unsearched: u64,
    /// Exchanges dropped because their records could not be made: a defect of this program.
    pub broken: u64,
    /// Records of responses that are not whole, since their clients left.
    pub partial: u64,
    /// Values that were redacted, by kind.
    pub redacted: BTreeMap<Arc<str>, u64>,
    /// The cassette, where secrets stay in it by choice.
    pub unredacted: Option<PathBuf>,
    /// Requests that the upstream did not answer.
    pub unanswered: u64,
    /// Why it did not answer the first of them.
    pub unanswered_why: Option<String>,
    /// The cassette, where no file was written because it would have held no record.
    pub not_written: Option<PathBuf>,
}

impl RecordReport {
    pub(crate) fn missing(&self) -> u64 {
        self.queue_full + self.queue_bytes + self.unreadable + self.unsearched + self.broken
    }

    /// Returns true if there were exchanges to record and none of them was.
    #[must_use]
    pub fn lost_all(&self) -> bool {
        self.not_written.is_some() && self.missing() + self.skipped + self.unanswered > 0
    }

    /// Warns of a recording without a record.
    pub(crate) fn warn_of_none(&self) {
        let Some(path) = &self.not_written else { return };
        let becomes = if path.exists() { "stays as it was" } else { "is not written" };
        tracing::warn!("nothing was recorded: {} {becomes}", path.display());
    }

    /// Adds a session with a cassette of its own.
    pub(crate) fn add_session(&mut self, session: Self) {
        let not_written = session.not_written.clone().filter(|_| session.lost_all());
        self.add(Self { sessions: 1, not_written, ..session });
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.recorded += other.recorded;
        self.discarded += other.discarded;
        self.sessions += other.sessions;
        self.skipped += other.skipped;
        self.queue_full += other.queue_full;
        self.queue_bytes += other.queue_bytes;
        self.unreadable += other.unreadable;
        self.unsearched += other.unsearched;
        self.broken += other.broken;
        self.partial += other.partial;
        other.redacted.into_iter().for_each(|(kind, count)| *self.redacted.entry(kind).or_default() += count);
        self.unredacted = self.unredacted.take().or(other.unredacted);
        self.unanswered += other.unanswered;
        self.unanswered_why = self.unanswered_why.take().or(other.unanswered_why);
        self.not_written = self.not_written.take().or(other.not_written);
    }
}

/// Maximum number of values of which hashes are held.
const MOST: usize = 1 << 16;

/// Counts of a recorder so far. A redacted value counts once, as long as no more than [`MOST`] are known; beyond that it counts once for
/// each record.
#[derive(Debug, Default)]
pub(crate) struct RecordCounts(Lock<CountedReport>);

#[derive(Debug, Default)]
struct CountedReport {
    report: RecordReport,
    /// Kinds and hashes of redacted values.
    redacted: HashSet<(Arc<str>, u64)>,
    is_discarded: bool,
}

impl RecordCounts {
    pub(crate) fn note(&self, change: impl FnOnce(&mut RecordReport)) {
        change(&mut self.0.lock().report);
    }

    /// Has the recording dropped when it ends.
    pub(crate) fn discard(&self) {
        self.0.lock().is_discarded = true;
    }

    /// Counts what was recorded as dropped, where it is; returns whether it is.
    pub(crate) fn note_discarded(&self) -> bool {
        let CountedReport { report, is_discarded, .. } = &mut *self.0.lock();
        if *is_discarded {
            report.discarded = std::mem::take(&mut report.recorded);
            (report.of_mcp, report.partial, report.redacted) = (0, 0, BTreeMap::new());
        }
        *is_discarded
    }

    pub(crate) fn add_redacted(&self, values: &SeenSecrets) {
        let CountedReport { report, redacted, .. } = &mut *self.0.lock();
        for (placeholder, value) in values.values() {
            let hash = (Arc::clone(&placeholder.kind), xxh3_64(value.as_bytes()));
            let is_known = redacted.contains(&hash);
            if !is_known && redacted.len() < MOST {
                redacted.insert(hash);
            }
            if !is_known {
                *report.redacted.entry(placeholder.kind).or_default() += 1;
            }
        }
    }

    pub(crate) fn report(&self) -> RecordReport {
        self.0.lock().report.clone()
    }
}
