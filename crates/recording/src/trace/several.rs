//! Several files as one trace: which files a path stands for, where each of them is in time, and whether they fit together.
//!
//! A directory stands for the files in it that end in `.jsonl` or `.jsonl.gz`, and the first file of a capture that went
//! on in further ones ([`TraceParts`](super::TraceParts)) for all of them. Files with a start time (`started_at`) are placed
//! by that; any other file begins where the ones before it end.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    BadLines, LoadProgress, Meta, Record, TraceError, TraceReader, Warning,
    agreement::Agreement,
    record::INTENDED_MS,
    source::{is_standard, refuse_pipe, split_suffix},
};
use crate::storage::{self, StoredObject};
use base::units::Millis;
use text::prompt::BlockHashAlgorithm;

/// Files that are read as one trace, in the order in which they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    pub(super) files: Vec<SourceFile>,
    /// Start time of the earliest, where there are several and any has one.
    started_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// When it began, from the beginning of the earliest; `None` where it follows the one before it.
    pub(super) zero: Option<Duration>,
    /// The model that its meta names, where the files name different ones: that of the records that name none.
    pub(super) model: Option<String>,
    /// Parts of its capture that are missing between it and the file before.
    pub(super) missing: Option<Warning>,
}

impl Sources {
    /// One file as it is; `-` is standard input.
    #[must_use]
    pub fn one(path: &Path) -> Self {
        let file = SourceFile { path: path.to_owned(), zero: Some(Duration::ZERO), model: None, missing: None };
        Self { files: vec![file], started_at: None }
    }

    /// The files that paths stand for, each once.
    ///
    /// # Errors
    /// When a directory cannot be read or holds no trace, or files were hashed or tokenized differently.
    pub fn gather(named: &[PathBuf]) -> Result<Self, TraceError> {
        let mut paths = Vec::new();
        for path in named {
            paths.extend(stands_for(path)?);
        }
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
        if let [alone] = paths.as_slice() {
            return Ok(Self::one(alone));
        }
        let metas = paths.iter().map(|path| meta_of(path)).collect::<Result<Vec<Meta>, TraceError>>()?;
        let mut agreement = Agreement::default();
        for (path, meta) in paths.iter().zip(&metas) {
            let mut stated = shared(meta).into_iter().filter_map(|(field, value)| Some((field, value?)));
            stated.try_for_each(|(field, value)| agreement.add(path, field, value))?;
        }
        let zeros = zeros(&metas);
        let started_at = metas.iter().filter_map(started_at).min();
        let differ = metas.iter().any(|meta| meta.model != metas.first().and_then(|first| first.model.clone()));
        let mut before = None;
        let files = paths.into_iter().zip(zeros).zip(metas).map(|((path, zero), meta)| {
            let missing = missing_parts(before.take(), &meta);
            let model = meta.model.clone().filter(|_| differ);
            before = Some(meta);
            SourceFile { path, zero, model, missing }
        });
        Ok(Self { files: files.collect(), started_at })
    }

    /// The files, in the order in which they are read.
    #[must_use]
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// What is missing of a capture before each of the files.
    pub fn missing_parts(&self) -> impl Iterator<Item = Option<&Warning>> {
        self.files.iter().map(|file| file.missing.as_ref())
    }

    /// Notes the size of all files together, if there are several and it is known.
    pub(super) fn announce_size(&self, progress: &LoadProgress) {
        let sizes =
            self.paths().map(|path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len()));
        if let Some(size) = sizes.sum::<Option<u64>>().filter(|_| self.files.len() > 1) {
            progress.has_size(size);
        }
    }

    /// When the earliest of several files began, RFC 3339; `None` for one, and where none has it.
    #[must_use]
    pub fn started_at(&self) -> Option<String> {
        self.started_at?.format(&Rfc3339).ok()
    }

    /// The files in a few words.
    #[must_use]
    pub fn name(&self) -> String {
        let mut paths = self.paths();
        let first = paths.next().map(|path| path.display().to_string()).unwrap_or_default();
        match paths.len() {
            0 => first,
            1 => format!("{first} and another file"),
            more => format!("{first} and {more} further files"),
        }
    }
}

/// When each file began, from the beginning of the earliest; `None` for those without a time.
#[must_use]
pub fn zeros(metas: &[Meta]) -> Vec<Option<Duration>> {
    let starts: Vec<Option<OffsetDateTime>> = metas.iter().map(started_at).collect();
    let first = starts.iter().flatten().min().copied();
    starts.into_iter().map(|start| Duration::try_from(start? - first?).ok()).collect()
}

/// Timeline of the records of successive files.
#[derive(Debug, Clone, Copy, Default)]
pub struct JoinedTimeline {
    end: Duration,
    zero: Duration,
}

impl JoinedTimeline {
    /// Begins a file at this [time](zeros), else where the ones before it end.
    pub fn begin(&mut self, zero: Option<Duration>) {
        self.zero = zero.unwrap_or(self.end);
    }

    /// Returns a record's arrival on the common clock.
    pub fn place(&mut self, arrival: Option<Duration>, e2e: Option<Duration>) -> Option<Duration> {
        let arrival = self.zero.saturating_add(arrival?);
        self.end = self.end.max(arrival.saturating_add(e2e.unwrap_or_default()));
        Some(arrival)
    }
}

/// Reads the records of several files one after the other, on one clock.
pub struct Joined<'a> {
    sources: std::slice::Iter<'a, SourceFile>,
    timeline: JoinedTimeline,
    /// Files are read ahead on threads, followed by it.
    progress: Option<Arc<LoadProgress>>,
    /// The file that [`next_sound`](Self::next_sound) is at.
    open: Option<(&'a Path, TraceReader)>,
    bad_lines: BadLines,
    /// The file with the first of them.
    bad_file: Option<&'a Path>,
    has_records: bool,
    /// That of the files so far.
    meta: Option<Meta>,
}

impl<'a> Joined<'a> {
    /// Of these files.
    #[must_use]
    pub fn of(sources: &'a Sources) -> Self {
        Self {
            sources: sources.files.iter(),
            timeline: JoinedTimeline::default(),
            progress: None,
            open: None,
            bad_lines: BadLines::default(),
            bad_file: None,
            has_records: false,
            meta: None,
        }
    }

    /// Of these files, read ahead on threads of their own; `progress` follows.
    #[must_use]
    pub fn ahead(sources: &'a Sources, progress: &Arc<LoadProgress>) -> Self {
        sources.announce_size(progress);
        Self { progress: Some(Arc::clone(progress)), ..Self::of(sources) }
    }

    /// Opens the next file; `None` after the last one.
    ///
    /// # Errors
    /// As [`TraceReader::open`].
    pub fn next_file(&mut self) -> Result<Option<(&'a Path, TraceReader)>, TraceError> {
        let Some(file) = self.sources.next() else { return Ok(None) };
        self.timeline.begin(file.zero);
        let reader = match &self.progress {
            Some(progress) => TraceReader::open_ahead(&file.path, progress),
            None => TraceReader::open(&file.path),
        };
        let mut reader = reader?;
        reader.warn(file.missing.clone());
        Ok(Some((file.path.as_path(), reader)))
    }

    /// The next record of any file, on the common clock; `None` after the last one. Lines that break a rule are left out and
    /// [counted](Self::bad_lines), and what a file's reader warns of is logged.
    ///
    /// # Errors
    /// As [`TraceReader::open`] and [`TraceReader::next_sound`], and the first bad line where no line is a record.
    pub fn next_sound(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let Some((path, mut reader)) = self.open.take() else {
                let Some((path, reader)) = self.next_file()? else {
                    return self.only_bad_lines().map_or(Ok(None), Err);
                };
                match &mut self.meta {
                    Some(meta) => meta.join(reader.meta()),
                    None => self.meta = Some(reader.meta().clone()),
                }
                self.open = Some((path, reader));
                continue;
            };
            if let Some((_, mut record)) = reader.next_sound(&mut self.bad_lines)? {
                self.place(&mut record);
                self.open = Some((path, reader));
                self.has_records = true;
                return Ok(Some(record));
            }
            self.bad_file = self.bad_file.or((!self.bad_lines.is_empty()).then_some(path));
            reader.warnings().iter().for_each(|warning| tracing::warn!(path = %path.display(), "{warning}"));
        }
    }

    /// The first bad line, where there are no others.
    fn only_bad_lines(&self) -> Option<TraceError> {
        let finding = self.bad_lines.first.first().filter(|_| !self.has_records)?;
        Some(TraceError::Line { path: self.bad_file?.into(), finding: finding.clone() })
    }

    /// The lines that [`next_sound`](Self::next_sound) left out so far.
    #[must_use]
    pub fn bad_lines(&self) -> &BadLines {
        &self.bad_lines
    }

    /// The metadata of the files that [`next_sound`](Self::next_sound) has opened, as far as they agree.
    #[must_use]
    pub fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    /// Tokens of a block, of the first file whose first line has it.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        self.meta.as_ref()?.block_size
    }

    /// Puts a record of the current file on the common clock.
    pub fn place(&mut self, record: &mut Record) {
        record.arrival = self.timeline.place(record.arrival, record.e2e);
        if let Some(intended) = record.extra.get_mut(INTENDED_MS)
            && let Some(own) = intended.as_f64().and_then(|ms| Millis(ms).duration())
        {
            *intended = Millis::from(self.timeline.zero.saturating_add(own)).0.into();
        }
    }
}

/// Key of metadata where output ids are in another order, which a key decides.
pub const IDS_PERMUTED: &str = "ids_permuted";

impl Meta {
    /// Returns true if output ids are in another order, which a key decides: they spell nothing.
    #[must_use]
    pub fn has_permuted_ids(&self) -> bool {
        self.extra.contains_key(IDS_PERMUTED)
    }

    /// Fills in the metadata of another file of the same trace; values that differ are left out.
    pub fn join(&mut self, other: &Self) {
        if self.model.is_none() {
            self.model.clone_from(&other.model);
        } else if other.model.is_some() && self.model != other.model {
            self.model = None;
        }
        if self.block_size.is_none() {
            (self.block_size, self.block_hash) = (other.block_size, other.block_hash);
            self.hash_key_id.clone_from(&other.hash_key_id);
        }
        if self.tokenizer.is_none() {
            self.tokenizer.clone_from(&other.tokenizer);
        }
    }
}

fn stands_for(path: &Path) -> Result<Vec<PathBuf>, TraceError> {
    if is_standard(path) {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |source| TraceError::Io { path: storage::shown(path), doing: "read", source };
    let object = storage::find(path).map_err(failed)?;
    let is_folder = object.as_ref().map_or_else(|| path.is_dir(), StoredObject::is_folder);
    if !is_folder {
        let further = further_parts(path, object.as_ref());
        return Ok([vec![path.to_owned()], further].concat());
    }
    let mut found = storage::entries(path, object.as_ref()).map_err(failed)?;
    found.retain(|path| is_trace(path) && (object.is_some() || path.is_file()));
    found.sort_by_cached_key(|path| number_in(path));
    if found.is_empty() { Err(TraceError::NoTraces(path.to_owned())) } else { Ok(found) }
}

/// Returns true if a file in a directory is a trace by its name. Other JSON may lie beside traces.
pub(crate) fn is_trace(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    name.ends_with(".jsonl") || name.ends_with(".jsonl.gz")
}

/// A file's name without the number before its suffix, the suffix, and the number: 0 where there is none.
fn number_in(path: &Path) -> (String, String, u64) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (stem, suffix) = split_suffix(&name).unwrap_or((&name, ""));
    let numbered = stem.rsplit_once('.').and_then(|(stem, number)| Some((stem, number.parse().ok()?)));
    let (stem, number) = numbered.unwrap_or((stem, 0));
    (stem.to_owned(), suffix.to_owned(), number)
}

/// The further files of the capture whose first one this is: numbered names beside it, begun at the same time.
fn further_parts(path: &Path, object: Option<&StoredObject>) -> Vec<PathBuf> {
    let (stem, suffix, number) = number_in(path);
    let mut beside = entries_beside(path, object);
    beside.retain(|other| {
        let (other_stem, other_suffix, other_number) = number_in(other);
        (&other_stem, &other_suffix) == (&stem, &suffix) && other_number > number
    });
    if beside.is_empty() {
        return beside;
    }
    let Ok(first) = meta_of(path) else { return Vec::new() };
    if first.started_at.is_none() || part(&first) > 1 {
        return Vec::new();
    }
    let is_of_it = |meta: Meta| meta.started_at == first.started_at && part(&meta) > 1;
    beside.retain(|other| (object.is_some() || other.is_file()) && meta_of(other).is_ok_and(is_of_it));
    beside.sort_by_cached_key(|path| number_in(path));
    beside
}

/// The number of a capture's file, from 1.
fn part(meta: &Meta) -> u64 {
    meta.extra.get("part").and_then(serde_json::Value::as_u64).unwrap_or(1)
}

/// The parts of a file's capture that are missing between it and the file before.
fn missing_parts(before: Option<Meta>, meta: &Meta) -> Option<Warning> {
    meta.started_at.as_ref()?;
    let last = before.filter(|before| before.started_at == meta.started_at).map_or(0, |before| part(&before));
    (part(meta) > last + 1).then(|| Warning::MissingParts { first: last + 1, last: part(meta) - 1 })
}

/// What lies beside a file or object, as far as it can be listed.
fn entries_beside(path: &Path, object: Option<&StoredObject>) -> Vec<PathBuf> {
    if object.is_some_and(|object| !object.is_listed()) {
        return Vec::new();
    }
    let found = storage::entries(storage::folder_of(path), object).inspect_err(|error| {
        if object.is_some() {
            tracing::warn!(path = %path.display(), %error, "further parts of a trace are not looked for");
        }
    });
    let found = found.unwrap_or_default();
    found.iter().filter_map(|entry| Some(path.with_file_name(entry.file_name()?))).collect()
}

/// A file's first line; nothing is known of standard input, which can be read once only.
fn meta_of(path: &Path) -> Result<Meta, TraceError> {
    refuse_pipe(path)?;
    if is_standard(path) { Ok(Meta::default()) } else { TraceReader::open(path).map(|reader| reader.meta().clone()) }
}

fn started_at(meta: &Meta) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(meta.started_at.as_deref()?, &Rfc3339).ok()
}

/// Metadata that all files of one trace share, as far as each has it.
pub(super) fn shared(meta: &Meta) -> [(&'static str, Option<String>); 4] {
    let is_hashed = hashed(meta);
    let key = || meta.hash_key_id.clone().unwrap_or_else(|| "none".to_owned());
    [
        ("block_size", meta.block_size.map(|size| size.to_string())),
        ("block_hash", is_hashed.then(|| spelled(meta.block_hash.unwrap_or_default()))),
        ("hash_key_id", is_hashed.then(key)),
        ("tokenizer", meta.tokenizer.as_ref().map(|tokenizer| tokenizer.fingerprint.clone())),
    ]
}

/// Returns true if its meta has the hash algorithm of prompts.
pub(super) fn hashed(meta: &Meta) -> bool {
    meta.block_size.is_some() || meta.block_hash.is_some()
}

pub(super) fn spelled(hash: BlockHashAlgorithm) -> String {
    serde_json::to_value(hash).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}
