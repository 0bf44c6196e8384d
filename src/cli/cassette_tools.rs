//! `cassette`: checks, writes, compares and redacts cassettes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    args::{CassetteCommand, FmtArgs, RedactArgs, ValidateArgs},
    cassette_convert, cassette_diff, cassette_lint, cassette_merge, cassette_new, cassette_prune, cassettes,
    failure::{Exit, Failure},
    output, secret_args,
};
use crate::{
    base::one_line::one_line,
    recording::cassette::{self, Cassette, CassetteError, Run, Tokens},
    replay::player,
};

/// Runs one of the tools.
///
/// # Errors
/// When a cassette cannot be read or written.
pub(super) fn run(command: CassetteCommand) -> Result<ExitCode, Failure> {
    match command {
        CassetteCommand::New(args) => cassette_new::run(&args),
        CassetteCommand::Validate(args) => validate(&args),
        CassetteCommand::Fmt(args) => fmt(&args),
        CassetteCommand::Diff(args) => cassette_diff::run(&args),
        CassetteCommand::Redact(args) => redact(&args),
        CassetteCommand::Merge(args) => cassette_merge::run(&args),
        CassetteCommand::Prune(args) => cassette_prune::run(&args),
        CassetteCommand::Convert(args) => cassette_convert::run(&args),
    }
}

/// The files of all paths; a folder stands for its cassettes.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    cassettes::files(paths, &|_| "name cassettes, or the folder that they are in".to_owned())
}

/// Exits with [`Exit::BadInput`] for secrets, with [`Exit::No`] for what has no effect.
fn validate(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let rules = secret_args::rules(&args.redaction)?;
    let (mut report, mut warned, mut leaking) = (String::new(), false, false);
    for file in &files(&args.files)? {
        let cassette = cassette::load(file)?;
        player::check_top(&cassette)?;
        let secrets = player::secrets(&player::secrets_of_top(&rules, &cassette)?, &cassette);
        // That a record was edited is no mistake.
        let warnings = cassette.warnings.iter().filter(|warning| !warning.contains(" was edited: "));
        let warnings: Vec<&String> = warnings.collect();
        warned |= !warnings.is_empty();
        leaking |= !secrets.is_empty();
        warnings
            .into_iter()
            .for_each(|warning| report.push_str(&format!("{}\n", one_line(&cassettes::shown(warning)))));
        secrets.iter().for_each(|secret| report.push_str(&format!("secret: {}\n", one_line(secret))));
        let notes = cassette_lint::notes(&cassette).into_iter().chain(player::not_put_back(&cassette));
        notes.for_each(|note| report.push_str(&format!("note: {}\n", one_line(&cassettes::shown(&note)))));
        report.push_str(&format!("{}: {} records\n", file.display(), cassette.records.len()));
        report.push_str(&origin(file, &cassette));
    }
    output::print(&report)?;
    Ok(match (leaking, warned) {
        (true, _) => Exit::BadInput.into(),
        (false, true) => Exit::No.into(),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// The run that recorded a cassette last, and its tags, as far as they are known.
fn origin(file: &Path, cassette: &Cassette) -> String {
    let run = cassette::last_run(file);
    let run = run.map(|Run { run_id, created, mode }| format!("recorded {created}, run_id {run_id}, mode {mode}"));
    let tags =
        Some(cassette.header.tags.join(", ")).filter(|tags| !tags.is_empty()).map(|tags| format!("tags: {tags}"));
    let known: Vec<String> = run.into_iter().chain(tags).collect();
    if known.is_empty() { String::new() } else { format!("  {}\n", one_line(&cassettes::shown(&known.join("; ")))) }
}

fn fmt(args: &FmtArgs) -> Result<ExitCode, Failure> {
    let mut changes = false;
    for file in &files(&args.files)? {
        let io = |source| Failure::from(CassetteError::Io { path: file.clone(), source });
        let old = cassette::text_of(file)?;
        let Cassette { header, records, tools, .. } = cassette::parse(file, &old)?;
        let new = match args.expand {
            true => cassette::emit_expanded(&header, &records),
            false => cassette::emit(&header, &records, &tools),
        };
        if new == old {
            continue;
        }
        changes = true;
        if args.check {
            output::print(&format!("{} would change\n", file.display()))?;
        } else {
            cassette::write_blobs(file, records.iter()).map_err(io)?;
            fs::write(file, new).map_err(io)?;
        }
    }
    Ok(if args.check && changes { Exit::No.into() } else { ExitCode::SUCCESS })
}

fn redact(args: &RedactArgs) -> Result<ExitCode, Failure> {
    let (rules, mut left) = (secret_args::rules(&args.redaction)?, Vec::new());
    for file in &files(&args.files)? {
        let mut cassette = cassette::load(file)?;
        let rules = player::secrets_of_top(&rules, &cassette)?;
        let found = player::secrets(&rules, &cassette).len();
        let changed = player::redact_cassette(&rules, &mut cassette);
        if found > 0 || !changed.is_empty() {
            forget_tokens(file, &changed)?;
            cassette::rewrite(&cassette)?;
        }
        let (held, records) = (changed.len(), cassette.records.len());
        output::note(&format!("{}: {held} of {records} records held secrets ({found} in all)\n", file.display()));
        left.extend(player::secrets(&rules, &cassette::load(file)?));
    }
    if left.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Exit::BadInput, format!("these could not be taken out:\n  {}", left.join("\n  "))))
}

/// Ids of tokens spell what was redacted.
fn forget_tokens(file: &Path, records: &[u64]) -> Result<(), Failure> {
    let io = |source| Failure::from(CassetteError::Io { path: file.to_owned(), source });
    let mut tokens = Tokens::read(file).map_err(io)?;
    records.iter().for_each(|id| drop(tokens.remove(id)));
    Tokens::write(file, &tokens.into_values().collect::<Vec<_>>()).map_err(io)
}
