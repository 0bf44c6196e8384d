//! One event of a recorded stream, read without copying: what it says, and where in the bytes it says it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// An event's payload. Raw parts borrow from the payload, so that their place in it is known.
#[derive(Debug, Deserialize)]
pub(super) struct StreamEvent<'a> {
    #[serde(default, borrow)]
    pub(super) id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    pub(super) choices: Vec<Choice<'a>>,
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(default, borrow)]
    pub(super) prompt_token_ids: Option<&'a RawValue>,
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
}

/// The engine's own count of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
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
    /// Prompt tokens found in the prefix cache; `None` when the engine does not say.
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens)
    }
}

impl<'a> StreamEvent<'a> {
    /// Reads a payload; `None` when it is not a JSON object of this shape.
    pub(super) fn read(payload: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }

    /// Whether this is the event that only carries usage, after all choices have finished.
    pub(super) fn is_usage_only(&self) -> bool {
        self.choices.is_empty() && self.usage.is_some()
    }
}

impl Choice<'_> {
    /// Whether this is what a chat stream starts with: a role and no words.
    pub(super) fn is_role(&self) -> bool {
        let Some(delta) = self.delta.map(RawValue::get) else { return false };
        let silent = delta.ends_with("\"content\":\"\"}") || delta.ends_with(":null}") || !delta.contains(',');
        delta.starts_with("{\"role\"") && silent && self.token_ids.is_none() && self.finish_reason.is_none()
    }

    /// Whether a tool or reasoning parser made this delta; the ids of such streams may have holes in old engines.
    pub(super) fn is_parsed(&self) -> bool {
        self.delta.is_some_and(|delta| !delta.get().starts_with("{\"content\"") && !self.is_role())
    }

    /// Whether nothing is in it but metadata: an engine sends such an event only because ids were asked for.
    pub(super) fn is_only_ids(&self) -> bool {
        self.delta.is_some_and(|delta| delta.get() == "{}") && self.finish_reason.is_none() && self.logprobs.is_none()
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

/// A list of token ids; `None` for anything else.
pub(super) fn ids(raw: Option<&RawValue>) -> Option<Vec<u32>> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}
