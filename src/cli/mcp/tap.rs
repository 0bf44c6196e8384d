//! `mcp-tap`: its arguments, and the recording of an MCP server for a client over stdio.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};

use crate::{
    cli::{
        failure::Failure,
        gateway,
        mcp::servers::{self, server_name},
        output,
        player::{self, conclude},
        redaction::{self, RedactWhat, RedactionArgs},
        runtime,
        values::Secret,
    },
    net::upstream::EndpointUrl,
    recording::cassette::{CassetteError, Header, WriteMode},
    tap::mcp::{McpTapError, RecordingTarget, StdioTap, UrlTap},
};

const EXAMPLES: &str = "\
Examples:
  Record the messages between a client and a server; the client starts this in place of the server:
    vllm-vcr mcp-tap --cassette time.yaml -- uvx mcp-server-time

  Record a server over HTTP for a client over stdio:
    vllm-vcr mcp-tap --cassette docs.yaml --url https://docs.example/mcp

  The first in the configuration of a client:
    {\"mcpServers\": {\"time\": {\"command\": \"vllm-vcr\",
      \"args\": [\"mcp-tap\", \"--cassette\", \"/home/me/time.yaml\", \"--\", \"uvx\", \"mcp-server-time\"]}}}";

/// Record an MCP server for a client over stdio.
///
/// Bytes pass unchanged both ways, and every message is recorded in a cassette. The server is a command, or one over HTTP.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct McpTapArgs {
    /// The cassette to write, .yaml.
    #[arg(long, help_heading = "Cassette", value_name = "FILE")]
    pub(in crate::cli) cassette: PathBuf,
    /// The server's name in the cassette. Default: the name of the cassette.
    #[arg(long, help_heading = "Cassette", value_name = "NAME", value_parser = server_name)]
    pub(in crate::cli) name: Option<String>,
    /// What happens to an existing cassette: it is replaced (all), or records are added to it (new-episodes).
    #[arg(long, help_heading = "Cassette", value_name = "MODE")]
    pub(in crate::cli) mode: Option<McpMode>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
    /// The URL of a server over streamable HTTP, in place of a command.
    #[arg(long, help_heading = "Server", value_name = "URL", conflicts_with = "command")]
    pub(in crate::cli) url: Option<EndpointUrl>,
    /// A header for every request to that URL, such as 'Authorization: Bearer TOKEN'. It is not recorded. Other users can see arguments:
    /// prefer VLLM_VCR_UPSTREAM_HEADER.
    #[arg(long, help_heading = "Server", value_name = "HEADER", requires = "url", hide_default_value = true)]
    pub(in crate::cli) upstream_header: Vec<Secret>,
    /// CA certificate of that server, or its own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, help_heading = "Server", value_name = "FILE", requires = "url")]
    pub(in crate::cli) upstream_ca: Option<PathBuf>,
    /// The command that starts the server.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url")]
    pub(in crate::cli) command: Vec<OsString>,
}

/// Treatment of a cassette that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum McpMode {
    /// Records everything again.
    #[value(alias = "record")]
    All,
    /// Adds to what was recorded.
    #[value(alias = "new_episodes")]
    NewEpisodes,
}

impl From<McpTapError> for Failure {
    fn from(error: McpTapError) -> Self {
        match error {
            McpTapError::Cassette(error) => error.into(),
            McpTapError::Command { .. } => Self::environment(error),
        }
    }
}

/// Runs a server behind the tap, or calls one; ends with the server's exit code.
pub(in crate::cli) fn run(mut args: McpTapArgs) -> Result<ExitCode, Failure> {
    servers::hide_headers(&args.upstream_header, &mut args.redaction);
    let secrets = redaction::rules(&args.redaction)?;
    let mode = mode(&args)?;
    let what = RedactWhat::of(&args.redaction)?;
    let is_off = what.is_off;
    let target = RecordingTarget {
        server: servers::name(args.name.as_deref(), &args.cassette)?,
        header: header(&args, mode, &what)?,
        cassette: args.cassette.clone(),
        mode,
        secrets,
    };
    let url = match args.url.clone() {
        Some(url) => {
            Some((url, servers::headers(&args.upstream_header)?, gateway::options(args.upstream_ca.as_deref())?))
        }
        None => None,
    };
    runtime::run(|shutdown| async move {
        runtime::outlive_file_limits();
        let (input, output) = runtime::stdin_and_stdout()?;
        let ended = match url {
            None => StdioTap { command: args.command, target }.run(input, output, shutdown.requested()).await?,
            Some((url, headers, reach)) => {
                UrlTap { url, headers, reach, target }.run(input, output, shutdown.requested()).await?
            }
        };
        let recorded = ended.recorded.map_err(|error: CassetteError| {
            let hint =
                format!("what was recorded is in {}.partial, as far as it could be written", args.cassette.display());
            Failure::environment(error).hint(hint)
        });
        match recorded {
            Ok(recorded) => {
                let unredacted = if is_off { conclude::unredacted_text(&args.cassette) } else { String::new() };
                output::summary(&(servers::text(&recorded) + &unredacted));
            }
            // The server's own failure is shown first.
            Err(failure) if ended.code == 0 => return Err(failure),
            Err(failure) => drop(failure.report()),
        }
        Ok(ended.code.into())
    })
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

/// The top of a new cassette; what people wrote into one that is replaced stays.
fn header(args: &McpTapArgs, mode: WriteMode, what: &RedactWhat) -> Result<Header, Failure> {
    let old = player::replaced(Some(&args.cassette).filter(|_| mode == WriteMode::Replace))?;
    Ok(player::header_of(&args.redaction, what).over(old.unwrap_or_default()))
}
