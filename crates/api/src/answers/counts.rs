//! Token counts, under every endpoint's names.

use serde::Deserialize;
use serde_json::Value;

use crate::usage::{CacheUse, CachedTokens, Usage};

/// Token counts of a response; `None` for those that it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "CountFields")]
pub struct TokenCounts {
    /// Tokens of the prompt, cached ones included.
    pub prompt: Option<u32>,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached: Option<u32>,
    /// Tokens of the prompt that were put into the prefix cache.
    pub created: Option<u32>,
    /// Generated tokens.
    pub completion: Option<u32>,
    /// Generated tokens of reasoning.
    pub reasoning: Option<u32>,
}

impl TokenCounts {
    /// Reads a `usage` object; nothing is known from any other value.
    #[must_use]
    pub fn read(usage: &Value) -> Self {
        Self::deserialize(usage).unwrap_or_default()
    }
}

/// The `usage` objects of a body or of an event of a stream, on every wire: its own, and that of the message or response in it.
pub fn usages(value: &Value) -> impl Iterator<Item = &Value> {
    let holders = [Some(value), value.get("message"), value.get("response")];
    holders.into_iter().flatten().filter_map(|holder| holder.get("usage")).filter(|usage| usage.is_object())
}

impl From<&Usage> for TokenCounts {
    fn from(usage: &Usage) -> Self {
        let (cached, created) = match usage.cached {
            CachedTokens::Reported(CacheUse { found, created }) => (Some(found), Some(created)),
            CachedTokens::Hidden => (None, None),
        };
        let (prompt, completion) = (Some(usage.prompt), Some(usage.completion));
        Self { prompt, cached, created, completion, reasoning: usage.reasoning }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CountFields {
    input_tokens: Option<u32>,
    prompt_tokens: Option<u32>,
    output_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    cache_read_input_tokens: Option<u32>,
    cache_creation_input_tokens: Option<u32>,
    input_tokens_details: Option<Details>,
    prompt_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u32>,
    created_cache_tokens: Option<u32>,
    reasoning_tokens: Option<u32>,
}

impl From<CountFields> for TokenCounts {
    fn from(fields: CountFields) -> Self {
        let input = fields.input_tokens_details.or(fields.prompt_tokens_details).unwrap_or_default();
        let output = fields.output_tokens_details.or(fields.completion_tokens_details).unwrap_or_default();
        // The Messages API counts cached tokens beside `input_tokens`, the others count them among the prompt's.
        let beside = [fields.cache_read_input_tokens, fields.cache_creation_input_tokens].into_iter().flatten();
        let prompt = fields.input_tokens.or(fields.prompt_tokens);
        Self {
            prompt: prompt.map(|prompt| beside.fold(prompt, u32::saturating_add)),
            cached: input.cached_tokens.or(fields.cache_read_input_tokens),
            created: input.created_cache_tokens.or(fields.cache_creation_input_tokens),
            completion: fields.output_tokens.or(fields.completion_tokens),
            reasoning: output.reasoning_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_are_read_under_every_name() {
        let (prompt, cached, completion) = (Some(3), Some(1), Some(2));
        let details = json!({"cached_tokens": 1});
        let chat = json!({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": details});
        assert_eq!(TokenCounts::read(&chat), TokenCounts { prompt, cached, completion, ..TokenCounts::default() });
        let response = json!({"input_tokens": 3, "output_tokens": 2, "input_tokens_details": details,
            "output_tokens_details": {"reasoning_tokens": 1}});
        let reasoning = Some(1);
        assert_eq!(
            TokenCounts::read(&response),
            TokenCounts { prompt, cached, completion, reasoning, ..TokenCounts::default() }
        );
        let message = json!({"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 1});
        let (prompt, cached, created) = (Some(8), Some(4), Some(1));
        assert_eq!(TokenCounts::read(&message), TokenCounts { prompt, cached, created, completion, reasoning: None });
        assert_eq!(TokenCounts::read(&Value::Null), TokenCounts::default());
    }
}
