//! The report at the end of a replay, and whether it is a failure.

use std::{collections::BTreeMap, fs, io, path::Path, process::ExitCode, sync::Arc};

use serde_json::{Value, json};

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        build,
        failure::{Exit, Failure},
        hit_faults, output,
        player::args::CassetteArgs,
        redaction,
    },
    drive::scrape::{HitFaults, MOST_HITS},
    faults::FaultSet,
    recording::cassette::CassetteError,
    replay::{
        account::{Concern, Ledger, Report},
        player::{CassettePlayer, RecordReport},
    },
};

/// Reads the events that end the program with 1: those of `--fail-on`, else those of `--strict`.
pub(in crate::cli) fn concerns(fail_on: &[Concern], is_strict: bool) -> Vec<Concern> {
    if fail_on.is_empty() && is_strict {
        return vec![Concern::Miss, Concern::Unconsumed, Concern::Loose, Concern::Blocked];
    }
    fail_on.to_vec()
}

/// Prints the report of a replay; returns whether it is a failure.
pub(in crate::cli) fn ended(
    cassette_player: Option<&CassettePlayer>,
    account: Option<&dyn Ledger>,
    faults: &FaultSet,
    (args, concerns): (&CassetteArgs, &[Concern]),
) -> Result<PlayerEnd, Failure> {
    cassette_player.into_iter().for_each(CassettePlayer::finish_comparing);
    let hits = faults.hits(MOST_HITS).into_iter().map(|hit| hit.line);
    let faults = HitFaults::Hits(hits.collect());
    let Some(report) = account.map(|account| account.report(None)) else {
        note_faults(&faults);
        return Ok(PlayerEnd::Well);
    };
    match cassette_player {
        Some(cassette_player) => cassettes(cassette_player, &report, Some(&faults), args, concerns),
        None => trace(&report, &faults, args, concerns),
    }
}

/// Prints the faults that happened.
fn note_faults(faults: &HitFaults) {
    output::note(&hit_faults::lines(faults).iter().map(|line| format!("{line}\n")).collect::<String>());
}

/// A report for programs, with the faults of the server in the form that `replay --scrape` has.
fn json_of(report: &Report, faults: Option<&HitFaults>, concerns: &[Concern]) -> Value {
    let mut json = report.json(concerns);
    if let (Some(faults), Some(fields)) = (faults, json.as_object_mut()) {
        fields.insert("faults".to_owned(), json!(faults));
    }
    json
}

/// Closes the recording and prints the report; returns whether it is a failure.
pub(in crate::cli) fn cassettes(
    cassette_player: &CassettePlayer,
    report: &Report,
    faults: Option<&HitFaults>,
    args: &CassetteArgs,
    concerns: &[Concern],
) -> Result<PlayerEnd, Failure> {
    let recorded = cassette_player.finish();
    // What was dropped last is known by now.
    let report = &Report { not_recorded: cassette_player.report(None).not_recorded, ..report.clone() };
    if !cassette_player.is_empty() || !cassette_player.mcp().is_empty() || report.behind.is_some() {
        output::note(&report.text());
    } else if report.passed > 0 {
        output::note(&(report.passed_text() + &report.blocked_text()));
    } else {
        output::note(&report.blocked_text());
    }
    faults.into_iter().for_each(note_faults);
    write_report(args.report.as_deref(), || json_of(report, faults, concerns))?;
    let kept = |error: CassetteError| match error {
        CassetteError::Io { ref path, .. } => {
            let hint = format!("what was recorded is in {}.partial, as far as it could be written", path.display());
            Failure::environment(error).hint(hint)
        }
        error => error.into(),
    };
    let recorded = recorded.map_err(kept)?;
    recorded.iter().for_each(|recorded| output::summary(&recorded_text(recorded)));
    let outcome = outcome(report, concerns);
    match recorded.filter(RecordReport::lost_all).and_then(|recorded| recorded.not_written) {
        Some(path) => {
            let is_there = if path.exists() { "stays as it was" } else { "is not written" };
            output::warn(&format!("error: none of the requests was recorded: {} {is_there}\n", path.display()));
            Ok(PlayerEnd::Unrecorded)
        }
        None => Ok(outcome),
    }
}

/// Formats what was recorded, and what was not and why.
fn recorded_text(recorded: &RecordReport) -> String {
    let sessions = match recorded.sessions {
        0 => String::new(),
        count => format!(" ({} recorded separately)", counted(count, "session")),
    };
    let of_mcp = match recorded.of_mcp {
        0 => String::new(),
        count => format!(", of which {count} with MCP servers"),
    };
    let mut text = format!("recorded {}{of_mcp}{sessions}\n", counted(recorded.recorded, "interaction"));
    let why = recorded.unanswered_why.as_deref().map(redaction::shown).unwrap_or_default();
    text.push_str(&output::counts(&[
        (recorded.discarded as u64, "interaction", "dropped with a session that failed or was not ended"),
        (recorded.unanswered, "request", format!("without a response, not recorded: {why}").as_str()),
        (recorded.partial, "partial record", "whose client left: played up to that point (--complete-within)"),
        (recorded.skipped, "failed response", "not recorded (--record-errors all)"),
        (recorded.queue_full, "exchange", "dropped: the recorder could not keep up"),
        (recorded.queue_bytes, "exchange", "dropped: too many bytes waited for the recorder"),
        (recorded.unreadable, "exchange", "not recorded: the response was compressed or too large"),
        (recorded.unsearched, "exchange", "not recorded: too much work to search for secrets"),
        (recorded.broken, "exchange", "dropped: no record could be made"),
    ]));
    text.push_str(&redacted_text(&recorded.redacted));
    recorded.unredacted.iter().for_each(|path| text.push_str(&unredacted_text(path)));
    text
}

/// Formats how many values of each kind were redacted; nothing where none was.
pub(in crate::cli) fn redacted_text(redacted: &BTreeMap<Arc<str>, u64>) -> String {
    if redacted.is_empty() {
        return String::new();
    }
    let count: u64 = redacted.values().sum();
    let kinds: Vec<String> = redacted.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    format!("  {} redacted: {}\n", counted(count, "value"), one_line(&kinds.join(", ")))
}

/// Formats what to do with a recording that holds secrets by choice.
pub(in crate::cli) fn unredacted_text(path: &Path) -> String {
    let path = path.display();
    format!(
        "  {path} holds secrets (--redact off): keep it private. `redact: {{level: off}}` at its top lets it be played. To remove \
         them: vllm-vcr cassette redact {path}\n"
    )
}

/// Prints how a trace was played; returns whether it is a failure.
fn trace(report: &Report, faults: &HitFaults, args: &CassetteArgs, concerns: &[Concern]) -> Result<PlayerEnd, Failure> {
    if report.was_used() || !concerns.is_empty() {
        output::note(&report.text());
    }
    note_faults(faults);
    write_report(args.report.as_deref(), || json_of(report, Some(faults), concerns))?;
    Ok(outcome(report, concerns))
}

/// Writes a report where it was requested, as JSON.
pub(in crate::cli) fn write_report(path: Option<&Path>, report: impl FnOnce() -> Value) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let report = build::stamped(&report()).map_err(Failure::environment)?;
    fs::write(path, report.to_string() + "\n").map_err(|error| no_report(path, &error))
}

/// Advice where only some tests of a cassette ran.
const UNCONSUMED: &str = "  if only some tests ran: give each test its own cassette (sessions and --cassette FOLDER/), or its records a \
    `group`; sessions and groups that have not begun are then ignored\n";

/// Names the concerns of which a report has any; returns whether that is a failure.
pub(in crate::cli) fn outcome(report: &Report, concerns: &[Concern]) -> PlayerEnd {
    let failing = report.failing(concerns);
    for concern in &failing {
        output::warn(&format!("failed: {}\n", concern.name()));
    }
    if failing.contains(&Concern::Unconsumed) && !report.unused.is_empty() {
        output::note(UNCONSUMED);
    }
    if failing.is_empty() { PlayerEnd::Well } else { PlayerEnd::Failing }
}

/// End of a run with a cassette player.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum PlayerEnd {
    Well,
    Failing,
    /// There were exchanges to record, and none of them was.
    Unrecorded,
}

impl PlayerEnd {
    /// Returns the exit code beside that of the command that ran, which wins where it failed.
    pub(in crate::cli) fn exit_code(self, command: Option<u8>) -> ExitCode {
        match (command, self) {
            (Some(code), _) if code != 0 => code.into(),
            (_, Self::Failing) => Exit::No.into(),
            (_, Self::Unrecorded) => Exit::Environment.into(),
            (_, Self::Well) => ExitCode::SUCCESS,
        }
    }
}

/// Prints how many connections were cut at the drain's deadline, if any were.
pub(in crate::cli) fn note_cut(cut: usize) {
    if cut > 0 {
        output::warn(&format!("{} cut at the end of --drain-timeout\n", counted(cut, "connection")));
    }
}

/// Tries at the start to write the file that is written at the end.
pub(in crate::cli) fn writable(path: &Path) -> Result<(), Failure> {
    let is_new = !path.exists();
    let opened = fs::OpenOptions::new().create(true).append(true).open(path);
    let tried = opened.and_then(|_| if is_new { fs::remove_file(path) } else { Ok(()) });
    tried.map_err(|error| no_report(path, &error))
}

fn no_report(path: &Path, error: &io::Error) -> Failure {
    Failure::environment(format!("cannot write {}: {error}", path.display()))
}
