//! `/tokenize` and `/detokenize`.
//!
//! Deviation: the schema of these two endpoints is checked for its required fields only.

use serde::Serialize;

use super::{
    conversation::{ChatPrompt, chat_prompt},
    error::ApiError,
    request::{Body, object},
    values::{Issue, issues_error, list, text},
};

/// A request to `/tokenize`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    /// The model that was asked for.
    pub model: Option<String>,
    /// What to tokenize.
    pub input: TokenizeInput,
    /// Whether the tokenizer's own special tokens are added.
    pub add_special_tokens: bool,
    /// Whether the tokens are told as texts too.
    pub return_token_strs: bool,
}

/// What to tokenize.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeInput {
    /// Text as it is.
    Prompt(String),
    /// A conversation, rendered first.
    Chat(ChatPrompt),
}

impl TokenizeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Not JSON, not an object, or neither `prompt` nor `messages` in it.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let map = object(body)?;
        let body = Body(&map);
        let input = if let Some(messages) = map.get("messages") {
            list(messages, "body.messages").map_err(|issue| issues_error([issue]))?;
            TokenizeInput::Chat(chat_prompt(&body))
        } else {
            let Some(prompt) = map.get("prompt") else {
                let missing = ["TokenizeCompletionRequest.prompt", "TokenizeChatRequest.messages"]
                    .map(|field| Issue::missing(format!("body.{field}"), map.len()));
                return Err(issues_error(missing));
            };
            let prompt = text(prompt, "body.prompt").map_err(|issue| issues_error([issue]))?;
            TokenizeInput::Prompt(prompt.to_owned())
        };
        let is_chat = matches!(input, TokenizeInput::Chat(_));
        Ok(Self {
            model: body.text("model"),
            add_special_tokens: body.flag("add_special_tokens", !is_chat),
            return_token_strs: body.flag("return_token_strs", false),
            input,
        })
    }
}

/// The answer of `/tokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenizeResponse {
    /// Number of tokens.
    pub count: usize,
    /// The model's length in tokens.
    pub max_model_len: u32,
    /// The ids.
    pub tokens: Vec<u32>,
    /// The tokens as the vocabulary spells them, where they were asked for.
    pub token_strs: Option<Vec<String>>,
}

/// A request to `/detokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// The model that was asked for.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Not JSON, not an object, or without a list `tokens`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let map = object(body)?;
        let fault = match map.get("tokens") {
            Some(tokens) => list(tokens, "body.tokens").err(),
            None => Some(Issue::missing("body.tokens".to_owned(), map.len())),
        };
        if let Some(issue) = fault {
            return Err(issues_error([issue]));
        }
        let body = Body(&map);
        Ok(Self { model: body.text("model"), tokens: body.ids("tokens") })
    }
}
