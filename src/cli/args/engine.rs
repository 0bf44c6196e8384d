//! Arguments of `play` that are vLLM's own about the model, as far as answers show them.

use clap::Args;
use serde_json::{Map, Value};

/// vLLM's versions whose wire is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum Version {
    /// 0.32.0
    #[value(name = "0.32")]
    V0_32,
    /// 0.19.1
    #[value(name = "0.19")]
    V0_19,
}

/// What the engine would have been told about its model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(in crate::cli) struct EngineArgs {
    /// The version of vLLM whose answers these are like.
    #[arg(long, value_name = "VERSION", default_value = "0.32")]
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
