//! Arguments of `tap`.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};

use crate::{
    base::units::parse_size,
    cli::{
        mcp::servers::McpTappedArgs,
        player::args::{CassetteArgs, DEFAULT_FOLDER},
        redaction::RedactionArgs,
        tap::engine_core::{EngineCoreArgs, SCHEME, TapUpstream, USUAL_ENGINE_CORE, listen_address},
        values::{host_and_port, one_of, share, some_time, with_unit},
    },
    text::prompt::BlockHashAlgorithm,
};

const EXAMPLES: &str = "\
Examples:
  Record lengths and timing (no text, no token ids):
    vllm-vcr tap --upstream http://localhost:8000 --trace-out day.jsonl.gz

  Record the answers too, as token ids if possible, so that play can serve them:
    vllm-vcr tap --upstream http://localhost:8000 --trace-out day.jsonl.gz --record-tokens

  Run it in front of production: hourly files, a tenth of the requests, metrics for Prometheus:
    vllm-vcr tap --upstream http://localhost:8000 --trace-out /var/log/vcr/day.jsonl.gz --next \\
        --rotate-every 60m --sample 0.1 --admin-listen 127.0.0.1:9100 --start-anyway

  Record between the front end and the engine core of vLLM, which `vllm serve --headless --data-parallel-rpc-port 29551` starts:
    vllm-vcr tap --engine-core --upstream tcp://127.0.0.1:29550 --listen tcp://127.0.0.1:29551 --trace-out day.jsonl.gz

  Then send requests to the tap instead of the engine:
    curl localhost:8001/v1/models";

/// Proxy requests to a real engine and record what it streams.
///
/// Every method and path is forwarded. Clients receive the bytes that they would have received without the tap, and no request waits for
/// the recorder or fails because of it. Stop it with Ctrl-C: requests in flight are finished and the trace is closed; a second Ctrl-C ends
/// at once. SIGHUP starts a new trace file.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct TapArgs {
    /// The server to record, such as http://localhost:8000; also https://, h2c:// and unix:/path. Further ones get the requests of a path
    /// (/v1/embeddings=URL), of a model (model:qwen*=URL) or, into a cassette, those to a named URL (anthropic=URL for
    /// /vcr/u/anthropic/...). With --engine-core the front end that waits for engines, tcp://HOST:PORT.
    #[arg(long, help_heading = "Upstream", value_name = "URL", required = true)]
    pub(in crate::cli) upstream: Vec<TapUpstream>,
    /// The address to listen on, by default 127.0.0.1:8001; port 0 takes a free one, which is the default for a command. With --engine-core
    /// the address that engines connect to, tcp://HOST:PORT.
    #[arg(long, help_heading = "Network", value_name = "HOST:PORT", value_parser = listen_address)]
    pub(in crate::cli) listen: Option<String>,
    /// The trace to write, FILE.jsonl or FILE.jsonl.gz (- is stdout), the cassette, FILE.yaml, or a FOLDER/ for the cassettes of sessions;
    /// requests without a session go into its default.yaml (--mode once by default).
    #[arg(long, help_heading = "Trace files", value_name = "FILE", visible_alias = "cassette", default_value = DEFAULT_FOLDER)]
    pub(in crate::cli) trace_out: PathBuf,
    /// Records the ids of output tokens, and the content of responses that have no ids; needed to play the same answers back.
    #[arg(long, help_heading = "Contents")]
    pub(in crate::cli) record_tokens: bool,
    /// Tokenizer directory, for hashing the prompts of engines that do not send token ids.
    #[arg(long, help_heading = "Contents", group = "@traces", value_name = "DIR")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Prompt tokens per hashed block.
    #[arg(long, help_heading = "Contents", group = "@traces", value_name = "N", default_value = "16")]
    pub(in crate::cli) block_size: NonZeroU32,
    /// Hash algorithm of prompt blocks; fnv1a-64 is the one that other readers of the format know.
    #[arg(long, help_heading = "Contents", group = "@traces", value_name = "ALGORITHM", default_value = "xxh3-64", conflicts_with = "hash_key_file", value_parser = one_of::<BlockHashAlgorithm>())]
    pub(in crate::cli) block_hash: BlockHashAlgorithm,
    /// Appends to the trace if it exists.
    #[arg(long, help_heading = "Trace files", group = "@files", conflicts_with = "overwrite")]
    pub(in crate::cli) append: bool,
    /// Replaces the trace if it exists.
    #[arg(long, help_heading = "Trace files", group = "@files")]
    pub(in crate::cli) overwrite: bool,
    /// How long requests in flight may take after Ctrl-C.
    #[arg(long, help_heading = "Network", value_name = "DURATION", default_value = "10s", value_parser = with_unit)]
    pub(in crate::cli) drain_timeout: Duration,
    #[command(flatten)]
    pub(in crate::cli) engine_core: EngineCoreArgs,
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
    pub(in crate::cli) fn address(&self) -> String {
        let usual = if self.engine_core.engine_core {
            USUAL_ENGINE_CORE
        } else if self.cassettes.command.is_empty() {
            "127.0.0.1:8001"
        } else {
            "127.0.0.1:0"
        };
        let listen = self.listen.clone().unwrap_or_else(|| usual.to_owned());
        listen.strip_prefix(SCHEME).map_or(listen.clone(), str::to_owned)
    }
}

/// The trace's files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Trace files")]
pub(in crate::cli) struct FileArgs {
    /// Keeps an existing trace and writes to the next free name: NAME.1.jsonl.gz, NAME.2.jsonl.gz and so on.
    #[arg(long, group = "@files", conflicts_with_all = ["append", "overwrite"])]
    pub(in crate::cli) next: bool,
    /// Starts a new file when the current one reaches this size, such as 500MB.
    #[arg(long, group = "@files", value_name = "SIZE", value_parser = parse_size)]
    pub(in crate::cli) rotate_size: Option<u64>,
    /// Starts a new file when the current one reaches this age, such as 60m.
    #[arg(long, group = "@files", value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) rotate_every: Option<Duration>,
    /// Starts a new file when the current one has this many records.
    #[arg(long, group = "@files", value_name = "N")]
    pub(in crate::cli) rotate_records: Option<NonZeroU64>,
    /// Starts even if the trace cannot be written yet, as on a full disk, and records once it can.
    #[arg(long)]
    pub(in crate::cli) start_anyway: bool,
}

/// How the engine was started, for the trace's first line: the engine reports only some of it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Deployment")]
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
    #[arg(long, value_name = "SHARE", value_parser = sampled)]
    pub(in crate::cli) sample: Option<f64>,
    /// Records only requests to these paths; a * at the end matches anything.
    #[arg(long, group = "@http", value_name = "PATH", value_parser = path)]
    pub(in crate::cli) only_path: Vec<String>,
    /// Records only requests for these models; a * at the end matches anything.
    #[arg(long, value_name = "MODEL", value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) only_model: Vec<String>,
    /// Forwards requests as clients send them: asks the engine for no token ids and no usage of its own.
    #[arg(long, group = "@http")]
    pub(in crate::cli) ask_nothing: bool,
}

/// How much of the texts a trace keeps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Privacy")]
pub(in crate::cli) struct PrivacyArgs {
    /// Hashes prompts with the key in this file (at least 16 bytes), so that nobody can check a guess without it.
    #[arg(long, group = "@traces", value_name = "FILE")]
    pub(in crate::cli) hash_key_file: Option<PathBuf>,
    /// Replaces output ids by a permutation that the key decides: equal ids stay equal but spell nothing.
    #[arg(long, group = "@traces", requires = "hash_key_file", requires = "record_tokens")]
    pub(in crate::cli) permute_ids: bool,
    /// Records the text of every chunk, with secrets redacted.
    #[arg(long, help_heading = "Contents", groups = ["@traces", "@http"])]
    pub(in crate::cli) record_text: bool,
    /// Records the bodies of requests, with secrets redacted.
    #[arg(long, help_heading = "Contents", group = "@traces")]
    pub(in crate::cli) record_requests: bool,
    /// Records the log probabilities that clients ask for, of outputs and prompts; they reveal the tokens.
    #[arg(
        long,
        help_heading = "Contents",
        group = "@traces",
        requires = "record_tokens",
        conflicts_with = "permute_ids"
    )]
    pub(in crate::cli) record_logprobs: bool,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
}

/// Connections.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub(in crate::cli) struct NetworkArgs {
    /// Serves /metrics and /health on this address; of a cassette also /vcr/... .
    #[arg(long, help_heading = "Admin", value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(in crate::cli) admin_listen: Option<String>,
    /// Listens on this Unix socket instead.
    #[arg(long, group = "@http", value_name = "PATH", conflicts_with = "listen")]
    pub(in crate::cli) uds: Option<PathBuf>,
    /// Serves HTTPS with this certificate, a PEM file with its chain.
    #[arg(long, help_heading = "TLS", group = "@http", value_name = "FILE")]
    pub(in crate::cli) ssl_certfile: Option<PathBuf>,
    /// The certificate's private key, a PEM file. Default: the certificate's file.
    #[arg(long, help_heading = "TLS", group = "@http", value_name = "FILE", requires = "ssl_certfile")]
    pub(in crate::cli) ssl_keyfile: Option<PathBuf>,
    /// Listens without TLS on addresses that other machines reach; anyone on the network path can read everything.
    #[arg(long)]
    pub(in crate::cli) allow_remote_record: bool,
    /// CA certificate of https upstreams, or an upstream's own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, help_heading = "Upstream", group = "@http", value_name = "FILE")]
    pub(in crate::cli) upstream_ca: Option<PathBuf>,
    /// Gives up if the upstream accepts no connection for this long.
    #[arg(long, help_heading = "Upstream", group = "@http", value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) connect_timeout: Option<Duration>,
    /// Gives up if the upstream does not start its response for this long.
    #[arg(long, help_heading = "Upstream", group = "@http", value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) answer_timeout: Option<Duration>,
    /// Gives up if a request or response pauses for this long.
    #[arg(long, help_heading = "Upstream", group = "@http", value_name = "DURATION", value_parser = some_time)]
    pub(in crate::cli) idle_timeout: Option<Duration>,
    /// Threads that serve connections. Default: one per core.
    #[arg(long, group = "@http", value_name = "N")]
    pub(in crate::cli) threads: Option<NonZeroUsize>,
}

fn path(typed: &str) -> Result<String, String> {
    match typed.strip_prefix('*') {
        Some("") => Ok(typed.to_owned()),
        _ if typed.contains('?') => Err("a path has no query: leave out the part from `?` on".to_owned()),
        _ if typed.starts_with('/') => Ok(typed.to_owned()),
        _ => Err(format!("a path begins with a slash: write it as `/{}`", typed.trim_start_matches('*'))),
    }
}

fn sampled(typed: &str) -> Result<f64, String> {
    share("")(typed).map_err(|_| format!("`{typed}` is not a share from 0 to 1, such as 0.1"))
}
