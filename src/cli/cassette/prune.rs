//! `cassette prune`: removes the records that no session of a run was served.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        cassette::{each, forget_tokens, refuse_objects},
        failure::{Exit, Failure},
        output,
    },
    recording::cassette::{self, Cassette, CassetteRecord},
    replay::account::UnusedRecord,
};

/// Files of a report that a note names.
const MOST_NAMED: usize = 5;

/// Cassettes to take unused records out of.
#[derive(Debug, Args)]
pub(in crate::cli) struct PruneArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// The report of the run, from --report or /vcr/report; - for stdin.
    #[arg(long, value_name = "REPORT", required = true)]
    pub(in crate::cli) unused: PathBuf,
    /// Changes nothing; exits with 1 if something would be removed.
    #[arg(long)]
    pub(in crate::cli) check: bool,
}

/// Removes from each cassette the records that the report lists as unused.
pub(in crate::cli) fn run(args: &PruneArgs) -> Result<ExitCode, Failure> {
    refuse_objects(&args.files)?;
    let unused = read(&args.unused)?;
    let mut changes = false;
    let failed = each(&args.files, |file| {
        let mut cassette = cassette::load(file)?;
        let all = cassette.records.len();
        let ids = ids(&unused, file, &cassette.records)?;
        let removed = with_retries(ids, &cassette.records);
        if removed.len() == all && all > 0 {
            let message = format!("{}: no record was used in that run (0 of {all})", file.display());
            return Err(Failure::input(message).hint("if the cassette is not needed, delete the file"));
        }
        changes |= !removed.is_empty();
        let word = if args.check { "would be removed" } else { "removed" };
        output::print(&format!("{}: {} of {} {word}\n", file.display(), removed.len(), counted(all, "record")))?;
        output::print(&elsewhere(&unused, file))?;
        for record in cassette.records.iter().filter(|record| removed.contains(&record.id)) {
            output::print(&format!("  #{} (line {}) {}\n", record.id, record.line, record.summary()))?;
        }
        if !args.check && !removed.is_empty() {
            remove(&mut cassette, &removed)?;
        }
        Ok(())
    })?;
    Ok(failed.unwrap_or_else(|| Exit::unless(!args.check || !changes)))
}

/// Reads the unused records of a report, from a file or from stdin (`-`).
fn read(report: &Path) -> Result<Vec<UnusedRecord>, Failure> {
    let wrong = |why: &str| Failure::input(format!("{}: {why}", report.display()));
    let text = if report == Path::new("-") { io::read_to_string(io::stdin()) } else { fs::read_to_string(report) };
    let text = text.map_err(|error| wrong(&error.to_string()))?;
    let parsed: Value = serde_json::from_str(&text).map_err(|error| wrong(&format!("not JSON: {error}")))?;
    let listed = parsed.get("unused").filter(|unused| unused.is_array()).ok_or_else(|| {
        wrong("it has no `unused`").hint("use the file of --report FILE, or the response of /vcr/report")
    })?;
    Vec::deserialize(listed).map_err(|_| wrong("an entry of `unused` is malformed"))
}

/// The ids of a file's unused records, which have to be as they were in that run.
fn ids(unused: &[UnusedRecord], file: &Path, records: &[CassetteRecord]) -> Result<BTreeSet<u64>, Failure> {
    let by_id: BTreeMap<u64, &CassetteRecord> = records.iter().map(|record| (record.id, record)).collect();
    let mut ids = BTreeSet::new();
    for entry in unused.iter().filter(|entry| is_same(Path::new(&entry.cassette), file)) {
        let record = by_id.get(&entry.record);
        let is_it = record.is_some_and(|it| it.line == entry.line && it.summary() == entry.request);
        if !is_it {
            let message = format!("{}: record {} has changed since that run", file.display(), entry.record);
            return Err(Failure::input(message).hint("run the tests again and use the new report"));
        }
        ids.insert(entry.record);
    }
    Ok(ids)
}

/// Returns true if two paths name one file; that of the report may be from another folder.
fn is_same(reported: &Path, file: &Path) -> bool {
    match (fs::canonicalize(reported), fs::canonicalize(file)) {
        (Ok(reported), Ok(file)) => reported == file,
        _ => reported.ends_with(file) || file.ends_with(reported),
    }
}

/// Names the files of a report where it has nothing of this one: the run may have played it at another path.
fn elsewhere(unused: &[UnusedRecord], file: &Path) -> String {
    let named: BTreeSet<&str> = unused.iter().map(|entry| entry.cassette.as_str()).collect();
    if named.is_empty() || named.iter().any(|named| is_same(Path::new(named), file)) {
        return String::new();
    }
    let (shown, more) = (named.iter().take(MOST_NAMED), named.len().saturating_sub(MOST_NAMED));
    let shown: Vec<_> = shown.map(|named| one_line(named)).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("  the report has no unused records of this file, only of {}{more}: prune those\n", shown.join(", "))
}

/// Adds the further tries of the records that go: they would be played in their place.
fn with_retries(mut ids: BTreeSet<u64>, records: &[CassetteRecord]) -> BTreeSet<u64> {
    let tries = records.iter().filter(|record| record.retry_of.is_some_and(|first| ids.contains(&first)));
    let tries: Vec<u64> = tries.map(|record| record.id).collect();
    ids.extend(tries);
    ids
}

/// Writes a cassette without some of its records, and its sidecar without theirs. Records that continue them are written in full.
fn remove(cassette: &mut Cassette, removed: &BTreeSet<u64>) -> Result<(), Failure> {
    cassette.records.retain(|record| !removed.contains(&record.id));
    // Those that are still used are defined again.
    cassette.tools.clear();
    cassette::rewrite(cassette)?;
    forget_tokens(&cassette.path, removed)
}
