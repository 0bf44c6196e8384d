//! Recordings that changed a cassette: a line for each in `NAME.vcr/runs.jsonl`, the last one at the end. They are not at the top of the cassette,
//! where each would be a difference although nothing else changed.

use std::{fs, io, path::Path};

use serde::Deserialize;
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    in_place::write,
    partial::partial,
    side::{make_folder, read_file, sidecar_of},
};

/// Maximum number of lines; older ones are left out.
const MOST: usize = 64;

/// A recording that changed a cassette.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Run {
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
pub fn last_run(cassette: &Path) -> Option<Run> {
    let bytes = read_file(cassette, &sidecar_of(cassette).join("runs.jsonl")).ok()?;
    let line = bytes.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty())?;
    serde_json::from_slice(line).ok()
}

/// Notes a recording that changed the cassette: when it ended, an id of its own, what it did with the file, and the number of records that are there now.
pub(super) fn note(cassette: &Path, mode: &str, records: usize) -> io::Result<()> {
    let path = sidecar_of(cassette).join("runs.jsonl");
    let known = match read_file(cassette, &path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let now = OffsetDateTime::now_utc();
    let created = now.replace_nanosecond(0).ok().and_then(|time| time.format(&Rfc3339).ok());
    let seed = format!("{now:?} {} {}", std::process::id(), cassette.display());
    let run = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(seed.as_bytes()));
    let line = json!({"run_id": run, "created": created, "mode": mode, "records": records}).to_string();
    let lines: Vec<&str> = known.lines().chain([line.as_str()]).collect();
    let last = lines.get(lines.len().saturating_sub(MOST)..).unwrap_or_default();
    make_folder(cassette, &sidecar_of(cassette))?;
    write(&partial(&path), format!("{}\n", last.join("\n")).as_bytes())?;
    fs::rename(partial(&path), path)
}
