//! Prices of tokens, and what an answer costs.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::answers::{TokenCounts, usages},
    base::bounded_read,
    recording::cassette::SseEvent,
};

/// Prices by model; `*` is for all others.
#[derive(Debug, Clone, PartialEq)]
pub struct PriceTable(BTreeMap<String, TokenPrice>);

/// Price of a token, in any currency.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenPrice {
    input_cost_per_token: f64,
    output_cost_per_token: f64,
    /// Of a token from the prefix cache; without it as the others.
    cache_read_input_token_cost: Option<f64>,
}

/// A table that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is no table of prices.
    #[error(
        "{path}: {message}: a table is {{\"MODEL\": {{\"input_cost_per_token\": 1e-6, \"output_cost_per_token\": 2e-6}}}}, `*` for any model"
    )]
    Wrong {
        /// The file.
        path: String,
        /// Problem with its line.
        message: String,
    },
}

impl Default for PriceTable {
    /// One for each token of any model.
    fn default() -> Self {
        let price =
            TokenPrice { input_cost_per_token: 1.0, output_cost_per_token: 1.0, cache_read_input_token_cost: None };
        Self(BTreeMap::from([("*".to_owned(), price)]))
    }
}

impl PriceTable {
    /// Reads a JSON file: for each model its prices, in LiteLLM's words.
    pub(crate) fn read(path: &Path) -> Result<Self, PriceError> {
        let shown = path.display().to_string();
        let text = bounded_read::read_text(path);
        let text = text.map_err(|source| PriceError::Unreadable { path: shown.clone(), source })?;
        let table: BTreeMap<String, TokenPrice> = serde_json::from_str(&text)
            .map_err(|error| PriceError::Wrong { path: shown.clone(), message: error.to_string() })?;
        if table.is_empty() {
            return Err(PriceError::Wrong { path: shown, message: "it has no model".to_owned() });
        }
        Ok(Self(table))
    }

    /// What an answer of a model costs; `None` where the table has no price for it.
    pub(crate) fn cost(&self, model: &str, counts: &TokenCounts) -> Option<f64> {
        let price = self.0.get(model).or_else(|| self.0.get("*"))?;
        let cached = counts.cached.unwrap_or_default();
        let fresh = counts.prompt.unwrap_or_default().saturating_sub(cached);
        let cached_price = price.cache_read_input_token_cost.unwrap_or(price.input_cost_per_token);
        Some(
            f64::from(fresh) * price.input_cost_per_token
                + f64::from(cached) * cached_price
                + f64::from(counts.completion.unwrap_or_default()) * price.output_cost_per_token,
        )
    }
}

/// The token counts of a stream: each from the last event that has it.
pub(super) fn usage_of(events: &[SseEvent]) -> TokenCounts {
    let mut counts = TokenCounts::default();
    for event in events {
        for usage in usages(&event.data) {
            let read = TokenCounts::read(usage);
            counts.prompt = read.prompt.or(counts.prompt);
            counts.cached = read.cached.or(counts.cached);
            counts.completion = read.completion.or(counts.completion);
        }
    }
    counts
}

/// The cost that a gateway names itself in a stream, as LiteLLM and OpenRouter do.
pub(super) fn named_cost(events: &[SseEvent]) -> Option<f64> {
    events.iter().rev().find_map(|event| event.data.pointer("/usage/cost").and_then(Value::as_f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_have_their_own_price() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        std::fs::write(
            &path,
            r#"{"m":{"input_cost_per_token":2,"output_cost_per_token":3,"cache_read_input_token_cost":1}}"#,
        )
        .unwrap();
        let table = PriceTable::read(&path).unwrap();
        let counts = TokenCounts { prompt: Some(10), cached: Some(4), completion: Some(1), ..TokenCounts::default() };
        assert_eq!((table.cost("m", &counts), table.cost("k", &counts)), (Some(19.0), None));
        assert_eq!(PriceTable::default().cost("k", &counts), Some(11.0));
        std::fs::write(&path, r#"{"m":{"input":2}}"#).unwrap();
        assert!(PriceTable::read(&path).unwrap_err().to_string().contains("unknown field `input`"));
    }
}
