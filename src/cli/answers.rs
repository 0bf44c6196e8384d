//! `answers`: checks files of answers.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        failure::{Exit, Failure},
        output,
        redaction::shown,
    },
    play::fault_of_record,
    recording::cassette::{AnswersError, AnswersFile, RecordFault, load_answers, unreached},
};

/// What to do with files of answers.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum AnswersCommand {
    /// Check files of answers for mistakes, and for rules that are never reached: exit code 3 for mistakes, 1 for unreached rules.
    #[command(after_long_help = "Example:\n  vllm-vcr answers check guard.yaml")]
    Check(CheckArgs),
}

/// Files to check.
#[derive(Debug, Args)]
pub(in crate::cli) struct CheckArgs {
    /// The files; each is checked on its own, with the files that it includes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
}

pub(in crate::cli) fn run(command: AnswersCommand) -> Result<ExitCode, Failure> {
    let AnswersCommand::Check(CheckArgs { files }) = command;
    let (mut has_mistakes, mut has_unreached) = (false, false);
    for file in &files {
        match load_answers(file).and_then(with_faults) {
            Ok(loaded) => {
                let (text, count) = report(&loaded);
                has_unreached |= count > 0;
                output::print(&text)?;
            }
            Err(mistakes) => {
                has_mistakes = true;
                output::print(&format!("{}\n", shown(&mistakes.to_string())))?;
            }
        }
    }
    Ok(match (has_mistakes, has_unreached) {
        (true, _) => Exit::BadInput.into(),
        (false, true) => Exit::No.into(),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Checks the faults of rules too.
fn with_faults(files: Vec<AnswersFile>) -> Result<Vec<AnswersFile>, AnswersError> {
    let records = files.iter().flat_map(|file| file.records.iter().map(|record| (&file.path, record)));
    let faults = records.filter_map(|(path, record)| RecordFault::of(path, record));
    let wrong: Vec<_> = faults.filter_map(|fault| fault_of_record(&fault).err().map(|why| fault.wrong(&why))).collect();
    if wrong.is_empty() { Ok(files) } else { Err(AnswersError(wrong)) }
}

/// Returns the messages about files that belong together, and how many of their rules are never reached.
fn report(files: &[AnswersFile]) -> (String, usize) {
    let rules: Vec<_> = files.iter().flat_map(|file| file.records.iter().map(move |record| (file, record))).collect();
    let place = |at: usize| {
        let (file, record) = rules.get(at)?;
        Some(format!("{}:{}", file.path.display(), record.line))
    };
    let unreached = unreached(rules.iter().map(|(_, record)| *record));
    let mut text = String::new();
    for (at, earlier) in &unreached {
        let (at, earlier) = (place(*at).unwrap_or_default(), place(*earlier).unwrap_or_default());
        text.push_str(&one_line(&shown(&format!(
            "{at}: the rule is never reached: {earlier} matches the same requests first"
        ))));
        text.push('\n');
    }
    let count = |file: &AnswersFile| format!("{}: {}\n", file.path.display(), counted(file.records.len(), "rule"));
    files.iter().for_each(|file| text.push_str(&count(file)));
    (text, unreached.len())
}
