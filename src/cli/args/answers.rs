//! Arguments of `play` about the contents of answers, under vLLM's names.

use clap::{Args, ValueEnum};

/// Optional parts of responses.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(in crate::cli) struct AnswerArgs {
    /// The model that the engine was started with, a Hub id or a directory: the root of the models at /v1/models, and their
    /// name where --served-model-name gives none.
    #[arg(long, value_name = "MODEL", help_heading = "What is served")]
    pub(in crate::cli) model: Option<String>,
    /// The same as --model, as `vllm serve` takes it.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(in crate::cli) model_tag: Option<String>,
    /// Shows in `metrics` the times of a request: to its first token, between tokens, in all.
    #[arg(long)]
    pub(in crate::cli) enable_per_request_metrics: bool,
    /// The value of `system_fingerprint`: version and hash (full, hash), --fingerprint-value (custom), or nothing.
    #[arg(long, value_name = "MODE", default_value = "full")]
    pub(in crate::cli) fingerprint_mode: FingerprintMode,
    /// The text of --fingerprint-mode custom.
    #[arg(long, value_name = "TEXT")]
    pub(in crate::cli) fingerprint_value: Option<String>,
}

/// The value of `system_fingerprint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum FingerprintMode {
    /// Version and hash.
    Full,
    /// The same: there is no parallelism to leave out.
    Hash,
    /// The text of --fingerprint-value.
    Custom,
    /// Nothing.
    None,
}
