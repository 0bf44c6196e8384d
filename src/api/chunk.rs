//! Events of a chat stream, of which the events of messages and responses are made, as the engine does.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::answers::Answer;

/// One event of a chat stream.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatEvent {
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
    fn read(event: &[u8]) -> Self {
        event.strip_prefix(b"data: ").map_or(Self::Other, Self::parse)
    }

    /// Reads the data of one event.
    #[must_use]
    pub fn of(data: &Value) -> Self {
        match data {
            Value::String(text) => Self::parse(text.as_bytes()),
            data => ChatChunk::deserialize(data).map_or(Self::Failed, |chunk| Self::Chunk(Box::new(chunk))),
        }
    }

    fn parse(data: &[u8]) -> Self {
        if data.starts_with(b"[DONE]") {
            return Self::Done;
        }
        serde_json::from_slice(data).map_or(Self::Failed, Self::Chunk)
    }

    /// Sets the number of the prompt's tokens.
    pub fn set_prompt_tokens(&mut self, count: u32) {
        if let Self::Chunk(chunk) = self {
            let (prompt_tokens, completion_tokens) = (count.into(), Some(0));
            chunk.usage = Some(ChatUsage { prompt_tokens, completion_tokens, ..ChatUsage::default() });
        }
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

/// Makes a stream of another family from the events of a chat.
pub trait FromChat {
    /// Takes one event and appends the events that follow from it.
    fn add(&mut self, event: &ChatEvent, out: &mut VecDeque<Bytes>);
}

impl<T: FromChat> Translate for T {
    fn translate(&mut self, event: &[u8], out: &mut VecDeque<Bytes>) {
        self.add(&ChatEvent::read(event), out);
    }
}

/// A chunk of a chat stream.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ChatChunk {
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

impl ChatUsage {
    /// The token counts of a whole chat answer.
    pub(super) fn of(answer: &Answer) -> Self {
        answer.fields().get("usage").and_then(|usage| Self::deserialize(usage).ok()).unwrap_or_default()
    }
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
