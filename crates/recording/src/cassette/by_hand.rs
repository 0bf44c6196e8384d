//! Hand-written records of a file that is recorded again: they stay as a person wrote them, and no recorded request stands for them.
//!
//! See docs/decisions/0083-hand-written-records.md.

use std::path::Path;

use super::{load, record::Record};

/// Those of a file, with numbers from `next` on; none where it cannot be read.
pub(super) fn of_file(path: &Path, next: u64) -> Vec<Record> {
    load(path).map(|old| numbered(&old.records, next)).unwrap_or_default()
}

/// The hand-written ones of these records, with numbers from `next` on.
pub(super) fn numbered(old: &[Record], next: u64) -> Vec<Record> {
    let by_hand = old.iter().filter(|record| record.is_fixture);
    by_hand.zip(next..).map(|(record, id)| Record { id, ..record.clone() }).collect()
}
