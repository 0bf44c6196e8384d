//! Arguments about what counts as a secret.

use clap::Args;

/// What counts as a secret, besides the built-in names and patterns.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Redaction")]
pub(in crate::cli) struct RedactionArgs {
    /// Redacts values under this name, in JSON and headers.
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) redact_key: Vec<String>,
    /// Redacts what matches, or the first group of it.
    #[arg(long, value_name = "NAME=REGEX")]
    pub(in crate::cli) redact_pattern: Vec<String>,
    /// Redacts this environment variable's value wherever it stands.
    #[arg(long, value_name = "VARIABLE")]
    pub(in crate::cli) redact_env: Vec<String>,
    /// Redacts what stands at this place in JSON, such as $.metadata.email.
    #[arg(long, value_name = "PLACE")]
    pub(in crate::cli) redact: Vec<String>,
}
