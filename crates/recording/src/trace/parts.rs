//! A capture in several files: one after the other, each complete in itself.
//!
//! The first file has the name that was requested. A further one has that name too where it is free, as after a log
//! rotation moved the file away, and else a number before its suffix: `day.jsonl.gz`, `day.1.jsonl.gz`,
//! `day.2.jsonl.gz`. Arrivals in all of them count from the same zero; meta key `part` numbers the capture's files:
//! one is, from 1 on.
//!
//! A file that cannot be written is left with what was flushed to it, and [`TraceParts::reopen`] goes on in another one. Standard output is never rotated nor opened again.
//!
//! See docs/decisions/0030-a-failed-file-is-left.md and
//! docs/decisions/0031-the-next-file-takes-the-free-name.md.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;
use tokio::time::Instant;

use super::{
    CaptureEnd, CreateMode, Meta, Record, TraceError, TraceWriter,
    source::{is_standard, split_suffix},
};
use crate::storage;

/// Numbers that are tried for a name that is free.
const MOST_NUMBERS: u32 = 1_000_000;

/// Limits of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RotationLimits {
    /// Bytes in the file; it grows over this by what is written between two flushes.
    pub bytes: Option<u64>,
    /// Time since the file was opened.
    pub age: Option<Duration>,
    /// Records in the file.
    pub records: Option<u64>,
}

/// The files of one capture.
#[derive(Debug)]
pub struct TraceParts {
    path: PathBuf,
    meta: Meta,
    limits: RotationLimits,
    /// `None` once a write has failed, until the next file.
    open: Option<OpenPart>,
    count: u32,
    /// The last number that was used for a name.
    number: u32,
}

#[derive(Debug)]
struct OpenPart {
    writer: TraceWriter,
    since: Instant,
}

impl TraceParts {
    /// Creates the first file as [`TraceWriter::create`] does.
    ///
    /// # Errors
    /// As [`TraceWriter::create`].
    pub fn create(path: &Path, meta: Meta, mode: CreateMode, limits: RotationLimits) -> Result<Self, TraceError> {
        let mut parts = Self::later(path, meta, limits);
        match mode {
            CreateMode::Next => parts.reopen()?,
            mode => parts.take(TraceWriter::create(path, &parts.meta, mode)?),
        }
        Ok(parts)
    }

    /// A capture whose first file is created by [`reopen`](Self::reopen).
    #[must_use]
    pub fn later(path: &Path, meta: Meta, limits: RotationLimits) -> Self {
        Self { path: path.to_owned(), meta, limits, open: None, count: 0, number: 0 }
    }

    /// The first line of further files.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Changes the first line of further files, and of the open one where it holds no record yet. After an error the file
    /// is given up.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_meta(&mut self, meta: Meta) -> Result<(), TraceError> {
        self.meta = meta;
        if self.open.is_none() {
            return Ok(());
        }
        let meta = self.numbered_meta(self.count);
        self.with(|writer| writer.replace_meta(&meta))
    }

    /// The first line of the capture's file of this number, from 1.
    fn numbered_meta(&self, number: u32) -> Meta {
        let mut meta = self.meta.clone();
        if number > 1 {
            meta.extra.insert("part".to_owned(), json!(number));
        }
        meta
    }

    /// Returns true if records can be written now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Files begun so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The file that is written now, or was the last one.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.open.as_ref().map_or(&self.path, |part| part.writer.path())
    }

    /// Adds a record, as [`TraceWriter::append`] does. After an error the file is given up.
    ///
    /// # Errors
    /// When the file cannot be written, or none is open.
    pub fn append(&mut self, record: &Record) -> Result<Vec<String>, TraceError> {
        self.with(|writer| writer.append(record))
    }

    /// Hands every record so far to the operating system. After an error the file is given up.
    ///
    /// # Errors
    /// When the file cannot be written, or none is open.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.with(TraceWriter::flush)
    }

    /// Returns true if the file has reached one of its limits. Standard output never does.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let Some(part) = self.open.as_ref().filter(|_| self.rotates()) else { return false };
        let RotationLimits { bytes, age, records } = self.limits;
        part.writer.added() > 0
            && (bytes.is_some_and(|most| part.writer.bytes() >= most)
                || (!self.lasts_once_flushed() && part.writer.bytes() >= storage::MOST_BYTES)
                || records.is_some_and(|most| part.writer.records() >= most)
                || age.is_some_and(|most| part.since.elapsed() >= most))
    }

    /// Returns true if what was flushed stays whatever happens. An object is there once it is closed.
    #[must_use]
    pub fn lasts_once_flushed(&self) -> bool {
        !storage::is_url(&self.path)
    }

    /// Returns true if the open file has been removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.open.as_ref().is_some_and(|part| part.writer.is_removed())
    }

    /// Returns how often another program has emptied the open file since the last call.
    #[must_use]
    pub fn take_emptied(&mut self) -> u32 {
        self.open.as_mut().map_or(0, |part| part.writer.take_emptied())
    }

    /// Returns true if there can be another file.
    #[must_use]
    pub fn rotates(&self) -> bool {
        !is_standard(&self.path)
    }

    /// Closes the file and begins the next one.
    ///
    /// # Errors
    /// When the file cannot be written, or the next one cannot be created.
    pub fn rotate(&mut self, end: CaptureEnd) -> Result<(), TraceError> {
        let closed = self.close(end);
        self.reopen().and(closed)
    }

    /// Closes the last file.
    ///
    /// # Errors
    /// When the file cannot be written, or none is open.
    pub fn close(&mut self, end: CaptureEnd) -> Result<(), TraceError> {
        let part = self.open.take().ok_or_else(|| self.none_open())?;
        part.writer.finish(end)
    }

    /// Begins the next file, under the first name that is free.
    ///
    /// # Errors
    /// When it cannot be created and begun; nothing is left of it then.
    pub fn reopen(&mut self) -> Result<(), TraceError> {
        let meta = self.numbered_meta(self.count + 1);
        let mut path = self.path.clone();
        let mut number = self.number;
        loop {
            match TraceWriter::create(&path, &meta, CreateMode::New) {
                Ok(writer) => {
                    self.number = number;
                    self.take(writer);
                    return Ok(());
                }
                Err(TraceError::Exists { .. }) if number < MOST_NUMBERS => {
                    number += 1;
                    path = numbered(&self.path, number);
                }
                Err(error) => {
                    if matches!(error, TraceError::Io { doing: "write", .. }) && self.rotates() {
                        // It was created just now and holds nothing.
                        let _gone = fs::remove_file(&path);
                    }
                    return Err(error);
                }
            }
        }
    }

    fn take(&mut self, writer: TraceWriter) {
        self.count += 1;
        self.open = Some(OpenPart { writer, since: Instant::now() });
    }

    fn with<T>(&mut self, write: impl FnOnce(&mut TraceWriter) -> Result<T, TraceError>) -> Result<T, TraceError> {
        let Some(part) = &mut self.open else { return Err(self.none_open()) };
        let written = write(&mut part.writer);
        if written.is_err()
            && let Some(part) = self.open.take()
        {
            part.writer.abandon();
        }
        written
    }

    fn none_open(&self) -> TraceError {
        TraceError::Io { path: self.path.clone(), doing: "write", source: std::io::ErrorKind::NotConnected.into() }
    }
}

/// `day.jsonl.gz` as `day.3.jsonl.gz`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (stem, suffix) = split_suffix(&name).unwrap_or((&name, ""));
    path.with_file_name(format!("{stem}.{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::read;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn record(index: u32) -> Record {
        Record { prompt_tokens: index, ..Record::default() }
    }

    #[test]
    fn full_files_are_closed_and_the_next_one_begins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("day.jsonl.gz");
        let limits = RotationLimits { records: Some(2), ..RotationLimits::default() };
        let mut parts = TraceParts::create(&path, Meta::default(), CreateMode::New, limits).unwrap();
        for index in 0..5 {
            parts.append(&record(index)).unwrap();
            if parts.is_full() {
                parts.rotate(CaptureEnd::default()).unwrap();
            }
        }
        parts.close(CaptureEnd::default()).unwrap();
        assert_eq!(names(folder.path()), ["day.1.jsonl.gz", "day.2.jsonl.gz", "day.jsonl.gz"]);
        let sizes = ["day.jsonl.gz", "day.1.jsonl.gz", "day.2.jsonl.gz"].map(|name| {
            let trace = read(&folder.path().join(name)).unwrap();
            (trace.records.len(), trace.end.unwrap().records, trace.meta.extra.get("part").cloned())
        });
        assert_eq!(sizes, [(2, 2, None), (2, 2, Some(json!(2))), (1, 1, Some(json!(3)))]);
    }

    #[test]
    fn the_first_line_changes_until_there_is_a_record() {
        let folder = tempfile::tempdir().unwrap();
        let named = |model: &str| Meta { model: Some(model.to_owned()), ..Meta::default() };
        for name in ["a.jsonl", "a.jsonl.gz"] {
            let path = folder.path().join(name);
            let mut parts = TraceParts::create(
                &path,
                named("long".repeat(99).as_str()),
                CreateMode::New,
                RotationLimits::default(),
            )
            .unwrap();
            parts.set_meta(named("m")).unwrap();
            assert_eq!(read(&path).unwrap().meta, named("m"));
            parts.append(&record(1)).unwrap();
            parts.set_meta(named("late")).unwrap();
            parts.rotate(CaptureEnd::default()).unwrap();
            let first = read(&path).unwrap();
            assert_eq!((first.meta, first.records.len(), first.warnings), (named("m"), 1, Vec::new()), "{name}");
            assert_eq!(read(parts.path()).unwrap().meta.model.as_deref(), Some("late"));
        }
    }

    #[test]
    fn a_name_that_became_free_is_used_again_and_a_taken_one_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(folder.path().join("a.1.jsonl"), "mine").unwrap();
        let mut parts = TraceParts::create(&path, Meta::default(), CreateMode::New, RotationLimits::default()).unwrap();
        parts.rotate(CaptureEnd::default()).unwrap();
        assert_eq!(parts.path(), folder.path().join("a.2.jsonl"));
        fs::rename(&path, folder.path().join("moved.jsonl")).unwrap();
        parts.rotate(CaptureEnd::default()).unwrap();
        assert_eq!(parts.path(), path);
        assert_eq!(fs::read_to_string(folder.path().join("a.1.jsonl")).unwrap(), "mine");
        let mut again =
            TraceParts::create(&path, Meta::default(), CreateMode::Next, RotationLimits::default()).unwrap();
        assert_eq!(again.path(), folder.path().join("a.3.jsonl"));
        again.close(CaptureEnd::default()).unwrap();
    }

    #[test]
    fn an_empty_file_is_never_full_and_size_counts_what_was_flushed() {
        let folder = tempfile::tempdir().unwrap();
        let limits = RotationLimits { bytes: Some(10), age: Some(Duration::ZERO), records: None };
        let mut parts =
            TraceParts::create(&folder.path().join("a.jsonl"), Meta::default(), CreateMode::New, limits).unwrap();
        assert!(!parts.is_full());
        parts.append(&record(1)).unwrap();
        parts.flush().unwrap();
        assert!(parts.is_full());
    }
}
