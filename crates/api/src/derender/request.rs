//! Requests to derender, read.

use serde_json::Value;

use super::{
    read::{StreamState, TokenAnswer, int, ints, items},
    schema::{DerenderKind, member},
};
use crate::{Api, ApiError, GenerationRequest, json};

/// Tokens that are to be made into text.
#[derive(Debug, Clone, PartialEq)]
pub enum DerenderRequest {
    /// Whole answers.
    Whole(Box<DerenderWhole>),
    /// One chunk of a stream.
    Chunk(Box<DerenderChunk>),
}

/// Whole answers: one to a chat, one for each prompt of a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct DerenderWhole {
    /// The model that the answer names.
    pub model: Option<String>,
    /// The answers.
    pub answers: Vec<TokenAnswer>,
    /// Tokens of each answer's prompt, as far as they were counted.
    pub prompt_tokens: Vec<i64>,
    /// The ids of each answer's prompt, as far as they were sent beside the answers.
    pub prompts: Vec<Option<Vec<i64>>>,
    /// The request that they answer.
    pub request: Option<GenerationRequest>,
}

/// One chunk of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct DerenderChunk {
    /// The model that the answer names.
    pub model: Option<String>,
    /// The chunk.
    pub chunk: TokenAnswer,
    /// State after the chunks before it; `None` for the first.
    pub state: Option<StreamState>,
    /// Tokens of the prompt, where they were counted.
    pub prompt_tokens: Option<i64>,
    /// The prompt's ids, where they were sent beside the chunk.
    pub prompt: Option<Vec<i64>>,
    /// The request that it answers.
    pub request: Option<GenerationRequest>,
}

impl DerenderRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The engine's or the framework's error for a body that does not fit.
    pub fn parse(api: Api, body: &[u8]) -> Result<Self, ApiError> {
        let body = match json::read(body)? {
            None | Some(Value::Null) => return Err(json::missing_body()),
            Some(body) => body,
        };
        Ok(match member(api, &body)? {
            DerenderKind::Whole(request) => Self::Whole(Box::new(DerenderWhole::read(api, &body, request))),
            DerenderKind::Chunk(request) => Self::Chunk(Box::new(DerenderChunk::read(&body, request))),
        })
    }

    /// The model that was named.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        let model = match self {
            Self::Whole(whole) => &whole.model,
            Self::Chunk(chunk) => &chunk.model,
        };
        model.as_deref().filter(|model| !model.is_empty())
    }
}

impl DerenderWhole {
    fn read(api: Api, body: &Value, request: Option<GenerationRequest>) -> Self {
        let answer = |value: &Value| TokenAnswer::read(value, Some("stop"));
        let ids = |value: &Value| value.as_array().map(|ids| ints(ids));
        let (answers, prompt_tokens, prompts) = match api {
            Api::Chat => (
                body.get("generate_response").map(answer).into_iter().collect(),
                given(body, "prompt_tokens").map(int).into_iter().collect(),
                vec![body.get("prompt_token_ids").and_then(ids)],
            ),
            Api::Completions => (
                items(body.get("generate_responses")).iter().map(answer).collect(),
                ints(items(body.get("prompt_tokens"))),
                items(body.get("prompt_token_ids")).iter().map(ids).collect(),
            ),
        };
        Self { model: text(body, "model"), answers, prompt_tokens, prompts, request }
    }

    /// The ids that an answer's text follows: those beside it, or else its own.
    #[must_use]
    pub fn prompt_of(&self, answer: usize) -> &[i64] {
        let beside = self.prompts.get(answer).and_then(Option::as_ref);
        let own = || self.answers.get(answer).and_then(|answer| answer.prompt_ids.as_ref());
        beside.or_else(own).map(Vec::as_slice).unwrap_or_default()
    }
}

impl DerenderChunk {
    fn read(body: &Value, request: Option<GenerationRequest>) -> Self {
        Self {
            model: text(body, "model"),
            chunk: TokenAnswer::read(body.get("generate_chunk").unwrap_or(&Value::Null), None),
            state: given(body, "stream_state").map(StreamState::read),
            prompt_tokens: given(body, "prompt_tokens").map(int),
            prompt: body.get("prompt_token_ids").and_then(Value::as_array).map(|ids| ints(ids)),
            request,
        }
    }

    /// The ids that its text follows, where it is the first: those beside it, or else its own.
    #[must_use]
    pub fn seed(&self) -> &[i64] {
        self.prompt.as_ref().or(self.chunk.prompt_ids.as_ref()).map(Vec::as_slice).unwrap_or_default()
    }
}

fn given<'a>(body: &'a Value, name: &str) -> Option<&'a Value> {
    body.get(name).filter(|value| !value.is_null())
}

fn text(body: &Value, name: &str) -> Option<String> {
    body.get(name).and_then(Value::as_str).map(str::to_owned)
}
