//! `cassette`: its arguments, and the tools that make, check, write, redact and merge cassettes.

pub(in crate::cli) mod convert;
pub(in crate::cli) mod diff;
mod lint;
mod prune;

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Subcommand};

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        failure::{Exit, Failure},
        output::{self, shell_word},
        player::files::{cassettes as files, once},
        redaction::{self, RedactionArgs, shown},
    },
    recording::{
        cassette::{self, Cassette, CassetteError, RecordTokens, RecordingRun, is_cassette},
        redaction::RedactionRules,
    },
    replay::player,
};

/// What to do with a cassette.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum CassetteCommand {
    /// Write a cassette to start with, for hand-written answers.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette new fixtures.yaml")]
    New(NewArgs),
    /// Check a cassette: that it can be read, that nothing in it is ignored, and that it holds no secrets.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette validate agent.yaml")]
    Validate(SecretsArgs),
    /// Rewrite a cassette as the recorder would; comments are lost.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr cassette fmt agent.yaml\n  vllm-vcr cassette fmt --check agent.yaml"
    )]
    Fmt(FmtArgs),
    /// Compare two cassettes; exit with 1 if they differ.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette diff old.yaml new.yaml --type output")]
    Diff(diff::DiffArgs),
    /// Remove the secrets from a cassette and its sidecar.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette redact agent.yaml --redact-key x-tenant")]
    Redact(SecretsArgs),
    /// Merge cassettes into a new one; records get new numbers and keep their times and token ids.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette merge weather.yaml news.yaml -o agent.yaml")]
    Merge(MergeArgs),
    /// Remove the records that no test used, according to the report of a full test run; comments are lost.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr play --cassette agent.yaml --report report.json -- pytest\n  vllm-vcr cassette prune agent.yaml --unused report.json\n  curl -s localhost:8000/vcr/report | vllm-vcr cassette prune agent.yaml --unused -"
    )]
    Prune(prune::PruneArgs),
    /// Convert a cassette to a trace, or a trace or a recording of another tool to a cassette.
    #[command(
        alias = "import",
        after_long_help = "Examples:\n  vllm-vcr cassette convert agent.yaml agent.jsonl.gz\n  vllm-vcr cassette convert day.jsonl.gz day.yaml --tokenizer ./tokenizer\n  vllm-vcr cassette convert browser.har agent.yaml\n  vllm-vcr cassette convert vcrpy/test_agent.yaml agent.yaml\n  vllm-vcr cassette convert aimock/fixtures.json agent.yaml"
    )]
    Convert(convert::ConvertArgs),
}

/// A cassette to begin with.
#[derive(Debug, Args)]
pub(in crate::cli) struct NewArgs {
    /// The file; it must not exist.
    #[arg(value_name = "FILE")]
    pub(in crate::cli) file: PathBuf,
}

/// Cassettes to check, or to take secrets out of.
#[derive(Debug, Args)]
pub(in crate::cli) struct SecretsArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Cassettes to write again.
#[derive(Debug, Args)]
pub(in crate::cli) struct FmtArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// Changes nothing; exits with 1 if something would change.
    #[arg(long)]
    pub(in crate::cli) check: bool,
    /// Writes every request in full.
    #[arg(long)]
    pub(in crate::cli) expand: bool,
}

/// Cassettes to put together.
#[derive(Debug, Args)]
pub(in crate::cli) struct MergeArgs {
    /// The cassettes, or folders of them.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// The new cassette; it must not exist.
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) output: PathBuf,
}

pub(in crate::cli) fn run(command: CassetteCommand) -> Result<ExitCode, Failure> {
    match command {
        CassetteCommand::New(args) => new(&args),
        CassetteCommand::Validate(args) => validate(&args),
        CassetteCommand::Fmt(args) => fmt(&args),
        CassetteCommand::Diff(args) => diff::run(&args),
        CassetteCommand::Redact(args) => redact(&args),
        CassetteCommand::Merge(args) => merge(&args),
        CassetteCommand::Prune(args) => prune::run(&args),
        CassetteCommand::Convert(args) => convert::run(&args),
    }
}

/// Refuses to write objects, before anything is read.
fn refuse_objects(files: &[PathBuf]) -> Result<(), CassetteError> {
    files.iter().try_for_each(|file| cassette::refuse_object(file))
}

/// Refuses a name under which no new cassette is written; of a file that has it already, with advice.
pub(in crate::cli) fn new_cassette(path: &Path, advice: &str) -> Result<(), Failure> {
    writable_name(path)?;
    if path.exists() { Err(Failure::usage(format!("{} exists", path.display())).hint(advice)) } else { Ok(()) }
}

/// Refuses a name that no cassette can be written under.
pub(in crate::cli) fn writable_name(path: &Path) -> Result<(), Failure> {
    cassette::refuse_object(path)?;
    match is_cassette(path) {
        true => Ok(()),
        false => Err(Failure::usage(format!("{}: the name of a cassette ends in .yaml", path.display()))),
    }
}

/// Exits with [`Exit::BadInput`] for secrets, with [`Exit::No`] for what has no effect.
fn validate(args: &SecretsArgs) -> Result<ExitCode, Failure> {
    let rules = redaction::rules(&args.redaction)?;
    let files = files(&args.files)?;
    let mut worst = None;
    let failed = each(&files, |file| {
        let (report, wrong) = validate_one(file, &rules)?;
        worst = worst.max(wrong);
        output::print(&report).map(drop)
    })?;
    Ok(failed.or(worst.map(Exit::into)).unwrap_or_default())
}

/// Does the same to each file, also behind one where it fails; the exit code of the last failure.
fn each(files: &[PathBuf], mut run: impl FnMut(&PathBuf) -> Result<(), Failure>) -> Result<Option<ExitCode>, Failure> {
    let mut failed = None;
    for file in files {
        match run(file) {
            Err(failure) if files.len() == 1 => return Err(failure),
            Err(failure) => failed = Some(failure.report()),
            Ok(()) => {}
        }
    }
    Ok(failed)
}

fn validate_one(file: &Path, rules: &RedactionRules) -> Result<(String, Option<Exit>), Failure> {
    let cassette = cassette::load(file)?;
    player::check_top(&cassette)?;
    let mut report = String::new();
    let secrets = player::secrets(&player::secrets_of_top(rules, &cassette)?, &cassette);
    // That a record was edited is no mistake.
    let warnings: Vec<&String> =
        cassette.warnings.iter().filter(|warning| !warning.contains(" was edited: ")).collect();
    let wrong = if secrets.is_empty() { (!warnings.is_empty()).then_some(Exit::No) } else { Some(Exit::BadInput) };
    warnings.into_iter().for_each(|warning| report.push_str(&format!("{}\n", one_line(&shown(warning)))));
    secrets.iter().for_each(|secret| report.push_str(&format!("secret: {}\n", one_line(secret))));
    let notes = lint::notes(&cassette).into_iter().chain(player::not_put_back(&cassette));
    notes.for_each(|note| report.push_str(&format!("note: {}\n", one_line(&shown(&note)))));
    report.push_str(&format!("{}: {}\n", file.display(), counted(cassette.records.len(), "record")));
    report.push_str(&origin(file, &cassette));
    Ok((report, wrong))
}

/// The run that recorded a cassette last, and its tags, as far as they are known.
fn origin(file: &Path, cassette: &Cassette) -> String {
    let run = cassette::last_run(file);
    let run =
        run.map(|RecordingRun { run_id, created, mode }| format!("recorded {created}, run_id {run_id}, mode {mode}"));
    let tags =
        Some(cassette.header.tags.join(", ")).filter(|tags| !tags.is_empty()).map(|tags| format!("tags: {tags}"));
    let known: Vec<String> = run.into_iter().chain(tags).collect();
    if known.is_empty() { String::new() } else { format!("  {}\n", one_line(&shown(&known.join("; ")))) }
}

fn fmt(args: &FmtArgs) -> Result<ExitCode, Failure> {
    if !args.check {
        refuse_objects(&args.files)?;
    }
    let mut changes = false;
    let failed = each(&files(&args.files)?, |file| {
        let io = |source| Failure::from(CassetteError::Io { path: file.clone(), source });
        let old = cassette::text_of(file)?;
        let Cassette { header, records, tools, .. } = cassette::parse(file, &old)?;
        let new = match args.expand {
            true => cassette::emit_expanded(&header, &records),
            false => cassette::emit(&header, &records, &tools),
        };
        if new == old {
            return Ok(());
        }
        changes = true;
        if args.check {
            return output::print(&format!("{} would change\n", file.display())).map(drop);
        }
        cassette::write_blobs(file, records.iter()).map_err(io)?;
        fs::write(file, new).map_err(io)
    })?;
    Ok(failed.unwrap_or_else(|| Exit::unless(!args.check || !changes)))
}

fn redact(args: &SecretsArgs) -> Result<ExitCode, Failure> {
    refuse_objects(&args.files)?;
    let (rules, mut left) = (redaction::rules(&args.redaction)?, Vec::new());
    let failed = each(&files(&args.files)?, |file| {
        let mut cassette = cassette::load(file)?;
        let rules = player::secrets_of_top(&rules, &cassette)?;
        let found = player::secrets(&rules, &cassette).len();
        let changed = player::redact_cassette(&rules, &mut cassette);
        if found > 0 || !changed.is_empty() {
            forget_tokens(file, &changed)?;
            cassette::rewrite(&cassette)?;
        }
        let (held, records) = (changed.len(), cassette.records.len());
        output::note(&format!(
            "{}: secrets in {held} of {}, {found} in all\n",
            file.display(),
            counted(records, "record")
        ));
        left.extend(player::secrets(&rules, &cassette::load(file)?));
        Ok(())
    })?;
    if left.is_empty() {
        return Ok(failed.unwrap_or_default());
    }
    Err(Failure::input(format!("these secrets could not be removed:\n  {}", left.join("\n  "))))
}

/// What is known of a cassette's tokens, by record.
fn tokens_of(cassette: &Path) -> Result<BTreeMap<u64, RecordTokens>, Failure> {
    RecordTokens::read(cassette).map_err(|source| {
        let path = cassette::sidecar_of(cassette).join("tokens.jsonl");
        CassetteError::Io { path, source }.into()
    })
}

/// Removes what is known of the tokens of some records: their ids spell what was redacted.
fn forget_tokens<'a>(file: &Path, records: impl IntoIterator<Item = &'a u64>) -> Result<(), Failure> {
    let io = |source| Failure::from(CassetteError::Io { path: file.to_owned(), source });
    let mut tokens = tokens_of(file)?;
    records.into_iter().for_each(|id| drop(tokens.remove(id)));
    RecordTokens::write(file, &tokens.into_values().collect::<Vec<_>>()).map_err(io)
}

const TEMPLATE: &str = include_str!("template.yaml");

fn new(args: &NewArgs) -> Result<ExitCode, Failure> {
    let path = &args.file;
    new_cassette(path, "name another file")?;
    let name = shell_word(&path.to_string_lossy());
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)?
            .write_all(TEMPLATE.replace("FILE", &name).as_bytes())
    };
    write().map_err(|source| match source.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!("{} exists", path.display())),
        _ => Failure::environment(CassetteError::Io { path: path.clone(), source }),
    })?;
    output::note(&format!("wrote {}; play it: vllm-vcr play --cassette {name}\n", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// Writes the records of all cassettes to one, in the order of the cassettes.
fn merge(args: &MergeArgs) -> Result<ExitCode, Failure> {
    let to = &args.output;
    new_cassette(to, "name another file: -o FILE")?;
    let files = files(&args.files)?;
    once(&files)?;
    let io = |source| Failure::from(CassetteError::Io { path: to.clone(), source });
    let mut whole: Option<Cassette> = None;
    let mut tokens = Vec::new();
    for file in &files {
        let mut cassette = cassette::load(file)?;
        let mut own = tokens_of(file)?;
        match &mut whole {
            None => {
                cassette.path.clone_from(to);
                whole = Some(cassette);
            }
            Some(whole) => {
                let numbers = whole.append(cassette).map_err(|entry| {
                    let message = format!("{}: `{entry}` at its top differs from the other cassettes", file.display());
                    Failure::input(message).hint("make it the same in both files")
                })?;
                own.iter_mut().for_each(|(id, tokens)| tokens.id = numbers.get(id).copied().unwrap_or(*id));
            }
        }
        tokens.extend(own.into_values());
    }
    let Some(whole) = whole else { return Ok(ExitCode::SUCCESS) };
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    cassette::rewrite(&whole)?;
    RecordTokens::write(to, &tokens).map_err(io)?;
    let (records, cassettes) = (counted(whole.records.len(), "record"), counted(files.len(), "cassette"));
    output::note(&format!("{}: {records} of {cassettes}\n", to.display()));
    Ok(ExitCode::SUCCESS)
}
