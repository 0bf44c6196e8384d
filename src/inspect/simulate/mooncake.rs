//! Requests as Mooncake's traces have them: JSON Lines of `timestamp` (milliseconds), `input_length`, `output_length` and `hash_ids`.
//!
//! A `hash_ids` has a number for each block of the prompt, the last one perhaps not full. Numbers are folded with those before
//! them, so that they name whole prefixes in files whose numbers do not. The names that Dynamo's files have are read too.

use std::path::Path;

use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    SimulateError,
    schedule::{ArrivalSchedule, Arriving},
};
use crate::{base::units::Millis, recording::trace::JsonLines};

#[derive(Deserialize)]
struct Row {
    #[serde(alias = "created_time")]
    timestamp: f64,
    #[serde(alias = "input_tokens")]
    input_length: u32,
    #[serde(alias = "output_tokens")]
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// What tells a line from a record of a trace.
#[derive(Deserialize)]
struct Lengths {
    #[serde(alias = "input_tokens")]
    input_length: Option<serde::de::IgnoredAny>,
}

/// Checks whether a line is one of a request, sound or not.
pub(super) fn is_request(line: &[u8]) -> bool {
    serde_json::from_slice::<Lengths>(line).is_ok_and(|lengths| lengths.input_length.is_some())
}

/// Reads a file whose blocks have so many tokens.
pub(super) fn read(path: &Path, block_size: u32) -> Result<ArrivalSchedule, SimulateError> {
    let name = path.display().to_string();
    let mut schedule = ArrivalSchedule::named(name.clone(), block_size);
    let mut lines = JsonLines::open(path)?;
    let mut blocks = Vec::new();
    while let Some((line, text)) = lines.next_line()? {
        let wrong = |reason: String| SimulateError::Line { path: name.clone(), line, reason };
        let row: Row = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        let at = Millis(row.timestamp).duration();
        let at = at.ok_or_else(|| wrong(format!("`timestamp` {} is no time in milliseconds", row.timestamp)))?;
        let most = row.input_length.div_ceil(block_size.max(1));
        if row.hash_ids.len() as u64 > u64::from(most) {
            let ids = row.hash_ids.len();
            let tokens = row.input_length;
            return Err(wrong(format!(
                "{ids} `hash_ids` are more than {tokens} tokens have blocks of {block_size} (--hash-block-size)"
            )));
        }
        blocks.clear();
        let mut parent = 0;
        for id in &row.hash_ids {
            parent = xxh3_64_with_seed(&id.to_le_bytes(), parent);
            blocks.push(parent);
        }
        let (prompt_tokens, output_tokens) = (row.input_length, row.output_length);
        schedule.add(Arriving { at, prompt_tokens, output_tokens, ..Arriving::default() }, &blocks);
    }
    Ok(schedule)
}
