//! Reading a trace, record by record or whole, or only for its defects.

use std::{path::Path, sync::Arc};

use super::{
    BadLines, CaptureEnd, Finding, LoadProgress, Meta, Record, Trace, TraceError, Warning, record_reader::RecordReader,
    source::NumberedLines,
};
use crate::redaction::json_has_placeholder;

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
    collect(TraceReader::open(path)?)
}

/// Reads a trace that is in memory, such as one compiled into the binary; gzip is recognised by its magic number. `name`
/// stands for the file in messages.
///
/// # Errors
/// As [`read`].
pub fn read_bytes(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    collect(TraceReader::from_bytes(name, bytes)?)
}

fn collect(mut reader: TraceReader) -> Result<Trace, TraceError> {
    let mut records = Vec::new();
    for record in &mut reader {
        records.push(record?.1);
    }
    let RecordReader { meta, end, warnings, .. } = reader.0;
    Ok(Trace { meta, records, end, warnings })
}

/// A trace that is read record by record: an iterator over line numbers (from 1) and records.
///
/// After a line's defect the iterator goes on with the next line; after damage or an I/O error it is over. Warnings
/// and the end line are complete once the iterator is.
pub struct TraceReader(RecordReader<Record>);

impl TraceReader {
    /// Opens a trace and reads its meta; `-` is standard input.
    ///
    /// # Errors
    /// When the file cannot be opened, its name and content disagree, or its first line is defective.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        RecordReader::start(NumberedLines::open(path, Arc::default())?).map(Self)
    }

    /// As [`open`](TraceReader::open); reading, unpacking and parsing go on in threads of their own, and `progress` follows.
    pub(crate) fn open_ahead(path: &Path, progress: &Arc<LoadProgress>) -> Result<Self, TraceError> {
        progress.next_file();
        RecordReader::start(NumberedLines::open(path, Arc::clone(progress))?)?.ahead().map(Self)
    }

    /// As [`open`](TraceReader::open), over bytes; `name` stands for the file in messages.
    pub(crate) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, TraceError> {
        RecordReader::start(NumberedLines::of_bytes(name, bytes.to_vec())?).map(Self)
    }

    /// The next record with its line (from 1), `None` at the end. Unlike the iterator it skips lines that break a
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
    pub fn end(&self) -> Option<&CaptureEnd> {
        self.0.end.as_ref()
    }

    /// Notes for the reader, complete once the iterator is over.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.0.warnings
    }

    pub(super) fn warn(&mut self, warning: Option<Warning>) {
        self.0.warnings.extend(warning);
    }
}

impl Iterator for TraceReader {
    type Item = Result<(u64, Record), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

/// Defects that are kept; the others are counted.
const NAMED: usize = 1000;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Number of records that are sound.
    pub records: u64,
    /// Number of defects; none for a sound file.
    pub count: u64,
    /// The first thousand, in file order.
    pub findings: Vec<Finding>,
    /// Notes that are no defects, such as that the file was cut.
    pub warnings: Vec<Warning>,
}

/// Reads a whole trace, lists what is wrong with it and counts the rest. That a file was cut is a warning.
///
/// # Errors
/// When the file cannot be read to its end: it cannot be opened, its name and content disagree, or its gzip is damaged.
pub fn check(path: &Path) -> Result<Checked, TraceError> {
    let mut reader = RecordReader::<Record>::begin(NumberedLines::open(path, Arc::default())?)?;
    let (mut findings, mut count, mut records, mut unhashed) = (Vec::new(), 0, 0, 0);
    loop {
        let record = reader.advance()?;
        unhashed += u64::from(record.as_ref().is_some_and(|(_, record)| is_unhashed(record)));
        let has_record = record.is_some();
        records += u64::from(has_record);
        if !has_record && reader.is_settled() {
            break;
        }
        for (line, defect) in reader.defects.drain(..) {
            count += 1;
            if findings.len() < NAMED {
                findings.push(defect.at(line));
            }
        }
    }
    let unhashed = Some(unhashed).filter(|unhashed| *unhashed > 0);
    reader.warnings.extend(unhashed.map(|records| Warning::Unhashed { records }));
    Ok(Checked { records, count, findings, warnings: reader.warnings })
}

/// Returns true if the hashes of its prompt were left out because they would reveal a secret.
fn is_unhashed(record: &Record) -> bool {
    record.prompt_hash.is_none()
        && record.request_key.is_none()
        && record.request.as_ref().is_some_and(json_has_placeholder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_whose_prompt_held_a_secret_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let line = |key: &str, rest: &str| {
            format!(
                r#"{{"prompt_tokens":4,"output_tokens":1,"ttft_ms":1.0,"output_token_ids":[7],"request":{{"prompt":"{key}"}}{rest}}}"#
            )
        };
        let lines =
            [line("[REDACTED:api_key:1]", ""), line("[REDACTED:api_key:1]", r#","prompt_hash":1"#), line("a", "")];
        std::fs::write(&path, lines.map(|line| line + "\n").concat()).unwrap();
        let checked = check(&path).unwrap();
        assert_eq!((checked.count, checked.warnings), (0, vec![Warning::Unhashed { records: 1 }]));
    }

    #[test]
    fn the_first_defects_are_named_and_all_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\n".repeat(5000)).unwrap();
        let checked = check(&path).unwrap();
        assert_eq!((checked.count, checked.findings.len()), (5000, NAMED));
        assert_eq!(checked.findings.last().map(|finding| finding.line), Some(1000));
    }
}
