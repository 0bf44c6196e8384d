//! Arguments of `play` that are vLLM's own about the model, as far as answers show them.

use clap::Args;
use serde_json::{Map, Value};

/// A version of vLLM and the nearest one whose wire is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Version {
    /// As it was given.
    pub(in crate::cli) asked: String,
    /// Its second number.
    pub(in crate::cli) minor: u32,
}

/// The engine's flags about its model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(in crate::cli) struct EngineArgs {
    /// The version of vLLM whose answers these are like, such as 0.32 or 0.25.1. The wires of 0.32 and 0.19 are known; any
    /// other 0.x gets the nearest one, and a notice.
    #[arg(long, value_name = "VERSION", default_value = "0.32", value_parser = version)]
    pub(in crate::cli) vllm_version: Version,
    /// Where the model's default sampling parameters come from: `auto` (generation_config.json beside the tokenizer),
    /// `vllm` (none), or a directory.
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub(in crate::cli) generation_config: String,
    /// Default sampling parameters instead of the file's, as JSON, such as {"temperature":0.6,"max_new_tokens":512}.
    #[arg(long, value_name = "JSON", default_value = "{}", hide_default_value = true, value_parser = object)]
    pub(in crate::cli) override_generation_config: Map<String, Value>,
    /// Parts of the model's config.json as JSON; of them only `vocab_size` counts here.
    #[arg(long, value_name = "JSON", default_value = "{}", hide_default_value = true, value_parser = object)]
    pub(in crate::cli) hf_overrides: Map<String, Value>,
    /// Variables for the chat template as JSON, such as {"enable_thinking":false}; a request's own win.
    #[arg(long, value_name = "JSON", default_value = "{}", hide_default_value = true, value_parser = map)]
    pub(in crate::cli) default_chat_template_kwargs: Map<String, Value>,
    /// The most log probabilities of a token that a request may ask for; -1 for the whole vocabulary.
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(i32).range(-1..))]
    pub(in crate::cli) max_logprobs: i32,
    /// Spells tokens as token_id:123 in log probabilities, asked for or not.
    #[arg(long)]
    pub(in crate::cli) return_tokens_as_token_ids: bool,
}

/// `0.25`, `v0.25.1` or `0.25.0rc1`.
fn version(text: &str) -> Result<Version, String> {
    let wrong = || format!("{text} is no version of vLLM; write 0.32 or 0.25.1");
    let rest = text.strip_prefix('v').unwrap_or(text).strip_prefix("0.").ok_or_else(wrong)?;
    let minor = rest.split('.').next().and_then(|minor| minor.parse().ok()).ok_or_else(wrong)?;
    Ok(Version { asked: text.to_owned(), minor })
}

fn map(json: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// A JSON object whose numbers are numbers.
fn object(json: &str) -> Result<Map<String, Value>, String> {
    let given = map(json)?;
    match given.iter().find(|(_, value)| value.is_string()) {
        Some((name, value)) => Err(format!("{name} has to be a number, not {value}")),
        None => Ok(given),
    }
}
