//! Creation of trace files: readable by their owner only, and written by one program at a time.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use super::TraceError;

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
///
/// # Errors
/// When it exists and may not, cannot be created, or another program writes it.
pub(super) fn open(path: &Path, mode: CreateMode) -> Result<File, TraceError> {
    let mut options = OpenOptions::new();
    // A file that another program empties is written from its start again.
    options.append(true);
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

/// Locks a file against other writers while it is open here. Does nothing on file systems without locks.
pub(super) fn claim(path: &Path, file: &File) -> Result<(), TraceError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TraceError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(_)) | Ok(()) => Ok(()),
    }
}

/// A file that was there before may be open to others; what is written into it from now on is not.
#[cfg(unix)]
pub(super) fn private(file: File) -> io::Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let known = file.metadata()?;
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
