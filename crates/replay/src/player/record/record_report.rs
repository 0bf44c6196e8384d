//! What was recorded, and what was not and why.

mod redacted;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    },
};

use self::redacted::RedactedCounts;

/// Counts of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordReport {
    /// New records.
    pub recorded: usize,
    /// Those of them that are messages to MCP servers.
    pub of_mcp: usize,
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
    /// Exchanges that are missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.queue_full + self.queue_bytes + self.unreadable + self.unsearched + self.broken
    }

    /// Returns true if there were exchanges to record and none of them was.
    #[must_use]
    pub fn lost_all(&self) -> bool {
        self.not_written.is_some() && self.missing() + self.skipped + self.unanswered > 0
    }
}

/// Counters of a recorder.
#[derive(Debug, Default)]
pub(in crate::player) struct RecordCounts {
    pub(in crate::player) recorded: AtomicUsize,
    pub(in crate::player) of_mcp: AtomicUsize,
    pub(in crate::player) skipped: AtomicU64,
    pub(in crate::player) unreadable: AtomicU64,
    pub(in crate::player) unsearched: AtomicU64,
    pub(in crate::player) broken: AtomicU64,
    pub(in crate::player) partial: AtomicU64,
    pub(in crate::player) redacted: RedactedCounts,
    pub(in crate::player) unanswered: AtomicU64,
    pub(in crate::player) unanswered_why: OnceLock<String>,
    /// The sink ended without a file.
    pub(in crate::player) is_not_written: AtomicBool,
}
