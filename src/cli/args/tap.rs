//! Arguments of `tap`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use clap::Args;

use super::values::one_of;
use super::{
    CassetteArgs, DEFAULT_FOLDER, DeploymentArgs, FileArgs, McpTappedArgs, NetworkArgs, PrivacyArgs, SelectionArgs,
};
use crate::{base::units::parse_duration, tap::Route, text::prompt::BlockHash};

const EXAMPLES: &str = "\
Examples:
  Record shapes and timing (no text, no token ids):
    vllm-vcr tap --upstream http://localhost:8000 --trace-out day.jsonl.gz

  Record what was answered too, as token ids where it can, so that play serves the same:
    vllm-vcr tap --upstream http://localhost:8000 --trace-out day.jsonl.gz --record-tokens

  Leave it in front of production: hourly files, a tenth of the requests, counts for Prometheus:
    vllm-vcr tap --upstream http://localhost:8000 --trace-out /var/log/vcr/day.jsonl.gz --next --rotate-every 60m \\
        --sample 0.1 --admin-listen 127.0.0.1:9100 --start-anyway

  Then send requests to the tap instead of the engine:
    curl localhost:8001/v1/models";

/// Proxy requests to a real engine and record what it streams.
///
/// Every method and path is forwarded. Clients receive the bytes that they would have received without the tap, and no
/// request waits for the recorder or fails because of it. Stop it with Ctrl-C: requests in flight are finished and the
/// trace is closed; a second Ctrl-C ends at once. SIGHUP begins a new trace file.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct TapArgs {
    /// The server to record, such as http://localhost:8000; https://, h2c:// and unix:/path too. Further ones get the requests
    /// of a path (/v1/embeddings=URL), of a model (model:qwen*=URL), or into a cassette those that name it (anthropic=URL): whose URL
    /// begins with /vcr/u/anthropic.
    #[arg(long, value_name = "URL", required = true)]
    pub(in crate::cli) upstream: Vec<Route>,
    /// Where to listen; port 0 takes a free one. Without it 127.0.0.1:8001, and a free port for a command.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(in crate::cli) listen: Option<String>,
    /// The trace to write: FILE.jsonl, FILE.jsonl.gz, or - for stdout; or the cassette, FILE.yaml; or the folder of the cassettes of
    /// sessions, FOLDER/, whose other requests go into default.yaml (--mode once, if no other is chosen).
    #[arg(long, value_name = "FILE", visible_alias = "cassette", default_value = DEFAULT_FOLDER)]
    pub(in crate::cli) trace_out: PathBuf,
    /// Records the ids of output tokens, and responses that no ids stand for; needed to play the same answers back.
    #[arg(long)]
    pub(in crate::cli) record_tokens: bool,
    /// Tokenizer directory, for hashing the prompts of engines that do not send token ids.
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Prompt tokens per hashed block.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(in crate::cli) block_size: NonZeroU32,
    /// Hash algorithm of prompt blocks; fnv1a-64 is the one that other readers of the format know.
    #[arg(long, value_name = "ALGORITHM", default_value = "xxh3-64", conflicts_with = "hash_key_file", value_parser = one_of::<BlockHash>())]
    pub(in crate::cli) block_hash: BlockHash,
    /// Adds to the trace if it exists.
    #[arg(long, conflicts_with = "overwrite")]
    pub(in crate::cli) append: bool,
    /// Replaces the trace if it exists.
    #[arg(long)]
    pub(in crate::cli) overwrite: bool,
    /// How long requests in flight may go on after Ctrl-C.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(in crate::cli) drain_timeout: Duration,
    #[command(flatten)]
    pub(in crate::cli) files: FileArgs,
    #[command(flatten)]
    pub(in crate::cli) deployment: DeploymentArgs,
    #[command(flatten)]
    pub(in crate::cli) selection: SelectionArgs,
    #[command(flatten)]
    pub(in crate::cli) privacy: PrivacyArgs,
    #[command(flatten)]
    pub(in crate::cli) network: NetworkArgs,
    #[command(flatten)]
    pub(in crate::cli) mcp: McpTappedArgs,
    #[command(flatten)]
    pub(in crate::cli) cassettes: CassetteArgs,
}

impl TapArgs {
    /// The address to bind.
    pub(in crate::cli) fn address(&self) -> String {
        let usual = if self.cassettes.command.is_empty() { "127.0.0.1:8001" } else { "127.0.0.1:0" };
        self.listen.clone().unwrap_or_else(|| usual.to_owned())
    }
}

pub(super) fn host_and_port(typed: &str) -> Result<String, String> {
    let is_address = typed.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address { Ok(typed.to_owned()) } else { Err(format!("`{typed}` is not HOST:PORT, such as 127.0.0.1:8001")) }
}
