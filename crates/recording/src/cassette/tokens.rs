//! Token ids and hashes of prompts, where they are known: `NAME.vcr/tokens.jsonl`, a line per record.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::side::{make_folder, read_file, sidecar_of};

/// Token ids of one record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// The record.
    pub id: u64,
    /// The [fingerprint](super::Answer::fingerprint) of the answer that they spell.
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

impl Tokens {
    /// Reads what is known of a cassette's tokens, by record; nothing where there is no such file.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn read(cassette: &Path) -> io::Result<BTreeMap<u64, Self>> {
        match read_file(cassette, &sidecar_of(cassette).join("tokens.jsonl")) {
            Ok(bytes) => {
                let text =
                    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                Ok(Self::of_lines(&text))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
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
        super::in_place::write(&path, lines.as_bytes())
    }
}
