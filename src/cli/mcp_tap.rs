//! `mcp-tap`: records an MCP server over stdio.

use std::process::ExitCode;

use serde_json::Map;

use super::{
    args::{McpMode, McpTapArgs},
    failure::{Exit, Failure},
    output, runtime,
    secret_args::{self, RedactWhat},
    signals, stdio,
};
use crate::{
    recording::canonical::is_server_name,
    recording::cassette::{self, CassetteError, Header, WriteMode},
    tap::mcp::{McpRecorded, McpTapError, StdioTap},
};

impl From<McpTapError> for Failure {
    fn from(error: McpTapError) -> Self {
        match error {
            McpTapError::Cassette(error) => error.into(),
            McpTapError::Command { .. } => Self::new(Exit::Environment, error),
        }
    }
}

/// Runs a server behind the tap; ends with the server's exit code.
///
/// # Errors
/// When the server cannot be started, or the cassette not be written.
pub(super) fn run(args: McpTapArgs) -> Result<ExitCode, Failure> {
    let secrets = secret_args::rules(&args.redaction)?;
    let mode = mode(&args)?;
    let tap = StdioTap {
        server: name(&args)?,
        header: header(&args, mode, &RedactWhat::of(&args.redaction)?),
        command: args.command,
        cassette: args.cassette.clone(),
        mode,
        secrets,
    };
    runtime::run(|shutdown| async move {
        signals::outlive_file_limits();
        let (input, output) = stdio::open()?;
        let ended = tap.run(input, output, shutdown.requested()).await?;
        let recorded = ended.recorded.map_err(|error: CassetteError| {
            let hint =
                format!("what was recorded is in {}.partial, as far as it could be written", args.cassette.display());
            Failure::new(Exit::Environment, error).hint(hint)
        });
        match recorded {
            Ok(recorded) => output::note(&text(&recorded)),
            // The server's own failure is shown first.
            Err(failure) if ended.code == 0 => return Err(failure),
            Err(failure) => drop(failure.report()),
        }
        Ok(ended.code.into())
    })
}

fn text(recorded: &McpRecorded) -> String {
    let McpRecorded { records, unsearched, gaps, unrecorded } = recorded;
    let mut text = format!("recorded {records} messages of the client\n");
    for (count, what) in [
        (unrecorded.unreadable, "lines were no messages and are not recorded"),
        (unrecorded.unmatched, "responses had no request and are not recorded"),
        (unrecorded.early, "messages of the server came before the client's first and are not recorded"),
        (*gaps, "times the recorder could not keep up: messages are missing"),
        (*unsearched, "exchanges not recorded: too much work to search them for secrets"),
    ] {
        if count > 0 {
            text.push_str(&format!("  {count} {what}\n"));
        }
    }
    text
}

fn mode(args: &McpTapArgs) -> Result<WriteMode, Failure> {
    match args.mode {
        None if args.cassette.exists() => {
            let message = format!("{} exists", args.cassette.display());
            Err(Failure::usage(message).hint("choose --mode all (replaces it) or new-episodes (adds to it)"))
        }
        None | Some(McpMode::All) => Ok(WriteMode::Replace),
        Some(McpMode::NewEpisodes) => Ok(WriteMode::Append),
    }
}

/// The server's name: the one that was typed, else that of the file.
fn name(args: &McpTapArgs) -> Result<String, Failure> {
    let of_file = || args.cassette.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = args.name.clone().unwrap_or_else(of_file);
    if is_server_name(&name) {
        return Ok(name);
    }
    let message = format!("`{}` cannot name a server", name.escape_debug());
    Err(Failure::usage(message).hint("give it one: --name NAME"))
}

/// The top of a new cassette; what people wrote into one that is replaced stays.
fn header(args: &McpTapArgs, mode: WriteMode, what: &RedactWhat) -> Header {
    let old =
        (mode == WriteMode::Replace && args.cassette.exists()).then(|| cassette::load(&args.cassette).ok()).flatten();
    if let Some(old) = &old {
        output::note(&format!("{}: {} records will be replaced\n", args.cassette.display(), old.records.len()));
    }
    let mut header = old.map(|old| old.header).unwrap_or_default();
    header.recorded = Map::new();
    header.recorded.insert("by".to_owned(), concat!("vllm-vcr ", env!("CARGO_PKG_VERSION")).into());
    let redact = &mut header.redact;
    for (list, typed) in [
        (&mut redact.keys, &args.redaction.redact_key),
        (&mut redact.patterns, &args.redaction.redact_pattern),
        (&mut redact.places, &what.places),
        (&mut redact.shapes, &what.shapes),
    ] {
        list.extend(typed.iter().filter(|text| !list.contains(text)).cloned().collect::<Vec<_>>());
    }
    header
}
