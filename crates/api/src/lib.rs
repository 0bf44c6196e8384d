//! The OpenAI-style API as vLLM 0.32 speaks it: requests read and judged, answers and errors as bytes.
//!
//! A request goes through vLLM's stages in vLLM's order, so that a body with two faults gets the error that the engine
//! would give: `json` (is it JSON), `rules` (checks on the raw body), `fields` (tables of every field,
//! its type and its range, which `schema` judges by; `issues` has pydantic's words), then the model's name, the prompt's length and the sampling ranges (`sampling`).
//! Unknown fields are accepted.
//!
//! Limits: no HTTP here, and no tokens are counted here.
//! What `response_format` and `structured_outputs` ask for is a [`Constraint`] here;
//! whether its schema or grammar is one is judged where text is made.

mod answer;
pub mod answers;
pub mod anthropic;
mod batch;
mod body;
mod conversation;
pub mod derender;
pub mod development;
pub mod endpoints;
mod error;
mod escape;
mod event_options;
mod fields;
mod issues;
mod json;
mod json_tree;
mod kv_transfer;
mod logprobs;
pub mod lora;
mod messages;
mod python;
mod query;
mod request;
mod request_metrics;
pub mod responses;
mod rules;
mod sampling;
mod schema;
mod semantic_fault;
mod stream;
mod stream_end;
mod structured;
pub mod token_in_out;
mod tokenize;
mod tool_choice;
mod truncation;
mod unserved;
mod usage;
mod values;
mod vocabulary;

/// The generation endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// Events of a stream that have token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageEvents {
    /// Nowhere.
    #[default]
    None,
    /// In an event of its own at the end (`include_usage`).
    AtEnd,
    /// There, and on every event (`continuous_usage_stats`).
    EveryEvent,
}

pub use answer::{AnswerChoice, AnswerMessage, MessageCall};
pub use batch::{batch_body, batch_request};
pub use conversation::{ChatPrompt, RequestTemplates, template_kwargs};
pub use endpoints::Endpoint;
pub use error::{ApiError, RecordedError};
pub use event_options::EventOptions;
pub use kv_transfer::{KvTransferParams, RemotePrefill};
pub use logprobs::{
    CandidateToken, Digits, LogprobsOptions, Position, Spelling, WholeLogprobs, chat_logprobs, completion_logprobs,
    prompt_logprobs,
};
pub use query::Query;
pub use request::{
    ADAPTER_HEADER, GenerationInput, GenerationRequest, MaxTokens, PromptInput, ServerProfile, invocation,
};
pub use request_metrics::RequestTimes;
pub use semantic_fault::SemanticFault;
pub use stream::{AnswerHead, AnswerNames, ChoiceChunk, Opening, StopReason};
pub use stream_end::{DONE, ends_response, ends_stream, is_last_event_type};
pub use structured::{Constraint, constraint_of};
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest, TokenizeResponse};
pub use tool_choice::ToolUse;
pub use truncation::{Truncation, TruncationSide};
pub use usage::{CacheUse, CachedTokens, Usage};
pub use values::is_set;
pub use vocabulary::VocabularyLimits;
