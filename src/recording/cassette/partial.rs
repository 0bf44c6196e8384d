//! The file of a recording that is not finished, `NAME.yaml.partial`: a cassette too, which grows at its end.
//!
//! Records that are on the disk are not written again; what follows them is. A partial file that was left by a crash is never
//! overwritten: the recording does not begin where it holds records, and one that cannot be read is put aside.

use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{CassetteError, parse, writer::private};

/// Returns the path of a partial file.
pub(super) fn partial(path: &Path) -> PathBuf {
    with_end(path, ".partial".as_ref())
}

fn with_end(path: &Path, end: &std::ffi::OsStr) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// A partial file that is one's own as long as this is there.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    /// Offset at which the records on the disk end.
    end: u64,
    /// Text before all new records that is not on the disk yet.
    before: Option<String>,
    /// New records that are not on the disk yet.
    added: String,
}

impl Partial {
    /// Takes the partial file of a cassette for one's own; `before` comes before its records.
    ///
    /// # Errors
    /// When it cannot be created, is locked by another program, or holds records.
    pub(super) fn claim(path: &Path, before: String) -> Result<Self, CassetteError> {
        let own = partial(path);
        let io = |source| CassetteError::Io { path: own.clone(), source };
        let (mut file, mut left) = (lock(path, &own)?, Vec::new());
        file.read_to_end(&mut left).map_err(io)?;
        let read = std::str::from_utf8(&left).map_err(|error| error.to_string());
        match read.and_then(|text| parse(&own, text).map_err(|error| error.to_string())) {
            Ok(left) if !left.records.is_empty() => {
                let records = left.records.len();
                return Err(CassetteError::Unfinished { path: path.to_owned(), partial: own, records });
            }
            Err(why) if !left.trim_ascii().is_empty() => {
                let aside = aside(&own);
                fs::rename(&own, &aside).map_err(io)?;
                tracing::warn!(
                    "a recording that was not finished cannot be read ({why}): it is kept as {}",
                    aside.display()
                );
                file = lock(path, &own)?;
            }
            Ok(_) | Err(_) => {}
        }
        Ok(Self { file, end: 0, before: Some(before), added: String::new() })
    }

    /// Begins with another text.
    pub(super) fn begin(&mut self, before: String) {
        self.before = Some(before);
    }

    /// Returns the buffer of new records.
    pub(super) fn added(&mut self) -> &mut String {
        &mut self.added
    }

    /// Brings new records to the disk, and what follows all of them.
    pub(super) fn bring(&mut self, after: &str) -> io::Result<()> {
        let before = self.before.as_deref().unwrap_or_default();
        self.file.seek(SeekFrom::Start(self.end))?;
        // A list without items is not null.
        let empty = before.strip_suffix("records:\n").filter(|_| self.added.is_empty());
        let head = empty.map_or_else(|| before.to_owned(), |top| format!("{top}records: []\n"));
        let text = [&head, self.added.as_str(), after].concat();
        self.file.write_all(text.as_bytes())?;
        self.file.set_len(self.end + text.len() as u64)?;
        if empty.is_none() {
            self.end += (before.len() + self.added.len()) as u64;
            (self.before, self.added) = (None, String::new());
        }
        Ok(())
    }

    /// Waits until the disk has all of it.
    pub(super) fn keep(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Opens a partial file for one's own.
fn lock(path: &Path, own: &Path) -> Result<File, CassetteError> {
    let opened = private().read(true).truncate(false).open(own);
    let file = opened.map_err(|source| CassetteError::Io { path: own.to_owned(), source })?;
    let is_busy = match file.try_lock() {
        // Who had it may have put it in place meanwhile.
        Ok(()) => !is_at(&file, own),
        Err(TryLockError::WouldBlock) => true,
        // Not every file system knows locks.
        Err(TryLockError::Error(_)) => false,
    };
    if is_busy { Err(CassetteError::Busy { path: path.to_owned() }) } else { Ok(file) }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |metadata: io::Result<fs::Metadata>| metadata.ok().map(|it| (it.dev(), it.ino()));
    number(file.metadata()) == number(fs::metadata(path))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// The first name beside a partial file that is free.
fn aside(own: &Path) -> PathBuf {
    let names = (1_u32..).map(|number| with_end(own, format!(".{number}").as_ref()));
    names.into_iter().find(|name| !name.exists()).unwrap_or_else(|| own.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: &str = "vcr: 1\nrecords:\n";

    #[test]
    fn records_are_written_once_and_what_follows_them_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        let mut file = Partial::claim(&path, TOP.to_owned()).unwrap();
        let text = || fs::read_to_string(partial(&path)).unwrap();
        file.bring("tools: {}\n").unwrap();
        assert_eq!(text(), "vcr: 1\nrecords: []\ntools: {}\n");
        file.added().push_str("- one\n");
        file.bring("tools: {a: {}}\n").unwrap();
        assert_eq!(text(), format!("{TOP}- one\ntools: {{a: {{}}}}\n"));
        file.added().push_str("- two\n");
        file.bring("").unwrap();
        file.bring("").unwrap();
        assert_eq!(text(), format!("{TOP}- one\n- two\n"));
        assert!(matches!(Partial::claim(&path, TOP.to_owned()), Err(CassetteError::Busy { .. })));
    }

    #[test]
    fn what_was_left_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        let kept = |number: u32| fs::read(folder.path().join(format!("a.yaml.partial.{number}")));
        let torn = b"vcr: 1\nrecords:\n- request: POST /x\n  body: {mod".to_vec();
        for (at, left) in [(1, torn), (2, b"\xff".to_vec())] {
            fs::write(partial(&path), &left).unwrap();
            Partial::claim(&path, TOP.to_owned()).unwrap().bring("").unwrap();
            assert_eq!(kept(at).unwrap(), left);
            fs::remove_file(partial(&path)).unwrap();
        }
        fs::write(partial(&path), format!("{TOP}- request: POST /x\n  answer: {{}}\n")).unwrap();
        assert!(matches!(Partial::claim(&path, TOP.to_owned()), Err(CassetteError::Unfinished { records: 1, .. })));
        for nothing in ["", "\n", "vcr: 1\nrecords: []\n"] {
            fs::write(partial(&path), nothing).unwrap();
            assert!(Partial::claim(&path, TOP.to_owned()).is_ok() && kept(3).is_err(), "{nothing}");
        }
    }
}
