//! Configuration of a replay server. The command line makes one; a test makes one by hand.

mod options;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value};

pub use self::options::{
    AnswerOptions, Fingerprint, GenerationConfig, GenerationSource, LoraConfig, LoraModule, ServerOptions,
    SimulatorOptions, SyntheticOptions, UnmatchedPace,
};
use crate::{EngineConfig, ServerFaults, VllmVersion};
use api::{RequestTemplates, Spelling};
use recording::{
    redaction,
    trace::{LoadProgress, Trace},
};
use replay::{
    account::Admin,
    matching::{MatchBy, MinMatch, OnExhausted},
    player::{CassettePlayer, MissDetail},
    timing::{ChangedPacing, Pacing},
};
use text::{
    parsers::Formats,
    prompt::{HashKey, Tokenizer},
};

base::with_defaults! {
    /// Everything that a [`Player`](crate::Player) needs, except the socket.
    ///
    /// ```no_run
    /// use vllm_vcr_play::{Config, Player, Source};
    ///
    /// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    /// let player = Player::load(Config { source: Source::Files(vec!["day.jsonl.gz".into()]), ..Config::default() })?;
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// println!("http://{}", listener.local_addr()?);
    /// player.serve(listener, std::future::pending()).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The default is the built-in trace at recorded pace: a prompt that was recorded gets its answer, any other the next record in turn.
    #[derive(Debug, Clone)]
    pub struct Config {
        /// Where the recorded streams come from.
        pub source: Source = Source::BuiltIn,
        /// True where a trace with lines that break a rule of its format is refused; else its other records are served.
        pub strict_trace: bool,
        /// The ways to find a request's record, tried in order.
        pub order: Vec<MatchBy> = vec![MatchBy::Auto, MatchBy::Next],
        /// Least part of a prompt that a record has to share where it is found by prefix.
        pub min_match: MinMatch = MinMatch::Whole,
        /// Choice among records that were all served; `None` for the last one where it was found by prefix, and for each in
        /// turn where the next one answers.
        pub on_exhausted: Option<OnExhausted>,
        /// Whether a later way of `order` may find a record where all that an earlier one matches were served.
        pub loose_after_exhausted: bool,
        /// The key of a trace's keyed block hashes.
        pub hash_key: Option<HashKey>,
        /// When the chunks of a stream are due.
        pub pacing: Pacing,
        /// What takes its place while the server runs.
        pub changed_pacing: Arc<ChangedPacing>,
        /// Answer to a request without a record.
        pub unmatched: Unmatched,
        /// The status of a refused one.
        pub miss_status: u16 = 422,
        /// Detail of a miss.
        pub miss_detail: MissDetail,
        /// Patterns of secrets, which are not shown of requests without a record.
        pub secrets: redaction::RedactionRules,
        /// When the tokens are due that a request without a record gets.
        pub unmatched_pace: UnmatchedPace,
        /// Options of random answers.
        pub synthetic: SyntheticOptions,
        /// The tokenizer.
        pub tokenizer: TokenizerSource = TokenizerSource::BuiltIn,
        /// Names under which the model is served; empty takes the trace's or the tokenizer's name.
        pub served_model_names: Vec<String>,
        /// Prompt and output tokens that a request may have together; `None` for those of the recorded engine, else [`DEFAULT_MODEL_LEN`],
        /// or as many as the longest record has where that is more.
        pub max_model_len: Option<u32>,
        /// Tokens per block of the prefix cache; without it the trace's (vLLM's `--block-size`).
        pub block_size: Option<NonZeroU32>,
        /// Adapters beside the model; `None` where they are not enabled.
        pub lora: Option<LoraConfig>,
        /// The simulated engine through which answers pass; without it they come at their own times.
        pub engine: Option<EngineConfig>,
        /// Simulated engines of the server (vLLM's `--data-parallel-size`); without an engine it has no effect.
        pub data_parallel_size: NonZeroU32 = NonZeroU32::MIN,
        /// Seed of random tokens and of the server's fingerprint.
        pub seed: u64,
        /// True where usage has cached prompt tokens (vLLM's `--enable-prompt-tokens-details`).
        pub prompt_tokens_details: bool,
        /// True where answers carry `x-request-id` (vLLM's `--enable-request-id-headers`).
        pub request_id_headers: bool,
        /// Optional parts of answers.
        pub answers: AnswerOptions,
        /// The server around the model: keys, origins, path.
        pub server: ServerOptions,
        /// A chat template instead of the tokenizer's: a file, or the template itself (vLLM's `--chat-template`).
        pub chat_template: Option<String>,
        /// Variables of the chat template where a request does not set them (vLLM's `--default-chat-template-kwargs`).
        pub template_kwargs: Map<String, Value>,
        /// True where a request may bring its own chat template (vLLM's `--trust-request-chat-template`).
        pub request_templates: RequestTemplates = RequestTemplates::Refused,
        /// Tokens that an event of a stream waits for, after the first (vLLM's `--stream-interval`).
        pub stream_interval: NonZeroU32 = NonZeroU32::MIN,
        /// True where tokens can be asked for by tokens (vLLM's `--enable-scale-out`).
        pub scale_out: bool,
        /// True where images, audio and video are taken, as by a multimodal model; they are where a record's prompt held some.
        pub multimodal: bool,
        /// Parsers that take reasoning and tool calls out of answers (vLLM's `--reasoning-parser`, `--tool-call-parser`).
        pub parsers: Formats,
        /// Sampling parameters of requests that name none.
        pub generation: GenerationConfig,
        /// The most log probabilities of one token; -1 for the whole vocabulary (vLLM's `--max-logprobs`).
        pub max_logprobs: i32 = 20,
        /// Spelling of tokens in log probabilities where a request does not ask for ids (vLLM's `--return-tokens-as-token-ids`).
        pub token_spelling: Spelling = Spelling::Text,
        /// The number of the model's ids, where it is more than the tokenizer's (`vocab_size` in vLLM's `--hf-overrides`).
        pub vocabulary: Option<u32>,
        /// Whose wire is spoken.
        pub vllm_version: VllmVersion = VllmVersion::V0_32,
        /// Bytes of a request body that are accepted; more is answered with 413.
        pub body_limit: usize = DEFAULT_BODY_LIMIT,
        /// Threads of the server's own for connections; `None` for the runtime that the server is started on.
        pub threads: Option<NonZeroUsize>,
        /// Time that requests in flight have after the shutdown signal.
        pub drain: Duration = Duration::from_secs(30),
        /// Cassettes, which are asked first.
        pub cassette_player: Option<Arc<CassettePlayer>>,
        /// Names under which its MCP servers are served beside addresses and names without a dot; `*` for any.
        pub mcp_hosts: Vec<String>,
        /// True where questions about the account are answered, `/vcr/…`.
        pub admin: Admin = Admin::Off,
        /// Faults that responses get on purpose.
        pub faults: Arc<ServerFaults>,
        /// Progress of the load of a trace file.
        pub progress: Arc<LoadProgress>,
    }
}

/// Source of the recorded streams.
#[derive(Debug, Clone)]
pub enum Source {
    /// The trace in the binary.
    BuiltIn,
    /// A trace file; `-` is standard input.
    Files(Vec<PathBuf>),
    /// A trace that was read already.
    Trace {
        /// Its name in messages.
        name: String,
        /// The trace.
        trace: Arc<Trace>,
    },
    /// No trace: every request is answered with these tokens, without a limit on their number but `max_tokens`.
    Synthetic(Synthetic),
}

/// Source of the tokenizer.
#[derive(Debug, Clone, Default)]
pub enum TokenizerSource {
    /// The one in the binary, where it is the trace's.
    #[default]
    BuiltIn,
    /// A directory, a `tokenizer.json` or a Hub id, see [`load_tokenizer`](crate::load_tokenizer).
    Spec(String),
    /// One that was loaded already.
    Loaded(Tokenizer),
    /// None: ids and how many there are, and `<id>` for the text of each, see [`Tokenizer::ids_only`].
    None,
}

base::named! {
    /// Tokens that are made up.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Synthetic {
        /// Seeded random ordinary tokens.
        Random = "random",
        /// The prompt's own tokens (a chat's last message) once; with `ignore_eos` again and again.
        Echo = "echo",
    }
}

/// Answer to a request without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unmatched {
    /// Seeded random tokens, up to its `max_tokens`, or [`DEFAULT_RANDOM_TOKENS`] where it names none, unless
    /// [`SyntheticOptions`] has another length; at the pace of [`Pacing::Fixed`], else by [`UnmatchedPace`].
    #[default]
    Random,
    /// An error that no SDK retries, of status 422 by default.
    Refuse,
}

/// Random tokens for an unmatched request that does not ask for a number.
pub const DEFAULT_RANDOM_TOKENS: u32 = 128;

/// Ids that made-up text without a tokenizer is drawn from, where the size of the vocabulary is not known.
pub const DEFAULT_IDS: u32 = 32_768;

/// Prompt and output tokens of a request by default, where no record has more.
pub const DEFAULT_MODEL_LEN: u32 = 32_768;

/// Blocks of a cache whose number nothing gives.
pub const DEFAULT_GPU_BLOCKS: u32 = 16_384;

/// Accepted body size by default: 64 MB.
pub const DEFAULT_BODY_LIMIT: usize = 64 * 1024 * 1024;
