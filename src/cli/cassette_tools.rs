//! `cassette`: checks, writes, compares and redacts cassettes.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::Value;

use super::{
    args::{CassetteCommand, DiffArgs, DiffWhat, FmtArgs, RedactArgs, ValidateArgs},
    cassette_convert,
    cassette_lint::{self, Identified},
    cassette_new, cassette_prune, cassettes,
    failure::{Exit, Failure},
    output, secret_args,
};
use crate::{
    base::one_line::one_line,
    recording::canonical::{Difference, Rules, differences},
    recording::cassette::{self, Cassette, CassetteError, Record, Run, Tokens, shown_by_order},
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
        CassetteCommand::Diff(args) => diff(&args),
        CassetteCommand::Redact(args) => redact(&args),
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
    let run = run.map(|Run { run, created, mode }| format!("recorded {created}, run {run}, mode {mode}"));
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

/// Records of equal requests are compared, what is left in the order of its boundary.
fn diff(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let (old, new) = (Side::load(&args.old)?, Side::load(&args.new)?);
    let mut report = String::new();
    for (old, new) in pairs(&old, &new) {
        let found = match (old, new) {
            (Some(old), Some(new)) => differing(old, new, args.what),
            (Some(old), None) => vec![format!("only in {}: {}", args.old.display(), old.0.summary())],
            (None, Some(new)) => vec![format!("only in {}: {}", args.new.display(), new.0.summary())],
            (None, None) => Vec::new(),
        };
        if let (Some(old), Some(new), false) = (old, new, found.is_empty()) {
            let (a, b) = (args.old.display(), args.new.display());
            let summary = new.0.summary();
            report.push_str(&format!("{a}:{} -> {b}:{} {}\n", old.0.line, new.0.line, one_line(&summary)));
        }
        found.iter().for_each(|line| report.push_str(&format!("  {}\n", one_line(line))));
    }
    output::print(&report)?;
    Ok(if report.is_empty() { ExitCode::SUCCESS } else { Exit::No.into() })
}

type Known = (Record, Identified);

/// One of two cassettes.
struct Side(Vec<Known>);

impl Side {
    fn load(path: &Path) -> Result<Self, Failure> {
        let records = cassette::load(path)?.records;
        let identified = cassette_lint::identified(&Rules::default(), &records);
        Ok(Self(records.into_iter().zip(identified).collect()))
    }
}

fn pairs<'a>(old: &'a Side, new: &'a Side) -> Vec<(Option<&'a Known>, Option<&'a Known>)> {
    let mut by_key: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
    old.0.iter().enumerate().for_each(|(at, known)| by_key.entry(known.1.identity.key).or_default().push_back(at));
    let mut partner: Vec<Option<usize>> =
        new.0.iter().map(|known| by_key.get_mut(&known.1.identity.key).and_then(VecDeque::pop_front)).collect();
    let mut left: Vec<usize> = by_key.into_values().flatten().collect();
    left.sort_unstable();
    for (known, partner) in new.0.iter().zip(&mut partner).filter(|(_, partner)| partner.is_none()) {
        let same =
            |at: &usize| old.0.get(*at).is_some_and(|other| other.1.identity.boundary == known.1.identity.boundary);
        *partner = left.iter().position(same).map(|place| left.remove(place));
    }
    let paired = new.0.iter().zip(partner).map(|(known, partner)| (partner.and_then(|at| old.0.get(at)), Some(known)));
    paired.chain(left.iter().map(|at| (old.0.get(*at), None))).collect()
}

fn differing(old: &Known, new: &Known, what: DiffWhat) -> Vec<String> {
    let tools = |known: &Known| known.0.body.get("tools").cloned().unwrap_or_default();
    let (before, after) = (&old.1.identity, &new.1.identity);
    let line = |kind: &str, found: Vec<Difference>| -> Vec<String> {
        let value =
            |value: Option<Value>| value.map_or_else(|| "nothing".to_owned(), |value| short(&value.to_string()));
        let line = |it: Difference| format!("{kind} {}: {} -> {}", it.path, value(it.recorded), value(it.received));
        found.into_iter().map(line).collect()
    };
    // Equal keys are equal requests.
    let bodies = || if before.key == after.key { Vec::new() } else { differences(&before.body(), &after.body()) };
    let prompt = || line("request", bodies());
    let output = || line("answer", answers(&old.0, &new.0));
    match what {
        DiffWhat::Run => [prompt(), output()].concat(),
        DiffWhat::Prompt => prompt(),
        DiffWhat::Output => output(),
        DiffWhat::Tools => line("tools", differences(&tools(old), &tools(new))),
    }
}

/// The differences of two answers, in which the names of ids do not count.
fn answers(old: &Record, new: &Record) -> Vec<Difference> {
    let found = differences(&old.answer.shown(), &new.answer.shown());
    if found.is_empty() { found } else { differences(&shown_by_order(old), &shown_by_order(new)) }
}

fn short(text: &str) -> String {
    let short: String = text.chars().take(120).collect();
    if short.len() < text.len() { short + "…" } else { short }
}
