//! Records in another order than they come, of any number: what does not fit in memory goes through a temporary file.
//!
//! Runs of 128 MiB of lines are sorted, written to the file, and merged at the end (external merge sort). A run needs 64 KiB while it is merged.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use base::lock::Lock;

use super::FormatError;
use crate::trace::{Record, SharedFile, of_line, to_line};

/// Bytes of a run.
const RUN: usize = 128 << 20;
/// Bytes of a run that are read at once.
const PIECE: usize = 64 << 10;
/// Bytes that an entry takes beside its line.
const ENTRY: usize = 64;

/// Sort key of records; equal ones keep their order.
pub(super) type SortKey = (u64, u64);

/// A line with its key and its place among all.
type SortedEntry = (SortKey, u64, Vec<u8>);

/// Records that are being collected.
#[derive(Default)]
pub(super) struct SortedLines {
    folder: PathBuf,
    entries: Vec<SortedEntry>,
    bytes: usize,
    count: u64,
    most: usize,
    file: Option<File>,
    /// First and last byte of each run.
    runs: Vec<(u64, u64)>,
    line: Vec<u8>,
}

impl SortedLines {
    /// Records that go through a file in this folder where they are many.
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), most: RUN, ..Self::default() }
    }

    pub(super) fn push(&mut self, key: SortKey, record: &Record) -> Result<(), FormatError> {
        to_line(record, &mut self.line).map_err(|source| self.failure(source))?;
        self.bytes += self.line.len() + ENTRY;
        self.entries.push((key, self.count, self.line.clone()));
        self.count += 1;
        if self.bytes < self.most { Ok(()) } else { self.spill().map_err(|source| self.failure(source)) }
    }

    fn failure(&self, source: io::Error) -> FormatError {
        FormatError::Temporary { folder: self.folder.display().to_string(), source }
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile_in(&self.folder)?,
        };
        let begin = file.seek(SeekFrom::End(0))?;
        self.entries.sort_unstable();
        let mut out = io::BufWriter::with_capacity(PIECE, &file);
        for ((first, second), place, line) in self.entries.drain(..) {
            for number in [first, second, place, line.len() as u64] {
                out.write_all(&number.to_le_bytes())?;
            }
            out.write_all(&line)?;
        }
        out.flush()?;
        drop(out);
        self.runs.push((begin, file.stream_position()?));
        self.file = Some(file);
        self.bytes = 0;
        Ok(())
    }

    /// Hands out all records in the order of their keys.
    pub(super) fn drain(mut self, each: &mut dyn FnMut(Record) -> Result<(), FormatError>) -> Result<(), FormatError> {
        let folder = self.folder.clone();
        let failure = |source| FormatError::Temporary { folder: folder.display().to_string(), source };
        let mut take = |line: &[u8]| match of_line(line) {
            Some(record) => each(record),
            None => Err(failure(io::Error::other("a line came back damaged"))),
        };
        self.entries.sort_unstable();
        let mut own = std::mem::take(&mut self.entries).into_iter();
        let file = self.file.take().map(|file| Arc::new(Lock::new(file)));
        let run = |(begin, end): &(u64, u64)| {
            let bytes = SharedFile::new(file.as_ref()?, *begin).take(end - begin);
            Some(BufReader::with_capacity(PIECE, bytes))
        };
        let mut runs: Vec<_> = self.runs.iter().filter_map(run).collect();
        let mut heads: BinaryHeap<Reverse<(SortedEntry, usize)>> = BinaryHeap::new();
        // The entries in memory are one more run.
        let in_memory = runs.len();
        let mut next = |run: usize| runs.get_mut(run).map_or_else(|| Ok(own.next()), next_entry);
        for run in 0..=in_memory {
            heads.extend(next(run).map_err(failure)?.map(|entry| Reverse((entry, run))));
        }
        while let Some(Reverse(((_, _, line), run))) = heads.pop() {
            take(&line)?;
            heads.extend(next(run).map_err(failure)?.map(|entry| Reverse((entry, run))));
        }
        Ok(())
    }
}

/// The next entry of a run that is read again.
fn next_entry(run: &mut impl BufRead) -> io::Result<Option<SortedEntry>> {
    if run.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut number = || {
        let mut bytes = [0; 8];
        run.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let (key, place, length) = ((number()?, number()?), number()?, number()?);
    let mut line = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    run.read_exact(&mut line)?;
    Ok(Some((key, place, line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_order_through_files_of_any_number_of_runs() {
        let folder = tempfile::tempdir().unwrap();
        for most in [1, 3_000, usize::MAX] {
            let mut sorted = SortedLines { most, ..SortedLines::in_folder(folder.path()) };
            for number in 0..500_u32 {
                let blocks: Vec<u64> = (0..u64::from(number % 40)).collect();
                let record = Record { prompt_tokens: number, block_hashes: blocks.into(), ..Record::default() };
                sorted.push((u64::from(number * 7919 % 50), u64::from(number % 3)), &record).unwrap();
            }
            assert_eq!(sorted.runs.len() > 10, most < 4_000, "{most}");
            let mut found = Vec::new();
            sorted
                .drain(&mut |record| {
                    assert_eq!(u32::try_from(record.block_hashes.len()).unwrap(), record.prompt_tokens % 40);
                    found.push(record.prompt_tokens);
                    Ok(())
                })
                .unwrap();
            let mut expected: Vec<u32> = (0..500).collect();
            expected.sort_by_key(|number| (number * 7919 % 50, number % 3));
            assert_eq!(found, expected, "{most}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
