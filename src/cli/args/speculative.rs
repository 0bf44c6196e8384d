//! Arguments of `play` about speculative decoding of the simulated engine.

use clap::Args;
use serde_json::{Map, Value};

/// Speculative decoding.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(in crate::cli) struct SpeculativeArgs {
    /// Gives steps of the engine draft tokens, with vLLM's fields in JSON: method, num_speculative_tokens, and with
    /// "rejection_sample_method": "synthetic" synthetic_acceptance_rates or synthetic_acceptance_length. Other fields have no effect.
    #[arg(long, value_name = "JSON", value_parser = object, conflicts_with = "latency_recorded")]
    pub(in crate::cli) speculative_config: Option<Map<String, Value>>,
    /// Share of draft tokens that are accepted, of those before which all were: one number, or one for each place with commas. Without it
    /// 0.7, unless --speculative-config gives rates. Recorded answers come in the bursts that were recorded, where they came in any.
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = share)]
    pub(in crate::cli) speculative_acceptance_rate: Vec<f64>,
}

fn object(json: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(json).map_err(|error| {
        format!("{error}; an object is needed, such as {{\"method\":\"ngram\",\"num_speculative_tokens\":3}}")
    })
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 1 is needed, such as 0.7".to_owned())
}
