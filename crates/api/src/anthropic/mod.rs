//! The Messages API as vLLM 0.32 speaks it: requests become chat requests, chat answers become messages.
//!
//! Reasoning and tool calls are where the chat answer has them. Limits: `thinking: disabled` always asks the chat
//! template for no reasoning (the engine tries out whether the template listens, and asks for little where it does not).

mod blocks;
mod request;
mod schema;
mod stream;

use serde_json::{Value, json};

pub use self::{
    request::{MessagesRequest, SystemMessages},
    stream::MessageEncoder,
};
use super::{
    ApiError,
    answers::{TokenCounts, put},
};

/// The body of an error that the engine's Messages handler found; what the framework finds has the usual body.
#[must_use]
pub fn error_body(error: &ApiError) -> String {
    json!({"type": "error", "error": {"type": error.kind, "message": error.message}}).to_string()
}

/// The body of a token count.
#[must_use]
pub fn count_body(tokens: usize) -> String {
    json!({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}).to_string()
}

/// Token counts: cached ones are separate where the server reports them at all.
fn usage(counts: TokenCounts) -> Value {
    let TokenCounts { prompt, cached, created, completion, .. } = counts;
    let apart = cached.unwrap_or(0).saturating_add(created.unwrap_or(0));
    let mut usage = json!({
        "input_tokens": prompt.unwrap_or(0).saturating_sub(apart),
        "output_tokens": completion.unwrap_or(0),
    });
    for (name, count) in [("cache_creation_input_tokens", created), ("cache_read_input_tokens", cached)] {
        if let Some(count) = count {
            put(&mut usage, name, count.into());
        }
    }
    usage
}

/// Use of tools in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolCompletion {
    Unused,
    Cut,
    Complete,
}

/// Finish of a chat that was filtered, and here of one with a refusal. The engine never sends either, a recorded or written answer may.
const REFUSED: &str = "content_filter";

/// `stop_reason` and `stop_sequence` for a chat's finish.
fn stop<'a>(
    finish: Option<&str>,
    stop: Option<&'a str>,
    tools: ToolCompletion,
) -> (Option<&'static str>, Option<&'a str>) {
    match finish {
        Some("length") => (Some("max_tokens"), None),
        Some(REFUSED) => (Some("refusal"), None),
        Some("stop" | "tool_calls") if tools == ToolCompletion::Complete => (Some("tool_use"), None),
        Some(finish @ ("stop" | "tool_calls")) => match stop {
            Some(text) => (Some("stop_sequence"), Some(text)),
            None if finish == "tool_calls" || tools == ToolCompletion::Cut => (Some("tool_use"), None),
            None => (Some("end_turn"), None),
        },
        _ => (None, None),
    }
}

/// A name of 32 hexadecimal digits for a block of reasoning, always the same for the same answer and place.
fn signature(id: &str, place: usize) -> String {
    let hash = |seed| xxhash_rust::xxh3::xxh3_64_with_seed(id.as_bytes(), seed);
    let place = u64::try_from(place).unwrap_or(u64::MAX);
    format!("{:016x}{:016x}", hash(place), hash(!place))
}
