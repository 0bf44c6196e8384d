//! Files that only their owner can read, and names of unfinished ones.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The name of a file that is not finished.
pub(super) fn partial(path: &Path) -> PathBuf {
    with_end(path, ".partial".as_ref())
}

/// The file that a name leads to where it is a link: what is written and renamed to that name would take the link's place.
pub(super) fn followed(path: &Path) -> PathBuf {
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    // It may lead to a file that is not there yet.
    let missing = || Some(path.parent()?.join(fs::read_link(path).ok()?));
    let target = is_link.then(|| fs::canonicalize(path).ok().or_else(missing)).flatten();
    target.unwrap_or_else(|| path.to_owned())
}

/// A name with more at its end.
pub(super) fn with_end(path: &Path, end: &OsStr) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Writes a file that only its owner can read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private().truncate(true).open(path)?.write_all(bytes)
}

/// Options that create a file for its owner only.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_to_a_file_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("tape.yaml");
        std::os::unix::fs::symlink("kept.yaml", &link).unwrap();
        assert_eq!(followed(&link), folder.path().join("kept.yaml"));
    }
}
