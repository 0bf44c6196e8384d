//! The replay server: a vLLM-compatible OpenAI server without a model.
//!
//! A request is validated as the engine does, rendered and tokenized, matched once, and its record is streamed: the
//! recorded tokens, chunk by chunk, each at its recorded distance from the request's arrival. Text comes from the tokens
//! through the incremental detokenizer, so stop strings, `max_tokens` and `return_token_ids` work on a record as they
//! did on the engine.
//!
//! Rules: `max_tokens` beyond the record ends where the record does, with its finish reason; a smaller one cuts it with
//! `length`. `ignore_eos` does nothing on a record. A record that was cut short (its client left) ends with `abort`; one
//! that ended in a failure of the engine ends with the recorded error event, or with status 500; one of an error is that
//! error. A record without ids gives random tokens of its length at its pace, one without a finish reason ends with
//! `length` where it is as long as was asked for and else with `stop`. A request without a record gets random tokens or an
//! error ([`Unmatched`]). Every response names its origin: `x-vcr-record` (replay order, from 0) and `x-vcr-match`
//! (`index`, `prefix;blocks=12/14`, with `;whole` where the whole prompt is the record's and `;again` where nothing else was left).
//! Where the records name several models, all of them are served, and a prompt finds records of the model that it names.
//!
//! The other families (messages, responses, batches, invocations, tokens in and out) are chat or completion requests in
//! other words: they are translated before and after.
//!
//! Log probabilities are made up, see `logprobs`.
//!
//! Reasoning and tool calls are taken out of the text by the parsers of the server ([`parsers`](crate::text::parsers)), as the
//! engine does it; without parsers they stay text.
//!
//! Limits: several prompts of one request are matched one by one.

mod account;
mod admission;
mod advice;
mod answer;
mod arrival_order;
mod blocking;
mod budget;
mod builtin;
mod choice;
mod config;
mod delivery;
mod dialect;
mod error;
mod example;
mod extract;
mod front;
mod generation;
mod guided;
mod http;
mod info;
mod load;
mod logprobs;
mod messages;
mod metrics;
mod middleware;
mod miss;
mod options;
mod output;
mod pace;
mod parse;
mod pipeline;
mod plan;
mod prompts;
mod rare;
mod recorded;
mod request_cache;
mod responses;
mod routes;
mod samples;
mod select;
mod stop;
mod synthetic;
mod template;
mod tokens;

use std::{
    future::Future,
    num::{NonZero, NonZeroU32},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use ::http::{HeaderMap, HeaderName, HeaderValue, Request};
use hyper::body::Incoming;
use rand::random;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::{
    arrival_order::Turns,
    blocking::INLINE_BYTES,
    delivery::Clock,
    generation::SamplingDefaults,
    metrics::Metrics,
    parse::Parsers,
    rare::{dev::Development, response_store::Kept},
    request_cache::RequestCache,
    samples::Samples,
};
pub use self::{
    config::{
        Config, DEFAULT_BODY_LIMIT, DEFAULT_IDS, DEFAULT_MODEL_LEN, DEFAULT_RANDOM_TOKENS, Source, Synthetic,
        TokenizerSource, Unmatched,
    },
    dialect::VllmVersion,
    error::PlayError,
    example::Example,
    front::{ApiKeys, Cors, ServerOptions},
    generation::{GenerationConfig, GenerationSource},
    options::{AnswerOptions, Fingerprint},
    pace::UnmatchedPace,
    synthetic::SyntheticOptions,
};
use crate::{
    api::{ApiError, RequestTemplates, Served, ToolParsing, VocabularyLimits},
    base::stats::Lateness,
    engine::guided::{Guide, GuideError},
    net::server::{self, DrainReport, Listener, Peer, Workers},
    replay::account::{Both, Ledger},
    replay::timing::{Pacer, Pacing},
    text::prompt::{ChatTemplate, SpecialTokens, Tokenizer},
};

/// A loaded replay server; [`Config`] has an example.
#[derive(Debug, Clone)]
pub struct Player {
    state: Arc<State>,
}

/// Contents of a player, for a start-up message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// The trace in a few words; `None` for synthetic tokens.
    pub trace: Option<String>,
    /// Records that can be served.
    pub records: usize,
    /// All records of the trace.
    pub all_records: usize,
    /// The model's names.
    pub models: Vec<String>,
    /// The tokenizer's name.
    pub tokenizer: String,
    /// Records of cassettes, where there are any cassettes.
    pub cassettes: Option<usize>,
    /// A request that a record answers, or any where tokens are made up; `None` where none is known.
    pub example: Option<Example>,
}

impl Player {
    /// Reads the trace and the tokenizer and checks that they belong together.
    ///
    /// # Errors
    /// One [`PlayError`] per way this fails, each with the next step.
    pub fn load(config: Config) -> Result<Self, PlayError> {
        let loaded = load::load(&config)?;
        let root = config.answers.model.clone().unwrap_or(loaded.model);
        let models = match (config.served_model_names.as_slice(), loaded.recorded_models) {
            ([], recorded) if recorded.len() > 1 => recorded,
            ([], _) => vec![root.clone()],
            (named, _) => named.to_vec(),
        };
        let hash = xxh3_64_with_seed(loaded.tokenizer.fingerprint().as_bytes(), config.seed);
        let fingerprint = config.answers.fingerprint.text(info::ENGINE_VERSION, hash);
        let (replay, tokenizer) = (loaded.replay, loaded.tokenizer);
        let has_media = |replay: &load::Replay| replay.records.iter().any(|record| record.has_media());
        let takes_media = config.multimodal || replay.as_deref().is_some_and(has_media);
        let template = config.chat_template.as_deref().map(|given| template::load(given, &tokenizer)).transpose()?;
        // The one in the binary is no model's of a cassette.
        let is_of_model = match config.tokenizer {
            TokenizerSource::BuiltIn => matches!(config.source, Source::Files(_) | Source::Trace { .. }),
            TokenizerSource::Spec(_) | TokenizerSource::Loaded(_) => true,
            TokenizerSource::None => false,
        };
        if let Some(cassette_player) = config.cassette_player.as_ref().filter(|_| is_of_model) {
            cassette_player.count_with(tokenizer.clone());
        }
        let sampling = SamplingDefaults::load(&config.generation, &tokenizer)?;
        let generation = config.generation.given(&tokenizer)?;
        let ids = AtomicU64::new(random());
        let metrics = Arc::new(Metrics::new(loaded.max_model_len));
        let parsers = Arc::new(Parsers::new(config.parsers, &tokenizer));
        let kept = config.server.responses_store.then(Arc::default);
        Ok(Self {
            state: Arc::new(State {
                config,
                max_model_len: loaded.max_model_len,
                takes_media,
                replay,
                tokenizer,
                template,
                sampling,
                generation,
                models,
                root,
                fingerprint,
                ids,
                guide: OnceLock::new(),
                turns: Turns::new(),
                draws: Semaphore::new(std::thread::available_parallelism().map_or(1, NonZero::get)),
                metrics,
                lateness: Arc::default(),
                memo: RequestCache::new(),
                samples: Samples::default(),
                parsers,
                dev: Arc::new(Development::new()),
                kept,
            }),
        })
    }

    /// The tokenizer in the binary.
    ///
    /// # Errors
    /// None that a test does not catch first.
    pub fn builtin_tokenizer() -> Result<Tokenizer, PlayError> {
        builtin::tokenizer()
    }

    /// Describes what is served.
    #[must_use]
    pub fn serving(&self) -> Serving {
        let replay = self.state.replay.as_ref();
        Serving {
            trace: replay.map(|replay| replay.name.clone()),
            records: replay.map_or(0, |replay| replay.served_records()),
            all_records: replay.map_or(0, |replay| replay.records.len()),
            models: self.state.models.clone(),
            tokenizer: self.state.tokenizer.name().to_owned(),
            cassettes: self.state.config.cassette_player.as_ref().map(|cassette_player| cassette_player.len()),
            example: Example::of(&self.state),
        }
    }

    /// Serves on a bound listener until `shutdown` completes, then drains.
    pub async fn serve(&self, listener: impl Into<Listener>, shutdown: impl Future<Output = ()>) -> DrainReport {
        let early = Arc::clone(&self.state);
        tokio::task::spawn_blocking(move || early.warm());
        let app = front::app(self);
        let may_forward = self.state.config.cassette_player.is_some();
        let make = move || {
            let (app, pacer) = (app.clone(), Pacer::precise());
            move |mut request: Request<Incoming>, peer: Peer| {
                if may_forward {
                    request.extensions_mut().insert(peer.informational);
                }
                let clock = Clock { pacer: pacer.clone(), lateness: peer.lateness };
                front::answer(app.clone(), clock, request)
            }
        };
        let options = front::connection_options(self.state.config.server.idle);
        let listener = listener.into().with_http2().with_options(options);
        let listener = listener.with_lateness(Arc::clone(&self.state.lateness));
        let workers = Workers::new(self.state.config.threads);
        server::run_on(&workers, listener, make, shutdown, self.state.config.drain).await
    }

    /// The account of what was served; `None` where nothing was recorded.
    #[must_use]
    pub fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.state.ledger()
    }

    /// Lateness of the events that left so far.
    #[must_use]
    pub fn lateness(&self) -> &Lateness {
        &self.state.lateness
    }
}

/// State that all requests share; nothing in it is locked across a wait.
#[derive(Debug)]
struct State {
    config: Config,
    /// Prompt and output tokens that a request may have together.
    max_model_len: u32,
    /// True where images, audio and video are taken.
    takes_media: bool,
    /// `None` for synthetic tokens.
    replay: Option<Arc<load::Replay>>,
    tokenizer: Tokenizer,
    /// The server's own chat template, which wins over the tokenizer's.
    template: Option<ChatTemplate>,
    sampling: SamplingDefaults,
    /// Parameters of generation in the model's configuration, by its names.
    generation: Map<String, Value>,
    /// At least one.
    models: Vec<String>,
    /// The engine's model: a Hub id or a directory.
    root: String,
    fingerprint: Option<String>,
    ids: AtomicU64,
    /// Made with the first text that has to conform.
    guide: OnceLock<Result<Guide, GuideError>>,
    turns: Turns,
    /// One for each text with a constraint that may be made up at a time: they take a processor and up to some hundred
    /// megabytes.
    draws: Semaphore,
    metrics: Arc<Metrics>,
    lateness: Arc<Lateness>,
    memo: RequestCache,
    /// Those of a server without a trace; with one each session has its own.
    samples: Samples,
    parsers: Arc<Parsers>,
    dev: Arc<Development>,
    /// The responses that are kept, where they are.
    kept: Option<Arc<Kept>>,
}

impl State {
    /// Makes now, beside the first requests, what one of them would have to wait for: up to 0.1 s for a large vocabulary.
    fn warm(&self) {
        let _ = self.tokenizer.words();
        let _ = self.tokenizer.ordinary_ids();
        let _ = self.tokenizer.encode("Hello there, 1 + 1!", SpecialTokens::Skip);
    }

    /// That of cassettes, of the trace, or of both.
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let cassette_player =
            self.config.cassette_player.clone().map(|cassette_player| cassette_player as Arc<dyn Ledger>);
        let replay = self.replay.clone().map(|replay| replay as Arc<dyn Ledger>);
        match (cassette_player, replay) {
            (Some(first), Some(behind)) => Some(Arc::new(Both { first, behind })),
            (cassette_player, replay) => cassette_player.or(replay),
        }
    }

    /// Weight of a request by the bytes of its body. A chat template of its own may do much in few bytes.
    fn weight_of(&self, bytes: usize) -> usize {
        match self.config.request_templates {
            RequestTemplates::Trusted => bytes.max(INLINE_BYTES + 1),
            RequestTemplates::Refused => bytes,
        }
    }

    /// A number that was not given out before.
    fn fresh_seed(&self) -> u64 {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        xxh3_64_with_seed(&count.to_le_bytes(), self.config.seed)
    }

    /// An id as the engine makes them: 16 hexadecimal digits, the lower half of a random UUID.
    fn fresh_id(&self) -> String {
        format!("{:016x}", (self.fresh_seed() >> 2) | 0x8000_0000_0000_0000)
    }

    /// Tokens per block of the prefix cache: as configured, or as in the trace.
    fn block_size(&self) -> u32 {
        let traced = || u32::try_from(self.replay.as_ref()?.hasher.block_size()).ok();
        self.config.block_size.map(NonZeroU32::get).or_else(traced).unwrap_or(info::DEFAULT_BLOCK_SIZE)
    }

    /// The models and limits that requests are validated with.
    fn served(&self) -> Served<'_> {
        let tools = self.parsers.formats.tools;
        Served {
            models: &self.models,
            templates: self.config.request_templates,
            tools: tools.map_or(ToolParsing::Unavailable, |_| ToolParsing::Available),
            max_model_len: self.max_model_len,
        }
    }

    fn vocabulary(&self) -> VocabularyLimits {
        let vocabulary = self.tokenizer.model_vocabulary();
        VocabularyLimits { vocabulary, most_logprobs: self.config.max_logprobs }
    }

    fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name.filter(|name| !name.is_empty() && !self.models.iter().any(|served| served == name)) {
            Some(name) => Err(ApiError::unknown_model(name, &self.models)),
            None => Ok(()),
        }
    }

    /// The model that answers: the one that is asked where records of several models are served, else the first one.
    fn asked_model<'a>(&'a self, asked: Option<&'a str>) -> &'a str {
        let by_model = self.replay.as_ref().is_some_and(|replay| replay.matcher.rules().by_model);
        asked.filter(|name| by_model && !name.is_empty()).unwrap_or_else(|| self.first_model())
    }

    /// The model of requests that name none.
    #[allow(clippy::expect_used)] // an empty name would be a wrong answer
    fn first_model(&self) -> &str {
        self.models.first().expect("invariant: a player serves at least one model")
    }

    /// Checks whether a request names no model, and several were recorded.
    fn takes_any_model(&self, asked: Option<&str>) -> bool {
        asked.is_none_or(str::is_empty) && self.replay.as_ref().is_some_and(|replay| replay.matcher.rules().by_model)
    }

    /// Kind of tokens that are made up where nothing was recorded.
    fn synthetic(&self) -> Synthetic {
        match self.config.source {
            Source::Synthetic(synthetic) => synthetic,
            Source::BuiltIn | Source::Files(_) | Source::Trace { .. } => Synthetic::Random,
        }
    }

    /// Pacing of made-up tokens.
    fn made_up_pacing(&self) -> Pacing {
        let recorded = self.config.pacing;
        let replay = self.replay.as_ref().filter(|_| self.config.unmatched_pace == UnmatchedPace::Trace);
        replay.and_then(|replay| replay.pace).map_or(recorded, |pace| pace.pacing(recorded))
    }

    fn echoes(&self) -> bool {
        self.synthetic() == Synthetic::Echo
    }

    /// The `x-request-id` of the answer, where answers have one.
    fn request_id_header(&self, headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
        if !self.config.request_id_headers {
            return None;
        }
        let name = HeaderName::from_static("x-request-id");
        let sent = headers.get(&name).cloned();
        let value = sent.or_else(|| HeaderValue::from_str(&format!("{}{}", self.fresh_id(), self.fresh_id())).ok())?;
        Some((name, value))
    }
}
