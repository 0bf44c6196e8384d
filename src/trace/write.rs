//! Writing a trace: line by line, flushed so that a kill loses at most the unflushed tail.
//!
//! A flush of a gzip file ends the gzip member and the next record starts a new one. So after every flush the file is
//! complete for any gunzip, at the cost of some twenty bytes and a fresh dictionary per flush; flush about once a second.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::convert::Spelled;
use super::source::{Packing, is_standard};
use super::{End, Meta, Reader, Record, TraceError};

/// A little less than what is usual: times are digits in no order, of which more work makes little less.
const COMPRESSION: Compression = Compression::new(4);

/// What to do about a file that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Refuse to touch it.
    New,
    /// Replace it.
    Truncate,
    /// Keep its meta and its complete records, and go on after them. Its end line and a cut tail are dropped: the
    /// records are copied to a new file, which then takes the old one's place. New arrivals follow the last old answer.
    Append,
    /// Leave it and write to another one beside it: the first of `NAME.1.jsonl`, `NAME.2.jsonl`… that is free.
    Next,
}

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
    /// What an appended record's arrival is late by: the capture before it took so long.
    offset: Duration,
    /// What the captures before this one had to drop.
    dropped: u64,
    /// Records that were there before this capture.
    before: u64,
    /// Bytes that reached the file.
    bytes: Arc<AtomicU64>,
    /// Of these, those that the last flush made complete.
    flushed: u64,
    /// The file once more, to be cut; `None` where it is none.
    file: Option<File>,
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
    /// appended to and is defective or hashed otherwise than `meta` says.
    pub fn create(path: &Path, meta: &Meta, mode: CreateMode) -> Result<Self, TraceError> {
        if is_standard(path) {
            let mut writer = Self::over(path, Packing::Plain, io::stdout());
            return writer.write_meta(meta).map(|()| writer);
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
    /// arrival is told from the old capture's end.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<(), TraceError> {
        match record.arrival.filter(|_| !self.offset.is_zero()) {
            Some(arrival) => {
                let arrival = Some(arrival.saturating_add(self.offset));
                self.write_line(&Spelled(&Record { arrival, ..record.clone() }))?;
            }
            None => self.write_line(&Spelled(record))?,
        }
        self.records += 1;
        Ok(())
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

    /// Whether somebody has removed the file, so that what is written is lost. A file that was renamed is still there.
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

    /// Closes the trace with its end line. `end.records` is replaced by the number of records in the file, and what
    /// earlier captures dropped is added to `end.dropped`. After an error it is [abandoned](Writer::abandon).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self, end: End) -> Result<(), TraceError> {
        #[derive(Serialize)]
        struct Line {
            end: End,
        }
        let (records, dropped) = (self.records, self.dropped.saturating_add(end.dropped));
        let written = self.write_line(&Line { end: End { records, dropped, ..end } }).and_then(|()| self.flush());
        if written.is_err() {
            self.abandon();
        }
        written
    }

    fn write_meta(&mut self, meta: &Meta) -> Result<(), TraceError> {
        #[derive(Serialize)]
        struct Line<'a> {
            meta: &'a Meta,
        }
        self.write_line(&Line { meta })
    }

    fn write_line<T: Serialize>(&mut self, value: &T) -> Result<(), TraceError> {
        self.try_write(value).map_err(|error| self.failure(error))
    }

    fn try_write<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, value)?;
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

fn open(path: &Path, mode: CreateMode) -> Result<File, TraceError> {
    let mut options = OpenOptions::new();
    options.write(true);
    match mode {
        CreateMode::New | CreateMode::Next => options.create_new(true),
        CreateMode::Truncate | CreateMode::Append => options.create(true),
    };
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let failed = |doing, source| TraceError::Io { path: path.to_owned(), doing, source };
    let file = options.open(path).and_then(private).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => TraceError::Exists { path: path.to_owned() },
        _ => failed("create", source),
    })?;
    if file.metadata().is_ok_and(|found| found.is_file()) {
        claim(path, &file)?;
        file.set_len(0).map_err(|source| failed("write", source))?;
    }
    Ok(file)
}

/// Makes sure that nobody else writes a file, as long as it is open here. Where the file system knows no locks nobody can.
fn claim(path: &Path, file: &File) -> Result<(), TraceError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TraceError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(_)) | Ok(()) => Ok(()),
    }
}

/// A file that was there before may be open to others; what is written into it from now on is not.
#[cfg(unix)]
fn private(file: File) -> io::Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let known = file.metadata()?;
    if known.is_file() && known.permissions().mode() & 0o077 != 0 {
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
    }
    Ok(file)
}

#[cfg(unix)]
fn is_removed(found: &Metadata) -> bool {
    found.is_file() && std::os::unix::fs::MetadataExt::nlink(found) == 0
}

#[cfg(not(unix))]
fn is_removed(_: &Metadata) -> bool {
    false
}

#[cfg(not(unix))]
fn private(file: File) -> io::Result<File> {
    Ok(file)
}
