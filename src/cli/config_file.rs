//! The configuration file: flags in TOML.
//!
//! Keys are flag names without dashes in front; global flags stand at the top, a command's flags in a table of its name
//! (`[play]`, `[inspect.summary]`). The file's values become the defaults of the command that runs, so that the command
//! line and the environment win, and a value that is wrong is refused as it would be on the command line. A key is passed
//! over when a flag that it conflicts with was given by the command line or the environment.
//!
//! See docs/decisions/0012-configuration-values-become-defaults.md.

use std::{ffi::OsString, io, path::PathBuf};

use clap::{
    Arg, ArgMatches, Command,
    builder::{BoolishValueParser, Resettable, TypedValueParser},
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use toml::{Table, Value};

use crate::{
    base::bounded_read,
    cli::flags::{is_typed, likely},
};

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// It is not TOML. The line may hold a secret: it is not shown.
    #[error("{}:{line}: not valid TOML: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    /// A key is no flag, or its value is of a kind that no flag takes.
    #[error("{}: {reason}", path.display())]
    Key {
        path: PathBuf,
        /// The key and what is wrong with it.
        reason: String,
    },
}

/// The table of flags as the command line and the environment need it: with the defaults of the file that `arguments` or the environment name, if they name one.
pub(in crate::cli) fn apply(command: Command, arguments: &[OsString]) -> Result<Command, ConfigError> {
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(arguments) else { return Ok(command) };
    let command = match matches.get_one::<PathBuf>("config") {
        Some(path) => with_file(command, &matches, path.clone())?,
        None => command,
    };
    let is_engine = is_engine(&command, &matches);
    let command = if is_engine { command.mut_subcommand("play", with_time_scale) } else { command };
    Ok(without_overruled(command, &matches))
}

/// Names the variable, or the file and the key, of a flag that nobody typed, in an error about it. `tables` are the flags without and with the
/// defaults of the file.
pub(in crate::cli) fn name_sources(error: &mut clap::Error, tables: [&Command; 2], arguments: &[OsString]) {
    let [_, configured] = tables;
    let Ok(matches) = configured.clone().ignore_errors(true).try_get_matches_from(arguments) else { return };
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        let Some(ContextValue::String(shown)) = error.get(kind) else { continue };
        let long = shown.strip_prefix("--").and_then(|long| long.split([' ', '=', '[', '.']).next());
        if let Some(source) = long.and_then(|long| source_of(long, tables, &matches, arguments)) {
            let named = format!("{source} ({shown})");
            error.insert(kind, ContextValue::String(named));
        }
    }
}

/// Where the value of a flag is from; `None` where it was typed, or has none.
fn source_of(long: &str, tables: [&Command; 2], matches: &ArgMatches, arguments: &[OsString]) -> Option<String> {
    let (mut tables, mut inner, mut path) = (tables, matches, Vec::new());
    let [was, is] = loop {
        if let [Some(was), Some(is)] = tables.map(|table| flag(table, long).ok()) {
            break [was, is];
        }
        let (name, found) = inner.subcommand()?;
        let [was, is] = tables.map(|table| table.find_subcommand(name));
        (tables, inner) = ([was?, is?], found);
        path.push(name);
    };
    let mut words = arguments.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--");
    let names = is.get_long_and_visible_aliases().unwrap_or_default();
    let is_typed = words.any(|word| {
        let of_long = word.strip_prefix("--").and_then(|word| word.split('=').next());
        let of_short = is.get_short().is_some_and(|short| word.starts_with(&format!("-{short}")));
        of_short || of_long.is_some_and(|word| names.contains(&word))
    });
    let variable = is.get_env().filter(|name| std::env::var_os(name).is_some());
    match (is_typed, variable) {
        (true, _) => None,
        (false, Some(variable)) => Some(variable.to_string_lossy().into_owned()),
        (false, None) if was.get_default_values() == is.get_default_values() => None,
        (false, None) => {
            let table = if path.is_empty() { String::new() } else { format!("[{}] ", path.join(".")) };
            Some(format!("{}: {table}{long}", matches.get_one::<PathBuf>("config")?.display()))
        }
    }
}

/// Returns true if `play --engine` runs.
fn is_engine(command: &Command, matches: &ArgMatches) -> bool {
    let Some(typed) = matches.subcommand_matches("play") else { return false };
    let play = command.find_subcommand("play").into_iter().flat_map(Command::get_arguments);
    let of_file = play.filter(|arg| arg.get_id() == "engine").find_map(|arg| arg.get_default_values().first());
    match typed.value_source("engine") {
        Some(_) if is_typed(typed, "engine") => typed.get_one("engine").copied().unwrap_or(false),
        // A line with a mistake has no defaults.
        None => false,
        Some(_) => of_file
            .is_some_and(|value| BoolishValueParser::new().parse_ref(command, None, value).is_ok_and(|is_on| is_on)),
    }
}

/// With `--engine`, `--time-scale` goes with every kind of times.
fn with_time_scale(play: Command) -> Command {
    play.mut_arg("time_scale", |arg| arg.conflicts_with(Resettable::<clap::Id>::Reset).conflicts_with("instant"))
}

fn with_file(command: Command, matches: &ArgMatches, path: PathBuf) -> Result<Command, ConfigError> {
    let text = bounded_read::read_text(&path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let table = text.parse::<Table>().map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        ConfigError::Syntax { path: path.clone(), line, message: error.message().to_owned() }
    })?;
    with_defaults(command, &table, Some(matches)).map_err(|reason| ConfigError::Key { path, reason })
}

/// `matches` is what was typed for this command; `None` when another command runs, whose keys are only checked.
fn with_defaults(command: Command, table: &Table, matches: Option<&ArgMatches>) -> Result<Command, String> {
    let mut command = command;
    let mut taken: Vec<(String, &String)> = Vec::new();
    for (key, value) in table {
        if let (Some(child), Value::Table(flags)) = (command.find_subcommand(key), value) {
            let inner = matches.and_then(|matches| matches.subcommand_matches(key));
            let child = with_defaults(child.clone(), flags, inner)?;
            command = command.mut_subcommand(key, |_| child);
            continue;
        }
        let arg = flag(&command, key)?.clone();
        let values =
            texts(value).ok_or_else(|| format!("the value of `{key}` is not a string, number, boolean or list"))?;
        if let Some((_, other)) =
            taken.iter().find(|(id, _)| arg.get_id() == id.as_str() || conflict(&command, &arg, id))
        {
            return Err(format!("`{key}` cannot be used with `{other}`"));
        }
        taken.push((arg.get_id().to_string(), key));
        if matches.is_some_and(|matches| !is_overruled(&command, &arg, |other| is_typed(matches, other))) {
            command = command.mut_arg(arg.get_id().clone(), |arg| arg.required(false).default_values(values));
        }
    }
    Ok(command)
}

fn flag<'a>(command: &'a Command, key: &str) -> Result<&'a Arg, String> {
    let flags = || command.get_arguments().filter(|arg| arg.get_id() != "config");
    let names = |arg: &'a Arg| arg.get_long_and_visible_aliases().unwrap_or_default();
    flags().find(|arg| names(arg).contains(&key)).ok_or_else(|| {
        let tables = command.get_subcommands().filter(|child| !child.is_hide_set()).map(Command::get_name);
        let advice = match likely(key, flags().flat_map(names).chain(tables)) {
            Some(name) if name == key => format!("; [{name}] is a table"),
            Some(name) => format!("; did you mean `{name}`?"),
            None => String::new(),
        };
        format!("`{key}` is not a flag of `{}`{advice}", command.get_name())
    })
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Float(number) => Some(vec![number.to_string()]),
        Value::Boolean(truth) => Some(vec![truth.to_string()]),
        Value::Array(values) => values.iter().map(texts).collect::<Option<Vec<_>>>().map(|lists| lists.concat()),
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// Returns true if two flags exclude each other, or one is the other's `--no-`.
fn conflict(command: &Command, arg: &Arg, other: &str) -> bool {
    let names = |arg: &Arg, other: &str| {
        command.get_arg_conflicts_with(arg).iter().any(|conflicting| conflicting.get_id() == other)
    };
    let other_arg = command.get_arguments().find(|arg| arg.get_id() == other);
    let is_no = |flag: &str, no: &str| no.strip_prefix("no_") == Some(flag);
    let id = arg.get_id().as_str();
    is_no(id, other) || is_no(other, id) || names(arg, other) || other_arg.is_some_and(|other| names(other, id))
}

/// Returns true if a flag conflicts with one that wins over it.
fn is_overruled(command: &Command, arg: &Arg, wins: impl Fn(&str) -> bool) -> bool {
    let mut others = command.get_arguments().map(|other| other.get_id().as_str());
    others.any(|other| wins(other) && conflict(command, arg, other))
}

/// Takes the variables from flags that conflict with one on the command line.
fn without_overruled(mut command: Command, matches: &ArgMatches) -> Command {
    let is_from = |id: &str, source| matches.value_source(id) == Some(source);
    let is_on_line = |id: &str| is_from(id, ValueSource::CommandLine);
    let of_variables = command.get_arguments().filter(|arg| is_from(arg.get_id().as_str(), ValueSource::EnvVariable));
    let overruled = of_variables.filter(|arg| is_overruled(&command, arg, is_on_line)).map(|arg| arg.get_id().clone());
    for id in overruled.collect::<Vec<_>>() {
        command = command.mut_arg(id, |arg| arg.env(Resettable::Reset));
    }
    match matches.subcommand() {
        Some((name, inner)) => command.mut_subcommand(name, |child| without_overruled(child, inner)),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn parse(toml: &str, typed: &[&str]) -> Result<ArgMatches, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        let mut arguments: Vec<OsString> = vec!["vllm-vcr".into(), "--config".into(), file.path().into()];
        arguments.extend(typed.iter().map(OsString::from));
        let command = apply(command(), &arguments).map_err(|error| error.to_string())?;
        command.try_get_matches_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_gives_defaults_and_the_command_line_wins() {
        let toml = "[play]\nport = 9000\nseed = 7\nstrict = true\nserved-model-name = [\"a\", \"b\"]";
        let matches = parse(toml, &["play", "--seed", "8"]).unwrap();
        let play = matches.subcommand_matches("play").unwrap();
        assert_eq!(play.get_one::<u16>("port"), Some(&9000));
        assert_eq!(play.get_one::<u64>("seed"), Some(&8));
        assert!(play.get_flag("strict"));
        let names: Vec<&String> = play.get_many("served_model_name").unwrap().collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn required_flags_may_come_from_the_file() {
        let toml = "verbose = 1\n[tap]\nupstream = \"http://h:1\"\ntrace-out = \"t.jsonl\"";
        let matches = parse(toml, &["tap"]).unwrap();
        assert_eq!(matches.get_count("verbose"), 1);
        assert!(parse("[tap]\ntrace-out = \"t.jsonl\"", &["tap"]).unwrap_err().contains("--upstream"));
    }

    #[test]
    fn a_flag_has_all_its_names() {
        let matches = parse("[tap]\nupstream = \"http://h:1\"\ncassette = \"q.yaml\"", &["tap"]).unwrap();
        let tap = matches.subcommand_matches("tap").unwrap();
        assert_eq!(tap.get_one::<PathBuf>("trace_out").unwrap().to_str(), Some("q.yaml"));
    }

    #[test]
    fn a_conflicting_flag_that_was_typed_overrules_the_file() {
        for (key, typed) in [
            ("instant", &["play", "--time-scale", "2"][..]),
            ("no-enable-prefix-caching", &["play", "--enable-prefix-caching"]),
        ] {
            let matches = parse(&format!("[play]\n{key} = true"), typed).unwrap();
            assert!(!matches.subcommand_matches("play").unwrap().get_flag(&key.replace('-', "_")), "{key}");
        }
        let error = parse("[play]\ninstant = true\ntime-scale = 2", &["play"]).unwrap_err();
        assert!(error.contains("cannot be used with"), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        for (toml, part) in [
            ("[play]\nprot = 1", "did you mean `port`?"),
            ("[paly]\nport = 1", "did you mean `play`?"),
            ("[play]\nport = 1979-05-27", "not a string"),
            ("[play", ":1: not valid TOML: "),
            ("[tap]\ncassette = \"a.yaml\"\ntrace-out = \"b.yaml\"", "`trace-out` cannot be used with `cassette`"),
            ("cassette = \"a.yaml\"", "`cassette` is not a flag of `vllm-vcr`; [cassette] is a table"),
            ("[play]\nport = 99999", "'--port <PORT>'"),
            ("config = \"x\"", "is not a flag"),
            ("[tap]\nlisen = \"x\"", "did you mean `listen`?"),
        ] {
            let error = parse(toml, &["play"]).unwrap_err();
            assert!(error.contains(part), "{toml}: {error}");
        }
        for toml in
            ["api-key = \"k77x", "[play]\napi-key = k77x", "api-key: k77x", "x = \"k77x\\q\"", "x = 1\nx = \"k77x\""]
        {
            let error = parse(toml, &["play"]).unwrap_err();
            assert!(error.contains("not valid TOML: ") && !error.contains("k77x"), "{toml}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let arguments: Vec<OsString> = ["vllm-vcr", "--config", "/nowhere.toml", "play"].map(OsString::from).into();
        assert!(matches!(apply(command(), &arguments), Err(ConfigError::Read { .. })));
    }
}
