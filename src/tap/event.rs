//! One event of a recorded stream, read without copying: what it says, and where in the bytes it says it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    api::answers::words::{CALLS, OF_MESSAGE, Words},
    net::wire::RawObject,
};

/// An event's payload. Raw parts borrow from the payload, so that their place in it is known.
#[derive(Debug, Deserialize)]
pub(super) struct StreamEvent<'a> {
    #[serde(default, borrow)]
    pub(super) id: Option<Cow<'a, str>>,
    /// What tokens in and out have in the place of `id`.
    #[serde(default, borrow)]
    pub(super) request_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) choices: Vec<Choice<'a>>,
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(default, borrow)]
    pub(super) prompt_token_ids: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) prompt_logprobs: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) system_fingerprint: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// One choice of an event, or of a whole answer.
#[derive(Debug, Deserialize)]
pub(super) struct Choice<'a> {
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

/// What kind of chunk a choice's part of an event is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ChunkKind {
    /// It is what a chat stream starts with: a role and no words.
    pub(super) is_role: bool,
    /// A tool or reasoning parser made it; the ids of such streams may have holes in old engines.
    pub(super) is_parsed: bool,
    /// There are words in it: text, reasoning or a part of a tool call.
    pub(super) has_words: bool,
}

/// The engine's own count of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: u32,
    #[serde(default)]
    pub(super) completion_tokens: u32,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

impl Usage {
    /// So many tokens, `cached` of the prompt's known to be so.
    pub(super) fn of(prompt_tokens: u32, completion_tokens: u32, cached: Option<u32>) -> Self {
        let prompt_tokens_details = cached.map(|cached| PromptDetails { cached_tokens: Some(cached) });
        Self { prompt_tokens, completion_tokens, prompt_tokens_details }
    }

    /// Prompt tokens found in the prefix cache; `None` when the engine does not say.
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

impl<'a> StreamEvent<'a> {
    /// Reads a payload; `None` when it is not a JSON object of this shape.
    pub(super) fn read(payload: &'a [u8]) -> Option<Self> {
        is_object(payload).then(|| serde_json::from_slice(payload).ok()).flatten()
    }

    /// Whether this is the event that only carries usage, after all choices have finished.
    pub(super) fn is_usage_only(&self) -> bool {
        self.choices.is_empty() && self.usage.is_some()
    }
}

impl<'a> Choice<'a> {
    /// What kind of chunk this is.
    pub(super) fn kind(&self) -> ChunkKind {
        let Some(delta) = self.words() else {
            return ChunkKind { has_words: says(self.text), ..ChunkKind::default() };
        };
        let (has_words, is_from_parser) = (delta.says_something(), delta.is_from_parser());
        ChunkKind {
            is_role: delta.has_role() && !has_words && self.token_ids.is_none() && self.finish_reason.is_none(),
            is_parsed: !delta.has_role() && (delta.content().is_none() || is_from_parser),
            has_words,
        }
    }

    fn words(&self) -> Option<Delta<'_>> {
        self.delta.or(self.message).and_then(Delta::read)
    }

    /// Whether nothing is in it but metadata: an engine sends such an event only because ids were asked for.
    pub(super) fn is_only_ids(&self) -> bool {
        self.delta.is_some_and(|delta| delta.get() == "{}") && self.finish_reason.is_none() && self.logprobs.is_none()
    }

    /// The plain words' JSON text: a chat's content, or a completion's text.
    pub(super) fn content(&self) -> Option<&'a RawValue> {
        match self.delta {
            Some(delta) => Delta::read(delta)?.content(),
            None => self.text,
        }
    }

    /// The words themselves, of whatever kind: text, reasoning, a refusal, a tool call's arguments.
    pub(super) fn spoken(&self) -> String {
        let text = || self.text.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default();
        self.words().map_or_else(text, |delta| delta.spoken())
    }

    /// Bytes of JSON that carry this choice's words: a measure of how much came.
    pub(super) fn weight(&self) -> usize {
        self.delta.or(self.text).map_or(0, |part| part.get().len())
    }

    /// The stop token that the engine named as the reason.
    pub(super) fn stop_token(&self) -> Option<u32> {
        self.stop_reason.and_then(|reason| reason.get().parse().ok())
    }
}

/// What a chat chunk adds: a delta, or a whole message.
struct Delta<'a>(RawObject<'a>);

impl<'a> Delta<'a> {
    fn read(json: &'a RawValue) -> Option<Self> {
        RawObject::read(json.get().as_bytes()).map(Self)
    }

    fn has_role(&self) -> bool {
        self.0.get("role").is_some()
    }

    fn content(&self) -> Option<&'a RawValue> {
        self.0.get("content")
    }

    fn says_something(&self) -> bool {
        OF_MESSAGE.iter().any(|(name, _)| says(self.0.get(name))) || self.is_from_parser()
    }

    fn is_from_parser(&self) -> bool {
        let reasoning = OF_MESSAGE.iter().filter(|(_, words)| *words == Words::Reasoning).map(|(name, _)| *name);
        reasoning.chain(CALLS).any(|name| says(self.0.get(name)))
    }

    /// Texts one after the other, then arguments of calls.
    fn spoken(&self) -> String {
        let calls: Vec<RawObject<'_>> = self.0.value("tool_calls").unwrap_or_default();
        let arguments = calls.iter().filter_map(|call| call.object("function")?.value::<String>("arguments"));
        OF_MESSAGE.iter().filter_map(|(name, _)| self.0.value::<String>(name)).chain(arguments).collect()
    }
}

/// Whether a value is there and is not an empty one.
pub(super) fn says(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| !matches!(value.get(), "null" | "\"\"" | "[]" | "{}"))
}

/// Whether JSON text is an object: a struct would be read from a list too.
pub(super) fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}

/// A list of token ids; `None` for anything else.
pub(super) fn ids(raw: Option<&RawValue>) -> Option<Vec<u32>> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}
