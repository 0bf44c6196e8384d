//! Rules in the headers of cassettes: what does not count, and what is a secret.

use std::{fmt, path::PathBuf};

use crate::{
    matching::requests::RequestMatch,
    player::{PlayerConfig, answer::put_back::held::kinds},
};
use recording::{
    canonical::CanonicalRules,
    cassette::{Cassette, Redact},
    redaction::{self, RulesError},
};

/// Something at the top of a cassette that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {message}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct HeaderRulesError {
    path: PathBuf,
    /// From 1; `None` for a file that is not there yet.
    line: Option<usize>,
    message: String,
}

impl HeaderRulesError {
    fn at(cassette: &Cassette, key: &str, item: usize, error: &dyn fmt::Display) -> Self {
        let line = Some(cassette.line_of(key, Some(item)));
        Self { path: cassette.path.clone(), line, message: error.to_string() }
    }
}

impl PlayerConfig {
    /// Adds the rules of the cassettes' headers to those of the configuration.
    ///
    /// # Errors
    /// When one of them holds a rule that cannot be used.
    pub fn apply_header_rules(&mut self) -> Result<(), HeaderRulesError> {
        for cassette in &self.cassettes {
            compare(&mut self.rules, cassette)?;
            self.secrets = secrets(&self.secrets, cassette)?;
            self.secrets = self.supplied.rules(self.secrets.clone(), cassette);
        }
        if let Some(output) = &self.output {
            let path = &output.path;
            let wrong = |(_, _, error): WrongRule| HeaderRulesError {
                path: path.clone(),
                line: None,
                message: error.to_string(),
            };
            self.secrets = with(&self.secrets, &output.header.redact).map_err(wrong)?;
        }
        Ok(())
    }
}

/// Checks everything at the top of a cassette.
///
/// # Errors
/// For the first thing that cannot be used; it names the file and the line.
pub fn check_top(cassette: &Cassette) -> Result<(), HeaderRulesError> {
    ways(cassette)?;
    compare(&mut CanonicalRules::default(), cassette)?;
    secrets(&redaction::RedactionRules::default(), cassette).map(drop)
}

/// The ways to find a record that a cassette names.
///
/// # Errors
/// When one of them is none.
pub fn ways(cassette: &Cassette) -> Result<Vec<RequestMatch>, HeaderRulesError> {
    read(cassette, "match", &cassette.header.matching, |way| way.parse())
}

/// The rules, with those of a cassette's header. What stands in a cassette as a placeholder is a secret in requests too, so that they
/// are compared in the same form.
///
/// # Errors
/// When one of the header's cannot be used.
pub fn secrets(
    rules: &redaction::RedactionRules,
    cassette: &Cassette,
) -> Result<redaction::RedactionRules, HeaderRulesError> {
    let wrong = |(key, at, error): WrongRule| HeaderRulesError::at(cassette, &format!("redact.{key}"), at, &error);
    let mut rules = with(rules, &cassette.header.redact).map_err(wrong)?;
    let kinds = kinds(cassette);
    if !kinds.is_empty() {
        rules = rules.secrets();
    }
    for kind in kinds {
        // Other kinds need no rule, or have one in the header.
        rules = rules.clone().shape(&kind).unwrap_or(rules);
    }
    Ok(rules)
}

/// A list of rules, the place of one in it, and why it cannot be used.
type WrongRule = (&'static str, usize, RulesError);

fn with(rules: &redaction::RedactionRules, redact: &Redact) -> Result<redaction::RedactionRules, WrongRule> {
    let mut rules = rules.clone();
    for (at, shape) in redact.shapes.iter().enumerate() {
        rules = rules.shape(shape).map_err(|error| ("shapes", at, error))?;
    }
    for (at, key) in redact.keys.iter().enumerate() {
        rules = rules.key(key).map_err(|error| ("keys", at, error))?;
    }
    for (at, place) in redact.places.iter().enumerate() {
        rules = rules.place(place).map_err(|error| ("places", at, error))?;
    }
    for (at, pattern) in redact.patterns.iter().enumerate() {
        let (name, regex) = pattern.split_once('=').unwrap_or((pattern, ""));
        rules = rules.pattern(name, regex).map_err(|error| ("patterns", at, error))?;
    }
    Ok(rules)
}

fn compare(rules: &mut CanonicalRules, cassette: &Cassette) -> Result<(), HeaderRulesError> {
    let header = &cassette.header;
    rules.ignored.extend(read(cassette, "ignore", &header.ignore, |path| path.parse())?);
    rules.scrubs.extend(read(cassette, "scrub", &header.scrub, |scrub| scrub.parse())?);
    rules.headers.extend(read(cassette, "match_headers", &header.match_headers, |name| {
        let read: Result<http::HeaderName, _> = name.parse();
        read.map(|read| read.as_str().to_owned()).map_err(|error| format!("`{name}`: {error}"))
    })?);
    Ok(())
}

/// Reads the list of rules under a key at the top of a cassette.
fn read<T, E: fmt::Display>(
    cassette: &Cassette,
    key: &str,
    list: &[String],
    one: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, HeaderRulesError> {
    let read =
        |(at, text): (usize, &String)| one(text).map_err(|error| HeaderRulesError::at(cassette, key, at, &error));
    list.iter().enumerate().map(read).collect()
}
