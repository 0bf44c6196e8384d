//! Sources of lines: a file, standard input or bytes; gzip or not; complete or cut.
//!
//! Limits: it knows suffixes, magic numbers and line ends, nothing of JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::closing::LastBytes;
use super::gunzip::Gunzip;
use super::gzip_members::{self, GzipMembers};
use super::{LoadProgress, TraceError};
use crate::storage;

const BUFFER: usize = 64 * 1024;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// A record of a million tokens with all of its parts is shorter.
pub(super) const LONGEST_LINE: u64 = 256 << 20;
const BOM: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
}

impl Packing {
    /// Returns the packing that the name of `path` promises.
    pub(super) fn of(path: &Path) -> Result<Self, TraceError> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        match SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix)) {
            Some((_, packing)) => Ok(*packing),
            None => Err(TraceError::Suffix(path.to_owned())),
        }
    }
}

/// Suffixes of traces, longer ones first.
const SUFFIXES: [(&str, Packing); 5] = [
    (".jsonl.gz", Packing::Gzip),
    (".json.gz", Packing::Gzip),
    (".gz", Packing::Gzip),
    (".jsonl", Packing::Plain),
    (".json", Packing::Plain),
];

/// A file's name and how it ends, if it is a trace's.
pub(super) fn split_suffix(name: &str) -> Option<(&str, &str)> {
    let lower = name.to_ascii_lowercase();
    let (suffix, _) = SUFFIXES.iter().find(|(suffix, _)| lower.ends_with(suffix))?;
    name.split_at_checked(name.len() - suffix.len())
}

pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Refuses a pipe or a device, which cannot be read twice and may never end; standard input is known to be one.
pub(super) fn refuse_pipe(path: &Path) -> Result<(), TraceError> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    if is_pipe && !is_standard(path) { Err(TraceError::NoFile(path.to_owned())) } else { Ok(()) }
}

pub(super) struct NumberedLines {
    path: PathBuf,
    input: Box<dyn BufRead + Send>,
    packing: Packing,
    buffer: Vec<u8>,
    number: u64,
    over: bool,
    bytes: u64,
    progress: Arc<LoadProgress>,
    tail: LastBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// A line that ended in a newline.
    Whole,
    /// The last line, without a newline; cut, unless it parses.
    Tail,
    /// The gzip data ended early, with no partial line.
    CutHere,
    Over,
}

impl NumberedLines {
    /// Opens a file; `progress` follows how far it is read.
    pub(super) fn open(path: &Path, progress: Arc<LoadProgress>) -> Result<Self, TraceError> {
        if is_standard(path) {
            return Self::of_stream(PathBuf::from("<stdin>"), io::stdin(), None, progress);
        }
        let failed = |source| TraceError::Io { path: storage::shown(path), doing: "open", source };
        if let Some(object) = storage::find(path).map_err(failed)? {
            let promised = Packing::of(path)?;
            let (length, input) = object.open().map_err(failed)?;
            progress.has_size(length);
            return Self::of_stream(path.to_owned(), input, Some(promised), progress);
        }
        let found = std::fs::metadata(path).map_err(failed)?;
        if found.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let promised = Packing::of(path)?;
        let input = File::open(path).map_err(failed)?;
        if !found.is_file() {
            return Self::of_stream(path.to_owned(), input, Some(promised), progress);
        }
        let tail = File::open(path).and_then(|file| LastBytes::of_file(&file)).map_err(failed)?;
        let input = CountedInput { input, read: 0, progress: Arc::clone(&progress), followed: None };
        let input = BufReader::with_capacity(BUFFER, input);
        Self::sniff(path.to_owned(), Box::new(input), Some(promised), tail, progress)?.on_threads(found.len())
    }

    /// Standard input, a pipe or an object: it comes once, from its beginning to its end.
    fn of_stream(
        path: PathBuf,
        input: impl Read + Send + 'static,
        promised: Option<Packing>,
        progress: Arc<LoadProgress>,
    ) -> Result<Self, TraceError> {
        let tail = LastBytes::default();
        let input = CountedInput { input, read: 0, progress: Arc::clone(&progress), followed: Some(tail.clone()) };
        Self::sniff(path, Box::new(BufReader::with_capacity(BUFFER, input)), promised, tail, progress)
    }

    pub(super) fn of_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, TraceError> {
        let tail = LastBytes::of(&bytes);
        Self::sniff(PathBuf::from(name), Box::new(io::Cursor::new(bytes)), None, tail, Arc::default())
    }

    /// Looks at the first two bytes and holds them against what the name promised.
    fn sniff(
        path: PathBuf,
        mut raw: Box<dyn BufRead + Send>,
        promised: Option<Packing>,
        tail: LastBytes,
        progress: Arc<LoadProgress>,
    ) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Io { path: path.clone(), doing: "read", source };
        let mut head = Vec::with_capacity(2);
        raw.by_ref().take(2).read_to_end(&mut head).map_err(failed)?;
        let is_gzip = head == GZIP_MAGIC;
        let may_be_cut_gzip = GZIP_MAGIC.starts_with(&head);
        let packing = match promised {
            Some(Packing::Gzip) if !may_be_cut_gzip => return Err(TraceError::NotGzip(path)),
            Some(Packing::Plain) if is_gzip => return Err(TraceError::UnexpectedGzip(path)),
            Some(promised) => promised,
            None if is_gzip => Packing::Gzip,
            None => Packing::Plain,
        };
        let whole = io::Cursor::new(head).chain(raw);
        let input: Box<dyn BufRead + Send> = match packing {
            Packing::Plain => Box::new(whole),
            Packing::Gzip => Box::new(Gunzip::new(whole)),
        };
        Ok(Self { path, input, packing, buffer: Vec::new(), number: 0, over: false, bytes: 0, progress, tail })
    }

    /// Unpacks a file that is large enough on threads of their own; nothing was read of it yet.
    fn on_threads(self, length: u64) -> Result<Self, TraceError> {
        self.progress.has_size(length);
        if self.packing == Packing::Plain || length < gzip_members::WORTHWHILE {
            return Ok(self);
        }
        let members = File::open(&self.path).and_then(|file| GzipMembers::new(file, Arc::clone(&self.progress)));
        let failed = |source| TraceError::Io { path: self.path.clone(), doing: "read", source };
        Ok(Self { input: Box::new(members.map_err(failed)?), ..self })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state of a packed input's end, complete once it was read; `None` for a plain one.
    pub(super) fn closing(&self) -> Option<LastBytes> {
        (self.packing == Packing::Gzip).then(|| self.tail.clone())
    }

    /// The number of the last line fetched, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The last line fetched, without its line end.
    pub(super) fn line(&self) -> &[u8] {
        let line = self.buffer.trim_ascii_end();
        match self.number {
            1 => line.strip_prefix(BOM).unwrap_or(line),
            _ => line,
        }
    }

    /// Fetches the next line that is not blank. `records` is how many records the caller has had, for the error.
    pub(super) fn fetch(&mut self, records: u64) -> Result<Fetched, TraceError> {
        while !self.over {
            self.buffer.clear();
            self.number += 1;
            let read = self.input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut self.buffer);
            if self.buffer.len() as u64 >= LONGEST_LINE {
                self.over = true;
                return Err(TraceError::LongLine { path: self.path.clone(), line: self.number });
            }
            self.bytes += self.buffer.len() as u64;
            self.progress.has_json(self.bytes);
            let cut = match read {
                Ok(_) => false,
                Err(error) if self.packing == Packing::Gzip && error.kind() == io::ErrorKind::UnexpectedEof => true,
                Err(error) => {
                    self.over = true;
                    return Err(self.failure(error, records));
                }
            };
            self.over = cut || self.buffer.last() != Some(&b'\n');
            match (self.line().is_empty(), self.over) {
                (true, _) if cut => return Ok(Fetched::CutHere),
                (true, _) => {}
                (false, true) => return Ok(Fetched::Tail),
                (false, false) => return Ok(Fetched::Whole),
            }
        }
        Ok(Fetched::Over)
    }

    /// Skips blank text, and returns the first byte after it without taking it; `None` at the end.
    pub(super) fn peek(&mut self) -> Result<Option<u8>, TraceError> {
        loop {
            let chunk = self.chunk()?;
            let is_blank = |byte: &&u8| byte.is_ascii_whitespace() || BOM.contains(byte);
            let blank = chunk.iter().take_while(is_blank).count();
            let newlines = chunk.iter().take(blank).filter(|byte| **byte == b'\n').count() as u64;
            let (next, is_end) = (chunk.get(blank).copied(), chunk.is_empty());
            self.consume(blank);
            self.number += newlines;
            if next.is_some() || is_end {
                return Ok(next);
            }
        }
    }

    /// Puts the line that was fetched last back, to be read as bytes.
    pub(super) fn unread_line(&mut self) {
        let line = io::Cursor::new(std::mem::take(&mut self.buffer));
        let rest = std::mem::replace(&mut self.input, Box::new(io::empty()));
        self.input = Box::new(line.chain(rest));
        (self.number, self.over) = (self.number.saturating_sub(1), false);
    }

    /// The next bytes, which are not taken yet; none at the end, also of gzip data that ends early.
    pub(super) fn chunk(&mut self) -> Result<&[u8], TraceError> {
        let is_cut = |error: &io::Error| self.packing == Packing::Gzip && error.kind() == io::ErrorKind::UnexpectedEof;
        // The borrow of what came must end before an error can be made of it.
        match self.input.fill_buf() {
            Ok(_) => {}
            Err(error) if is_cut(&error) => return Ok(&[]),
            Err(error) => return Err(self.failure(error, 0)),
        }
        self.input.fill_buf().map_err(|source| TraceError::Io { path: self.path.clone(), doing: "read", source })
    }

    /// Takes bytes of a [`chunk`](Lines::chunk).
    pub(super) fn consume(&mut self, bytes: usize) {
        self.input.consume(bytes);
        self.bytes += bytes as u64;
        self.progress.has_json(self.bytes);
    }

    fn failure(&self, source: io::Error, records: u64) -> TraceError {
        let damaged = matches!(source.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
        match self.packing {
            Packing::Gzip if damaged => {
                TraceError::Corrupt { path: self.path.clone(), line: self.number, records, source }
            }
            Packing::Gzip | Packing::Plain => TraceError::Io { path: self.path.clone(), doing: "read", source },
        }
    }
}

/// Counts the bytes that were read, and keeps the last one.
struct CountedInput<R> {
    input: R,
    read: u64,
    progress: Arc<LoadProgress>,
    followed: Option<LastBytes>,
}

impl<R: Read> Read for CountedInput<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.read += read as u64;
        self.progress.has_read(self.read);
        if let Some(tail) = &self.followed {
            tail.follow(into.get(..read).unwrap_or_default());
        }
        Ok(read)
    }
}
