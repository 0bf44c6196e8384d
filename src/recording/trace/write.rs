//! Writing a trace: line by line, flushed so that a kill loses at most the unflushed tail.
//!
//! A flush of a gzip file ends the gzip member and the next record starts a new one. So after every flush the file is
//! complete for any gunzip, at the cost of some twenty bytes and a fresh dictionary per flush; flush about once a second.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::closing;
use super::create::{CreateMode, claim, is_removed, open};
use super::mend;
use super::shared_prompt::WrittenPrompt;
use super::source::{Packing, is_standard};
use super::{End, Meta, Reader, Record, TraceError};

/// A little less than what is usual: times are digits in no order, of which more work makes little less.
const COMPRESSION: Compression = Compression::new(4);

type Output = BufWriter<Box<dyn Write + Send>>;

enum Sink {
    Plain(Output),
    /// Inside a gzip member.
    Member(Box<GzEncoder<Output>>),
    /// Between gzip members.
    Between(Output),
    /// A failed write took the output with it.
    Broken,
}

/// Writes one trace.
pub struct Writer {
    path: PathBuf,
    sink: Sink,
    line: Vec<u8>,
    records: u64,
    /// Offset added to an appended record's arrival: the duration of the captures before.
    offset: Duration,
    /// Number of records that the captures before this one dropped.
    dropped: u64,
    /// Records that were there before this capture.
    before: u64,
    /// Bytes that reached the file.
    bytes: Arc<AtomicU64>,
    /// Of these, those that the last flush made complete.
    flushed: u64,
    /// The file once more, to be cut; `None` where it is none.
    file: Option<File>,
    /// The first line of a stream, which cannot be taken back: it waits for the first record.
    waiting: Option<Meta>,
    /// The prompt that the next records may share.
    prompt: WrittenPrompt,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("path", &self.path).field("records", &self.records).finish_non_exhaustive()
    }
}

/// Counts what is written through it.
struct Counted<W> {
    output: W,
    bytes: Arc<AtomicU64>,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Writer {
    /// Creates the file (readable by its owner only), gzip when its name ends in `.gz`, and writes the meta line; `-` is
    /// standard output, not compressed.
    ///
    /// # Errors
    /// When the name has another suffix, the file exists and `mode` forbids that, it cannot be written, or it is to be
    /// appended to and is defective or hashed otherwise than in `meta`.
    pub fn create(path: &Path, meta: &Meta, mode: CreateMode) -> Result<Self, TraceError> {
        if is_standard(path) {
            let writer = Self::over(path, Packing::Plain, io::stdout());
            return Ok(Self { waiting: Some(meta.clone()), ..writer });
        }
        let packing = Packing::of(path)?;
        if mode == CreateMode::Append && std::fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            return Self::resume(path, meta, packing);
        }
        let mut writer = Self::over_file(path, packing, open(path, mode)?);
        writer.write_meta(meta)?;
        writer.flush()?;
        Ok(writer)
    }

    fn over(path: &Path, packing: Packing, output: impl Write + Send + 'static) -> Self {
        let bytes = Arc::new(AtomicU64::new(0));
        let output: Box<dyn Write + Send> = Box::new(Counted { output, bytes: Arc::clone(&bytes) });
        let output = BufWriter::with_capacity(64 * 1024, output);
        let sink = match packing {
            Packing::Plain => Sink::Plain(output),
            Packing::Gzip => Sink::Between(output),
        };
        Self {
            path: path.to_owned(),
            sink,
            line: Vec::new(),
            records: 0,
            offset: Duration::ZERO,
            dropped: 0,
            before: 0,
            bytes,
            flushed: 0,
            file: None,
            waiting: None,
            prompt: WrittenPrompt::default(),
        }
    }

    fn over_file(path: &Path, packing: Packing, file: File) -> Self {
        let again = file.try_clone().ok();
        Self { file: again, ..Self::over(path, packing, file) }
    }

    fn resume(path: &Path, meta: &Meta, packing: Packing) -> Result<Self, TraceError> {
        let old = File::open(path).map_err(|source| TraceError::Io { path: path.to_owned(), doing: "open", source })?;
        claim(path, &old)?;
        let reader = Reader::open(path)?;
        let mismatch = |field| TraceError::Mismatch { path: path.to_owned(), field };
        if reader.meta().block_size != meta.block_size {
            return Err(mismatch("block_size"));
        }
        if reader.meta().block_hash.unwrap_or_default() != meta.block_hash.unwrap_or_default() {
            return Err(mismatch("block_hash"));
        }
        if reader.meta().hash_key_id != meta.hash_key_id {
            return Err(mismatch("hash_key_id"));
        }
        if let (Some(old), Some(new)) = (&reader.meta().tokenizer, &meta.tokenizer)
            && old.fingerprint != new.fingerprint
        {
            return Err(mismatch("tokenizer"));
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.partial", std::process::id()));
        let beside = PathBuf::from(beside);
        let mut writer = Self::over_file(path, packing, open(&beside, CreateMode::Truncate)?);
        let copied =
            writer.copy(reader).and_then(|()| std::fs::rename(&beside, path).map_err(|error| writer.failure(error)));
        if copied.is_err() {
            // The original is untouched; the copy is of no use.
            let _ = std::fs::remove_file(&beside);
        }
        copied.map(|()| writer)
    }

    fn copy(&mut self, mut reader: Reader) -> Result<(), TraceError> {
        self.write_meta(reader.meta())?;
        let mut last = Duration::ZERO;
        for record in reader.by_ref() {
            let record = record?.1;
            last = last.max(record.arrival.unwrap_or_default().saturating_add(record.e2e.unwrap_or_default()));
            self.append(&record)?;
        }
        for warning in reader.warnings() {
            tracing::warn!(path = %self.path.display(), "{warning}");
        }
        self.offset = last;
        self.before = self.records;
        self.dropped = reader.end().map_or(0, |end| end.dropped);
        self.flush()
    }

    /// Adds a record. It is safe in the file after the next [`flush`](Writer::flush). In a file that was there before, its
    /// arrival counts from the old capture's end. A record that breaks a rule of the format is mended: what breaks it is
    /// left out. The defects that were mended come back.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<Vec<String>, TraceError> {
        self.begin()?;
        let mended = match record.arrival.filter(|_| !self.offset.is_zero()) {
            Some(arrival) => {
                let arrival = Some(arrival.saturating_add(self.offset));
                self.spell(&Record { arrival, ..record.clone() })?
            }
            None => self.spell(record)?,
        };
        self.put_line().map_err(|error| self.failure(error))?;
        self.records += 1;
        Ok(mended)
    }

    fn spell(&mut self, record: &Record) -> Result<Vec<String>, TraceError> {
        let prompt_of = self.prompt.choice_for(record);
        let mended = mend::spell(record, prompt_of, &mut self.line).map_err(|error| self.failure(error))?;
        if !mended.is_empty() {
            self.prompt.forget();
        } else if prompt_of.is_none() {
            self.prompt.wrote(record);
        }
        Ok(mended)
    }

    /// Records in the file, those of an earlier capture included.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records that this capture added.
    #[must_use]
    pub fn added(&self) -> u64 {
        self.records - self.before
    }

    /// Bytes in the file so far; what was not flushed yet may be missing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file has been removed, so that written data is lost. A file that was renamed is still there.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|found| is_removed(&found))
    }

    /// Hands every record so far to the operating system, in a form that any reader accepts.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.try_flush().map_err(|error| self.failure(error))
    }

    fn try_flush(&mut self) -> io::Result<()> {
        self.sink = match std::mem::replace(&mut self.sink, Sink::Broken) {
            Sink::Member(encoder) => Sink::Between(encoder.finish()?),
            other => other,
        };
        match &mut self.sink {
            Sink::Plain(output) | Sink::Between(output) => output.flush()?,
            Sink::Member(_) | Sink::Broken => return Err(broken()),
        }
        self.flushed = self.bytes();
        Ok(())
    }

    /// Gives the file up after an error: it keeps what was flushed, and nothing of what came later, as far as it can be
    /// cut. A pipe cannot.
    pub fn abandon(self) {
        let Self { sink, file, flushed, .. } = self;
        // It may try to write once more.
        drop(sink);
        let Some(file) = file else { return };
        if file.metadata().is_ok_and(|found| found.is_file() && found.len() > flushed)
            && let Err(error) = file.set_len(flushed)
        {
            tracing::debug!(%error, "a trace that was given up may hold records that were counted as lost");
        }
    }

    /// Closes the trace; a packed one gets an end marker, a plain one has no place for it. `end.records` is replaced by the
    /// number of records in the file, and what earlier captures dropped is added to `end.dropped`. After an error it is
    /// [abandoned](Writer::abandon).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self, end: End) -> Result<(), TraceError> {
        self.begin()?;
        let (records, dropped) = (self.records, self.dropped.saturating_add(end.dropped));
        let written = self.try_close(End { records, dropped, ..end }).map_err(|error| self.failure(error));
        if written.is_err() {
            self.abandon();
        }
        written
    }

    fn try_close(&mut self, end: End) -> io::Result<()> {
        self.try_flush()?;
        if let Sink::Between(output) = &mut self.sink {
            output.write_all(&closing::member(end)?)?;
        }
        self.try_flush()
    }

    /// Writes another first line where the file holds no record yet. A pipe keeps the one it has.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn replace_meta(&mut self, meta: &Meta) -> Result<(), TraceError> {
        if self.records > 0 {
            return Ok(());
        }
        if let Some(waiting) = &mut self.waiting {
            meta.clone_into(waiting);
            return Ok(());
        }
        self.flush()?;
        let Some(mut file) = self.file.as_ref().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))
        else {
            return Ok(());
        };
        file.set_len(0).and_then(|()| file.rewind()).map_err(|error| self.failure(error))?;
        self.bytes.store(0, Ordering::Relaxed);
        self.write_meta(meta)?;
        self.flush()
    }

    /// Writes the first line that waits.
    fn begin(&mut self) -> Result<(), TraceError> {
        match self.waiting.take() {
            Some(meta) => self.write_meta(&meta),
            None => Ok(()),
        }
    }

    fn write_meta(&mut self, meta: &Meta) -> Result<(), TraceError> {
        #[derive(Serialize)]
        struct Line<'a> {
            meta: &'a Meta,
        }
        self.line.clear();
        let spelled = serde_json::to_writer(&mut self.line, &Line { meta }).map_err(io::Error::from);
        spelled.and_then(|()| self.put_line()).map_err(|error| self.failure(error))
    }

    /// Writes the line that was spelled.
    fn put_line(&mut self) -> io::Result<()> {
        self.line.push(b'\n');
        self.sink = match std::mem::replace(&mut self.sink, Sink::Broken) {
            Sink::Between(output) => Sink::Member(Box::new(GzEncoder::new(output, COMPRESSION))),
            other => other,
        };
        match &mut self.sink {
            Sink::Plain(output) => output.write_all(&self.line),
            Sink::Member(encoder) => encoder.write_all(&self.line),
            Sink::Between(_) | Sink::Broken => Err(broken()),
        }
    }

    fn failure(&self, source: io::Error) -> TraceError {
        TraceError::Io { path: self.path.clone(), doing: "write", source }
    }
}

fn broken() -> io::Error {
    io::Error::other("an earlier write failed")
}
