//! Arguments of `play`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};

use crate::{
    base::units::{TimeScale, parse_duration},
    cli::{
        mcp::servers::McpServersArgs,
        play::{
            engine::SimulatedArgs,
            faults::FaultArgs,
            kv_events::KvEventsArgs,
            kv_transfer::KvTransferArgs,
            lora::LoraArgs,
            model::{AnswerArgs, EngineArgs, SyntheticArgs},
            server::ServerArgs,
            speculative::SpeculativeArgs,
        },
        player::{args::CassetteArgs, matching::MatchArg},
        redaction::RedactionArgs,
        stepping::{ModelLength, model_length},
        values::{host_and_port, one_of, with_unit},
    },
    net::upstream::UpstreamUrl,
    play::{Synthetic, UnmatchedPace},
    replay::matching::MinMatch,
    text::parsers::{ReasoningFormat, ToolFormat},
};

const EXAMPLES: &str = "\
Examples:
  Serve the built-in trace on port 8000:
    vllm-vcr play

  Serve a recorded trace, ten times faster than it was:
    vllm-vcr play --replay-tokens day.jsonl.gz --tokenizer ./tokenizer --time-scale 10

  Serve a cassette to a test run, and fail where a request was not recorded:
    vllm-vcr play --cassette agent.yaml --strict -- pytest -q

  Serve a trace without delays; a request with X-Request-Id replay-0, replay-1, ... gets that record, any other the one of its prompt:
    vllm-vcr play --replay-tokens day.jsonl.gz --tokenizer ./tokenizer --instant

  Make tokens up at a fixed pace: 200 ms to the first token, then one every 20 ms:
    vllm-vcr play --synthetic random --time-to-first-token 200ms --inter-token-latency 20ms

  Simulate an engine that runs four requests at once and caches prefixes:
    vllm-vcr play --synthetic random --engine --max-num-seqs 4 --latency-profile l4-8b

  Serve as the engine of vLLM's own front end, which waits for one at port 29550:
    vllm-vcr play --engine-core tcp://127.0.0.1:29550 --synthetic random --tokenizer ./tokenizer

Durations are 50ms, 1.5s, 200us or 2m; times of tokens and of the engine may be bare milliseconds, such as 50.";

/// Serve recorded or synthetic token streams as a vLLM server would.
///
/// Without arguments it serves the cassettes in the folder cassettes/, or, if there are none, the built-in trace: a prompt that was
/// recorded gets its recorded answer, any other prompt the next record in turn.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, allow_negative_numbers = true)]
pub(in crate::cli) struct PlayArgs {
    /// The traces to serve, several as one: files that end in .jsonl, .json or .gz, directories of .jsonl and .jsonl.gz files, or the first
    /// file of a rotated capture. Records without token ids are answered with random tokens of their length. Default: the built-in trace.
    #[arg(long, group = "@any", value_name = "PATH", num_args = 1.., help_heading = "Sources", conflicts_with = "synthetic")]
    pub(in crate::cli) replay_tokens: Vec<PathBuf>,
    /// Refuses a trace with invalid records. Default: they are reported and left out, and the others are served.
    #[arg(long, group = "@soundness", help_heading = "Sources", requires = "replay_tokens")]
    pub(in crate::cli) strict_trace: bool,
    /// A cassette to serve, .yaml, or a directory of cassettes; several are played as one. Requests without a record get an error. Default
    /// without any source: the cassettes in cassettes/, if there are any.
    #[arg(long, group = "@any", value_name = "PATH", help_heading = "Sources")]
    pub(in crate::cli) cassette: Vec<PathBuf>,
    /// Rules for answers, YAML: hand-written records that are tried before every other source. A request that matches no rule goes to the
    /// other sources, and gets an error if there are none. The files are read again when they change, and at SIGHUP.
    #[arg(long = "answers", group = "@any", value_name = "FILE", help_heading = "Sources")]
    pub(in crate::cli) answer_files: Vec<PathBuf>,
    /// The server that requests are forwarded to where the mode allows it, such as http://localhost:8000.
    #[arg(long, group = "@upstreams", value_name = "URL", help_heading = "Cassettes")]
    pub(in crate::cli) upstream: Option<UpstreamUrl>,
    /// Serves /vcr/... on this address only. Default: on the same port if only this machine can reach it, else on a free port of 127.0.0.1.
    #[arg(long, group = "@questions", value_name = "HOST:PORT", value_parser = host_and_port, help_heading = "Admin",
        conflicts_with_all = ["admin", "no_admin"])]
    pub(in crate::cli) admin_listen: Option<String>,
    /// Short form of --match for one way. If a cassette and a trace are played together, this is for the trace and --match for the
    /// cassette.
    #[arg(long, group = "@ways", value_name = "WAY", help_heading = "Matching", conflicts_with = "synthetic")]
    pub(in crate::cli) replay_match: Option<MatchArg>,
    /// The least that a record found by prefix must share with the request: whole, a number of leading blocks of a trace's prompt (of
    /// leading messages in a cassette), or a share of them such as 80%. Default: 1; for a trace whole under --strict, and for the built-in
    /// trace.
    #[arg(long, group = "@records", value_name = "EXTENT", help_heading = "Matching", conflicts_with = "synthetic")]
    pub(in crate::cli) min_match: Option<MinMatch>,
    /// The key file with which the trace's prompts were hashed.
    #[arg(long, group = "@hashes", value_name = "FILE", help_heading = "Sources")]
    pub(in crate::cli) hash_key_file: Option<PathBuf>,
    /// Answers a request that matches no record with an error (422) instead of random tokens; in a trace, only the same whole prompt
    /// matches.
    #[arg(long, group = "@records", help_heading = "Matching", conflicts_with = "synthetic")]
    pub(in crate::cli) strict: bool,
    /// Serves made-up tokens of any length instead of a trace.
    #[arg(long, group = "@any", value_name = "KIND", help_heading = "Sources", value_parser = one_of::<Synthetic>())]
    pub(in crate::cli) synthetic: Option<Synthetic>,
    #[command(flatten)]
    pub(in crate::cli) made_up: SyntheticArgs,
    /// Seed of random tokens.
    #[arg(long, group = "@any", value_name = "N", help_heading = "Sources", default_value = "0")]
    pub(in crate::cli) seed: u64,
    /// Tokenizer of the trace: a directory, a tokenizer.json or a Hub id; or `none`, with which the text of each token is `<id>`. Default:
    /// the built-in one.
    #[arg(long, group = "@any", value_name = "SPEC", help_heading = "Model")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Names under which the model is served; responses have the first one. Default: the trace's model.
    #[arg(long, group = "@any", value_name = "NAME", help_heading = "Sources", num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) served_model_name: Vec<String>,
    /// A chat template instead of the tokenizer's: a file, or the template itself.
    #[arg(long, group = "@any", value_name = "FILE", help_heading = "Model")]
    pub(in crate::cli) chat_template: Option<String>,
    /// Maximum length of prompt plus output in tokens; longer requests are refused as vLLM refuses them. 8k is 8000, 8K is 8192; auto and
    /// -1 are the default: the recorded engine's, else 32768, or the longest record's length if that is more.
    #[arg(long, group = "@any", value_name = "N", help_heading = "Model", value_parser = model_length)]
    pub(in crate::cli) max_model_len: Option<ModelLength>,
    /// Tokens per block of the prefix cache. Default: the trace's.
    #[arg(long, group = "@any", value_name = "N", help_heading = "Model", value_parser = crate::cli::stepping::count)]
    pub(in crate::cli) block_size: Option<NonZeroU32>,
    /// Speed factor of the recorded times: 100 is a hundred times faster, 0.5 half as fast.
    #[arg(long, group = "@any", value_name = "X", help_heading = "Timing",
          conflicts_with_all = ["synthetic", "instant", "time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) time_scale: Option<TimeScale>,
    /// When recorded answers are sent: at their recorded times, or at once. Default: recorded times, but at once if a cassette is played to
    /// a command.
    #[arg(long, group = "@any", value_name = "PACE", help_heading = "Timing",
          conflicts_with_all = ["synthetic", "instant", "time_scale", "time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) pace: Option<PaceArg>,
    /// Sends every token at once, as --pace instant. The default of --synthetic, and of a cassette that is played to a command.
    #[arg(long, group = "@any", help_heading = "Timing", conflicts_with_all = ["time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) instant: bool,
    /// Time to the first token, instead of the recorded one.
    #[arg(long, group = "@any", value_name = "DURATION", help_heading = "Timing", value_parser = parse_duration)]
    pub(in crate::cli) time_to_first_token: Option<Duration>,
    /// Time between tokens, instead of the recorded ones. If only one of these two is given, the other is zero.
    #[arg(long, group = "@any", value_name = "DURATION", help_heading = "Timing", value_parser = parse_duration)]
    pub(in crate::cli) inter_token_latency: Option<Duration>,
    /// When the made-up tokens for a request without a record are sent: at the trace's median times, or at once.
    #[arg(long, group = "@medians", value_name = "PACE", help_heading = "Timing", default_value = "trace", value_parser = one_of::<UnmatchedPace>())]
    pub(in crate::cli) unmatched_pace: UnmatchedPace,
    /// The address to listen on.
    #[arg(long, groups = ["@any", "@http"], value_name = "HOST", help_heading = "Server", default_value = "127.0.0.1")]
    pub(in crate::cli) host: String,
    /// The port to listen on, by default 8000; 0 takes a free one, which is the default for a command.
    #[arg(long, groups = ["@any", "@http"], value_name = "PORT", help_heading = "Server")]
    pub(in crate::cli) port: Option<u16>,
    /// Reports cached prompt tokens in `usage`.
    #[arg(long, group = "@answers", help_heading = "Answers")]
    pub(in crate::cli) enable_prompt_tokens_details: bool,
    /// Returns the request id as X-Request-Id.
    #[arg(long, groups = ["@any", "@http"], help_heading = "Server")]
    pub(in crate::cli) enable_request_id_headers: bool,
    #[command(flatten)]
    pub(in crate::cli) answers: AnswerArgs,
    #[command(flatten)]
    pub(in crate::cli) server: ServerArgs,
    /// Accepts images, audio and video in chats, as a multimodal model does, each as a placeholder. Default: they are accepted if a record
    /// of the trace has `mm_hashes`, else refused.
    #[arg(long, group = "@answers", help_heading = "Answers")]
    pub(in crate::cli) multimodal: bool,
    /// Uses a chat template in a request; by default such a request is refused.
    #[arg(long, groups = ["@any", "@http"], help_heading = "Answers")]
    pub(in crate::cli) trust_request_chat_template: bool,
    /// Tokens per event of a stream; the first and the last event do not wait.
    #[arg(long, group = "@answers", value_name = "N", help_heading = "Answers", default_value = "1")]
    pub(in crate::cli) stream_interval: NonZeroU32,
    /// Serves /inference/v1/generate.
    #[arg(long, groups = ["@any", "@http"], help_heading = "Server")]
    pub(in crate::cli) enable_scale_out: bool,
    /// The format of reasoning in answers, which becomes a field of its own.
    #[arg(long, group = "@answers", value_name = "FORMAT", help_heading = "Answers")]
    pub(in crate::cli) reasoning_parser: Option<ReasoningFormat>,
    /// Finds tool calls in answers; needs --tool-call-parser.
    #[arg(long, group = "@answers", help_heading = "Answers", requires = "tool_call_parser")]
    pub(in crate::cli) enable_auto_tool_choice: bool,
    /// The format of tool calls in answers. As in vLLM, it has no effect without --enable-auto-tool-choice.
    #[arg(long, group = "@answers", value_name = "FORMAT", help_heading = "Answers")]
    pub(in crate::cli) tool_call_parser: Option<ToolFormat>,
    #[command(flatten)]
    pub(in crate::cli) engine: EngineArgs,
    #[command(flatten)]
    pub(in crate::cli) simulated: SimulatedArgs,
    #[command(flatten)]
    pub(in crate::cli) kv_events: KvEventsArgs,
    #[command(flatten)]
    pub(in crate::cli) kv_transfer: KvTransferArgs,
    #[command(flatten)]
    pub(in crate::cli) lora: LoraArgs,
    #[command(flatten)]
    pub(in crate::cli) speculative: SpeculativeArgs,
    #[command(flatten)]
    pub(in crate::cli) faults: FaultArgs,
    /// Writes the lateness of events as JSON to this file at the end.
    #[arg(long, groups = ["@any", "@http"], value_name = "FILE", help_heading = "Metrics")]
    pub(in crate::cli) stats_json: Option<PathBuf>,
    /// How long requests in flight may take after Ctrl-C.
    #[arg(long, group = "@any", value_name = "DURATION", help_heading = "Server", default_value = "10s", value_parser = with_unit)]
    pub(in crate::cli) drain_timeout: Duration,
    #[command(flatten)]
    pub(in crate::cli) redaction: RedactionArgs,
    #[command(flatten)]
    pub(in crate::cli) cassettes: CassetteArgs,
    #[command(flatten)]
    pub(in crate::cli) mcp: McpServersArgs,
}

/// When what was recorded is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PaceArg {
    /// At once.
    Instant,
    /// At the recorded times.
    Recorded,
}

impl PlayArgs {
    /// The address to bind, an IPv6 host in brackets; that of the first replica.
    pub(in crate::cli) fn address(&self) -> String {
        if let Some(first) = self.simulated.replica_addresses.first() {
            return first.clone();
        }
        let port = self.port.unwrap_or(if self.cassettes.command.is_empty() { 8000 } else { 0 });
        if self.host.contains(':') && !self.host.starts_with('[') {
            format!("[{}]:{port}", self.host)
        } else {
            format!("{}:{port}", self.host)
        }
    }
}
