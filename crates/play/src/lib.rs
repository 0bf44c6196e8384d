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
//! Reasoning and tool calls are taken out of the text by the parsers of the server ([`parsers`](text::parsers)), as the
//! engine does it; without parsers they stay text.
//!
//! Limits: several prompts of one request are matched one by one.

mod admin_calls;
mod answer;
mod cassettes;
mod config;
mod dialect;
mod endpoints;
mod engine;
mod engine_core;
mod error;
mod example;
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
mod server;
mod settings;
mod simulator;
mod state;

use self::state::{HandlerState, ServerState};
pub use crate::{
    config::{
        AnswerOptions, Config, DEFAULT_BODY_LIMIT, DEFAULT_GPU_BLOCKS, DEFAULT_IDS, DEFAULT_MODEL_LEN,
        DEFAULT_RANDOM_TOKENS, Fingerprint, GenerationConfig, GenerationSource, LoraConfig, LoraModule, ServerOptions,
        SimulatorOptions, Source, Synthetic, SyntheticOptions, TokenizerSource, Unmatched, UnmatchedPace,
    },
    dialect::VllmVersion,
    engine::{EngineConfig, EngineError, EngineTimes, KvEventsConfig, KvEventsError, KvRole, KvTransferConfig},
    engine_core::{EngineCoreConfig, EngineCoreError},
    error::PlayError,
    example::ExampleRequest,
    faults::{
        FAILURE_TYPES, FaultFileError, FaultLines, InjectedFailures, ServedChunk, ServedEnd, ServedKey, ServedLog,
        ServedResponse, ServerFaults, fault_of_record,
    },
    fleet::{Fleet, FleetScript, ScriptError},
    front::{ApiKeys, Cors},
    load::{builtin::TRACE_NAME, load_tokenizer},
    server::Serving,
    state::Player,
};
