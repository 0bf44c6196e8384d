//! One record as one line, for files that are read again by this program only.

use super::{Record, mend, raw};

/// Spells a record as a line without its end, by itself; what the reader would refuse is left out.
pub(crate) fn to_line(record: &Record, line: &mut Vec<u8>) -> std::io::Result<()> {
    mend::spell(record, None, line).map(drop)
}

/// Reads a line that [`to_line`] spelled; `None` for any that is no record.
pub(crate) fn of_line(line: &[u8]) -> Option<Record> {
    raw::parse(line).ok()?.into_record().ok()
}
