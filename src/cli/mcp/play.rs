//! `mcp-play`: its arguments, and the answers to an MCP client over stdio from cassettes.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use clap::Args;

use crate::{
    base::one_line::counted,
    cli::{
        failure::Failure,
        mcp::servers::server_name,
        output,
        player::{conclude, files},
        redaction::{self, RedactionArgs},
        runtime,
        values::{FlagValue, one_of, with_unit},
    },
    play::mcp::{McpEnd, play_stdio},
    recording::{
        canonical::{FieldPath, Scrub},
        cassette::{Cassette, CassetteRecord},
        redaction::RedactionRules,
    },
    replay::{
        account::Concern,
        mcp::{McpPolicy, McpSession, OnNovel, OnUsedUp, ParamRules, RecordIndex, servers},
        player::{CassettePlayerError, check_top, secrets, secrets_of_top, value_plans},
    },
};

const EXAMPLES: &str = "\
Examples:
  Answer from a cassette, without the server:
    vllm-vcr mcp-play --cassette time.yaml

  Answer calls that were not recorded with the answer to the most similar one:
    vllm-vcr mcp-play --cassette time.yaml --on-miss closest

  Refuse requests that were not recorded, or are sent more often than recorded; keep the report:
    vllm-vcr mcp-play --cassette time.yaml --strict --report report.json";

/// Answer an MCP client over stdio from a cassette, without the server.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct McpPlayArgs {
    /// A cassette to play; the records of several are played as one.
    #[arg(long, help_heading = "Cassette", value_name = "FILE", required = true)]
    pub(in crate::cli) cassette: Vec<PathBuf>,
    /// The recorded server to play. Default: the only one.
    #[arg(long, help_heading = "Cassette", value_name = "NAME", value_parser = server_name)]
    pub(in crate::cli) server: Option<String>,
    /// Response to a request that was not recorded: an error, for tools a made-up text (stub) or a null result (null), or the answer to a
    /// similar call (closest).
    #[arg(long, help_heading = "Matching", value_name = "WHAT", default_value = "error", value_parser = on_novel)]
    pub(in crate::cli) on_miss: OnNovel,
    /// Response to a request that is sent more often than it was recorded. Default: the last one again, or an error under --strict.
    #[arg(long, help_heading = "Matching", value_name = "WHAT", value_parser = one_of::<OnUsedUp>())]
    pub(in crate::cli) on_exhausted: Option<OnUsedUp>,
    /// Refuses requests that were not recorded, or are sent more often than recorded. Misses, loose matches and unconsumed records make the
    /// exit code 1, unless --fail-on names others.
    #[arg(long, help_heading = "Matching")]
    pub(in crate::cli) strict: bool,
    /// A field of requests to ignore, such as $.params.arguments.now.
    #[arg(long, help_heading = "Matching", value_name = "PLACE")]
    pub(in crate::cli) ignore: Vec<FieldPath>,
    /// An edit of every text before comparison: s/PATTERN/REPLACEMENT/.
    #[arg(long, help_heading = "Matching", value_name = "EDIT")]
    pub(in crate::cli) scrub: Vec<Scrub>,
    /// Also compares entries of _meta, except those of the protocol, progress and tracing.
    #[arg(long, help_heading = "Matching")]
    pub(in crate::cli) match_meta: bool,
    /// How long to wait for the client's reply to a request of the server.
    #[arg(long, help_heading = "Client", value_name = "DURATION", default_value = "60s", value_parser = with_unit)]
    pub(in crate::cli) reply_within: Duration,
    /// Values of placeholders that no request contains, one per line: email:1 = jane@example.org. They replace the placeholders in what is
    /// played.
    #[arg(long, help_heading = "Cassette", value_name = "FILE")]
    pub(in crate::cli) secrets: Option<PathBuf>,
    /// Plays a cassette even if it holds secrets.
    #[arg(long, help_heading = "Cassette")]
    pub(in crate::cli) allow_secrets: bool,
    /// What makes the exit code 1: miss, unconsumed, unconsumed=all, exhausted, loose, drift (replies of the client), placeholder (a
    /// response with a placeholder whose value was not known).
    #[arg(long, help_heading = "Report", value_name = "WHAT", value_delimiter = ',')]
    pub(in crate::cli) fail_on: Vec<Concern>,
    /// Writes the report also as JSON to this file.
    #[arg(long, help_heading = "Report", value_name = "FILE")]
    pub(in crate::cli) report: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Answers until the client closes its end.
pub(in crate::cli) fn run(args: McpPlayArgs) -> Result<ExitCode, Failure> {
    args.report.as_deref().map_or(Ok(()), conclude::writable)?;
    let cassettes = args.cassette.iter().map(|path| load(path)).collect::<Result<Vec<_>, _>>()?;
    let supplied = redaction::supplied(args.secrets.as_deref(), &args.redaction)?;
    let mut rules = redaction::rules(&args.redaction)?;
    for cassette in &cassettes {
        rules = supplied.rules(secrets_of_top(&rules, cassette)?, cassette);
    }
    let server = server(&args, &cassettes)?;
    let is_played = |record: &CassetteRecord| record.mcp_call().is_some_and(|call| call.server == server);
    let (plans, warnings) = value_plans(&cassettes, &supplied, is_played);
    warnings.iter().chain(&supplied.unmatched(&cassettes)).for_each(|warning| tracing::warn!("{warning}"));
    let searched = || cassettes.iter().filter(|cassette| !cassette.header.redact.is_off);
    let search = || searched().flat_map(|cassette| secrets(&rules, cassette)).collect::<Vec<String>>();
    let (index, found) = thread::scope(|scope| {
        let searching = (!args.allow_secrets).then(|| scope.spawn(search));
        let index = record_index(&args, &cassettes, &server, rules.clone());
        // A thread that ended badly has its work done here.
        let found = searching.map(|searching| searching.join().unwrap_or_else(|_| search()));
        (index, found.unwrap_or_default())
    });
    if !found.is_empty() {
        return Err(CassettePlayerError::Secrets(found).into());
    }
    let index = index?.putting_back(Arc::new(plans));
    let on_used_up = if args.strict { OnUsedUp::Error } else { OnUsedUp::Last };
    let policy = McpPolicy {
        on_novel: args.on_miss,
        on_used_up: args.on_exhausted.unwrap_or(on_used_up),
        repeats_lists: args.on_exhausted != Some(OnUsedUp::Error),
        reply_within: args.reply_within,
        counts_forwarded: true,
        over_http: false,
    };
    let records = index.records().len();
    let mut session = McpSession::new(Arc::new(index), &server, policy);
    output::note(&format!("mcp-play: {server}, {}\n", counted(records, "record")));
    runtime::run(|shutdown| async move {
        let (input, output) = runtime::stdin_and_stdout()?;
        let ended = play_stdio(&mut session, input, output, shutdown.requested()).await;
        let ended = ended.map_err(Failure::environment)?;
        if ended == McpEnd::AsRecorded {
            output::note("the recorded server ended here\n");
        }
        let (concerns, report) = (conclude::concerns(&args.fail_on, args.strict), session.report());
        output::note(&report.text());
        conclude::write_report(args.report.as_deref(), || session.report_json(&concerns))?;
        Ok(conclude::outcome(&report, &concerns).exit_code(None))
    })
}

fn load(path: &Path) -> Result<Cassette, Failure> {
    let how = |path: &Path| format!("record it: vllm-vcr mcp-tap --cassette {} -- COMMAND", path.display());
    let cassette = files::load(path, &how)?;
    check_top(&cassette)?;
    Ok(cassette)
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
            Err(Failure::input("the cassettes have no records of an MCP server").hint(hint))
        }
        (Some(server), known) => {
            let message = format!("the cassettes have no records of the server {server}");
            Err(Failure::input(message).hint(format!("recorded: {}", known.join(", "))))
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
    secrets: RedactionRules,
) -> Result<RecordIndex, Failure> {
    let mut rules =
        ParamRules { ignored: args.ignore.clone(), scrubs: args.scrub.clone(), counts_meta: args.match_meta };
    for own in cassettes.iter().map(|cassette| cassette.header.rules()) {
        rules.ignored.extend(own.ignored);
        rules.scrubs.extend(own.scrubs);
    }
    let mut index = RecordIndex::new(server, rules, secrets);
    for (at, cassette) in cassettes.iter().enumerate() {
        index.add((at, &cassette.path.display().to_string()), &cassette.records)?;
    }
    Ok(index)
}

/// Reads what a request gets that was not recorded, where no server can be asked.
fn on_novel(typed: &str) -> Result<OnNovel, String> {
    match OnNovel::named(typed) {
        Some(found) if found.forwards() => Err(format!(
            "mcp-play reaches no server; over HTTP: vllm-vcr play --cassette FILE --mcp-on-miss {typed} --mcp-upstream NAME=URL"
        )),
        Some(found) => Ok(found),
        None => Err(format!("invalid variant: {typed}")),
    }
}
