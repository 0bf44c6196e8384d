//! The top of a cassette: where it comes from and how it is matched.

use serde_json::{Map, Value};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::error::Wrong;
use crate::{
    canonical::CanonicalRules,
    yaml::{YamlKind, YamlNode},
};

/// The level of redaction without built-in rules.
const OFF: &str = "off";

/// The header of a cassette.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Header {
    /// The recorder, the engine and its models.
    pub recorded: Map<String, Value>,
    /// The ways to find a record, tried in order; empty leaves it to the server.
    pub matching: Vec<String>,
    /// Fields of requests that do not count.
    pub ignore: Vec<String>,
    /// Edits of texts before they are compared.
    pub scrub: Vec<String>,
    /// Headers that count.
    pub match_headers: Vec<String>,
    /// Secrets besides the built-in ones.
    pub redact: Redact,
    /// Words of the user's own.
    pub tags: Vec<String>,
    /// The time that is served instead of the recorded one.
    pub clock: Option<String>,
}

/// A cassette's own rules for secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redact {
    /// Whether what follows is all that was redacted (`level: off`): the cassette holds secrets by choice.
    pub is_off: bool,
    /// Names in JSON and headers whose values are.
    pub keys: Vec<String>,
    /// Patterns whose match, or first group, is a secret: `NAME=REGEX`.
    pub patterns: Vec<String>,
    /// Places in JSON.
    pub places: Vec<String>,
    /// Shapes of personal data that are looked for; `all` stands for each of them.
    pub shapes: Vec<String>,
}

impl Redact {
    fn read(node: &YamlNode) -> Result<Self, Wrong> {
        let mut redact = Self::default();
        let entries = node.entries().ok_or_else(|| Wrong::at(node.line, "`redact` has to be a map"))?;
        for entry in entries {
            let listed = texts(&entry.value, &entry.key)?;
            if entry.key == "level" {
                redact.is_off = is_off(&entry.value)?;
                continue;
            }
            match redact.lists().into_iter().find(|(name, _)| *name == entry.key) {
                Some((_, list)) => *list = listed,
                None => {
                    let why = format!("`{}` is none of level, keys, patterns, places, shapes", entry.key);
                    return Err(Wrong::at(entry.line, why));
                }
            }
        }
        match redact.patterns.iter().find(|pattern| !pattern.contains('=')) {
            Some(pattern) => Err(Wrong::at(node.line, format!("the pattern `{pattern}` is not NAME=REGEX"))),
            None => Ok(redact),
        }
    }

    /// The lists by their names, in the order in which they are written.
    fn lists(&mut self) -> [(&'static str, &mut Vec<String>); 4] {
        let Self { is_off: _, keys, patterns, places, shapes } = self;
        [("shapes", shapes), ("keys", keys), ("patterns", patterns), ("places", places)]
    }

    fn fields(mut self) -> Map<String, Value> {
        let level = self.is_off.then(|| ("level".to_owned(), OFF.into()));
        let given = self.lists().into_iter().filter(|(_, list)| !list.is_empty());
        level.into_iter().chain(given.map(|(name, list)| (name.to_owned(), std::mem::take(list).into()))).collect()
    }
}

impl Header {
    /// Takes one entry of the file's top; `None` where its name is not known here.
    pub(super) fn take(&mut self, key: &str, node: &YamlNode) -> Result<Option<()>, Wrong> {
        match key {
            "recorded" => self.recorded = map(node, key)?,
            "match" => self.matching = texts(node, key)?,
            "ignore" => self.ignore = texts(node, key)?,
            "scrub" => self.scrub = texts(node, key)?,
            "match_headers" => self.match_headers = texts(node, key)?,
            "redact" => self.redact = Redact::read(node)?,
            "tags" => self.tags = texts(node, key)?,
            "clock" => self.clock = Some(date(node, key)?),
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// The rules by which its requests are compared. What cannot be read is left out: it is named where the cassette is played.
    #[must_use]
    pub fn rules(&self) -> CanonicalRules {
        CanonicalRules {
            ignored: self.ignore.iter().filter_map(|place| place.parse().ok()).collect(),
            scrubs: self.scrub.iter().filter_map(|edit| edit.parse().ok()).collect(),
            headers: self.match_headers.iter().map(|name| name.to_ascii_lowercase()).collect(),
            ..CanonicalRules::default()
        }
    }

    /// Adds tags; `KEY=VALUE` takes the place of another value of the key.
    pub fn tag(&mut self, tags: &[String]) {
        for tag in tags {
            let key = tag.split_once('=').map_or(tag.as_str(), |(key, _)| key);
            let is_of_key = |own: &&mut String| own.split_once('=').map_or(own.as_str(), |(own, _)| own) == key;
            match self.tags.iter_mut().find(is_of_key) {
                Some(own) => own.clone_from(tag),
                None => self.tags.push(tag.clone()),
            }
        }
    }

    /// The top of a cassette that replaces one with the top `old`: what people wrote there stays, and this is added.
    #[must_use]
    pub fn over(mut self, old: Self) -> Self {
        let mut all = Self { recorded: self.recorded, clock: old.clock.clone().or(self.clock), ..old };
        if !self.matching.is_empty() {
            all.matching = self.matching;
        }
        add(&mut all.ignore, self.ignore);
        add(&mut all.scrub, self.scrub);
        add(&mut all.match_headers, self.match_headers);
        // Secrets stay in what is recorded now only where that was chosen now.
        all.redact.is_off = self.redact.is_off;
        for ((_, list), (_, more)) in all.redact.lists().into_iter().zip(self.redact.lists()) {
            add(list, std::mem::take(more));
        }
        all.tag(&self.tags);
        all
    }

    /// The top of a cassette with the records of both: this one, and what is known of the other recording.
    /// Errors: when both cannot stand at one top: the name of the entry.
    pub(super) fn joined(&self, mut other: Self) -> Result<Self, &'static str> {
        if self.matching != other.matching {
            return Err("match");
        }
        if self.clock != other.clock {
            return Err("clock");
        }
        let mut recorded = self.recorded.clone();
        for (name, value) in std::mem::take(&mut other.recorded) {
            match (recorded.get_mut(&name), value) {
                (Some(Value::Array(listed)), Value::Array(more)) => add(listed, more),
                (Some(_), _) => {}
                (None, value) => drop(recorded.insert(name, value)),
            }
        }
        let is_off = self.redact.is_off || other.redact.is_off;
        let mut joined = other.over(self.clone());
        (joined.recorded, joined.redact.is_off) = (recorded, is_off);
        Ok(joined)
    }

    /// The entries as they are written; empty ones are not, except those that people are to fill in.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value, always: bool| {
            let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
            if always || !(is_empty || value.is_null()) {
                fields.insert(name.to_owned(), value);
            }
        };
        put("recorded", self.recorded.clone().into(), false);
        put("match", self.matching.clone().into(), false);
        put("ignore", self.ignore.clone().into(), true);
        put("scrub", self.scrub.clone().into(), true);
        put("match_headers", self.match_headers.clone().into(), false);
        put("redact", self.redact.clone().fields().into(), false);
        put("tags", self.tags.clone().into(), false);
        put("clock", self.clock.clone().into(), false);
        fields
    }
}

/// Reads the level of redaction: that of everything but personal data, or none.
fn is_off(node: &YamlNode) -> Result<bool, Wrong> {
    match text(node, "level")?.as_str() {
        OFF => Ok(true),
        "secrets" => Ok(false),
        other => {
            Err(Wrong::at(node.line, format!("`level` is off or secrets, not `{other}`; shapes add personal data")))
        }
    }
}

fn add<T: PartialEq>(list: &mut Vec<T>, more: Vec<T>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

pub(super) fn text(node: &YamlNode, key: &str) -> Result<String, Wrong> {
    node.text().map(str::to_owned).ok_or_else(|| Wrong::at(node.line, format!("`{key}` has to be text")))
}

pub(super) fn date(node: &YamlNode, key: &str) -> Result<String, Wrong> {
    let text = text(node, key)?;
    match OffsetDateTime::parse(&text, &Rfc3339) {
        Ok(_) => Ok(text),
        Err(_) => Err(Wrong::at(node.line, format!("`{key}` has to be a date such as 2026-06-17T12:00:00Z"))),
    }
}

pub(super) fn map(node: &YamlNode, key: &str) -> Result<Map<String, Value>, Wrong> {
    match node.value() {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(Wrong::at(node.line, format!("`{key}` has to be a map"))),
    }
}

pub(super) fn texts(node: &YamlNode, key: &str) -> Result<Vec<String>, Wrong> {
    match &node.kind {
        YamlKind::List(items) => items.iter().map(|item| text(item, key)).collect(),
        YamlKind::Scalar(Value::String(one)) => Ok(vec![one.clone()]),
        YamlKind::Scalar(Value::Null) => Ok(Vec::new()),
        YamlKind::Scalar(_) | YamlKind::Map(_) => {
            Err(Wrong::at(node.line, format!("`{key}` has to be a list of texts")))
        }
    }
}

pub(super) fn number(node: &YamlNode, key: &str) -> Result<u64, Wrong> {
    node.number().ok_or_else(|| Wrong::at(node.line, format!("`{key}` has to be a number from 0 on")))
}
