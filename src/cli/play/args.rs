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

  Serve a trace at once; a request with X-Request-Id replay-0, replay-1, ... gets that record, any other the one of its prompt:
    vllm-vcr play --replay-tokens day.jsonl.gz --tokenizer ./tokenizer --instant

  Make tokens up at a fixed pace: 200 ms to the first token, then one every 20 ms:
    vllm-vcr play --synthetic random --time-to-first-token 200ms --inter-token-latency 20ms

  Simulate an engine that runs four requests at once and caches prefixes:
    vllm-vcr play --synthetic random --engine --max-num-seqs 4 --latency-profile l4-8b

  Be the engine of vLLM's own front end, which waits for one at port 29550:
    vllm-vcr play --engine-core tcp://127.0.0.1:29550 --synthetic random --tokenizer ./tokenizer

Durations are 50ms, 1.5s, 200us or 2m; times of tokens and of the engine may be bare milliseconds, such as 50.";

/// Serve recorded or synthetic token streams as a vLLM server would.
///
/// Without arguments it serves the cassettes in the folder cassettes/; where there are none, the trace that is built into the program:
/// a prompt that was recorded gets its recorded answer, any other the next record in turn.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, allow_negative_numbers = true)]
pub(in crate::cli) struct PlayArgs {
    /// The traces to serve: files that end in .jsonl, .json or .gz, a directory of .jsonl and .jsonl.gz files, the first file of a
    /// capture in several; they are served as one. Records without token ids are answered with random tokens of their length.
    /// Without it, the built-in trace.
    #[arg(long, group = "@any", value_name = "PATH", num_args = 1.., help_heading = "Sources", conflicts_with = "synthetic")]
    pub(in crate::cli) replay_tokens: Vec<PathBuf>,
    /// Refuses a trace with records that break a rule of its format. Without it they are named and left out, and the others are
    /// served.
    #[arg(long, group = "@soundness", help_heading = "Sources", requires = "replay_tokens")]
    pub(in crate::cli) strict_trace: bool,
    /// A cassette to serve, .yaml, or a directory of them; several are played as one. Requests without a record are errors. Without any
    /// source, those in cassettes/, if there are any there.
    #[arg(long, group = "@any", value_name = "PATH", help_heading = "Sources")]
    pub(in crate::cli) cassette: Vec<PathBuf>,
    /// Rules for answers, YAML: hand-written records that are tried before everything else that is served. A request that none of them
    /// takes goes on to it, and is an error where nothing else is named. The files are read again when they change, and at SIGHUP.
    #[arg(long = "answers", group = "@any", value_name = "FILE", help_heading = "Sources")]
    pub(in crate::cli) answer_files: Vec<PathBuf>,
    /// The server that is asked where requests may leave, such as http://localhost:8000.
    #[arg(long, group = "@upstreams", value_name = "URL", help_heading = "Cassettes")]
    pub(in crate::cli) upstream: Option<UpstreamUrl>,
    /// Answers /vcr/... here and nowhere else. Without it, beside everything else on loopback addresses and Unix sockets, and on a
    /// free port of 127.0.0.1 where others can reach the server.
    #[arg(long, group = "@questions", value_name = "HOST:PORT", value_parser = host_and_port, help_heading = "Admin",
        conflicts_with_all = ["admin", "no_admin"])]
    pub(in crate::cli) admin_listen: Option<String>,
    /// Short form of --match for one way. Where a cassette and a trace are played, it is the trace's way and --match the cassette's.
    #[arg(long, group = "@ways", value_name = "WAY", help_heading = "Matching", conflicts_with = "synthetic")]
    pub(in crate::cli) replay_match: Option<MatchArg>,
    /// How much of a request a record has to share that is found by prefix: whole, a number of leading blocks of a trace's prompt
    /// (of leading messages in a cassette), or a share of them such as 80%. Without it 1; of a trace whole under --strict, and of
    /// the built-in trace.
    #[arg(long, group = "@records", value_name = "EXTENT", help_heading = "Matching", conflicts_with = "synthetic")]
    pub(in crate::cli) min_match: Option<MinMatch>,
    /// The key file that the trace's prompts were hashed with.
    #[arg(long, group = "@hashes", value_name = "FILE", help_heading = "Sources")]
    pub(in crate::cli) hash_key_file: Option<PathBuf>,
    /// Answers 422 to a request that matches no record, instead of random tokens; from a trace only the same whole prompt is a match.
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
    /// Tokenizer of the trace: a directory, a tokenizer.json, or a Hub id; or `none`: ids and counts only, the text of each id
    /// being <id>. Without it, the built-in one.
    #[arg(long, group = "@any", value_name = "SPEC", help_heading = "Model")]
    pub(in crate::cli) tokenizer: Option<String>,
    /// Model names to answer to; the first one is put in answers. Without it, the trace's model.
    #[arg(long, group = "@any", value_name = "NAME", help_heading = "Sources", num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    pub(in crate::cli) served_model_name: Vec<String>,
    /// A chat template instead of the tokenizer's: a file, or the template itself.
    #[arg(long, group = "@any", value_name = "FILE", help_heading = "Model")]
    pub(in crate::cli) chat_template: Option<String>,
    /// Longest prompt plus output in tokens; longer requests are refused as vLLM refuses them.
    /// 8k is 8000, 8K is 8192; auto and -1 are the default: 32768, or the longest record's length where that is more.
    #[arg(long, group = "@any", value_name = "N", help_heading = "Model", value_parser = model_length)]
    pub(in crate::cli) max_model_len: Option<ModelLength>,
    /// Tokens per block of the prefix cache; without it, the trace's.
    #[arg(long, group = "@any", value_name = "N", help_heading = "Model", value_parser = crate::cli::stepping::count)]
    pub(in crate::cli) block_size: Option<NonZeroU32>,
    /// How many times faster than recorded: 100 is a hundred times faster, 0.5 half as fast.
    #[arg(long, group = "@any", value_name = "X", help_heading = "Timing",
          conflicts_with_all = ["synthetic", "instant", "time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) time_scale: Option<TimeScale>,
    /// When what was recorded is sent: at its recorded times, or at once. Without it at its recorded times, but at once where a cassette
    /// is played to a command.
    #[arg(long, group = "@any", value_name = "PACE", help_heading = "Timing",
          conflicts_with_all = ["synthetic", "instant", "time_scale", "time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) pace: Option<PaceArg>,
    /// Sends every token at once, as --pace instant. The default of --synthetic, and of a cassette that is played to a command.
    #[arg(long, group = "@any", help_heading = "Timing", conflicts_with_all = ["time_to_first_token", "inter_token_latency"])]
    pub(in crate::cli) instant: bool,
    /// Time to the first token, instead of the recorded one.
    #[arg(long, group = "@any", value_name = "DURATION", help_heading = "Timing", value_parser = parse_duration)]
    pub(in crate::cli) time_to_first_token: Option<Duration>,
    /// Time between tokens, instead of the recorded ones. With only one of these two, the other is zero.
    #[arg(long, group = "@any", value_name = "DURATION", help_heading = "Timing", value_parser = parse_duration)]
    pub(in crate::cli) inter_token_latency: Option<Duration>,
    /// When the made-up tokens are sent that a request without a record gets: at the trace's own median times, or at once.
    #[arg(long, group = "@medians", value_name = "PACE", help_heading = "Timing", default_value = "trace", value_parser = one_of::<UnmatchedPace>())]
    pub(in crate::cli) unmatched_pace: UnmatchedPace,
    /// The address to listen on.
    #[arg(long, groups = ["@any", "@http"], value_name = "HOST", help_heading = "Server", default_value = "127.0.0.1")]
    pub(in crate::cli) host: String,
    /// The port to listen on; 0 takes a free one. Without it 8000, and a free one for a command.
    #[arg(long, groups = ["@any", "@http"], value_name = "PORT", help_heading = "Server")]
    pub(in crate::cli) port: Option<u16>,
    /// Shows in `usage` how many prompt tokens were cached.
    #[arg(long, group = "@answers", help_heading = "Answers")]
    pub(in crate::cli) enable_prompt_tokens_details: bool,
    /// Sends the request id back as X-Request-Id.
    #[arg(long, groups = ["@any", "@http"], help_heading = "Server")]
    pub(in crate::cli) enable_request_id_headers: bool,
    #[command(flatten)]
    pub(in crate::cli) answers: AnswerArgs,
    #[command(flatten)]
    pub(in crate::cli) server: ServerArgs,
    /// Takes images, audio and video in chats, as a multimodal model does, each as a placeholder. Without it they are taken where
    /// a record of the trace has `mm_hashes`, and refused else.
    #[arg(long, group = "@answers", help_heading = "Answers")]
    pub(in crate::cli) multimodal: bool,
    /// Uses a chat template that a request brings; without it such a request is refused.
    #[arg(long, groups = ["@any", "@http"], help_heading = "Answers")]
    pub(in crate::cli) trust_request_chat_template: bool,
    /// Tokens that an event of a stream waits for; the first and the last one never wait.
    #[arg(long, group = "@answers", value_name = "N", help_heading = "Answers", default_value = "1")]
    pub(in crate::cli) stream_interval: NonZeroU32,
    /// Serves /inference/v1/generate, which is refused otherwise.
    #[arg(long, groups = ["@any", "@http"], help_heading = "Server")]
    pub(in crate::cli) enable_scale_out: bool,
    /// The format of reasoning in answers, which becomes a field of its own.
    #[arg(long, group = "@answers", value_name = "FORMAT", help_heading = "Answers")]
    pub(in crate::cli) reasoning_parser: Option<ReasoningFormat>,
    /// Finds tool calls in answers; needs --tool-call-parser.
    #[arg(long, group = "@answers", help_heading = "Answers", requires = "tool_call_parser")]
    pub(in crate::cli) enable_auto_tool_choice: bool,
    /// The format of tool calls in answers. As in vLLM it has no effect without --enable-auto-tool-choice.
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
    /// Writes at the end how late events left, as JSON.
    #[arg(long, groups = ["@any", "@http"], value_name = "FILE", help_heading = "Metrics")]
    pub(in crate::cli) stats_json: Option<PathBuf>,
    /// How long requests in flight may go on after Ctrl-C.
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
    /// At its recorded times.
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
