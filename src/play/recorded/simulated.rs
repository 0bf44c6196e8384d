//! Recorded responses of a trace as a simulated engine computes them.
//!
//! Limits: the choices of a request are one request of the engine, with the tokens of the first.

use serde_json::Value;

use super::{Candidate, answer};
use crate::{
    net::wire::json_as_utf8,
    play::State,
    recording::trace::{Record, Response},
    replay::player::{EngineExchange, EngineInput, Generated, GeneratedChoice, response_texts},
};

/// A request and its record.
pub(super) struct Exchange<'a> {
    pub(super) record: &'a Record,
    pub(super) response: &'a Response,
    pub(super) request: &'a Candidate,
}

impl Exchange<'_> {
    /// Counts of the response, with its token ids.
    pub(super) fn generated(&self, state: &State) -> Generated {
        let Self { record, .. } = self;
        Generated {
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.cached_tokens.unwrap_or(0),
            max_tokens: record.output_tokens,
            choices: vec![GeneratedChoice { tokens: record.output_tokens, finish: answer::finish(record) }],
            engine_input: self.engine_input(state),
        }
    }

    fn engine_input(&self, state: &State) -> Option<EngineInput> {
        let Self { record, response, request } = self;
        let body: Value = serde_json::from_slice(&json_as_utf8(&request.body)).unwrap_or_default();
        let path = request.uri.path();
        let exchange = EngineExchange {
            path,
            bytes: &request.body,
            body: &body,
            session: request.headers.get("x-session-id").and_then(|value| value.to_str().ok()),
            prompt_tokens: record.prompt_tokens,
            outputs: vec![(record.output_tokens, response_texts(path, response).concat())],
        };
        let model = &state.model;
        let tokenizer = Some(&model.tokenizer).filter(|tokenizer| !tokenizer.is_ids_only());
        EngineInput::of(&exchange, tokenizer, model.max_model_len)
    }
}
