//! Arguments of `cassette`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{RedactionArgs, mcp::server_name};

/// What to do with a cassette.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum CassetteCommand {
    /// Write a cassette to begin with, for answers that are written by hand.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette new fixtures.yaml")]
    New(NewArgs),
    /// Check a cassette: that it can be read, that nothing in it is passed over, that it holds no secrets.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette validate agent.yaml")]
    Validate(ValidateArgs),
    /// Write a cassette as the recorder would; comments are lost.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr cassette fmt agent.yaml\n  vllm-vcr cassette fmt --check agent.yaml"
    )]
    Fmt(FmtArgs),
    /// Compare two cassettes; exit 1 if they differ.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette diff old.yaml new.yaml --type output")]
    Diff(DiffArgs),
    /// Take the secrets out of a cassette and its sidecar.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette redact agent.yaml --redact-key x-tenant")]
    Redact(RedactArgs),
    /// Put cassettes together in a new one, one behind the other: records get new numbers, and keep their times and token ids.
    #[command(after_long_help = "Example:\n  vllm-vcr cassette merge weather.yaml news.yaml -o agent.yaml")]
    Merge(MergeArgs),
    /// Remove the records that no run used, by the report of a run of all tests; comments are lost.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr play --cassette agent.yaml --report report.json -- pytest\n  vllm-vcr cassette prune agent.yaml --unused report.json\n  curl -s localhost:8000/vcr/report | vllm-vcr cassette prune agent.yaml --unused -"
    )]
    Prune(PruneArgs),
    /// Make a trace of a cassette, or a cassette of a trace.
    #[command(
        after_long_help = "Examples:\n  vllm-vcr cassette convert agent.yaml agent.jsonl.gz\n  vllm-vcr cassette convert day.jsonl.gz day.yaml --tokenizer ./tokenizer"
    )]
    Convert(ConvertArgs),
}

/// A cassette to begin with.
#[derive(Debug, Args)]
pub(in crate::cli) struct NewArgs {
    /// The file; it must not exist.
    #[arg(value_name = "FILE")]
    pub(in crate::cli) file: PathBuf,
}

/// Cassettes to check.
#[derive(Debug, Args)]
pub(in crate::cli) struct ValidateArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Cassettes to write again.
#[derive(Debug, Args)]
pub(in crate::cli) struct FmtArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// Changes nothing; exits with 1 if something would change.
    #[arg(long)]
    pub(in crate::cli) check: bool,
    /// Writes every request in full.
    #[arg(long)]
    pub(in crate::cli) expand: bool,
}

/// Two cassettes.
#[derive(Debug, Args)]
pub(in crate::cli) struct DiffArgs {
    /// The old one.
    #[arg(value_name = "OLD")]
    pub(in crate::cli) old: PathBuf,
    /// The new one.
    #[arg(value_name = "NEW")]
    pub(in crate::cli) new: PathBuf,
    /// What is compared.
    #[arg(long = "type", value_name = "WHAT", default_value = "run")]
    pub(in crate::cli) what: DiffWhat,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DiffWhat {
    /// Requests and answers.
    Run,
    /// Requests.
    Prompt,
    /// Answers.
    Output,
    /// The tools of requests.
    Tools,
}

/// A cassette to take secrets out of.
#[derive(Debug, Args)]
pub(in crate::cli) struct RedactArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Cassettes to put together.
#[derive(Debug, Args)]
pub(in crate::cli) struct MergeArgs {
    /// The cassettes, or folders of them.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// The new cassette; it must not exist.
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) output: PathBuf,
}

/// Cassettes to take unused records out of.
#[derive(Debug, Args)]
pub(in crate::cli) struct PruneArgs {
    /// The cassettes.
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::cli) files: Vec<PathBuf>,
    /// The report of the run, as --report or /vcr/report writes it; - for stdin.
    #[arg(long, value_name = "REPORT", required = true)]
    pub(in crate::cli) unused: PathBuf,
    /// Changes nothing; exits with 1 if something would be removed.
    #[arg(long)]
    pub(in crate::cli) check: bool,
}

/// What is to be made of what.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConvertArgs {
    /// A cassette, .yaml, or a trace, .jsonl or .jsonl.gz; or the log of an MCP connection: .jsonl of mcp-cassette, .json that MCP Inspector
    /// exports.
    #[arg(value_name = "FROM")]
    pub(in crate::cli) from: PathBuf,
    /// The other one; it must not exist.
    #[arg(value_name = "TO")]
    pub(in crate::cli) to: PathBuf,
    /// The MCP server's name in the cassette. Without it, the name of the log.
    #[arg(long, value_name = "NAME", value_parser = server_name)]
    pub(in crate::cli) name: Option<String>,
    /// Tokenizer directory: spells ids where a trace has no text; counts and hashes the prompts of a cassette.
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Leaves out what cannot be converted; without it nothing is written then.
    #[arg(long)]
    pub(in crate::cli) skip: bool,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}
