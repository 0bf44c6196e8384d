//! The file of a recording that is not finished, `NAME.yaml.partial`: a cassette too, which grows at its end.
//!
//! Records that are on the disk are not written again; what follows them is. A partial file that was left by a crash is never
//! overwritten: the recording does not begin where it holds records, and one that cannot be read is renamed. A finished one
//! takes the cassette's place. Files are readable by their owner only.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufRead, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{
    Cassette, CassetteError, blob, load, parse,
    private_file::{followed, partial, private, with_end, write},
    side::{self, sidecar_of},
    spool::Spool,
    write::emit,
};

/// A partial file, locked against other writers until it is dropped.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    /// Offset at which the records on the disk end.
    end: u64,
    /// Text before all new records, for when the file has to be rewritten.
    before: String,
    /// That text is on the disk.
    is_begun: bool,
    /// New records that are not on the disk yet.
    added: String,
    /// New records that are, for the file that is rewritten.
    written: Spool,
    /// Length of the file; `None` where a write failed.
    length: Option<u64>,
}

impl Partial {
    /// Creates and locks the partial file of a cassette; `before` comes before its records.
    pub(super) fn claim(path: &Path, before: String) -> Result<Self, CassetteError> {
        let partial_path = partial(path);
        let io = |source| CassetteError::Io { path: partial_path.clone(), source };
        let (mut file, mut left) = (lock(path, &partial_path)?, Vec::new());
        file.read_to_end(&mut left).map_err(io)?;
        let read = std::str::from_utf8(&left).map_err(|error| error.to_string());
        match read.and_then(|text| parse(&partial_path, text).map_err(|error| error.to_string())) {
            Ok(left) if !left.records.is_empty() => {
                let records = left.records.len();
                return Err(CassetteError::Unfinished { path: path.to_owned(), partial: partial_path, records });
            }
            Err(why) if !left.trim_ascii().is_empty() => {
                let free = free_name(&partial_path);
                fs::rename(&partial_path, &free).map_err(io)?;
                tracing::warn!(
                    "the partial file of an unfinished recording cannot be read ({why}): it is renamed to {}",
                    free.display()
                );
                file = lock(path, &partial_path)?;
            }
            Ok(_) | Err(_) => {}
        }
        Ok(Self {
            path: partial_path,
            file,
            end: 0,
            before,
            is_begun: false,
            added: String::new(),
            written: Spool::beside(path),
            length: None,
        })
    }

    pub(super) fn begin(&mut self, before: String) {
        self.before = before;
    }

    pub(super) fn added(&mut self) -> &mut String {
        &mut self.added
    }

    /// Writes new records to the disk, and what follows all of them: `tail`, records that are written again later, and `after`.
    pub(super) fn bring(&mut self, tail: &str, after: &str) -> io::Result<()> {
        // A list without items is not null.
        let bare = self.before.strip_suffix("records:\n").filter(|_| !self.is_begun);
        let bare = bare.map(|top| format!("{top}records: []\n"));
        let is_bare = bare.is_some() && self.added.is_empty();
        let head = match &bare {
            _ if self.is_begun => String::new(),
            Some(bare) if is_bare && tail.is_empty() => bare.clone(),
            Some(_) | None => self.before.clone(),
        };
        let text = [&head, self.added.as_str(), tail, after].concat();
        if let Err(error) = self.put(&text) {
            // What is there is a cassette again, as far as the disk takes it.
            if self.put(bare.as_deref().unwrap_or(if self.is_begun { after } else { &head })).is_err() {
                self.file.set_len(self.end)?;
                self.length = Some(self.end);
            }
            return Err(error);
        }
        if !is_bare {
            self.end += (head.len() + self.added.len()) as u64;
            self.is_begun = true;
            self.written.push(&std::mem::take(&mut self.added));
        }
        Ok(())
    }

    pub(super) fn give_way(&mut self) -> io::Result<()> {
        self.written.give_way()
    }

    /// Writes everything after the records on the disk.
    fn put(&mut self, text: &str) -> io::Result<()> {
        self.length = None;
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(text.as_bytes())?;
        let length = self.end + text.len() as u64;
        self.file.set_len(length)?;
        self.length = Some(length);
        Ok(())
    }

    /// Whether the file has its name and its length still.
    pub(super) fn is_intact(&self) -> bool {
        let length = self.file.metadata().map_or(0, |found| found.len());
        let is_long_enough = self.length.map_or(length >= self.end, |written| written == length);
        is_long_enough && is_at(&self.file, &self.path)
    }

    /// Starts again with all records, where another program emptied, removed or replaced the file. The file that has its name now
    /// is renamed.
    pub(super) fn restart(&mut self, cassette: &Path) -> Result<(), CassetteError> {
        let io = |source| CassetteError::Io { path: self.path.clone(), source };
        if !is_at(&self.file, &self.path) {
            if fs::symlink_metadata(&self.path).is_ok() {
                let free = free_name(&self.path);
                fs::rename(&self.path, &free).map_err(io)?;
                tracing::warn!(
                    "{} was replaced while it was written: the file there is renamed to {}",
                    self.path.display(),
                    free.display()
                );
            }
            self.file = lock(cassette, &self.path)?;
        }
        let records = self.written.text().map_err(io)? + &self.added;
        self.file.set_len(0).map_err(io)?;
        self.written = Spool::beside(cassette);
        (self.end, self.is_begun, self.added, self.length) = (0, false, records, Some(0));
        tracing::warn!(
            "{} was emptied, removed or replaced by another program while it was written: it is rewritten",
            self.path.display()
        );
        Ok(())
    }

    /// Puts another text in place of all of it. What is there stays until the disk has that text.
    pub(super) fn replace(&mut self, text: &str) -> io::Result<()> {
        let whole = with_end(&self.path, ".whole".as_ref());
        let mut file = private().truncate(true).read(true).open(&whole)?;
        file.try_lock().ok();
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(whole, &self.path)?;
        (self.file, self.before, self.is_begun) = (file, text.to_owned(), true);
        self.end = text.len() as u64;
        (self.length, self.written, self.added) = (Some(self.end), Spool::beside(&self.path), String::new());
        Ok(())
    }

    pub(super) fn keep(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Removes the partial file of a cassette where nobody writes it any more, and the bodies that the cassette does not name: what a
/// recording left that was not ended.
///
/// # Errors
/// When it is written now, or cannot be removed.
pub fn remove_unfinished(cassette: &Path) -> Result<(), CassetteError> {
    let path = &followed(cassette);
    let partial_path = partial(path);
    if fs::symlink_metadata(&partial_path).is_err() {
        return Ok(());
    }
    let _locked = lock(path, &partial_path)?;
    tracing::warn!("{} belongs to an unfinished recording and is removed", partial_path.display());
    // Of a cassette that cannot be read it is not known what it names.
    let is_known = !path.exists() || load(path).is_ok();
    let removed = if is_known { blob::remove_others(path) } else { Ok(()) };
    let removed = removed.and_then(|()| blob::remove(path, &[])).and_then(|()| fs::remove_file(&partial_path));
    removed.map_err(|source| CassetteError::Io { path: partial_path, source })
}

/// Opens and locks a partial file.
fn lock(path: &Path, partial_path: &Path) -> Result<File, CassetteError> {
    let opened = private().read(true).truncate(false).open(partial_path);
    let file = opened.map_err(|source| CassetteError::Io { path: partial_path.to_owned(), source })?;
    let is_busy = match file.try_lock() {
        // The recording that had the lock may have finished the file meanwhile.
        Ok(()) => !is_at(&file, partial_path),
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
    // A link to it is another file.
    number(file.metadata()) == number(fs::symlink_metadata(path))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// The first name beside a partial file that is free.
fn free_name(partial_path: &Path) -> PathBuf {
    let names = (1_u32..).map(|number| with_end(partial_path, format!(".{number}").as_ref()));
    names.into_iter().find(|name| fs::symlink_metadata(name).is_err()).unwrap_or_else(|| partial_path.to_owned())
}

/// Writes a cassette and its sidecar in place of what is there; bodies that it does not have any more are removed.
///
/// # Errors
/// When they cannot be written.
pub fn rewrite(cassette: &Cassette) -> Result<(), CassetteError> {
    let Cassette { header, records, tools, .. } = cassette;
    let path = &followed(&cassette.path);
    let sides: String = side::text(records.iter().filter_map(|record| record.side.as_ref()));
    let put = || -> io::Result<()> {
        blob::write_blobs(path, records.iter())?;
        write(&partial(path), emit(header, records, tools).as_bytes())?;
        put_in_place(path, sides.as_bytes())?;
        blob::remove_others(path)
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
        file.bring("", "tools: {}\n").unwrap();
        assert_eq!(text(), "vcr: 1\nrecords: []\ntools: {}\n");
        file.added().push_str("- one\n");
        file.bring("", "tools: {a: {}}\n").unwrap();
        assert_eq!(text(), format!("{TOP}- one\ntools: {{a: {{}}}}\n"));
        file.added().push_str("- two\n");
        file.bring("", "").unwrap();
        file.bring("", "").unwrap();
        assert_eq!(text(), format!("{TOP}- one\n- two\n"));
        file.bring("- later\n", "tools: {}\n").unwrap();
        assert_eq!(text(), format!("{TOP}- one\n- two\n- later\ntools: {{}}\n"));
        file.added().push_str("- three\n");
        file.bring("", "").unwrap();
        assert_eq!(text(), format!("{TOP}- one\n- two\n- three\n"));
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
            Partial::claim(&path, TOP.to_owned()).unwrap().bring("", "").unwrap();
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

    #[test]
    fn what_a_record_by_hand_names_stays_where_a_recording_that_was_left_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        let blobs = folder.path().join("a.vcr/blobs");
        fs::create_dir_all(&blobs).unwrap();
        let put = |text: &str| {
            fs::write(blobs.join(blob::text_name(text)), text).unwrap();
            blob::text_name(text)
        };
        let (inline, words) = ("word ".repeat(1000), "more words ".repeat(1000));
        let (large, said, small, body) = (put(&inline.replace('w', "l")), put(&words), put("small"), put("body"));
        let unnamed = put("nobody names it");
        let text = format!(
            "vcr: 1\nrecords:\n\
             - request: POST /a\n  body: {{a: '{inline}', b: {{$blob: {large}}}, c: {{$blob: {small}}}}}\n  \
             answer: {{status: 200, body: {{text: {{$blob: {said}}}}}}}\n\
             - request: GET /b\n  answer: {{status: 200, body_blob: {body}}}\n"
        );
        fs::write(&path, text).unwrap();
        assert!(load(&path).unwrap().records[0].holds_large);
        fs::write(partial(&path), "").unwrap();
        remove_unfinished(&path).unwrap();
        assert!(!partial(&path).exists() && !blobs.join(unnamed).exists());
        assert_eq!(load(&path).unwrap().records.len(), 2);
        assert_eq!(fs::read_dir(&blobs).unwrap().count(), 4);
    }
}
