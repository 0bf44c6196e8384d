//! Arguments of `mcp-tap` and `mcp-play`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::values::{FlagValue, one_of};
use super::{RedactionArgs, Secret};
use crate::{
    base::units::parse_duration,
    net::upstream::EndpointUrl,
    recording::canonical::{FieldPath, Scrub, is_server_name},
    replay::account::Concern,
    replay::mcp::{OnNovel, OnUsedUp},
};

const TAP_EXAMPLES: &str = "\
Examples:
  Record what a client and a server say to each other; the client starts this in place of the server:
    vllm-vcr mcp-tap --cassette time.yaml -- uvx mcp-server-time

  Record a server over HTTP for a client over stdio:
    vllm-vcr mcp-tap --cassette docs.yaml --url https://docs.example/mcp

  The first in the configuration of a client:
    {\"mcpServers\": {\"time\": {\"command\": \"vllm-vcr\",
      \"args\": [\"mcp-tap\", \"--cassette\", \"/home/me/time.yaml\", \"--\", \"uvx\", \"mcp-server-time\"]}}}";

const PLAY_EXAMPLES: &str = "\
Examples:
  Answer from a cassette, without the server:
    vllm-vcr mcp-play --cassette time.yaml

  Refuse whatever was not recorded, and what is sent more often than it was; keep the report:
    vllm-vcr mcp-play --cassette time.yaml --strict --report report.json";

/// Record an MCP server for a client over stdio: bytes pass unchanged both ways, and every message goes into a cassette. The server is
/// one that a command starts, or one over HTTP.
#[derive(Debug, Args)]
#[command(after_long_help = TAP_EXAMPLES)]
pub(in crate::cli) struct McpTapArgs {
    /// The cassette to write, .yaml.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) cassette: PathBuf,
    /// The server's name in the cassette. Without it, the name of the cassette.
    #[arg(long, value_name = "NAME", value_parser = server_name)]
    pub(in crate::cli) name: Option<String>,
    /// What becomes of a cassette that exists: it is replaced (all), or records are added to it (new-episodes).
    #[arg(long, value_name = "MODE")]
    pub(in crate::cli) mode: Option<McpMode>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
    /// The URL of a server over streamable HTTP, in place of a command.
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(in crate::cli) url: Option<EndpointUrl>,
    /// A header of every request to that URL, such as 'Authorization: Bearer TOKEN'. It is not recorded. Other users can read
    /// arguments: prefer VLLM_VCR_UPSTREAM_HEADER.
    #[arg(long, value_name = "HEADER", requires = "url", hide_default_value = true)]
    pub(in crate::cli) upstream_header: Vec<Secret>,
    /// Who signs the certificate of that URL, or the certificate itself, a PEM file; without it, the authorities that browsers trust.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(in crate::cli) upstream_ca: Option<PathBuf>,
    /// The command that starts the server.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url")]
    pub(in crate::cli) command: Vec<OsString>,
}

/// Treatment of a cassette that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum McpMode {
    /// Records everything anew.
    #[value(alias = "record")]
    All,
    /// Adds to what was recorded.
    #[value(alias = "new_episodes")]
    NewEpisodes,
}

/// Answer an MCP client over stdio from a cassette, without the server.
#[derive(Debug, Args)]
#[command(after_long_help = PLAY_EXAMPLES)]
pub(in crate::cli) struct McpPlayArgs {
    /// A cassette to play; of several the records of the server are played as one.
    #[arg(long, value_name = "FILE", required = true)]
    pub(in crate::cli) cassette: Vec<PathBuf>,
    /// The server to be. Without it, the only one that was recorded.
    #[arg(long, value_name = "NAME", value_parser = server_name)]
    pub(in crate::cli) server: Option<String>,
    /// What a request gets that was not recorded: an error, from tools a made-up text (stub) or a null
    /// result (null), or the answer to a similar call (closest).
    #[arg(long, value_name = "WHAT", default_value = "error", value_parser = on_novel)]
    pub(in crate::cli) on_miss: OnNovel,
    /// What a request gets that is sent more often than it was recorded. Without it the last one again, under --strict an error.
    #[arg(long, value_name = "WHAT", value_parser = one_of::<OnUsedUp>())]
    pub(in crate::cli) on_exhausted: Option<OnUsedUp>,
    /// Refuses what was not recorded and what is sent more often than it was. Misses, loose matches and unconsumed records end the
    /// program with 1, unless --fail-on names others.
    #[arg(long)]
    pub(in crate::cli) strict: bool,
    /// A field of requests that does not count, such as $.params.arguments.now.
    #[arg(long, value_name = "PLACE")]
    pub(in crate::cli) ignore: Vec<FieldPath>,
    /// An edit of every text before it is compared: s/PATTERN/REPLACEMENT/.
    #[arg(long, value_name = "EDIT")]
    pub(in crate::cli) scrub: Vec<Scrub>,
    /// Counts entries of _meta too, but those of the protocol, of progress and of traces.
    #[arg(long)]
    pub(in crate::cli) match_meta: bool,
    /// How long the client's reply to a request of the server is waited for.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(in crate::cli) reply_within: Duration,
    /// Values of placeholders that no request has, a line for each: email:1 = jane@example.org. They are put into what is played.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) secrets: Option<PathBuf>,
    /// Plays a cassette that holds secrets.
    #[arg(long)]
    pub(in crate::cli) allow_secrets: bool,
    /// What ends the program with 1: miss, unconsumed, unconsumed=all, exhausted, loose, drift (replies of the
    /// client), placeholder (an answer with one, since no value was known).
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(in crate::cli) fail_on: Vec<Concern>,
    /// Writes the report here too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) report: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
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

pub(super) fn server_name(typed: &str) -> Result<String, String> {
    if is_server_name(typed) {
        Ok(typed.to_owned())
    } else {
        Err("a server's name is 1 to 100 letters, digits, - _ and .".to_owned())
    }
}
