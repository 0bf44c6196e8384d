//! Loading files into a [`Store`].

use std::{path::Path, sync::Arc, time::Duration};

use super::{
    LoadProgress, LoadedFile, Sources, Store, TraceError,
    packed::Packed,
    record_reader::RecordReader,
    several::{JoinedTimeline, SourceFile, hashed, spelled},
    source::{NumberedLines, refuse_pipe},
};
use text::prompt::BlockHashAlgorithm;

/// The most lines of a file that hold no sound record: each keeps a place in the [`Store`].
const MOST_LOST: u64 = 100_000;

/// Reads a whole trace and packs it; `-` is standard input. Every complete record of a cut file is kept, with a warning,
/// and bad lines are left out and noted. `progress` follows it.
///
/// # Errors
/// As [`read`](super::read), but for a line that breaks a rule only where no other line holds a record, or where there are
/// more than a hundred thousand such lines. What is no plain file is refused: a pipe may never end.
pub fn load(path: &Path, progress: &Arc<LoadProgress>) -> Result<Store, TraceError> {
    load_all(&Sources::one(path), progress)
}

/// As [`load`], several files as one.
///
/// # Errors
/// As [`load`], for the first file that has any.
pub fn load_all(sources: &Sources, progress: &Arc<LoadProgress>) -> Result<Store, TraceError> {
    sources.announce_size(progress);
    let (mut store, mut timeline) = (Store::default(), JoinedTimeline::default());
    for file in &sources.files {
        progress.next_file();
        store.add(file, &mut timeline, progress)?;
    }
    let bad = store.files.iter().find_map(|file| Some((&file.path, file.bad_lines.first.first()?)));
    let is_empty = store.files.iter().all(|file| file.records == 0);
    if let Some((path, finding)) = bad.filter(|_| is_empty) {
        return Err(TraceError::Line { path: path.clone(), finding: finding.clone() });
    }
    store.shrink();
    Ok(store)
}

impl Store {
    /// Adds what stands for lines that hold no sound record, so that the others keep their places.
    fn push_lost(&mut self, lost: &mut usize, arrival: Option<Duration>) {
        for _ in 0..std::mem::take(lost) {
            self.push(Packed::lost(arrival));
        }
    }

    fn add(
        &mut self,
        file: &SourceFile,
        timeline: &mut JoinedTimeline,
        progress: &Arc<LoadProgress>,
    ) -> Result<(), TraceError> {
        refuse_pipe(&file.path)?;
        let mut reader =
            RecordReader::<Packed>::start(NumberedLines::open(&file.path, Arc::clone(progress))?)?.ahead()?;
        let mut loaded = LoadedFile { path: file.path.clone(), ..LoadedFile::default() };
        let nth = self.files.len();
        timeline.begin(file.zero);
        let (mut found_hash, mut lost, mut last_arrival) =
            (hashed(&reader.meta).then(|| spelled(reader.meta.block_hash.unwrap_or_default())), 0, None);
        while let Some((_, found)) = reader.next_sound(&mut loaded.bad_lines)? {
            if let Some(finding) = loaded.bad_lines.first.first().filter(|_| loaded.bad_lines.count > MOST_LOST) {
                let (path, finding) = (file.path.clone(), finding.clone());
                return Err(TraceError::TooManyBadLines { path, most: MOST_LOST, finding });
            }
            let Some(mut record) = found else {
                lost += 1;
                continue;
            };
            // They are no tokens of the model.
            record.ids = record.ids.filter(|_| !reader.meta.has_permuted_ids());
            record.facts.arrival = timeline.place(record.facts.arrival, record.facts.e2e);
            self.push_lost(&mut lost, last_arrival.or(record.facts.arrival));
            last_arrival = record.facts.arrival;
            if found_hash.is_none() && (!record.chain.is_empty() || record.facts.prompt_hash.is_some()) {
                found_hash = Some(spelled(BlockHashAlgorithm::default()));
            }
            if record.model.is_none() {
                record.model.clone_from(&file.model);
            }
            if let Some(group) = record.facts.group.as_mut().filter(|_| nth > 0) {
                // Captures name their groups each for itself.
                *group = format!("{nth}/{group}").into_boxed_str();
            }
            loaded.count(&record);
            self.push(record);
            progress.has_records(self.len() as u64);
        }
        self.push_lost(&mut lost, last_arrival);
        // A file that names no hash and has hashes has the public ones. No prompt could be found in two files that differ.
        if let Some(hash) = found_hash {
            self.agreement.add(&file.path, "block_hash", hash)?;
        }
        loaded.warnings = reader.warnings;
        loaded.warnings.extend(file.missing.clone());
        if nth == 0 {
            (self.meta, self.end) = (reader.meta, reader.end);
        } else {
            self.meta.join(&reader.meta);
            self.end = self.end.take().zip(reader.end).map(|(all, end)| all.and(&end));
        }
        self.files.push(loaded);
        Ok(())
    }
}
