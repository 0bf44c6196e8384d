//! Writing a trace: line by line, flushed so that a kill loses at most the unflushed tail.
//!
//! A flush of a gzip file ends the gzip member and the next record starts a new one. So after every flush the file is
//! complete for any gunzip, at the cost of some twenty bytes and a fresh dictionary per flush; flush about once a second.
//! A file that another program empties (`copytruncate`) is begun again with its first line.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::closing;
use super::mend;
use super::output::{CreateMode, OutputUnit, TraceOutput, is_removed, open};
use super::resume;
use super::shared_prompt::WrittenPrompt;
use super::source::{Packing, is_standard};
use super::{CaptureEnd, Meta, Record, TraceError};
use crate::storage::{self, StoredObject};

/// Writes one trace.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    packing: Packing,
    output: TraceOutput,
    /// What was not written yet.
    unit: OutputUnit,
    waiting: u64,
    line: Vec<u8>,
    meta: Meta,
    /// The first line of a stream, which cannot be taken back, waits for the first record.
    meta_waits: bool,
    records: u64,
    /// The file as it was before this capture.
    before: EarlierCapture,
    /// Length of the file after the last flush.
    flushed: u64,
    /// Number of times that another program emptied the file.
    emptied: u32,
    /// The prompt that the next records may share; it is in the unit that waits, so that no unit needs another one.
    prompt: WrittenPrompt,
}

/// Rest of an earlier capture in the file.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EarlierCapture {
    /// Offset added to an appended record's arrival: the duration of the captures before.
    pub(super) offset: Duration,
    /// Number of records that they dropped.
    pub(super) dropped: u64,
    /// Records that were there, as far as they were counted.
    pub(super) records: u64,
    /// Not all of them were counted, so that the file cannot be closed with their number.
    pub(super) is_uncounted: bool,
}

impl TraceWriter {
    /// Creates the file (readable by its owner only), gzip when its name ends in `.gz`, and writes the meta line; `-` is
    /// standard output, not compressed.
    ///
    /// # Errors
    /// When the name has another suffix, the file exists and `mode` forbids that, it cannot be written, or it is to be
    /// appended to and is damaged, no trace, or hashed otherwise than in `meta`.
    pub fn create(path: &Path, meta: &Meta, mode: CreateMode) -> Result<Self, TraceError> {
        if is_standard(path) {
            let writer = Self::over(path, meta, Packing::Plain, TraceOutput::of_pipe(io::stdout()));
            return Ok(Self { meta_waits: true, ..writer });
        }
        let failed = |source| TraceError::Io { path: storage::shown(path), doing: "create", source };
        let object = storage::find(path).map_err(failed)?;
        let packing = Packing::of(path)?;
        if let Some(object) = object {
            return Self::create_object(path, meta, packing, (&object, mode));
        }
        if mode == CreateMode::Append && std::fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            return resume::resume(path, meta, packing);
        }
        let mut writer = Self::over(path, meta, packing, TraceOutput::of_file(open(path, mode)?, 0));
        writer.write_meta()?;
        writer.flush()?;
        Ok(writer)
    }

    /// An object is there once it is closed. Like a stream it cannot be taken back.
    fn create_object(
        path: &Path,
        meta: &Meta,
        packing: Packing,
        (object, mode): (&StoredObject, CreateMode),
    ) -> Result<Self, TraceError> {
        let failed = |doing, source| TraceError::Io { path: path.to_owned(), doing, source };
        if mode == CreateMode::Append {
            let message = "an object stays as it is; write another one, which `tap --next` names by itself";
            return Err(failed("append to", io::Error::new(io::ErrorKind::Unsupported, message)));
        }
        let upload = object.create(mode == CreateMode::Truncate).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => TraceError::Exists(path.to_owned()),
            _ => failed("create", source),
        })?;
        let writer = Self::over(path, meta, packing, TraceOutput::of_object(upload));
        Ok(Self { meta_waits: true, ..writer })
    }

    pub(super) fn over(path: &Path, meta: &Meta, packing: Packing, output: TraceOutput) -> Self {
        Self {
            path: path.to_owned(),
            packing,
            flushed: output.bytes(),
            output,
            unit: OutputUnit::of(packing),
            waiting: 0,
            line: Vec::new(),
            meta: meta.clone(),
            meta_waits: false,
            records: 0,
            before: EarlierCapture::default(),
            emptied: 0,
            prompt: WrittenPrompt::default(),
        }
    }

    /// Goes on after what an earlier capture left.
    pub(super) fn after(self, before: EarlierCapture) -> Self {
        Self { records: before.records, before, ..self }
    }

    /// Adds a record. It is safe in the file after the next [`flush`](TraceWriter::flush). In a file that was there before, its
    /// arrival counts from the old capture's end. A record that breaks a rule of the format is mended: what breaks it is
    /// left out. The defects that were mended come back.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, record: &Record) -> Result<Vec<String>, TraceError> {
        self.begin()?;
        // Between prompts only: records that share one are in one unit.
        if self.unit.is_full() && self.prompt.choice_for(record).is_none() {
            self.put_unit().map_err(|error| self.failure(error))?;
        }
        let mended = match record.arrival.filter(|_| !self.before.offset.is_zero()) {
            Some(arrival) => {
                let arrival = Some(arrival.saturating_add(self.before.offset));
                self.spell(&Record { arrival, ..record.clone() })?
            }
            None => self.spell(record)?,
        };
        self.records += 1;
        self.waiting += 1;
        self.line.push(b'\n');
        self.unit.push(&self.line).map_err(|error| self.failure(error))?;
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

    /// Records in the file, those of an earlier capture included as far as they were counted.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records that this capture added.
    pub(crate) fn added(&self) -> u64 {
        self.records - self.before.records
    }

    /// Bytes in the file so far; what was not flushed yet may be missing.
    pub(crate) fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file has been removed, so that written data is lost. A file that was renamed is still there.
    pub(crate) fn is_removed(&self) -> bool {
        self.output.file().and_then(|file| file.metadata().ok()).is_some_and(|found| is_removed(&found))
    }

    /// Returns how often another program has emptied the file since the last call. It was begun again each time, with what was not written by then.
    pub(crate) fn take_emptied(&mut self) -> u32 {
        std::mem::take(&mut self.emptied)
    }

    /// Hands every record so far to the operating system, in a form that any reader accepts.
    ///
    /// # Errors
    /// When the file cannot be written, or another program cut it in the middle.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.try_flush().map_err(|error| self.failure(error))
    }

    fn try_flush(&mut self) -> io::Result<()> {
        self.put_unit()?;
        self.flushed = self.bytes();
        Ok(())
    }

    /// Writes what waits; starts the file again where another program has emptied it.
    fn put_unit(&mut self) -> io::Result<()> {
        self.output.check()?;
        match self.output.shrunk() {
            None => {}
            Some(0) => self.start_over()?,
            Some(length) => {
                return Err(io::Error::other(format!("another program cut the file to {length} bytes")));
            }
        }
        let unit = self.unit.take()?;
        self.waiting = 0;
        self.prompt.forget();
        if unit.is_empty() { Ok(()) } else { self.output.put(&unit) }
    }

    fn start_over(&mut self) -> io::Result<()> {
        self.emptied += 1;
        self.records = self.waiting;
        self.before = EarlierCapture { offset: self.before.offset, ..EarlierCapture::default() };
        self.flushed = 0;
        self.output.cut(0)?;
        let mut first = OutputUnit::of(self.packing);
        first.push(&meta_line(&self.meta)?)?;
        self.output.put(&first.take()?)
    }

    /// Gives the file up after an error: it keeps what was flushed, and nothing of what came later, as far as it can be
    /// cut. A pipe cannot.
    pub fn abandon(mut self) {
        if self.bytes() > self.flushed
            && let Err(error) = self.output.cut(self.flushed)
        {
            tracing::debug!(%error, "a trace that was given up may hold records that were counted as lost");
        }
    }

    /// Closes the trace; a packed one gets an end marker, a plain one has no place for it, and one whose earlier captures were not closed and are too
    /// long to count stays without. `end.records` is replaced by the number of records in the file, and what earlier captures dropped is added to
    /// `end.dropped`. After an error it is [abandoned](TraceWriter::abandon).
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self, end: CaptureEnd) -> Result<(), TraceError> {
        self.begin()?;
        let written = self.try_close(end).map_err(|error| self.failure(error));
        if written.is_err() {
            self.abandon();
        }
        written
    }

    fn try_close(&mut self, end: CaptureEnd) -> io::Result<()> {
        self.try_flush()?;
        if self.packing == Packing::Gzip && !self.before.is_uncounted {
            let (records, dropped) = (self.records, self.before.dropped.saturating_add(end.dropped));
            self.output.put(&closing::member(CaptureEnd { records, dropped, ..end })?)?;
        }
        self.output.close()?;
        self.flushed = self.bytes();
        Ok(())
    }

    /// Writes another first line where the file holds no record yet. A pipe keeps the one it has.
    pub(crate) fn replace_meta(&mut self, meta: &Meta) -> Result<(), TraceError> {
        meta.clone_into(&mut self.meta);
        if self.records > 0 || self.before.is_uncounted || self.meta_waits {
            return Ok(());
        }
        self.flush()?;
        if self.output.cut(0).map_err(|error| self.failure(error))? {
            self.write_meta()?;
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the first line that waits.
    fn begin(&mut self) -> Result<(), TraceError> {
        if std::mem::take(&mut self.meta_waits) { self.write_meta() } else { Ok(()) }
    }

    pub(super) fn write_meta(&mut self) -> Result<(), TraceError> {
        let written = meta_line(&self.meta).and_then(|line| self.unit.push(&line));
        written.map_err(|error| self.failure(error))
    }

    fn failure(&self, source: io::Error) -> TraceError {
        TraceError::Io { path: self.path.clone(), doing: "write", source }
    }
}

fn meta_line(meta: &Meta) -> io::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct WrittenMeta<'a> {
        meta: &'a Meta,
    }
    let mut line = serde_json::to_vec(&WrittenMeta { meta })?;
    line.push(b'\n');
    Ok(line)
}
