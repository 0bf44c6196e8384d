//! The replay server: a vLLM-compatible OpenAI server without a model.
//!
//! A request is validated as the engine does, rendered and tokenized, matched once, and its record is streamed: the
//! recorded tokens, chunk by chunk, each at its recorded distance from the request's arrival. Text comes from the tokens
//! through the incremental detokenizer, so stop strings, `max_tokens` and `return_token_ids` work on a record as they
//! did on the engine.
//!
//! Rules: `max_tokens` beyond the record ends where the record does, with its finish reason; a smaller one cuts it with
//! `length`. `ignore_eos` does nothing on a record. A record that was cut short (its client left) ends with `abort`, and
//! counts as none that finished; one
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

mod admin_calls;
mod answer;
mod cassettes;
mod dialect;
mod engine;
mod engine_core;
mod error;
mod faults;
mod fleet;
mod front;
mod generate;
mod http;
mod live;
mod load;
pub mod mcp;
mod metrics;
mod middleware;
mod page;
mod rare;
mod recorded;
mod request;
mod routes;
mod selection;
mod settings;
mod simulator;
mod state;

use std::{future::Future, sync::Arc};

use ::http::Request;
use hyper::body::Incoming;

use self::state::ServerState;
pub use crate::play::{
    dialect::VllmVersion,
    engine::{EngineConfig, EngineError, EngineTimes, KvEventsConfig, KvEventsError, KvRole, KvTransferConfig},
    engine_core::{EngineCoreConfig, EngineCoreError},
    error::PlayError,
    faults::{
        FAILURE_TYPES, FaultFileError, FaultLines, InjectedFailures, ServedChunk, ServedEnd, ServedKey, ServedLog,
        ServedResponse, ServerFaults, fault_of_record,
    },
    fleet::{Fleet, FleetScript, ScriptError},
    front::{ApiKeys, Cors, ServerOptions},
    generate::{
        generation::{GenerationConfig, GenerationSource},
        pace::UnmatchedPace,
        synthetic::SyntheticOptions,
    },
    load::{
        adapters::{LoraConfig, LoraModule},
        builtin::TRACE_NAME,
        config::{
            AnswerOptions, Config, DEFAULT_BODY_LIMIT, DEFAULT_IDS, DEFAULT_MODEL_LEN, DEFAULT_RANDOM_TOKENS,
            Fingerprint, Source, Synthetic, TokenizerSource, Unmatched,
        },
        example::ExampleRequest,
        load_tokenizer,
    },
    simulator::SimulatorOptions,
};
use crate::{
    base::stats::Lateness,
    net::server::{self, DrainReport, Listener, Peer, UntilStopping, Workers},
    recording::trace::Trace,
    replay::{
        account::{Access, Ledger, Router},
        delivery::Clock,
        mcp_traffic::McpRecorded,
        timing::Pacer,
    },
    text::prompt::Tokenizer,
};

/// A loaded replay server; [`Config`] has an example.
#[derive(Debug, Clone)]
pub struct Player {
    state: Arc<ServerState>,
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
    /// Records of cassettes, where there are any cassettes; those of MCP servers aside.
    pub cassettes: Option<usize>,
    /// Rules of files of answers.
    pub rules: usize,
    /// Records of MCP servers in cassettes, by the name of the server.
    pub mcp: Vec<(String, usize)>,
    /// A request that a record answers, or any where tokens are made up; `None` where none is known.
    pub example: Option<ExampleRequest>,
}

impl Player {
    /// Reads the trace and the tokenizer and checks that they belong together.
    ///
    /// # Errors
    /// One [`PlayError`] per way this fails, each with the next step.
    pub fn load(config: Config) -> Result<Self, PlayError> {
        let loaded = load::load(&config)?;
        // The one in the binary is no model's of a cassette.
        let is_of_model = match config.tokenizer {
            TokenizerSource::BuiltIn => matches!(config.source, Source::Files(_) | Source::Trace { .. }),
            TokenizerSource::Spec(_) | TokenizerSource::Loaded(_) => true,
            TokenizerSource::None => false,
        };
        if let Some(cassette_player) = config.cassette_player.as_ref().filter(|_| is_of_model) {
            cassette_player.count_with(loaded.tokenizer.clone());
        }
        if let Some(cassette_player) = &config.cassette_player {
            cassette_player.draw_with(loaded.tokenizer.clone());
        }
        Ok(Self { state: Arc::new(ServerState::new(config, loaded)?) })
    }

    /// The trace in the binary.
    ///
    /// # Errors
    /// None that a test does not catch first.
    pub fn builtin_trace() -> Result<Trace, PlayError> {
        load::builtin::trace()
    }

    /// The tokenizer in the binary.
    ///
    /// # Errors
    /// None that a test does not catch first.
    pub fn builtin_tokenizer() -> Result<Tokenizer, PlayError> {
        load::builtin::tokenizer()
    }

    /// Describes what is served.
    #[must_use]
    pub fn serving(&self) -> Serving {
        let (replay, cassette_player) = (self.state.replay.as_ref(), self.state.config.cassette_player.as_ref());
        Serving {
            trace: replay.map(|replay| replay.name.clone()),
            records: replay.map_or(0, |replay| replay.served_records()),
            all_records: replay.map_or(0, |replay| replay.records.len()),
            models: self.state.model.names.clone(),
            tokenizer: self.state.model.tokenizer.name().to_owned(),
            cassettes: cassette_player.map(|cassette_player| cassette_player.len()),
            rules: cassette_player.and_then(|player| player.answers()).map_or(0, |rules| rules.len()),
            mcp: cassette_player.map(|cassette_player| cassette_player.mcp().counts()).unwrap_or_default(),
            example: ExampleRequest::of(&self.state),
        }
    }

    /// Serves on a bound listener until `shutdown` completes, then drains.
    pub async fn serve(&self, listener: impl Into<Listener>, shutdown: impl Future<Output = ()>) -> DrainReport {
        self.state.begin();
        let early = Arc::clone(&self.state.model);
        tokio::task::spawn_blocking(move || early.warm());
        let app = front::app(self);
        let may_forward = self.state.config.cassette_player.is_some();
        let block = self.state.config.cassette_player.as_ref().and_then(|player| player.network_block()).cloned();
        let make = move || {
            let (app, pacer, block) = (app.clone(), Pacer::precise(), block.clone());
            move |mut request: Request<Incoming>, peer: Peer| {
                if may_forward {
                    request.extensions_mut().insert(peer.informational);
                }
                let clock = Clock { pacer: pacer.clone(), lateness: peer.lateness };
                let request = request.map(|body| UntilStopping::new(body, peer.stopping));
                front::answer(Arc::clone(&app), clock, block.clone(), request)
            }
        };
        let options = front::connection_options(self.state.config.server.idle);
        let listener = listener.into().with_http2().with_options(options);
        self.state.serves_at(listener.local_addr());
        let listener = listener.with_lateness(Arc::clone(&self.state.lateness));
        let workers = Workers::new(self.state.config.threads);
        let mcp = self.state.mcp.clone();
        let shutdown = async move {
            shutdown.await;
            mcp.iter().for_each(|service| service.end_streams());
        };
        let drained = server::run_on(&workers, listener, make, shutdown, self.state.config.drain).await;
        if let Some(cassette_player) = &self.state.config.cassette_player {
            cassette_player.completed().await;
        }
        drained
    }

    /// The account of what was served; `None` where nothing was recorded.
    #[must_use]
    pub fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.state.ledger()
    }

    /// The pages of `/vcr/…`, for a listener of their own.
    pub fn admin_pages(&self, access: &Access) -> Router {
        routes::admin_pages(self, access)
    }

    /// Ends the recording of real MCP servers, after [`serve`](Self::serve) and before the cassette is closed; blocks until their records
    /// are handed over. `None` where there are none.
    #[must_use]
    pub fn finish_mcp(&self) -> Option<McpRecorded> {
        self.state.mcp.as_ref()?.finish()
    }

    /// Lateness of the events that left so far.
    #[must_use]
    pub fn lateness(&self) -> &Lateness {
        &self.state.lateness
    }
}
