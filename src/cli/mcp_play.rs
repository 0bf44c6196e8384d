//! `mcp-play`: answers an MCP client over stdio from cassettes.

use std::{path::Path, process::ExitCode, sync::Arc, thread};

use super::{
    args::McpPlayArgs,
    cassettes::shown,
    conclude,
    failure::{Exit, Failure},
    output, runtime, secret_args, stdio,
};
use crate::{
    play::mcp::{McpEnd, play_stdio},
    recording::cassette::{self, Cassette, CassetteError, Record},
    recording::redaction::Rules,
    replay::mcp::{McpRecordError, OnUsedUp, ParamRules, Policy, RecordIndex, Session, servers},
    replay::player::{check_top, secrets, secrets_of_top, value_plans},
};

impl From<McpRecordError> for Failure {
    fn from(error: McpRecordError) -> Self {
        Self::new(Exit::BadInput, shown(&error.to_string()))
    }
}

/// Answers until the client closes its end.
///
/// # Errors
/// When a cassette cannot be played, or the report not be written.
pub(super) fn run(args: McpPlayArgs) -> Result<ExitCode, Failure> {
    args.report.as_deref().map_or(Ok(()), conclude::writable)?;
    let cassettes = args.cassette.iter().map(|path| load(path)).collect::<Result<Vec<_>, _>>()?;
    let supplied = secret_args::supplied(args.secrets.as_deref(), &args.redaction)?;
    let mut rules = secret_args::rules(&args.redaction)?;
    for cassette in &cassettes {
        rules = supplied.rules(secrets_of_top(&rules, cassette)?, cassette);
    }
    let server = server(&args, &cassettes)?;
    let is_played = |record: &Record| record.mcp_call().is_some_and(|call| call.server == server);
    let (plans, warnings) = value_plans(&cassettes, &supplied, is_played);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let searched = || cassettes.iter().filter(|cassette| !cassette.header.redact.is_off);
    let search = || searched().flat_map(|cassette| secrets(&rules, cassette)).collect::<Vec<String>>();
    let (index, found) = thread::scope(|scope| {
        let searching = (!args.allow_secrets).then(|| scope.spawn(search));
        let index = record_index(&args, &cassettes, &server, rules.clone());
        // A thread that ended badly has its work done here.
        let found = searching.map(|searching| searching.join().unwrap_or_else(|_| search()));
        (index, found.unwrap_or_default())
    });
    refuse_secrets(&found)?;
    let index = index?.putting_back(Arc::new(plans));
    let on_used_up = if args.strict { OnUsedUp::Error } else { OnUsedUp::Last };
    let policy = Policy {
        on_novel: args.on_miss,
        on_used_up: args.on_exhausted.unwrap_or(on_used_up),
        reply_within: args.reply_within,
        counts_forwarded: true,
        over_http: false,
    };
    let records = index.records().len();
    let mut session = Session::new(Arc::new(index), &server, policy);
    output::note(&format!("mcp-play: {server}, {records} records\n"));
    runtime::run(|shutdown| async move {
        let (input, output) = stdio::open()?;
        let ended = play_stdio(&mut session, input, output, shutdown.requested()).await;
        let ended = ended.map_err(|error| Failure::new(Exit::Environment, format!("cannot read stdin: {error}")))?;
        if ended == McpEnd::AsRecorded {
            output::note("the recorded server ended here\n");
        }
        conclude_with(&args, &session)
    })
}

fn load(path: &Path) -> Result<Cassette, Failure> {
    let cassette = cassette::load(path).map_err(|error: CassetteError| {
        let hint = format!("record it: vllm-vcr mcp-tap --cassette {} -- COMMAND", path.display());
        if path.exists() { error.into() } else { Failure::from(error).hint(hint) }
    })?;
    check_top(&cassette)?;
    cassette.warnings.iter().for_each(|warning| tracing::warn!("{}", shown(warning)));
    Ok(cassette)
}

/// A cassette that is committed is published.
fn refuse_secrets(found: &[String]) -> Result<(), Failure> {
    if found.is_empty() {
        return Ok(());
    }
    let listed: Vec<&str> = found.iter().take(20).map(String::as_str).collect();
    let message = format!("there are {} secrets in what is to be played:\n  {}", found.len(), listed.join("\n  "));
    let hint = "take them out with `vllm-vcr cassette redact FILE`, or play them with --allow-secrets";
    Err(Failure::new(Exit::BadInput, message).hint(hint))
}

/// The server to be: the one that was typed, or the only one.
fn server(args: &McpPlayArgs, cassettes: &[Cassette]) -> Result<String, Failure> {
    let mut known: Vec<String> = cassettes.iter().flat_map(|cassette| servers(&cassette.records)).collect();
    known.sort();
    known.dedup();
    match (&args.server, known.as_slice()) {
        (Some(server), known) if known.contains(server) => Ok(server.clone()),
        (None, [one]) => Ok(one.clone()),
        (_, []) => {
            let hint = "record it: vllm-vcr mcp-tap --cassette FILE -- COMMAND";
            Err(Failure::new(Exit::BadInput, "there are no records of an MCP server").hint(hint))
        }
        (Some(server), known) => {
            let message = format!("there are no records of the server {server}");
            Err(Failure::new(Exit::BadInput, message).hint(format!("recorded: {}", known.join(", "))))
        }
        (None, known) => {
            Err(Failure::usage("several servers were recorded").hint(format!("choose --server {}", known.join(", "))))
        }
    }
}

fn record_index(
    args: &McpPlayArgs,
    cassettes: &[Cassette],
    server: &str,
    secrets: Rules,
) -> Result<RecordIndex, Failure> {
    let mut rules =
        ParamRules { ignored: args.ignore.clone(), scrubs: args.scrub.clone(), counts_meta: args.match_meta };
    for header in cassettes.iter().map(|cassette| &cassette.header) {
        // They were read before.
        rules.ignored.extend(header.ignore.iter().filter_map(|place| place.parse().ok()));
        rules.scrubs.extend(header.scrub.iter().filter_map(|edit| edit.parse().ok()));
    }
    let mut index = RecordIndex::new(server, rules, secrets);
    for (at, cassette) in cassettes.iter().enumerate() {
        index.add((at, &cassette.path.display().to_string()), &cassette.records)?;
    }
    Ok(index)
}

/// Prints the report and writes it; the exit code.
fn conclude_with(args: &McpPlayArgs, session: &Session) -> Result<ExitCode, Failure> {
    let concerns = conclude::concerns(&args.fail_on, args.strict);
    let report = session.report();
    output::note(&report.text());
    conclude::write_report(args.report.as_deref(), || session.report_json(&concerns))?;
    Ok(conclude::judged(&report, &concerns).exit_code(None))
}
