//! What is in memory: a whole trace, and the files of a packed one.

use std::path::PathBuf;

use super::{BadLines, CaptureEnd, Meta, Record, Warning, packed::Packed};

/// A whole trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The first line; all defaults where the file has none.
    pub meta: Meta,
    /// The records in file order; see [`replay_order`](super::replay_order).
    pub records: Vec<Record>,
    /// The closing line; `None` in public files and in captures that were cut.
    pub end: Option<CaptureEnd>,
    /// Notes for the reader.
    pub warnings: Vec<Warning>,
}

/// A file of which a [`Store`](super::Store) holds the records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadedFile {
    /// The file; empty for a trace that was in memory.
    pub path: PathBuf,
    /// Number of records.
    pub records: usize,
    /// The highest token id in it.
    pub highest_id: Option<u32>,
    /// Notes for the reader.
    pub warnings: Vec<Warning>,
    /// Lines that break a rule; what they hold is not in the store.
    pub bad_lines: BadLines,
}

impl LoadedFile {
    pub(super) fn count(&mut self, record: &Packed) {
        self.records += 1;
        self.highest_id = self.highest_id.max(record.ids.as_ref().and_then(|ids| ids.iter().copied().max()));
    }
}
