//! vLLM's flags that are not `play`'s: a copied command line starts all the same.
//!
//! What cannot matter without a model is ignored with a note; what would change answers in a way that `play` does not
//! have is refused with the reason. Which is which is data: `table.tsv`. A flag that `play` has itself wins over a row of
//! the table, under vLLM's spelling with `_`, too; `--no-FLAG` of a flag that is off is ignored. What stands after `--` is
//! the wrapped command and stays as it is.

use std::{collections::VecDeque, ffi::OsString, sync::LazyLock};

use clap::{Arg, Command};

const TABLE: &str = include_str!("table.tsv");

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FlagRow {
    /// The name, and others, separated by commas; those of one dash with it.
    names: &'static str,
    values: ValueCount,
    refused: bool,
    /// Values with which a refused flag means nothing new.
    harmless: &'static str,
    reason: &'static str,
}

/// Number of values that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum ValueCount {
    None,
    One,
    Optional,
    Several,
}

impl ValueCount {
    /// Reads a column of a table.
    pub(in crate::cli) fn read(column: &str) -> Self {
        match column {
            "0" => Self::None,
            "?" => Self::Optional,
            "+" => Self::Several,
            _ => Self::One,
        }
    }
}

/// The command line without what is only vLLM's.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Sorted {
    pub(in crate::cli) kept: Vec<OsString>,
    /// Names of the flags that have no effect.
    pub(in crate::cli) passed_over: Vec<String>,
}

/// Misuse of one of vLLM's flags.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum Misused {
    /// It changes answers in a way that is not served.
    #[error("--{name} is vLLM's, but not served here: {reason}")]
    Refused { name: String, reason: &'static str },
    /// The next flag follows it.
    #[error("--{name} needs a value, but {next} follows it")]
    NoValue { name: String, next: String },
}

/// Takes vLLM's own flags out of the arguments of `play`; those of other commands stay as they are.
pub(in crate::cli) fn sort(command: &Command, arguments: &[OsString]) -> Result<Sorted, Misused> {
    let mut sorted = Sorted { kept: Vec::with_capacity(arguments.len()), passed_over: Vec::new() };
    let mut rest: VecDeque<&OsString> = arguments.iter().collect();
    let (mut in_play, program) = (false, usize::from(!arguments.is_empty()));
    let command_at = command_at(command, arguments.get(program..).unwrap_or_default()).map(|at| at + program);
    while let Some(argument) = rest.pop_front() {
        let text = argument.to_str().unwrap_or_default();
        if text == "--" {
            sorted.kept.extend(std::iter::once(argument).chain(rest).cloned());
            break;
        }
        if !in_play || !text.starts_with('-') {
            in_play = in_play || (text == "play" && command_at == Some(arguments.len() - rest.len() - 1));
            sorted.kept.push(argument.clone());
            continue;
        }
        match read(text, command) {
            ReadFlag::Kept => sorted.kept.push(argument.clone()),
            ReadFlag::Respelled(text) => sorted.kept.push(text.into()),
            ReadFlag::Off(name) => sorted.passed_over.push(name),
            ReadFlag::Theirs { name, row, value } => {
                let values = if value.is_some() { Vec::new() } else { taken(&name, row.values, &mut rest)? };
                let mut values = value.into_iter().chain(values);
                let is_harmless = values.all(|value| row.harmless.split(',').any(|word| word == value));
                if row.refused && (row.harmless.is_empty() || !is_harmless) {
                    return Err(Misused::Refused { name, reason: row.reason });
                }
                sorted.passed_over.push(name);
            }
        }
    }
    Ok(sorted)
}

/// The place of the command in arguments without the program: the first word that is no flag and no flag's value.
pub(in crate::cli) fn command_at(command: &Command, arguments: &[OsString]) -> Option<usize> {
    let mut is_value = false;
    arguments.iter().take_while(|argument| *argument != "--").position(|argument| {
        let text = argument.to_str().unwrap_or_default();
        let name = text.strip_prefix("--").unwrap_or(text);
        let flag = command.get_arguments().find(|flag| text.starts_with('-') && has_name(flag, name));
        let takes_value = flag.is_some_and(|flag| flag.get_action().takes_values());
        let was_value = std::mem::replace(&mut is_value, takes_value);
        !was_value && !text.starts_with('-')
    })
}

/// Finds a flag of the program or of `play` by one of its names; that of one letter has its dash.
pub(in crate::cli) fn own_flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let play = command.find_subcommand("play");
    let mut flags = command.get_arguments().chain(play.into_iter().flat_map(Command::get_arguments));
    flags.find(|flag| has_name(flag, name))
}

fn has_name(flag: &Arg, name: &str) -> bool {
    match name.strip_prefix('-') {
        Some(letter) => flag.get_short().is_some_and(|short| letter.chars().eq([short])),
        None => {
            let mut aliases = flag.get_all_aliases().into_iter().flatten();
            flag.get_long() == Some(name) || aliases.any(|alias| alias == name)
        }
    }
}

fn is_own(command: &Command, name: &str) -> bool {
    name == "help" || own_flag(command, name).is_some()
}

/// Checks whether a flag is `play`'s own, or one of vLLM's.
pub(in crate::cli) fn is_known(command: &Command, name: &str) -> bool {
    is_own(command, name) || row_of(name).is_some()
}

/// Checks whether the next word belongs to a flag of `play` or of vLLM that stands without `=`.
pub(in crate::cli) fn takes_value(command: &Command, flag: &str) -> bool {
    let name = flag.strip_prefix("--").map_or_else(|| flag.to_owned(), |long| long.replace('_', "-"));
    match own_flag(command, &name) {
        Some(flag) => flag.get_action().takes_values(),
        None => !name.starts_with("no-") && row_of(&name).is_none_or(|row| row.values != ValueCount::None),
    }
}

enum ReadFlag {
    /// `play`'s own, or unknown.
    Kept,
    /// `play`'s own, spelled with `_`.
    Respelled(String),
    /// A flag that is off here.
    Off(String),
    /// vLLM's.
    Theirs { name: String, row: &'static FlagRow, value: Option<String> },
}

fn read(text: &str, command: &Command) -> ReadFlag {
    let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value.to_owned())));
    let Some(long) = flag.strip_prefix("--") else {
        if is_own(command, flag) {
            return ReadFlag::Kept;
        }
        return match row_of(flag) {
            // -dp 2
            Some(row) if is_own(command, first(row)) => {
                ReadFlag::Respelled(text.replacen(flag, &format!("--{}", first(row)), 1))
            }
            Some(row) => ReadFlag::Theirs { name: first(row).to_owned(), row, value },
            // -O3, -O.level=3
            None if flag.starts_with("-O.") || (flag.len() == 3 && flag.starts_with("-O")) => {
                ReadFlag::Off("optimization-level".to_owned())
            }
            None => ReadFlag::Kept,
        };
    };
    let name = long.replace('_', "-");
    if is_own(command, &name) {
        let respelled = || text.replacen(long, &name, 1);
        return if name == long { ReadFlag::Kept } else { ReadFlag::Respelled(respelled()) };
    }
    let positive = name.strip_prefix("no-").unwrap_or(&name);
    // --compilation-config.level=3
    let stem = positive.split('.').next().unwrap_or(positive);
    match row_of(stem) {
        Some(_) if positive != name => ReadFlag::Off(name),
        Some(row) => ReadFlag::Theirs { name, row, value },
        None if is_own(command, positive) => ReadFlag::Off(name),
        None => ReadFlag::Kept,
    }
}

fn taken(name: &str, values: ValueCount, rest: &mut VecDeque<&OsString>) -> Result<Vec<String>, Misused> {
    let is_value = |argument: &&OsString| !argument.to_string_lossy().starts_with('-');
    let mut found = Vec::new();
    let most = match values {
        ValueCount::None => 0,
        ValueCount::One => {
            let next = rest.pop_front().map(|next| next.to_string_lossy().into_owned());
            let no_value = |next: Option<String>| {
                let next = next.unwrap_or_else(|| "nothing".to_owned());
                Misused::NoValue { name: name.to_owned(), next }
            };
            return match next {
                Some(value) if !value.starts_with("--") => Ok(vec![value]),
                next => Err(no_value(next)),
            };
        }
        ValueCount::Optional => 1,
        ValueCount::Several => usize::MAX,
    };
    while found.len() < most && rest.front().is_some_and(is_value) {
        found.extend(rest.pop_front().map(|value| value.to_string_lossy().into_owned()));
    }
    Ok(found)
}

fn first(row: &FlagRow) -> &'static str {
    row.names.split(',').next().unwrap_or_default()
}

fn rows() -> &'static [FlagRow] {
    static ROWS: LazyLock<Vec<FlagRow>> = LazyLock::new(|| {
        let row = |[names, values, becomes, harmless, reason]: [&'static str; 5]| FlagRow {
            names,
            values: ValueCount::read(values),
            refused: becomes == "refused",
            harmless,
            reason,
        };
        columns(TABLE).map(row).collect()
    });
    &ROWS
}

/// The rows of a table of so many columns, which tabs separate; lines of `#` are none.
pub(in crate::cli) fn columns<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok())
}

/// The row of a flag, by one of its names.
fn row_of(name: &str) -> Option<&'static FlagRow> {
    rows().iter().find(|row| row.names.split(',').any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(line: &str) -> Result<(String, String), String> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let Sorted { kept, passed_over } =
            sort(&crate::cli::command(), &arguments).map_err(|refused| refused.to_string())?;
        let kept: Vec<String> = kept.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok((kept.join(" "), passed_over.join(" ")))
    }

    #[test]
    fn a_copied_command_line_keeps_what_matters() {
        for (line, kept, passed_over) in [
            (
                "vllm-vcr play --port 8000 --tensor-parallel-size 2 --dtype=bfloat16 --enforce-eager --max_model_len 4096",
                "vllm-vcr play --port 8000 --max-model-len 4096",
                "tensor-parallel-size dtype enforce-eager",
            ),
            ("v play -tp 8 -O3 --seed 1", "v play --seed 1", "tensor-parallel-size optimization-level"),
            (
                "v play -dp 2 -dp=3 --replicas 2",
                "v play --data-parallel-size 2 --data-parallel-size=3 --replicas 2",
                "",
            ),
            ("v play -O.level=3 --swap-space -1", "v play", "optimization-level swap-space"),
            (
                "v play --no-enable-prefix-caching --no-enable-scale-out --no-async-scheduling",
                "v play --no-enable-prefix-caching",
                "no-enable-scale-out no-async-scheduling",
            ),
            ("v play --ignore-patterns a b c --instant", "v play --instant", "ignore-patterns"),
            (
                "v play --compilation-config.level=3 --hf-token --port 1",
                "v play --port 1",
                "compilation-config.level hf-token",
            ),
            ("v play --runner generate", "v play", "runner"),
            ("v play --prot 1", "v play --prot 1", ""),
            ("v tap --dtype x", "v tap --dtype x", ""),
            ("v play -q", "v play -q", ""),
            (
                "v play --dtype auto -- play -q tests -n 4 --enable-lora",
                "v play -- play -q tests -n 4 --enable-lora",
                "dtype",
            ),
            ("v tap -- play -tp 2", "v tap -- play -tp 2", ""),
        ] {
            assert_eq!(sorted(line), Ok((kept.to_owned(), passed_over.to_owned())), "{line}");
        }
    }

    #[test]
    fn what_would_change_answers_is_refused() {
        for line in ["v play --runner pooling", "v play --middleware a.b", "v play --grpc"] {
            assert!(sorted(line).unwrap_err().contains("is vLLM's, but not served here"), "{line}");
        }
    }

    #[test]
    fn a_flag_never_takes_the_next_one_for_its_value() {
        for (line, error) in [
            ("v play --dtype --max-model-len 100", "--dtype needs a value, but --max-model-len follows it"),
            ("v play --dtype", "--dtype needs a value, but nothing follows it"),
        ] {
            assert_eq!(sorted(line).unwrap_err(), error);
        }
    }

    #[test]
    fn every_row_is_read() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!((rows().len(), lines > 200), (lines, true));
        assert!(rows().iter().all(|row| !row.refused || !row.reason.is_empty()));
    }
}
