//! The file of a trace that is written: readable by its owner only, written by one program at a time, in whole lines or
//! whole gzip members.
//!
//! So whatever moment a program is killed or the file emptied at, what follows stands at the start of a line or member.

use std::{
    fmt,
    fs::{File, Metadata, OpenOptions, TryLockError},
    io::{self, Write},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};

use super::{TraceError, source::Packing};
use crate::storage::Upload;

/// A little less than what is usual: times are digits in no order, of which more work makes little less.
const COMPRESSION: Compression = Compression::new(4);
/// Bytes after which a unit is written without a flush.
const FULL: (usize, usize) = (64 * 1024, 1 << 20);

/// Lines that wait to be written at once.
#[derive(Debug)]
pub(super) enum OutputUnit {
    Plain(Vec<u8>),
    Gzip(Option<Box<GzEncoder<Vec<u8>>>>),
}

impl OutputUnit {
    pub(super) fn of(packing: Packing) -> Self {
        match packing {
            Packing::Plain => Self::Plain(Vec::new()),
            Packing::Gzip => Self::Gzip(None),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(text) => text.write_all(bytes),
            Self::Gzip(member) => {
                member.get_or_insert_with(|| Box::new(GzEncoder::new(Vec::new(), COMPRESSION))).write_all(bytes)
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Plain(text) => text.len() >= FULL.0,
            Self::Gzip(member) => member.as_ref().is_some_and(|member| member.get_ref().len() >= FULL.1),
        }
    }

    /// Takes what waits, none where nothing does.
    pub(super) fn take(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain(text) => Ok(std::mem::take(text)),
            Self::Gzip(member) => member.take().map_or_else(|| Ok(Vec::new()), |member| member.finish()),
        }
    }
}

enum Destination {
    Stream(Box<dyn Write + Send>),
    Object(Box<dyn Upload>),
}

pub(super) struct TraceOutput {
    to: Destination,
    /// The file once more, to be looked at and cut; `None` where it is none.
    file: Option<File>,
    /// Length of the file, as far as it was written here.
    bytes: u64,
    is_broken: bool,
}

impl fmt::Debug for TraceOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceOutput").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for TraceOutput {
    fn drop(&mut self) {
        // A child process has the file too until it runs its program, and with it the lock, unless that is given up.
        if let Some(file) = &self.file {
            let _without_locks = file.unlock();
        }
    }
}

impl TraceOutput {
    pub(super) fn of_file(file: File, bytes: u64) -> Self {
        let again = file.try_clone().ok();
        Self { to: Destination::Stream(Box::new(file)), file: again, bytes, is_broken: false }
    }

    pub(super) fn of_pipe(to: impl Write + Send + 'static) -> Self {
        Self { to: Destination::Stream(Box::new(to)), file: None, bytes: 0, is_broken: false }
    }

    pub(super) fn of_object(to: Box<dyn Upload>) -> Self {
        Self { to: Destination::Object(to), file: None, bytes: 0, is_broken: false }
    }

    /// Makes the object of what was written; a file has it already.
    pub(super) fn close(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.to, Destination::Stream(Box::new(io::sink()))) {
            Destination::Object(upload) => upload.finish(),
            Destination::Stream(_) => Ok(()),
        }
    }

    /// Writes a unit, and hands it to the operating system.
    pub(super) fn put(&mut self, unit: &[u8]) -> io::Result<()> {
        self.check()?;
        let to: &mut dyn Write = match &mut self.to {
            Destination::Stream(stream) => stream,
            Destination::Object(upload) => upload,
        };
        let written = to.write_all(unit).and_then(|()| to.flush());
        self.is_broken = written.is_err();
        self.bytes += unit.len() as u64;
        written
    }

    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_broken { Err(io::Error::other("an earlier write failed")) } else { Ok(()) }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    fn length(&self) -> Option<u64> {
        let found = self.file.as_ref()?.metadata().ok()?;
        found.is_file().then_some(found.len())
    }

    /// Returns the length of a file that is shorter than what was written.
    pub(super) fn shrunk(&self) -> Option<u64> {
        self.length().filter(|length| *length < self.bytes)
    }

    /// Cuts a regular file to `length`; returns whether it is one.
    pub(super) fn cut(&mut self, length: u64) -> io::Result<bool> {
        let (Some(file), Some(found)) = (&self.file, self.length()) else { return Ok(false) };
        if found > length {
            file.set_len(length)?;
        }
        self.bytes = length;
        Ok(true)
    }
}

/// Treatment of an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Refuse to touch it.
    New,
    /// Replace it.
    Truncate,
    /// Keep it, and go on after its complete records: only a cut tail is mended, nothing is copied. New arrivals follow
    /// the last old answer.
    Append,
    /// Leave it and write to another one beside it: the first of `NAME.1.jsonl`, `NAME.2.jsonl`… that is free.
    Next,
}

/// Creates a file, or empties it, according to `mode`; readable by its owner only, and locked against other writers.
pub(super) fn open(path: &Path, mode: CreateMode) -> Result<File, TraceError> {
    let mut options = OpenOptions::new();
    // A file that another program empties is written from its start again.
    options.append(true);
    match mode {
        CreateMode::New | CreateMode::Next => options.create_new(true),
        CreateMode::Truncate | CreateMode::Append => options.create(true),
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe that nobody reads would be waited for.
        options.mode(0o600).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    let failed = |doing, source| TraceError::Io { path: path.to_owned(), doing, source };
    let file = options.open(path).and_then(private).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => TraceError::Exists(path.to_owned()),
        #[cfg(unix)]
        _ if rustix::io::Errno::from_io_error(&source) == Some(rustix::io::Errno::NXIO) => {
            let message = "no program reads this pipe: start its reader first, or choose another file";
            failed("open", io::Error::new(io::ErrorKind::NotConnected, message))
        }
        _ => failed("create", source),
    })?;
    if file.metadata().is_ok_and(|found| found.is_file()) {
        claim(path, &file)?;
        file.set_len(0).map_err(|source| failed("write", source))?;
    }
    Ok(file)
}

/// Locks a file against other writers while it is open here. Does nothing on file systems without locks.
pub(super) fn claim(path: &Path, file: &File) -> Result<(), TraceError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TraceError::InUse(path.to_owned())),
        Err(TryLockError::Error(_)) | Ok(()) => Ok(()),
    }
}

/// A file that was there before may be open to others; what is written into it from now on is not. Writes to a pipe wait.
#[cfg(unix)]
pub(super) fn private(file: File) -> io::Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let known = file.metadata()?;
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - rustix::fs::OFlags::NONBLOCK)?;
    if known.is_file() && known.permissions().mode() & 0o077 != 0 {
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
    }
    Ok(file)
}

/// Returns true if a file has no name any more.
#[cfg(unix)]
pub(super) fn is_removed(found: &Metadata) -> bool {
    found.is_file() && std::os::unix::fs::MetadataExt::nlink(found) == 0
}

#[cfg(not(unix))]
pub(super) fn is_removed(_: &Metadata) -> bool {
    false
}

#[cfg(not(unix))]
pub(super) fn private(file: File) -> io::Result<File> {
    Ok(file)
}
