//! The sidecar: what differs from run to run (`timing.jsonl`), token ids (`tokens.jsonl`) and what was recorded when (`runs.jsonl`).

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use base::bounded_read;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::storage;

use super::{
    moments::{Sidecar, Times},
    private_file::{followed, partial, write},
};

/// The most bytes of a cassette's text, and of its times.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// Returns the sidecar of a cassette: `NAME.vcr` beside `NAME.yaml`, where that is a link beside the file that it leads to.
#[must_use]
pub fn sidecar_of(cassette: &Path) -> PathBuf {
    followed(cassette).with_extension("vcr")
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
    if let Some(object) = storage::find(path)? {
        return object.read(MOST_BYTES);
    }
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
