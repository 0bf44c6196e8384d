//! What the tops of cassettes say: what does not count, and what is a secret.

use std::path::{Path, PathBuf};

use super::Config;
use crate::{
    cassette::{Header, Redact},
    identity,
    redaction::{self, RulesError},
};

/// Something at the top of a cassette that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct TopError {
    path: PathBuf,
    message: String,
}

impl Config {
    /// Takes in what the tops of the cassettes say; what was told before stays.
    ///
    /// # Errors
    /// When one of them holds a rule that cannot be used.
    pub fn heed_tops(&mut self) -> Result<(), TopError> {
        for cassette in &self.cassettes {
            let wrong = |error: String| TopError { path: cassette.path.clone(), message: error };
            compare(&mut self.rules, &cassette.header).map_err(wrong)?;
        }
        let read = self.cassettes.iter().map(|cassette| (cassette.path.as_path(), &cassette.header.redact));
        let written = self.output.iter().map(|output| (output.path.as_path(), &output.header.redact));
        for (path, redact) in read.chain(written) {
            self.secrets = secrets(&self.secrets, path, redact)?;
        }
        Ok(())
    }
}

/// The rules, and what a cassette says is a secret.
///
/// # Errors
/// When it says so with a rule that cannot be used.
pub fn secrets(rules: &redaction::Rules, path: &Path, redact: &Redact) -> Result<redaction::Rules, TopError> {
    let wrong = |error: RulesError| TopError { path: path.to_owned(), message: error.to_string() };
    let mut rules = rules.clone();
    for key in &redact.keys {
        rules = rules.key(key).map_err(wrong)?;
    }
    for place in &redact.places {
        rules = rules.place(place).map_err(wrong)?;
    }
    for pattern in &redact.patterns {
        let (name, regex) = pattern.split_once('=').unwrap_or((pattern, ""));
        rules = rules.pattern(name, regex).map_err(wrong)?;
    }
    Ok(rules)
}

fn compare(rules: &mut identity::Rules, header: &Header) -> Result<(), String> {
    for path in &header.ignore {
        rules.ignored.push(path.parse().map_err(|error: identity::PathError| error.to_string())?);
    }
    for scrub in &header.scrub {
        rules.scrubs.push(scrub.parse().map_err(|error: identity::ScrubError| error.to_string())?);
    }
    rules.headers.extend(header.match_headers.iter().map(|name| name.to_ascii_lowercase()));
    Ok(())
}
