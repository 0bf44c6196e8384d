//! What `replay` reads, traces or cassettes, and what it sends before the run.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use ::time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::args::{PromptArg, ReplayArgs};
use crate::{
    base::one_line::counted,
    cli::{
        failure::Failure,
        output,
        player::files::{cassettes, once},
        redaction::{self, RedactionArgs, shown},
    },
    drive::{Drive, Plan, Workload, before},
    play::{Player, TRACE_NAME, load_tokenizer},
    recording::{cassette::is_cassette, redaction::json_has_placeholder, storage},
    text::prompt::Tokenizer,
};

/// Reads a time: RFC 3339, or seconds since 1970.
pub(super) fn time(text: &str) -> Result<SystemTime, String> {
    let seconds = || SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(text.parse().ok()?).ok()?);
    let dated = || Some(SystemTime::from(OffsetDateTime::parse(text, &Rfc3339).ok()?));
    let time = seconds().or_else(dated);
    time.ok_or_else(|| "not a time: write 2026-01-31T12:00:00Z, or seconds since 1970".to_owned())
}

/// The text of a cache salt; that of `run` is a new one, and is shown.
pub(super) fn salt(typed: String) -> String {
    if typed != "run" {
        return typed;
    }
    let salt = format!("{:016x}", rand::random::<u64>());
    output::note(&format!("cache salt {salt}: another run with --cache-salt {salt} finds what this one leaves\n"));
    salt
}

/// Reads the tokenizer, if one is named.
pub(super) fn tokenizer(args: &ReplayArgs) -> Result<Option<Tokenizer>, Failure> {
    if args.tokenizer.is_some() && args.prompt_as != PromptArg::Text {
        return Err(Failure::usage("--tokenizer has an effect only with --prompt-as text"));
    }
    Ok(args.tokenizer.as_deref().map(load_tokenizer).transpose()?)
}

/// Sends what comes before the run: prompts by which lengths are measured, and prefixes.
pub(super) async fn before(
    drive: &mut Drive,
    workload: &Workload,
    plan: &Plan,
    (tokenizer, primes): (Option<&Tokenizer>, bool),
) -> Result<(), Failure> {
    let lengths = before::measure_lengths(drive, workload, tokenizer).await?;
    lengths.iter().for_each(|line| output::note(&format!("{line}\n")));
    if primes {
        let (sent, failed) = before::prime(drive, workload, plan).await?;
        output::note(&format!("primed with {}, of which {failed} failed\n", counted(sent, "request")));
    }
    Ok(())
}

/// Reads the named traces or cassettes, or the built-in trace.
pub(super) fn workload(args: &ReplayArgs) -> Result<Workload, Failure> {
    if args.paths.is_empty() {
        return Ok(Workload::of_trace(TRACE_NAME, Player::builtin_trace()?, args.check)?);
    }
    let (mut has_cassettes, mut has_traces) = (false, false);
    for path in &args.paths {
        let (one, other) = kinds(path);
        (has_cassettes, has_traces) = (has_cassettes || one, has_traces || other);
    }
    if has_cassettes && has_traces {
        return Err(Failure::usage("a run sends traces or cassettes, not both"));
    }
    if !has_cassettes && args.secrets.is_some() {
        return Err(Failure::usage(
            "--secrets has an effect on cassettes only: placeholders of traces are sent as they are",
        ));
    }
    if !has_cassettes {
        let is_missing =
            || args.paths.iter().any(|path| path != Path::new("-") && !storage::is_url(path) && !path.exists());
        let mut workload = Workload::read(&args.paths, args.check).map_err(|error| match is_missing() {
            true => Failure::from(error).hint("without a PATH, the built-in trace is sent"),
            false => error.into(),
        })?;
        workload.notes.extend(redacted_requests(&workload));
        return Ok(workload);
    }
    let files = cassettes(&args.paths)?;
    once(&files)?;
    let supplied = redaction::supplied(args.secrets.as_deref(), &RedactionArgs::default())?;
    Ok(Workload::read_cassettes(&files, &supplied)?)
}

/// What is to be known of requests that a tap redacted; `None` without any.
fn redacted_requests(workload: &Workload) -> Option<String> {
    let bodies = workload.requests.iter().filter_map(|request| request.record.request.as_ref());
    let redacted = bodies.filter(|body| json_has_placeholder(body)).count();
    (redacted > 0).then(|| {
        let requests = counted(redacted, "request");
        format!("{requests} with placeholders of secrets, sent as they are: prompts that differed only there are equal")
    })
}

/// Whether a path stands for cassettes, and whether for traces. What is no folder and no cassette is read as a trace, whose error names what is wrong.
fn kinds(path: &Path) -> (bool, bool) {
    if !path.is_dir() {
        return (is_cassette(path), !is_cassette(path));
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let (mut cassettes, mut traces) = (false, false);
    for path in entries {
        let name = path.to_string_lossy().to_ascii_lowercase();
        cassettes |= is_cassette(&path);
        traces |= name.ends_with(".jsonl") || name.ends_with(".jsonl.gz");
    }
    (cassettes, traces || !cassettes)
}

/// Prints what will be sent, and what will not.
pub(super) fn describe(workload: &Workload, plan: &Plan) {
    let (requests, sessions) = (counted(plan.requests(), "request"), counted(plan.sessions.len(), "session"));
    output::note(&format!("{}: {requests} in {sessions}\n", workload.name));
    let left_out = workload.left_out.iter().map(|(what, count)| format!("  {count} left out: {what}\n"));
    output::note(&left_out.collect::<String>());
    workload.notes.iter().for_each(|note| output::note(&format!("{}\n", shown(note))));
}
