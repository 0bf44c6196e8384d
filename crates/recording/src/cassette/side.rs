//! The sidecar: what differs from run to run (`timing.jsonl`), token ids (`tokens.jsonl`) and what was recorded when (`runs.jsonl`).
//!
//! The events of an answer are read on first use: most of a large cassette is events, and a test plays a few of its records.

use std::{
    collections::BTreeMap,
    fs, io,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use base::bounded_read;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json, value::RawValue};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    keep::Times,
    load::MOST_BYTES,
    partial::{partial, write},
};

/// Sidecar data of one record: a line of `timing.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sidecar {
    /// The record.
    pub id: u64,
    /// The [fingerprint](super::RecordedAnswer::fingerprint) of the answer when it was recorded.
    pub answer: String,
    /// When, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<String>,
    /// Milliseconds from the request to the end of its answer.
    pub ms: f64,
    /// The ids that the file shows as `call_1`, …
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ids: BTreeMap<String, String>,
    /// Fields at the top of the answer that no two runs share: `id`, `created`, ….
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub head: Map<String, Value>,
    /// The body of an answer that was no stream, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The events of a stream.
    #[serde(default, skip_serializing_if = "Moments::is_nothing")]
    pub events: Moments,
    /// Place at which it is written.
    #[serde(skip)]
    pub times: Times,
}

/// When an event came, in milliseconds from the request, its data, and its `event` field.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Moment(
    /// When.
    pub f64,
    /// Its data; null where something in the record was redacted.
    #[serde(default)]
    pub Option<String>,
    /// Its `event` field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub Option<String>,
);

/// Returns the sidecar of a cassette: `NAME.vcr` beside `NAME.yaml`.
#[must_use]
pub fn sidecar_of(cassette: &Path) -> PathBuf {
    cassette.with_extension("vcr")
}

/// Returns the file with the times of a cassette.
#[must_use]
pub fn timing_of(cassette: &Path) -> PathBuf {
    sidecar_of(cassette).join("timing.jsonl")
}

/// Reads a file of a cassette's sidecar. Links are not followed, as they may lead out of it, and what is no file is not opened: a
/// pipe would never end.
///
/// # Errors
/// When it cannot be read, or is not a file in folders of its own.
pub fn read_file(cassette: &Path, path: &Path) -> io::Result<Vec<u8>> {
    let sidecar = sidecar_of(cassette);
    for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(&sidecar)) {
        check_folder(folder)?;
    }
    match fs::symlink_metadata(path)? {
        found if found.is_file() => bounded_read::read(path, MOST_BYTES),
        _ => Err(no_plain(path, "file")),
    }
}

/// As [`read_file`]; nothing where there is no such file.
fn read_if_there(cassette: &Path, path: &Path) -> io::Result<Vec<u8>> {
    match read_file(cassette, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Creates a folder of a cassette's sidecar where it is not there.
pub(super) fn make_folder(cassette: &Path, folder: &Path) -> io::Result<()> {
    for folder in [&sidecar_of(cassette), folder] {
        match check_folder(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(folder)?,
            checked => checked?,
        }
    }
    Ok(())
}

fn check_folder(folder: &Path) -> io::Result<()> {
    if fs::symlink_metadata(folder)?.is_dir() { Ok(()) } else { Err(no_plain(folder, "folder")) }
}

fn no_plain(path: &Path, what: &str) -> io::Error {
    let message = format!("{} is not a {what}; a link, a pipe or a device is not used there", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[derive(Debug, Default)]
pub(super) struct Sides {
    pub(super) known: BTreeMap<u64, Sidecar>,
    pub(super) warnings: Vec<String>,
}

/// Reads what is known; nothing where there is no sidecar. A damaged line costs a record its times, not its answer: it is left
/// out, with a warning.
pub(super) fn read(cassette: &Path) -> io::Result<Sides> {
    let timing = timing_of(cassette);
    let bytes = read_if_there(cassette, &timing)?;
    let mut sides = Sides::default();
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let wrong = match serde_json::from_slice::<Sidecar>(line) {
            Ok(side) if sides.known.contains_key(&side.id) => format!("record {} is there twice", side.id),
            Ok(side) => {
                sides.known.insert(side.id, side);
                continue;
            }
            Err(error) => format!("this line is damaged ({error}); its record is played without its times"),
        };
        sides.warnings.push(format!("{}:{}: {wrong}", timing.display(), at + 1));
    }
    Ok(sides)
}

/// The lines of records that have one, in order.
pub(super) fn text<'a>(sides: impl Iterator<Item = &'a Sidecar>) -> String {
    let own = sides.filter(|side| side.times == Times::Sidecar);
    own.filter_map(|side| serde_json::to_string(side).ok()).map(|line| line + "\n").collect()
}

/// Events in their order. Those of a file that are no events are none.
#[derive(Debug, Clone, Default)]
pub struct Moments {
    /// As the file has them, until they are read.
    raw: Option<Box<RawValue>>,
    read: OnceLock<Vec<Moment>>,
}

impl Deref for Moments {
    type Target = [Moment];

    fn deref(&self) -> &[Moment] {
        self.read.get_or_init(|| parsed(self.raw.as_deref()))
    }
}

impl DerefMut for Moments {
    fn deref_mut(&mut self) -> &mut [Moment] {
        let raw = self.raw.take();
        self.read.get_or_init(|| parsed(raw.as_deref()));
        self.read.get_mut().map(Vec::as_mut_slice).unwrap_or_default()
    }
}

fn parsed(raw: Option<&RawValue>) -> Vec<Moment> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

impl From<Vec<Moment>> for Moments {
    fn from(moments: Vec<Moment>) -> Self {
        Self { raw: None, read: OnceLock::from(moments) }
    }
}

impl FromIterator<Moment> for Moments {
    fn from_iter<I: IntoIterator<Item = Moment>>(moments: I) -> Self {
        moments.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a> IntoIterator for &'a Moments {
    type Item = &'a Moment;
    type IntoIter = std::slice::Iter<'a, Moment>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Serialize for Moments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.raw {
            Some(raw) => raw.serialize(serializer),
            None => (**self).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Moments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self { raw: Some(raw), read: OnceLock::new() })
    }
}

impl Moments {
    /// Returns true if no event is known; a list that was not read yet counts as one.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.raw.is_none() && self.is_empty()
    }
}

/// Token ids of one record and the hashes of its prompt, where they are known: a line of `tokens.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecordTokens {
    /// The record.
    pub id: u64,
    /// The [fingerprint](super::RecordedAnswer::fingerprint) of the answer that they spell.
    pub answer: String,
    /// The ids of each choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<Vec<u32>>,
    /// Chained hashes of the prompt's blocks, by the algorithm that the cassette's top names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<u64>,
    /// The chain over the whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<u64>,
}

impl RecordTokens {
    /// Reads what is known of a cassette's tokens, by record; nothing where there is no such file.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn read(cassette: &Path) -> io::Result<BTreeMap<u64, Self>> {
        let bytes = read_if_there(cassette, &sidecar_of(cassette).join("tokens.jsonl"))?;
        let text = String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Self::of_lines(&text))
    }

    /// Reads lines, by record; those that are none are left out.
    pub(super) fn of_lines(text: &str) -> BTreeMap<u64, Self> {
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Self>(line).ok());
        lines.map(|tokens| (tokens.id, tokens)).collect()
    }

    /// The line that a file has of them; nothing where nothing is known.
    pub(super) fn line(&self) -> String {
        let is_known = !self.output.is_empty() || !self.hashes.is_empty() || self.prompt.is_some();
        let line = is_known.then(|| serde_json::to_string(self).ok()).flatten();
        line.map(|line| line + "\n").unwrap_or_default()
    }

    /// Writes what is known of a cassette's tokens; no file where that is nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(cassette: &Path, tokens: &[Self]) -> io::Result<()> {
        let lines: String = tokens.iter().map(Self::line).collect();
        let path = sidecar_of(cassette).join("tokens.jsonl");
        if lines.is_empty() {
            return if path.exists() { fs::remove_file(path) } else { Ok(()) };
        }
        make_folder(cassette, &sidecar_of(cassette))?;
        write(&path, lines.as_bytes())
    }
}

/// Maximum number of lines of `runs.jsonl`; older ones are left out.
const MOST_RUNS: usize = 64;

/// A recording that changed a cassette: a line of `runs.jsonl`, the last one at the end. They are not at the top of the cassette, where
/// each would be a difference although nothing else changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RecordingRun {
    /// Its id, which no other recording has.
    #[serde(alias = "run")]
    pub run_id: String,
    /// When it ended, as RFC 3339 has it.
    pub created: String,
    /// What it did with the file: `once`, `all` or `new-episodes`.
    pub mode: String,
}

/// The last recording that changed a cassette; `None` where none is known, or its line cannot be read.
#[must_use]
pub fn last_run(cassette: &Path) -> Option<RecordingRun> {
    let bytes = read_file(cassette, &sidecar_of(cassette).join("runs.jsonl")).ok()?;
    let line = bytes.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty())?;
    serde_json::from_slice(line).ok()
}

/// Notes a recording that changed the cassette: when it ended, an id of its own, what it did with the file, and the number of records that are there now.
pub(super) fn note_run(cassette: &Path, mode: &str, records: usize) -> io::Result<()> {
    let path = sidecar_of(cassette).join("runs.jsonl");
    let known = read_if_there(cassette, &path)?;
    let known = String::from_utf8_lossy(&known);
    let now = OffsetDateTime::now_utc();
    let created = now.replace_nanosecond(0).ok().and_then(|time| time.format(&Rfc3339).ok());
    let seed = format!("{now:?} {} {}", std::process::id(), cassette.display());
    let run = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(seed.as_bytes()));
    let line = json!({"run_id": run, "created": created, "mode": mode, "records": records}).to_string();
    let lines: Vec<&str> = known.lines().chain([line.as_str()]).collect();
    let last = lines.get(lines.len().saturating_sub(MOST_RUNS)..).unwrap_or_default();
    make_folder(cassette, &sidecar_of(cassette))?;
    write(&partial(&path), format!("{}\n", last.join("\n")).as_bytes())?;
    fs::rename(partial(&path), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_when_they_are_asked_for() {
        let text = r#"[[1.5,"{}"],[2.0,null],[3.0,"x","ping"]]"#;
        let mut moments: Moments = serde_json::from_str(text).unwrap();
        assert!(moments.read.get().is_none() && !moments.is_nothing());
        assert_eq!(serde_json::to_string(&moments).unwrap(), text);
        let expected = vec![
            Moment(1.5, Some("{}".to_owned()), None),
            Moment(2.0, None, None),
            Moment(3.0, Some("x".to_owned()), Some("ping".to_owned())),
        ];
        assert_eq!(moments, Moments::from(expected));
        moments.iter_mut().for_each(|Moment(_, data, _)| *data = None);
        assert_eq!(serde_json::to_string(&moments).unwrap(), r#"[[1.5,null],[2.0,null],[3.0,null,"ping"]]"#);
        assert!(serde_json::from_str::<Moments>(r#"{"no": "list"}"#).unwrap().is_empty());
        assert!(Moments::default().is_nothing());
    }
}
