//! What a recording has written and needs again at its end, or where its file is lost: it is on the disk, in a file without a name
//! beside the cassette, and not in memory.
//!
//! Limits: what the disk does not take stays in memory until it does; on a full disk all of it is there, since the cassette comes first.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::storage::folder_of;

/// A text that only grows, and is read as a whole.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    /// Created when there is something to write; the system removes it when it is closed.
    file: Option<File>,
    /// Bytes of it that are whole.
    length: u64,
    /// What the disk has not taken.
    pending: String,
    /// The disk is left to others.
    gives_way: bool,
}

impl Spool {
    pub(super) fn beside(cassette: &Path) -> Self {
        Self { folder: folder_of(cassette).to_owned(), file: None, length: 0, pending: String::new(), gives_way: false }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.pending.push_str(text);
        if let Err(error) = self.write() {
            tracing::debug!(%error, "what was recorded stays in memory: the disk does not take it");
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() || self.gives_way {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?),
        };
        // A write that failed may have left a part behind.
        file.seek(SeekFrom::Start(self.length))?;
        file.write_all(self.pending.as_bytes())?;
        self.length += self.pending.len() as u64;
        self.pending = String::new();
        Ok(())
    }

    pub(super) fn reader(&mut self) -> io::Result<impl BufRead> {
        let written: Box<dyn Read> = match &mut self.file {
            Some(file) => {
                file.seek(SeekFrom::Start(0))?;
                Box::new(file.take(self.length))
            }
            None => Box::new(io::empty()),
        };
        Ok(BufReader::new(written).chain(self.pending.as_bytes()))
    }

    pub(super) fn text(&mut self) -> io::Result<String> {
        let mut text = String::new();
        self.reader()?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Takes everything into memory from now on, so that the disk has its place.
    pub(super) fn give_way(&mut self) -> io::Result<()> {
        if self.gives_way {
            return Ok(());
        }
        self.pending = self.text()?;
        (self.file, self.length, self.gives_way) = (None, 0, true);
        Ok(())
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.pending.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_on_the_disk_and_what_is_not_taken_stays_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::beside(&folder.path().join("c.yaml"));
        assert_eq!(spool.text().unwrap(), "");
        spool.push("one\n");
        assert_eq!((spool.text().unwrap().as_str(), spool.held()), ("one\n", 0));
        spool.push("two\n");
        assert_eq!((spool.text().unwrap().as_str(), spool.held()), ("one\ntwo\n", 0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
        spool.give_way().unwrap();
        spool.push("three\n");
        assert_eq!((spool.text().unwrap().as_str(), spool.file.is_none()), ("one\ntwo\nthree\n", true));
        let mut nowhere = Spool::beside(Path::new("/nowhere/at/all/c.yaml"));
        nowhere.push("one\n");
        nowhere.push("two\n");
        assert_eq!(nowhere.text().unwrap(), "one\ntwo\n");
    }
}
