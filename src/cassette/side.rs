//! The sidecar: what differs from run to run.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::moments::Moments;

/// What the sidecar knows of one record: a line of `timing.jsonl`.
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

/// Where the sidecar of a cassette is: `NAME.vcr` beside `NAME.yaml`.
#[must_use]
pub fn sidecar_of(cassette: &Path) -> PathBuf {
    cassette.with_extension("vcr")
}

/// Reads what is known, by record; nothing where there is no sidecar. A line that was cut is left out.
///
/// # Errors
/// When the file is there and cannot be read.
pub(super) fn read(cassette: &Path) -> io::Result<BTreeMap<u64, Side>> {
    let text = match fs::read_to_string(sidecar_of(cassette).join("timing.jsonl")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let sides = text.lines().filter_map(|line| serde_json::from_str::<Side>(line).ok());
    Ok(sides.map(|side| (side.id, side)).collect())
}

/// The lines of records, in order.
pub(super) fn text<'a>(sides: impl Iterator<Item = &'a Side>) -> String {
    sides.filter_map(|side| serde_json::to_string(side).ok()).map(|line| line + "\n").collect()
}
