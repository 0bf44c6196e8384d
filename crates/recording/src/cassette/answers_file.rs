//! Files of answers: hand-written records without a recording, `vcr: 1` left out or not, and other such files that they include.
//!
//! Records are those of cassettes. What has no effect in a cassette is a mistake here: a key that is not known, or a record without
//! `match`. All mistakes are found, and not only the first one.

use std::{
    collections::HashSet,
    fmt, io,
    path::{Path, PathBuf},
};

use super::{
    CassetteError, FORMAT, answer_mistakes,
    error::Wrong,
    fixture::Fixture,
    header::{number, texts},
    load::text_of,
    made::MadeAnswer,
    read::{self, WrittenRecord},
    record::{CassetteRecord, PlannedFault},
    template,
};
use crate::yaml::{self, YamlEntry, YamlNode};

/// The most files that include each other.
const MOST_FILES: usize = 1000;

/// The records of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswersFile {
    /// The file.
    pub path: PathBuf,
    /// Its records, in order.
    pub records: Vec<CassetteRecord>,
}

/// A fault of a hand-written record, in the player's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFault {
    /// The record, as `x-vcr-record` names it.
    pub record: String,
    /// Its file.
    pub path: PathBuf,
    /// The line of the fault, from 1.
    pub line: usize,
    /// Its words.
    pub text: String,
}

impl RecordFault {
    /// The fault of a record of this file, where it has one.
    #[must_use]
    pub fn of(path: &Path, record: &CassetteRecord) -> Option<Self> {
        let PlannedFault { line, text } = record.answer.planned.clone()?;
        Some(Self { record: record.name_in(path), path: path.to_owned(), line, text })
    }

    /// The error that its words are wrong.
    #[must_use]
    pub fn wrong(&self, message: &str) -> CassetteError {
        CassetteError::of(&self.path, Wrong::at(self.line, format!("`answer.fault`: {message}")))
    }
}

/// Reader of the faults of hand-written records, for a server that lets them happen.
pub trait FaultReader: fmt::Debug + Send + Sync {
    /// Takes these faults in the place of those that it took before: those of the cassettes and rules of a server, or of the cassette that
    /// this session has of its own.
    ///
    /// # Errors
    /// All that are wrong; those of before stay.
    fn take(&self, session: Option<&str>, faults: &[RecordFault]) -> Result<(), Vec<CassetteError>>;
}

/// Everything that is wrong with files of answers.
#[derive(Debug, thiserror::Error)]
pub struct AnswersError(pub Vec<CassetteError>);

impl fmt::Display for AnswersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{error}")?;
        }
        Ok(())
    }
}

/// Reads a file of answers, and behind it those that it includes, each once.
///
/// # Errors
/// Everything that is wrong, with file and line; also where files include each other in a circle.
pub fn load_answers(path: &Path) -> Result<Vec<AnswersFile>, AnswersError> {
    let (files, errors) = read_answers(path);
    if errors.is_empty() { Ok(files) } else { Err(AnswersError(errors)) }
}

/// As [`load_answers`], with the records in which nothing is wrong beside everything that is.
#[must_use]
pub fn read_answers(path: &Path) -> (Vec<AnswersFile>, Vec<CassetteError>) {
    let mut reader = AnswersReader::default();
    reader.file(path);
    (reader.files, reader.errors)
}

/// Files that were read so far.
#[derive(Default)]
struct AnswersReader {
    files: Vec<AnswersFile>,
    errors: Vec<CassetteError>,
    /// The files that include the one that is read.
    open: Vec<PathBuf>,
    known: HashSet<PathBuf>,
}

impl AnswersReader {
    fn file(&mut self, path: &Path) {
        let text = match text_of(path) {
            Ok(text) => text,
            Err(error) => return self.errors.push(error),
        };
        let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if !self.known.insert(place.clone()) {
            return;
        }
        let (file, included, wrong) = read_text(path, &text);
        self.errors.extend(wrong.into_iter().map(|wrong| CassetteError::of(path, wrong)));
        self.files.push(file);
        self.open.push(place);
        for (line, name) in included {
            self.include(path, line, &name);
        }
        self.open.pop();
    }

    fn include(&mut self, path: &Path, line: usize, name: &str) {
        let wrong = |message: String| CassetteError::of(path, Wrong::at(line, message));
        let included = path.parent().unwrap_or(Path::new("")).join(name);
        let place = match included.canonicalize() {
            Ok(place) => place,
            Err(error) => return self.errors.push(wrong(format!("`include`: {name} cannot be read: {error}"))),
        };
        if self.open.contains(&place) {
            let message = format!("`include`: {name} includes this file in turn; leave one of the two out");
            return self.errors.push(wrong(message));
        }
        if self.files.len() >= MOST_FILES {
            let source = io::Error::other(format!("there are more than {MOST_FILES} files of answers"));
            return self.errors.push(CassetteError::Io { path: included, source });
        }
        self.file(&included);
    }
}

/// Reads the text of one file: its records, what it includes and what is wrong.
fn read_text(path: &Path, text: &str) -> (AnswersFile, Vec<(usize, String)>, Vec<Wrong>) {
    let (mut file, mut included, mut wrong) =
        (AnswersFile { path: path.to_owned(), records: Vec::new() }, Vec::new(), Vec::new());
    let root = match yaml::parse(text) {
        Ok(root) => root,
        Err(error) => return (file, included, vec![error.into()]),
    };
    let what = "a file of answers is a map with `records`, a list of records with `match` and `answer`";
    let Some(entries) = root.entries() else { return (file, included, vec![Wrong::at(root.line, what)]) };
    let mut records: &[YamlNode] = &[];
    for YamlEntry { key, line, value } in entries {
        match key.as_str() {
            "vcr" => wrong.extend(version(value).err()),
            "include" => match texts(value, "include") {
                Ok(names) => included = names.into_iter().map(|name| (*line, name)).collect(),
                Err(error) => wrong.push(error),
            },
            "records" => match value.items() {
                Some(items) => records = items,
                None => wrong.push(Wrong::at(*line, "`records` has to be a list")),
            },
            _ => wrong.push(Wrong::at(*line, format!("`{key}` is none of vcr, include, records"))),
        }
    }
    if records.is_empty() && included.is_empty() && wrong.is_empty() {
        wrong.push(Wrong::at(root.line, what));
    }
    let mut ids = HashSet::new();
    for (at, item) in records.iter().enumerate() {
        match record(item, at as u64, &mut ids) {
            Ok(record) => file.records.push(record),
            Err(mistakes) => wrong.extend(mistakes),
        }
    }
    (file, included, wrong)
}

fn version(node: &YamlNode) -> Result<(), Wrong> {
    match number(node, "vcr")? {
        FORMAT => Ok(()),
        other => Err(Wrong::at(node.line, format!("this program reads files of format {FORMAT}, not {other}"))),
    }
}

fn record(item: &YamlNode, at: u64, ids: &mut HashSet<u64>) -> Result<CassetteRecord, Vec<Wrong>> {
    let WrittenRecord { mut record, id, unknown, blobs, .. } = read::record(item)?;
    let mut mistakes: Vec<Wrong> =
        unknown.into_iter().map(|(line, key)| Wrong::at(line, format!("`{key}` is not known"))).collect();
    if !record.is_fixture {
        mistakes.push(Wrong::at(
            item.line,
            "a record of a file of answers needs `match`; a recorded one stands in a cassette",
        ));
    }
    if let Some((line, _)) = blobs.into_iter().flatten().next() {
        mistakes.push(Wrong::at(line, "a file of answers has no sidecar: write `body_text` or `body_base64`"));
    }
    mistakes.extend(item.get("answer").into_iter().flat_map(answer_mistakes::of));
    record.id = id.unwrap_or(at);
    if !ids.insert(record.id) {
        mistakes.push(Wrong::at(item.line, format!("there are two records with the id {}", record.id)));
    }
    if mistakes.is_empty() { Ok(record) } else { Err(mistakes) }
}

/// Finds the hand-written records that are never served, because an earlier one takes every request that they match, any number of
/// times: their places, with that of the earlier one. Conditions are compared by their spelling, so that not all are found.
#[must_use]
pub fn unreached<'r>(records: impl IntoIterator<Item = &'r CassetteRecord>) -> Vec<(usize, usize)> {
    let fixtures = records.into_iter().enumerate();
    let fixtures = fixtures.filter_map(|(at, record)| Fixture::of(record).map(|fixture| (at, record, fixture)));
    let mut tried: Vec<(usize, &CassetteRecord, Fixture)> = fixtures.collect();
    tried.sort_by_key(|(.., fixture)| fixture.is_default());
    // An answer that names values of the request is ignored where they are not there.
    let takes_all = |record: &CassetteRecord| {
        let made = record.answer.made.as_ref();
        let may_fail = made.is_some_and(|made| !matches!(made, MadeAnswer::Parts(_) | MadeAnswer::Verdict(_)));
        let is_made = may_fail || template::is_template(&record.answer.shown().to_string());
        record.times.is_none_or(|times| times == u64::MAX) && !is_made
    };
    let routes = |record: &CassetteRecord| (record.method.clone(), record.path.clone(), record.made_routes());
    let facts: Vec<_> = tried.iter().map(|(_, record, _)| (takes_all(record), routes(record))).collect();
    let mut found = Vec::new();
    for (place, ((at, _, fixture), (_, own_routes))) in tried.iter().zip(&facts).enumerate() {
        let mut earlier = tried.iter().zip(&facts).take(place).filter(|(_, (takes_all, _))| *takes_all);
        let cover = earlier.find(|((.., own), (_, routes))| routes == own_routes && own.covers(fixture));
        found.extend(cover.map(|((earlier, ..), _)| (*at, *earlier)));
    }
    found
}
