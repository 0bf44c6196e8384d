//! Arguments of `tap` beyond the first need: files, selection, privacy, the network.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};

use super::tap::host_and_port;
use crate::base::units::{UnitError, parse_duration, parse_size};

/// The trace's files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Trace files")]
pub(in crate::cli) struct FileArgs {
    /// Leaves a trace that exists and writes to the next free name: NAME.1.jsonl.gz, NAME.2.jsonl.gz and so on.
    #[arg(long, conflicts_with_all = ["append", "overwrite"])]
    pub(in crate::cli) next: bool,
    /// Begins a new file when this one has so many bytes, such as 500MB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(in crate::cli) rotate_size: Option<u64>,
    /// Begins a new file when this one is so old, such as 60m.
    #[arg(long, value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) rotate_every: Option<Duration>,
    /// Begins a new file when this one has so many records.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) rotate_records: Option<NonZeroU64>,
    /// Starts also when the trace cannot be written yet, as on a full disk, and records once it can.
    #[arg(long)]
    pub(in crate::cli) start_anyway: bool,
}

/// How the engine was started, for the trace's first line: the engine reports only some of it.
#[derive(Debug, Args)]
#[command(next_help_heading = "The engine, for the trace's first line")]
pub(in crate::cli) struct DeploymentArgs {
    /// The accelerator that the engine runs on, such as H100.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) gpu: Option<String>,
    /// The engine's --tensor-parallel-size.
    #[arg(long, value_name = "N", visible_alias = "tp")]
    pub(in crate::cli) tensor_parallel_size: Option<NonZeroU32>,
    /// The engine's --max-num-seqs.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) max_num_seqs: Option<NonZeroU32>,
}

/// What is recorded. Everything is forwarded.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub(in crate::cli) struct SelectionArgs {
    /// Records this share of the requests, such as 0.1.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(in crate::cli) sample: Option<f64>,
    /// Records these paths only; a * at the end stands for any end.
    #[arg(long, value_name = "PATH", value_parser = path)]
    pub(in crate::cli) only_path: Vec<String>,
    /// Records requests for these models only; a * at the end stands for any end.
    #[arg(long, value_name = "MODEL", value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) only_model: Vec<String>,
    /// Asks the engine for nothing that its clients do not ask for: no token ids, no usage.
    #[arg(long)]
    pub(in crate::cli) ask_nothing: bool,
}

/// How much of the texts a trace keeps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Privacy")]
pub(in crate::cli) struct PrivacyArgs {
    /// Hashes prompts with the key in this file (16 bytes or more), so that a guess cannot be checked without it.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) hash_key_file: Option<PathBuf>,
    /// Records output ids in another order, which the key decides: equal ids stay equal, but spell nothing.
    #[arg(long, requires = "hash_key_file", requires = "record_tokens")]
    pub(in crate::cli) permute_ids: bool,
    /// Records the words of every chunk, with secrets redacted.
    #[arg(long)]
    pub(in crate::cli) record_text: bool,
    /// Records the bodies of requests, with secrets redacted.
    #[arg(long)]
    pub(in crate::cli) record_requests: bool,
    /// Records the log probabilities that clients ask for, of outputs and prompts; they spell the tokens.
    #[arg(long, requires = "record_tokens", conflicts_with = "permute_ids")]
    pub(in crate::cli) record_logprobs: bool,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// What counts as a secret.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Redaction")]
pub(in crate::cli) struct RedactionArgs {
    /// Redacts values under this name, in JSON and headers; /REGEX/ is tried on names as they are spelled.
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) redact_key: Vec<String>,
    /// Redacts what matches, or the first group of it.
    #[arg(long, value_name = "NAME=REGEX")]
    pub(in crate::cli) redact_pattern: Vec<String>,
    /// Redacts this environment variable's value wherever it stands.
    #[arg(long, value_name = "VARIABLE")]
    pub(in crate::cli) redact_env: Vec<String>,
    /// What is redacted: secrets (keys, tokens, passwords, numbers of cards and accounts), all (personal data too), or off (only what
    /// other flags name). Beside secrets a shape of personal data (email, phone, ssn), and what stands at a place in JSON, such as
    /// $.metadata.email. Without it secrets.
    #[arg(long, value_name = "WHAT")]
    pub(in crate::cli) redact: Vec<String>,
    /// Names and values that are secrets for other reasons.
    #[arg(skip)]
    pub(in crate::cli) literals: Vec<(String, String)>,
}

/// Connections.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub(in crate::cli) struct NetworkArgs {
    /// Shows counts at /metrics and health at /health here; of a cassette, /vcr/... .
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(in crate::cli) admin_listen: Option<String>,
    /// Listens on this Unix socket instead.
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(in crate::cli) uds: Option<PathBuf>,
    /// Serves HTTPS with this certificate, a PEM file with its chain.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) ssl_certfile: Option<PathBuf>,
    /// The certificate's private key, a PEM file; without it, in the certificate's file.
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub(in crate::cli) ssl_keyfile: Option<PathBuf>,
    /// Listens on other addresses than this machine's own without TLS: who is on the way reads everything.
    #[arg(long)]
    pub(in crate::cli) allow_remote_record: bool,
    /// Who signs the certificates of https upstreams, or an upstream's own certificate, a PEM file; without it, the
    /// authorities that browsers trust.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) upstream_ca: Option<PathBuf>,
    /// Gives up on an upstream that does not take a connection for so long.
    #[arg(long, value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) connect_timeout: Option<Duration>,
    /// Gives up on an upstream that does not begin its answer for so long.
    #[arg(long, value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) answer_timeout: Option<Duration>,
    /// Gives up on a request or an answer that pauses for so long.
    #[arg(long, value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) idle_timeout: Option<Duration>,
    /// Threads that serve connections; without it, one for each core.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) threads: Option<NonZeroUsize>,
}

/// A path as requests have it.
fn path(typed: &str) -> Result<String, String> {
    match typed.strip_prefix('*') {
        Some("") => Ok(typed.to_owned()),
        _ if typed.contains('?') => Err("a path has no query: leave out what begins with `?`".to_owned()),
        _ if typed.starts_with('/') => Ok(typed.to_owned()),
        _ => Err(format!("no request has such a path: write it as `/{}`", typed.trim_start_matches('*'))),
    }
}

/// A duration that is not zero: nothing could ever be in time for that.
fn some_time(typed: &str) -> Result<Duration, String> {
    let duration = parse_duration(typed).map_err(|error: UnitError| error.to_string())?;
    if duration.is_zero() {
        Err("zero would end everything at once; leave the flag out for no limit".to_owned())
    } else {
        Ok(duration)
    }
}

fn share(typed: &str) -> Result<f64, String> {
    let share = typed.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("`{typed}` is not a share from 0 to 1, such as 0.1"))
}
