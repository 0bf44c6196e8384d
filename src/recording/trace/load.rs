//! Loading files into a [`Store`].

use std::{
    fs::Metadata,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    BadLines, Progress, Sources, Store, TraceError, Warning,
    packed::Packed,
    several::{SourceFile, Timeline},
    source::Lines,
    walk::Walk,
};

/// A file of which a [`Store`] holds the records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadedFile {
    /// The file; empty for a trace that was in memory.
    pub path: PathBuf,
    /// How many records it has.
    pub records: usize,
    /// The highest token id in it.
    pub highest_id: Option<u32>,
    /// Notes for the reader.
    pub warnings: Vec<Warning>,
    /// Lines that break a rule; what they hold is not in the store.
    pub bad_lines: BadLines,
}

impl LoadedFile {
    pub(super) fn saw(&mut self, record: &Packed) {
        self.records += 1;
        self.highest_id = self.highest_id.max(record.ids.as_ref().and_then(|ids| ids.iter().copied().max()));
    }
}

/// Reads a whole trace and packs it; `-` is standard input. Every complete record of a cut file is kept, with a warning,
/// and bad lines are left out and noted. `progress` follows it.
///
/// # Errors
/// As [`read`](super::read), but for a line that breaks a rule only where no other line holds a record.
pub fn load(path: &Path, progress: &Arc<Progress>) -> Result<Store, TraceError> {
    load_all(&Sources::one(path), progress)
}

/// As [`load`], several files as one.
///
/// # Errors
/// As [`load`], for the first file that has any.
pub fn load_all(sources: &Sources, progress: &Arc<Progress>) -> Result<Store, TraceError> {
    let sizes =
        sources.paths().map(|path| std::fs::metadata(path).ok().filter(Metadata::is_file).map(|found| found.len()));
    if let Some(size) = sizes.sum::<Option<u64>>().filter(|_| sources.files.len() > 1) {
        progress.has_size(size);
    }
    let (mut store, mut timeline) = (Store::default(), Timeline::default());
    for file in &sources.files {
        progress.next_file();
        store.add(file, &mut timeline, progress)?;
    }
    let bad = store.files.iter().find_map(|file| Some((&file.path, file.bad_lines.first.first()?)));
    if let Some((path, finding)) = bad.filter(|_| store.is_empty()) {
        return Err(TraceError::Line { path: path.clone(), finding: finding.clone() });
    }
    store.shrink();
    Ok(store)
}

impl Store {
    /// Adds the records of a file.
    fn add(&mut self, file: &SourceFile, timeline: &mut Timeline, progress: &Arc<Progress>) -> Result<(), TraceError> {
        let mut walk = Walk::<Packed>::start(Lines::open(&file.path, Arc::clone(progress))?)?.ahead()?;
        let mut loaded = LoadedFile { path: file.path.clone(), ..LoadedFile::default() };
        let nth = self.files.len();
        timeline.begin(file);
        while let Some((_, mut record)) = walk.next_sound(&mut loaded.bad_lines)? {
            record.facts.arrival = timeline.place(record.facts.arrival, record.facts.e2e);
            if let Some(group) = record.facts.group.as_mut().filter(|_| nth > 0) {
                // Captures name their groups each for itself.
                *group = format!("{nth}/{group}").into_boxed_str();
            }
            loaded.saw(&record);
            self.push(record);
            progress.has_records(self.len() as u64);
        }
        loaded.warnings = walk.warnings;
        if nth == 0 {
            (self.meta, self.end) = (walk.meta, walk.end);
        } else {
            self.meta.join(&walk.meta);
            self.end = self.end.take().zip(walk.end).map(|(all, end)| all.and(&end));
        }
        self.files.push(loaded);
        Ok(())
    }
}
