//! The sidecar: what differs from run to run.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::moments::Moments;

/// Place of a record's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// In the sidecar.
    #[default]
    Sidecar,
    /// In the record: times only.
    Inline,
}

/// Sidecar data of one record: a line of `timing.jsonl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Side {
    /// The record.
    pub id: u64,
    /// The [fingerprint](super::Answer::fingerprint) of the answer when it was recorded.
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
    pub place: Place,
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
        found if found.is_file() => fs::read(path),
        _ => Err(no_plain(path, "file")),
    }
}

/// Creates a folder of a cassette's sidecar where it is not there.
///
/// # Errors
/// When it cannot be created, or something else has its name.
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

/// The content of a sidecar, and its defects.
#[derive(Debug, Default)]
pub(super) struct Sides {
    /// By record.
    pub(super) known: BTreeMap<u64, Side>,
    /// Each with file and line.
    pub(super) warnings: Vec<String>,
}

/// Reads what is known; nothing where there is no sidecar. A damaged line costs a record its times, not its answer: it is left
/// out, with a warning.
///
/// # Errors
/// When the file is there and cannot be read.
pub(super) fn read(cassette: &Path) -> io::Result<Sides> {
    let timing = timing_of(cassette);
    let bytes = match read_file(cassette, &timing) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Sides::default()),
        Err(error) => return Err(error),
    };
    let mut sides = Sides::default();
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let wrong = match serde_json::from_slice::<Side>(line) {
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
pub(super) fn text<'a>(sides: impl Iterator<Item = &'a Side>) -> String {
    let own = sides.filter(|side| side.place == Place::Sidecar);
    own.filter_map(|side| serde_json::to_string(side).ok()).map(|line| line + "\n").collect()
}
