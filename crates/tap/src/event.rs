//! One event of a recorded stream, decoded without copying: its fields, and their places in the bytes.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::channels::{ChannelText, PLAIN};
use api::answers::words::{CALLS, OF_MESSAGE, TextKind};
use net::wire::RawObject;

/// The channel of the first tool call's arguments; those of a `function_call` are in the one before.
const FIRST_CALL: u64 = 16;

/// An event's payload. Raw parts borrow from the payload, so that their place in it is known.
#[derive(Debug, Deserialize)]
pub(super) struct StreamEvent<'a> {
    #[serde(default, borrow)]
    pub(super) id: Option<Cow<'a, str>>,
    /// The id of responses of `/inference/v1/generate`, in place of `id`.
    #[serde(default, borrow)]
    pub(super) request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) choices: Vec<EventChoice<'a>>,
    pub(super) usage: Option<EngineUsage>,
    #[serde(default, borrow)]
    pub(super) prompt_token_ids: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) prompt_logprobs: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) system_fingerprint: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct EventChoice<'a> {
    #[serde(default)]
    pub(super) index: u32,
    #[serde(default, borrow)]
    pub(super) delta: Option<&'a RawValue>,
    #[serde(default, borrow)]
    message: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) text: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) logprobs: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) finish_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) token_ids: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) prompt_token_ids: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) prompt_logprobs: Option<&'a RawValue>,
}

/// Kind of one choice's part of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ChunkKind {
    /// The first chunk of a chat: a role without text.
    pub(super) is_role: bool,
    /// A tool or reasoning parser made it; old engines lose some ids of such streams.
    pub(super) is_parsed: bool,
    /// It has text, reasoning or a part of a tool call.
    pub(super) has_text: bool,
}

/// The engine's own count of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct EngineUsage {
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

impl EngineUsage {
    /// Creates counts; `cached` are the prompt tokens found in the prefix cache, if known.
    pub(super) fn of(prompt_tokens: u32, completion_tokens: u32, cached: Option<u32>) -> Self {
        let prompt_tokens_details = cached.map(|cached| PromptDetails { cached_tokens: Some(cached) });
        Self { prompt_tokens, completion_tokens, prompt_tokens_details }
    }

    /// Returns the prompt tokens found in the prefix cache; `None` if the engine does not count them.
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

impl<'a> StreamEvent<'a> {
    /// Reads a payload; `None` when it is not a JSON object of this shape.
    pub(super) fn read(payload: &'a [u8]) -> Option<Self> {
        is_object(payload).then(|| serde_json::from_slice(payload).ok()).flatten()
    }

    /// Returns the engine's count of output tokens so far, of the only choice of this event.
    pub(super) fn tokens_so_far(&self) -> Option<u32> {
        self.usage.filter(|_| self.choices.len() == 1).map(|usage| usage.completion_tokens)
    }

    /// Returns true for the event that only carries usage, after all choices have finished.
    pub(super) fn is_usage_only(&self) -> bool {
        self.choices.is_empty() && self.usage.is_some()
    }
}

impl<'a> EventChoice<'a> {
    pub(super) fn kind(&self) -> ChunkKind {
        let Some(delta) = self.message_delta() else {
            return ChunkKind { has_text: is_nonempty(self.text), ..ChunkKind::default() };
        };
        let (has_text, is_from_parser) = (delta.has_content(), delta.is_from_parser());
        ChunkKind {
            is_role: delta.has_role() && !has_text && self.token_ids.is_none() && self.finish_reason.is_none(),
            is_parsed: !delta.has_role() && (delta.content().is_none() || is_from_parser),
            has_text,
        }
    }

    fn message_delta(&self) -> Option<ChunkDelta<'_>> {
        self.delta.or(self.message).and_then(ChunkDelta::read)
    }

    /// Returns true if it has metadata only: an engine sends such an event only because ids were requested.
    pub(super) fn is_only_ids(&self) -> bool {
        let is = |value: Option<&RawValue>, text: &str| value.is_some_and(|value| value.get() == text);
        // vLLM's Rust front end sends a completion's prompt before its first token.
        let is_prompt = is(self.text, "\"\"") && is(self.token_ids, "[]") && self.prompt_token_ids.is_some();
        (is(self.delta, "{}") || is_prompt) && self.finish_reason.is_none() && self.logprobs.is_none()
    }

    /// Returns the plain text as JSON: a chat's content, or a completion's text.
    pub(super) fn content(&self) -> Option<&'a RawValue> {
        match self.delta {
            Some(delta) => ChunkDelta::read(delta)?.content(),
            None => self.text,
        }
    }

    /// Returns the texts of every kind with their channels: content, reasoning, a refusal, the arguments of each call.
    pub(super) fn texts(&self) -> Vec<ChannelText> {
        match self.message_delta() {
            Some(delta) => delta.texts(),
            None => {
                self.text.and_then(|text| Some((PLAIN, serde_json::from_str(text.get()).ok()?))).into_iter().collect()
            }
        }
    }

    /// Returns the length of this choice's JSON in bytes, a measure of how much text it has.
    pub(super) fn weight(&self) -> usize {
        self.delta.or(self.text).map_or(0, |part| part.get().len())
    }

    /// Returns the stop token, if the engine gave one as `stop_reason`.
    pub(super) fn stop_token(&self) -> Option<u32> {
        self.stop_reason.and_then(|reason| reason.get().parse().ok())
    }
}

/// Delta of a chat chunk, or a whole message.
struct ChunkDelta<'a>(RawObject<'a>);

impl<'a> ChunkDelta<'a> {
    fn read(json: &'a RawValue) -> Option<Self> {
        RawObject::read(json.get().as_bytes()).map(Self)
    }

    fn has_role(&self) -> bool {
        self.0.get("role").is_some()
    }

    fn content(&self) -> Option<&'a RawValue> {
        self.0.get("content")
    }

    fn has_content(&self) -> bool {
        OF_MESSAGE.iter().any(|(name, _)| is_nonempty(self.0.get(name))) || self.is_from_parser()
    }

    fn is_from_parser(&self) -> bool {
        let reasoning = OF_MESSAGE.iter().filter(|(_, words)| *words == TextKind::Reasoning).map(|(name, _)| *name);
        reasoning.chain(CALLS).any(|name| is_nonempty(self.0.get(name)))
    }

    /// Returns all texts, then the arguments of calls.
    fn texts(&self) -> Vec<ChannelText> {
        let plain = OF_MESSAGE.iter().zip(1..).filter_map(|((name, words), channel)| {
            let channel = if *words == TextKind::Text { PLAIN } else { channel };
            Some((channel, self.0.value::<String>(name)?))
        });
        let arguments = |call: &RawObject<'_>| call.value::<String>("arguments");
        let old = self.0.object("function_call").and_then(|call| Some((FIRST_CALL - 1, arguments(&call)?)));
        let calls: Vec<RawObject<'_>> = self.0.value("tool_calls").unwrap_or_default();
        let calls = calls.iter().zip(0..).filter_map(|(call, at)| {
            let index = call.value::<u64>("index").unwrap_or(at);
            Some((FIRST_CALL.saturating_add(index), arguments(&call.object("function")?)?))
        });
        plain.chain(old).chain(calls).collect()
    }
}

/// Returns true if an event of a stream leaves out fields without a value, as vLLM's Rust front end does; its Python one writes `null`.
pub(super) fn omits_empty_fields(payload: &[u8]) -> bool {
    let has = |name: &[u8]| payload.windows(name.len()).any(|window| window == name);
    !(has(b"\"finish_reason\"") && has(b"\"logprobs\""))
}

/// Returns true for a value that is present and not empty.
pub(super) fn is_nonempty(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| !matches!(value.get(), "null" | "\"\"" | "[]" | "{}"))
}

/// Returns true if JSON text is an object: serde would read a struct from a list too.
pub(super) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}

/// Reads a list of token ids; `None` for anything else.
pub(super) fn ids(raw: Option<&RawValue>) -> Option<Vec<u32>> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}
