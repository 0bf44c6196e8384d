//! Chat answers read back: what the other families make theirs of.
//!
//! The engine makes its Messages and Responses answers from chat deltas, and so does this: whatever a chat stream holds,
//! reasoning, tool calls and failures included, the other families have in their own shapes.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

/// One event of a chat stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ChatEvent {
    /// A chunk.
    Chunk(Box<ChatChunk>),
    /// The engine failed; nothing but the end follows.
    Failed,
    /// The end.
    Done,
    /// Nothing that concerns an answer, such as a comment.
    Other,
}

impl ChatEvent {
    /// Reads the bytes of one event.
    pub(super) fn read(event: &[u8]) -> Self {
        let Some(data) = event.strip_prefix(b"data: ") else { return Self::Other };
        if data.starts_with(b"[DONE]") {
            return Self::Done;
        }
        serde_json::from_slice(data).map_or(Self::Failed, Self::Chunk)
    }
}

/// Sets a field of an object, in its place if it has one.
pub(super) fn put(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(name.to_owned(), value);
    }
}

/// Makes a stream of another family from a chat or completions stream, event by event.
pub trait Translate {
    /// Takes the bytes of one event and appends what it comes to.
    fn translate(&mut self, event: &[u8], out: &mut VecDeque<Bytes>);
}

/// A chunk of a chat stream.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ChatChunk {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) choices: Vec<ChunkChoice>,
    pub(super) usage: Option<ChatUsage>,
    pub(super) metrics: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct ChunkChoice {
    #[serde(default)]
    pub(super) delta: Said,
    pub(super) finish_reason: Option<String>,
    pub(super) stop_reason: Option<Value>,
}

/// The content of a delta or of a whole message.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    pub(super) content: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolCall {
    pub(super) index: usize,
    pub(super) id: Option<String>,
    pub(super) function: Option<Function>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct Function {
    pub(super) name: Option<String>,
    pub(super) arguments: Option<String>,
}

/// Token counts of a chat.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatUsage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: Option<u64>,
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    pub(super) completion_tokens_details: Option<OutputDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct OutputDetails {
    pub(super) reasoning_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(super) struct PromptDetails {
    pub(super) cached_tokens: Option<u64>,
    pub(super) created_cache_tokens: Option<u64>,
}

/// A whole chat answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ChatAnswer {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) choices: Vec<AnswerChoice>,
    pub(super) usage: ChatUsage,
    pub(super) metrics: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct AnswerChoice {
    pub(super) message: Said,
    pub(super) finish_reason: Option<String>,
    pub(super) stop_reason: Option<Value>,
}

impl ChatAnswer {
    /// Reads the body of a chat answer.
    ///
    /// # Errors
    /// Where it is none.
    pub fn read(body: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(body)
    }
}
