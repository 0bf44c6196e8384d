//! Token counts, under every endpoint's names.

use serde::Deserialize;
use serde_json::Value;

/// Token counts of a response; `None` for those that it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "Fields")]
pub struct Counts {
    /// Tokens of the prompt, cached ones included.
    pub prompt: Option<u32>,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached: Option<u32>,
    /// Generated tokens.
    pub completion: Option<u32>,
}

impl Counts {
    /// Reads a `usage` object; nothing is known from any other value.
    #[must_use]
    pub fn read(usage: &Value) -> Self {
        Self::deserialize(usage).unwrap_or_default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    input_tokens: Option<u32>,
    prompt_tokens: Option<u32>,
    output_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    cache_read_input_tokens: Option<u32>,
    cache_creation_input_tokens: Option<u32>,
    input_tokens_details: Option<Details>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u32>,
}

impl From<Fields> for Counts {
    fn from(fields: Fields) -> Self {
        let details = fields.input_tokens_details.or(fields.prompt_tokens_details);
        // The Messages API counts cached tokens beside `input_tokens`, the others count them among the prompt's.
        let beside = [fields.cache_read_input_tokens, fields.cache_creation_input_tokens].into_iter().flatten();
        let prompt = fields.input_tokens.or(fields.prompt_tokens);
        Self {
            prompt: prompt.map(|prompt| beside.fold(prompt, u32::saturating_add)),
            cached: details.and_then(|details| details.cached_tokens).or(fields.cache_read_input_tokens),
            completion: fields.output_tokens.or(fields.completion_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_are_read_under_every_name() {
        for (usage, expected) in [
            (
                json!({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}),
                [3, 1, 2],
            ),
            (json!({"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}), [3, 1, 2]),
            (
                json!({"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4,
                    "cache_creation_input_tokens": 1}),
                [8, 4, 2],
            ),
        ] {
            let [prompt, cached, completion] = expected.map(Some);
            assert_eq!(Counts::read(&usage), Counts { prompt, cached, completion });
        }
        assert_eq!(Counts::read(&Value::Null), Counts::default());
    }
}
