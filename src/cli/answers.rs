//! `answers`: checks files of answers.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};

use crate::{
    api::Constraint,
    base::one_line::{counted, one_line},
    cli::{
        failure::{Exit, Failure},
        output,
        redaction::shown,
    },
    engine::guided,
    play::fault_of_record,
    recording::cassette::{
        AnswersError, AnswersFile, CassetteError, CassetteRecord, MadeAnswer, RecordFault, read_answers, unreached,
    },
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
    let mut worst = None;
    for file in &files {
        let (read, mut mistakes) = read_answers(file);
        mistakes.extend(read.iter().flat_map(|file| file.records.iter().flat_map(|record| wrong(&file.path, record))));
        mistakes.sort_by_key(place);
        if let [CassetteError::Io { .. }] = mistakes.as_slice() {
            worst = Some(Exit::BadInput);
            Failure::input(AnswersError(mistakes)).report();
        } else if mistakes.is_empty() {
            let (text, count) = report(&read);
            worst = worst.max((count > 0).then_some(Exit::No));
            output::print(&text)?;
        } else {
            worst = Some(Exit::BadInput);
            output::print(&format!("{}\n", shown(&AnswersError(mistakes).to_string())))?;
        }
    }
    Ok(worst.map(Exit::into).unwrap_or_default())
}

/// The file and the line of a mistake; what is wrong with a whole file comes first.
fn place(mistake: &CassetteError) -> (PathBuf, usize) {
    if let CassetteError::Wrong { path, line, .. } = mistake { (path.clone(), *line) } else { Default::default() }
}

/// Finds what the server would refuse: a fault of a record, and a schema for which no JSON can be made.
fn wrong(path: &Path, record: &CassetteRecord) -> Vec<CassetteError> {
    let fault = RecordFault::of(path, record).and_then(|fault| Some(fault.wrong(&fault_of_record(&fault).err()?)));
    let schema = match &record.answer.made {
        Some(MadeAnswer::Schema(Some(schema))) => guided::check(&Constraint::Json(schema.clone())).err(),
        _ => None,
    };
    let schema = schema.map(|error| CassetteError::Wrong {
        path: path.to_owned(),
        line: record.line,
        message: format!("`answer.schema`: {error}"),
        further: Vec::new(),
    });
    fault.into_iter().chain(schema).collect()
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
