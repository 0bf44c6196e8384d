//! Reading a trace, record by record or whole.

use std::path::Path;
use std::sync::Arc;

use super::error::Warning;
use super::source::Lines;
use super::walk::Walk;
use super::{BadLines, End, Meta, Record, TraceError};

/// A whole trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The first line; all defaults where the file has none.
    pub meta: Meta,
    /// The records in file order; see [`replay_order`](super::replay_order).
    pub records: Vec<Record>,
    /// The closing line; `None` in public files and in captures that were cut.
    pub end: Option<End>,
    /// Notes for the reader.
    pub warnings: Vec<Warning>,
}

/// Reads a whole trace; `-` is standard input. Every complete record of a cut file is kept, with a warning.
///
/// ```
/// use std::path::Path;
/// use vllm_vcr_recording::trace::read;
///
/// let trace = read(Path::new("../../traces/builtin.jsonl.gz"))?;
/// let tokens: u32 = trace.records.iter().map(|record| record.output_tokens).sum();
/// assert!(tokens > 0, "{} records", trace.records.len());
/// # Ok::<(), vllm_vcr_recording::trace::TraceError>(())
/// ```
///
/// # Errors
/// [`TraceError`], for the first thing that is wrong; it names the file and the line.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    collect(Reader::open(path)?)
}

/// Reads a trace that is in memory, such as one compiled into the binary; gzip is recognised by its magic number. `name`
/// stands for the file in messages.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    collect(Reader::from_bytes(name, bytes)?)
}

fn collect(mut reader: Reader) -> Result<Trace, TraceError> {
    let mut records = Vec::new();
    for record in &mut reader {
        records.push(record?.1);
    }
    let Walk { meta, end, warnings, .. } = reader.0;
    Ok(Trace { meta, records, end, warnings })
}

/// A trace that is read record by record: an iterator over line numbers (from 1) and records.
///
/// After a line's defect the iterator goes on with the next line; after damage or an I/O error it is over. Warnings
/// and the end line are complete once the iterator is.
pub struct Reader(Walk<Record>);

impl Reader {
    /// Opens a trace and reads its meta; `-` is standard input.
    ///
    /// # Errors
    /// When the file cannot be opened, its name and content disagree, or its first line is defective.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Walk::start(Lines::open(path, Arc::default())?).map(Self)
    }

    /// As [`open`](Reader::open), over bytes; `name` stands for the file in messages.
    ///
    /// # Errors
    /// When the first line is defective.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, TraceError> {
        Walk::start(Lines::of_bytes(name, bytes.to_vec())?).map(Self)
    }

    /// The next record with its line (from 1), `None` at the end. Unlike the iterator it passes over lines that break a
    /// rule; they are noted in `bad`.
    ///
    /// # Errors
    /// Damage, or an I/O error.
    pub fn next_sound(&mut self, bad: &mut BadLines) -> Result<Option<(u64, Record)>, TraceError> {
        loop {
            match self.0.next_sound(bad)? {
                Some((line, Some(record))) => return Ok(Some((line, record))),
                Some((_, None)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The trace's first line.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// The closing line, once it was reached.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.0.end.as_ref()
    }

    /// Notes for the reader, complete once the iterator is over.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.0.warnings
    }
}

impl Iterator for Reader {
    type Item = Result<(u64, Record), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}
