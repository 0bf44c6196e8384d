//! The simulator's arguments as it reads them: switches may have a value, lists go on to the next flag, and the last of several counts.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::{OsStr, OsString},
    path::Path,
};

use serde_json::Value;

use super::{SimulatorFlag, row_of};
use crate::{
    base::bounded_read,
    cli::{failure::Failure, vllm_flags::ValueCount},
    net::wire::value_text,
    recording::yaml::{self, YamlNode},
};

/// Flags of the command line and of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GivenFlags {
    /// Flags of the table with their values.
    pub(super) flags: BTreeMap<&'static str, Vec<String>>,
    /// Everything else.
    pub(super) others: Vec<OsString>,
    /// Words that mean nothing where they stand.
    pub(super) notes: Vec<String>,
}

impl GivenFlags {
    /// Reads arguments before any `--`. `is_its_own` is true where the simulator's short flag may stand too.
    pub(super) fn read(arguments: &[OsString], is_its_own: bool) -> Result<Self, Failure> {
        let mut given = Self::default();
        let mut rest: VecDeque<&OsString> = arguments.iter().collect();
        while let Some(argument) = rest.pop_front() {
            let text = argument.to_str().unwrap_or_default();
            let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
            let short = if is_its_own || value.is_some() { flag.strip_prefix("-v").map(|_| "v") } else { None };
            let name = flag.strip_prefix("--").or(short.filter(|_| flag == "-v"));
            match name.and_then(row_of) {
                Some(row) => {
                    let values = value.map_or_else(|| values(row, &mut rest), |value| Ok(vec![value.to_owned()]))?;
                    given.flags.insert(row.name, values);
                    if row.values == ValueCount::None {
                        given.notes.extend(word_after(row.name, &mut rest));
                    }
                }
                // An empty word is a variable of a template without a value.
                None if text.is_empty() && argument.is_empty() => {}
                None => given.others.push(argument.clone()),
            }
        }
        Ok(given)
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.flags.get(name)?.last().map(String::as_str)
    }

    /// Returns true where a switch is on.
    pub(super) fn is_on(&self, name: &str) -> Result<bool, Failure> {
        self.value(name).map_or(Ok(false), |value| is_true(name, value))
    }

    /// Checks whether a flag that is not the simulator's was typed.
    pub(super) fn has(&self, name: &str) -> bool {
        self.others
            .iter()
            .filter_map(|word| word.to_str()?.strip_prefix("--"))
            .any(|flag| flag.split('=').next() == Some(name))
    }
}

fn text(word: &OsString) -> String {
    word.to_string_lossy().into_owned()
}

fn values(row: &SimulatorFlag, rest: &mut VecDeque<&OsString>) -> Result<Vec<String>, Failure> {
    match row.values {
        ValueCount::None => Ok(vec!["true".to_owned()]),
        ValueCount::One | ValueCount::Optional => {
            let message = || format!("--{} needs a value", row.name);
            rest.pop_front().map(|value| vec![text(value)]).ok_or_else(|| Failure::usage(message()))
        }
        ValueCount::Several => {
            let mut found = Vec::new();
            while let Some(value) = rest.front().filter(|word| !text(word).starts_with("--")) {
                found.extend(Some(text(value)).filter(|value| !value.is_empty()));
                rest.pop_front();
            }
            Ok(found)
        }
    }
}

/// Skips a word after a switch, as the simulator does, which takes the switch for on.
fn word_after(name: &str, rest: &mut VecDeque<&OsString>) -> Option<String> {
    let word = rest.pop_front_if(|next| **next == "true" || **next == "false")?;
    (word == "false")
        .then(|| format!("--{name} false: the switch is on, as in the simulator; --{name}=false turns it off"))
}

/// Reads a truth value as the simulator does.
pub(super) fn is_true(name: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        other => Err(Failure::usage(format!("--{name}={other}: true or false is needed"))),
    }
}

/// The arguments without a YAML file that `--config` names, and behind them its flags; a TOML file stays named.
pub(super) fn with_yaml(typed: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let mut arguments = typed.to_vec();
    let named =
        typed.iter().enumerate().find_map(|(at, argument)| match argument.to_str()?.strip_prefix("--config")? {
            "" => Some((at..at + 2, typed.get(at + 1)?.as_os_str())),
            rest => Some((at..at + 1, OsStr::new(rest.strip_prefix('=')?))),
        });
    let Some((words, path)) = named.map(|(words, path)| (words, Path::new(path))) else { return Ok(arguments) };
    if !path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
        return Ok(arguments);
    }
    arguments.drain(words);
    let shown = path.display();
    let text = bounded_read::read_text(path)
        .map_err(|error| Failure::usage(format!("cannot read the configuration file {shown}: {error}")))?;
    let node = yaml::parse(&text).map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    for entry in node.entries().ok_or_else(|| Failure::usage(format!("{shown}: flags and their values are needed")))? {
        let key = spelled(&entry.key);
        let mut flags = typed.iter().filter_map(|word| word.to_str()?.strip_prefix("--")?.split('=').next());
        if !flags.any(|flag| spelled(flag) == key) {
            arguments.extend(flag_of(&key, &entry.value));
        }
    }
    Ok(arguments)
}

/// A flag's name as it is known: some of the simulator's have `_`.
fn spelled(name: &str) -> String {
    if row_of(name).is_some() { name.to_owned() } else { name.replace('_', "-") }
}

/// A key and its value as arguments.
fn flag_of(key: &str, node: &YamlNode) -> Vec<OsString> {
    match node.value() {
        Value::Null => Vec::new(),
        // A switch of `play` has no value.
        Value::Bool(is_on) if row_of(key).is_none() => is_on.then(|| format!("--{key}").into()).into_iter().collect(),
        Value::Array(items) => {
            let values = items.iter().map(|item| OsString::from(&*value_text(item)));
            std::iter::once(OsString::from(format!("--{key}"))).chain(values).collect()
        }
        value => vec![format!("--{key}={}", value_text(&value)).into()],
    }
}
