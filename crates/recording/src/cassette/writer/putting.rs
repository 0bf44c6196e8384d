//! The end of a recording: the file and its sidecar are put in place, after what changes all records.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::{self, Read},
};

use serde_json::Map;
use xxhash_rust::xxh3::xxh3_64;

use super::{CassetteWriter, WriteMode};
use crate::cassette::{
    Cassette, CassetteError, blob,
    keep::TokenIds,
    load,
    moments::{Sidecar, Times},
    parse,
    partial::put_in_place,
    private_file::partial,
    rerecorded,
    side::{self, RecordTokens},
    spool::Spool,
    write::{ToolsForm, emit, record_text},
};

impl CassetteWriter {
    /// Lets `change` change all records and the definitions of tools before the file is put in place; it returns the numbers of the
    /// records that it changed. Ids of tokens of these are dropped. The whole recording is in memory meanwhile.
    ///
    /// # Errors
    /// When the partial file cannot be read or written.
    pub fn mend(&mut self, change: impl FnOnce(&mut Cassette) -> Vec<u64>) -> Result<(), CassetteError> {
        if self.records.count() == 0 {
            return Ok(());
        }
        if std::mem::take(&mut self.keeps_by_hand) && !self.keeps_places {
            self.add_by_hand();
        }
        self.flush()?;
        let mut whole = self.whole()?;
        self.mended = change(&mut whole).into_iter().collect();
        if self.keeps_places || !self.mended.is_empty() {
            self.put_mended(whole).map_err(|source| self.io(source))?;
        }
        Ok(())
    }

    /// Everything that was recorded.
    fn whole(&mut self) -> Result<Cassette, CassetteError> {
        if self.keeps_places {
            let (records, tools) = (std::mem::take(self.records.list_mut()), self.tools.clone());
            return Ok(Cassette {
                path: self.path.clone(),
                header: self.header.clone(),
                records,
                tools,
                ..Cassette::default()
            });
        }
        let text = fs::read_to_string(partial(&self.path)).map_err(|source| self.io(source))?;
        let mut whole = parse(&self.path, &text)?;
        let lines = self.sides.text().map_err(|source| self.io(source))?;
        let lines = self.old_sides.split(|byte| *byte == b'\n').chain(lines.as_bytes().split(|byte| *byte == b'\n'));
        let sides = lines.filter_map(|line| serde_json::from_slice::<Sidecar>(line).ok()).map(|side| (side.id, side));
        let mut sides: HashMap<u64, Sidecar> = sides.collect();
        for record in &mut whole.records {
            record.join(sides.remove(&record.id));
        }
        Ok(whole)
    }

    /// Takes changed records, in place of what was written.
    fn put_mended(&mut self, whole: Cassette) -> io::Result<()> {
        if !self.mended.is_empty() {
            blob::write_blobs(&self.path, whole.records.iter())?;
            self.partial.replace(&emit(&whole.header, &whole.records, &whole.tools))?;
        }
        (self.old_sides, self.sides) = (Vec::new(), Spool::beside(&self.path));
        self.records.set(whole.records);
        Ok(())
    }

    /// Puts the file and its sidecar in place; returns the number of records. A file without records is not written, and an old file is
    /// not replaced by one.
    ///
    /// # Errors
    /// When they cannot be written; the partial file stays then.
    pub fn finish(mut self) -> Result<usize, CassetteError> {
        if self.records.count() == 0 {
            // The next run would replay nothing from it, and so record nothing.
            return self.discard().map(|()| 0);
        }
        if self.keeps_by_hand && !self.keeps_places {
            self.add_by_hand();
        }
        self.flush()?;
        let before = fs::read(&self.path).ok();
        let is_meant = self.mode == WriteMode::Replace && self.found.is_some();
        if !is_meant && before.as_deref().is_some_and(|now| Some(xxh3_64(now)) != self.found) {
            self.partial.keep().map_err(|source| self.io(source))?;
            return Err(CassetteError::Changed { partial: partial(&self.path), path: self.path });
        }
        self.put(before.as_deref()).map_err(|source| self.io(source))?;
        Ok(self.records.count())
    }

    /// Ends the recording and drops what was recorded: the old file and what is beside it are as they were.
    ///
    /// # Errors
    /// When the partial file or a body cannot be removed.
    pub fn discard(self) -> Result<(), CassetteError> {
        let removed = fs::remove_file(partial(&self.path)).and_then(|()| blob::remove(&self.path, &self.blobs));
        removed.map_err(|source| self.io(source))
    }

    fn put(&mut self, before: Option<&[u8]>) -> io::Result<()> {
        let numbers = if self.keeps_places { self.arrange()? } else { HashMap::new() };
        // Where all records stay in memory, so do their sides.
        let sides = side::text(self.records.list().iter().filter_map(|record| record.side.as_ref()));
        self.partial.keep()?;
        put_in_place(&self.path, self.old_sides.as_slice().chain(self.sides.reader()?).chain(sides.as_bytes()))?;
        if !self.mended.is_empty() {
            blob::remove_others(&self.path)?;
        }
        // Those of the file that was here are no longer meant to be known.
        let forgets = self.keep.tokens == TokenIds::None && self.mode == WriteMode::Replace;
        if forgets { RecordTokens::write(&self.path, &[]) } else { self.put_tokens(&numbers) }?;
        self.note_run(before)
    }

    /// Notes a recording that changed the file; where no times are kept, nothing is known of runs either.
    fn note_run(&self, before: Option<&[u8]>) -> io::Result<()> {
        let is_same = || fs::read(&self.path).is_ok_and(|now| before == Some(&*now));
        let mode = match (self.mode, before) {
            (WriteMode::Append, _) => "new-episodes",
            (WriteMode::Replace, Some(_)) => "all",
            (WriteMode::Replace, None) => "once",
        };
        let is_noted = self.notes_runs && self.keep.times == Times::Sidecar && !is_same();
        if is_noted { side::note_run(&self.path, mode, self.records.count()) } else { Ok(()) }
    }

    /// Adds the hand-written records of the file that is replaced, if it can be read, behind the others.
    fn add_by_hand(&mut self) {
        let old = load(&self.path).map(|old| old.records).unwrap_or_default();
        for record in rerecorded::by_hand(&old, self.next) {
            record_text(self.partial.added(), &record, None, ToolsForm::Closed(&self.tools), self.indent);
            self.records.push(record);
            self.dirty = true;
        }
    }

    /// Brings the records into the order of the file that is replaced, if it can be read; returns their new numbers.
    fn arrange(&mut self) -> io::Result<HashMap<u64, u64>> {
        let Ok(old) = load(&self.path) else { return Ok(HashMap::new()) };
        let mut records = std::mem::take(self.records.list_mut());
        records.extend(rerecorded::by_hand(&old.records, self.next));
        let (records, numbers) = rerecorded::arrange(&self.header, &old.records, records);
        blob::write_blobs(&self.path, records.iter())?;
        self.partial.replace(&emit(&self.header, &records, &Map::new()))?;
        *self.records.list_mut() = records;
        Ok(numbers)
    }

    /// Writes what is known of tokens, beside what the sidecar of a continued cassette knows.
    fn put_tokens(&mut self, numbers: &HashMap<u64, u64>) -> io::Result<()> {
        let mut new = RecordTokens::of_lines(&self.tokens.text()?);
        new.retain(|id, _| !self.mended.contains(id));
        if new.is_empty() && self.mended.is_empty() {
            return Ok(());
        }
        let mut known = match self.mode {
            WriteMode::Append => RecordTokens::read(&self.path)?,
            WriteMode::Replace => BTreeMap::new(),
        };
        known.retain(|id, _| !self.mended.contains(id));
        for (id, tokens) in new {
            let id = numbers.get(&id).copied().unwrap_or(id);
            known.insert(id, RecordTokens { id, ..tokens });
        }
        RecordTokens::write(&self.path, &known.into_values().collect::<Vec<_>>())
    }
}
