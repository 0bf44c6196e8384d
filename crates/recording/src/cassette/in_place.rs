//! Cassettes in their place on the disk. Files are readable by their owner only.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead, Write},
    path::Path,
};

use super::{
    Cassette, CassetteError, blob,
    partial::partial,
    side::{self, sidecar_of},
    write::emit,
};

/// Writes a cassette and its sidecar in place of what is there; bodies that it does not have any more are removed.
///
/// # Errors
/// When they cannot be written.
pub fn rewrite(cassette: &Cassette) -> Result<(), CassetteError> {
    let Cassette { path, header, records, tools, .. } = cassette;
    let sides: String = side::text(records.iter().filter_map(|record| record.side.as_ref()));
    let put = || -> io::Result<()> {
        blob::write_blobs(path, records.iter())?;
        write(&partial(path), emit(header, records, tools).as_bytes())?;
        put_in_place(path, sides.as_bytes())?;
        blob::remove_others(path, records)
    };
    put().map_err(|source| CassetteError::Io { path: path.clone(), source })
}

/// Puts a cassette that is written as its partial file in its place, and its sidecar before it; without times there is none.
pub(super) fn put_in_place(path: &Path, mut sides: impl BufRead) -> io::Result<()> {
    let timing = side::timing_of(path);
    if !sides.fill_buf()?.is_empty() {
        side::make_folder(path, &sidecar_of(path))?;
        io::copy(&mut sides, &mut private().truncate(true).open(partial(&timing))?)?;
        fs::rename(partial(&timing), timing)?;
    } else if timing.exists() {
        fs::remove_file(timing)?;
    }
    let partial = partial(path);
    if !fs::symlink_metadata(&partial)?.is_file() {
        let message = format!("{} is not a file any more; another program replaced it", partial.display());
        return Err(io::Error::other(message));
    }
    fs::rename(partial, path)
}

/// Writes a file that only its owner can read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private().truncate(true).open(path)?.write_all(bytes)
}

/// Returns options to open a file that only its owner can read.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A link in the place of such a file would have another one overwritten, a pipe would hold up its writer.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
    }
    options
}
