//! Flags of `play` about LoRA adapters, vLLM's own, and what they mean.

use std::num::NonZeroU32;

use clap::{ArgAction, Args};
use serde::Deserialize;

use crate::{
    cli::{failure::Failure, stepping::size},
    play::{LoraConfig, LoraModule},
};

/// Adapters beside the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "LoRA adapters")]
pub(in crate::cli) struct LoraArgs {
    /// Serves LoRA adapters as further models. With --engine they take slots, and are part of block hashes and KV events.
    #[arg(long)]
    pub(in crate::cli) enable_lora: bool,
    /// The adapters at the start, as NAME=PATH or as JSON with name, path and base_model_name. Paths need not exist and may be left out in
    /// JSON. VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 lets clients load and unload others.
    #[arg(long, value_name = "ADAPTER", num_args = 1.., action = ArgAction::Append, value_parser = module, requires = "enable_lora")]
    pub(in crate::cli) lora_modules: Vec<LoraModule>,
    /// Adapters in one step of the engine; requests for others wait.
    #[arg(long, value_name = "N", default_value = "1", value_parser = crate::cli::stepping::count)]
    pub(in crate::cli) max_loras: NonZeroU32,
    /// Adapters in vLLM's CPU memory, at least --max-loras. Loading takes no time here, so it has no effect.
    #[arg(long, value_name = "N", value_parser = crate::cli::stepping::count)]
    pub(in crate::cli) max_cpu_loras: Option<NonZeroU32>,
}

/// vLLM's fields of an adapter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoraFields {
    name: String,
    #[serde(default)]
    path: Option<String>,
    base_model_name: Option<String>,
    #[serde(rename = "is_3d_lora_weight")]
    _is_3d_lora_weight: Option<bool>,
}

/// `NAME=PATH`, or JSON.
fn module(text: &str) -> Result<LoraModule, String> {
    if let Some((name, path)) = text.split_once('=').filter(|_| !text.contains(',')) {
        return Ok(LoraModule { name: name.to_owned(), path: path.to_owned(), base_model_name: None });
    }
    let wrong = |error| {
        format!("NAME=PATH is needed, or JSON such as {{\"name\":\"sql\",\"path\":\"/adapters/sql\"}}: {error}")
    };
    let LoraFields { name, path, base_model_name, .. } = serde_json::from_str(text).map_err(wrong)?;
    Ok(LoraModule { path: path.unwrap_or_else(|| name.clone()), name, base_model_name })
}

/// The adapters that the flags enable.
pub(in crate::cli) fn config(args: &LoraArgs) -> Result<Option<LoraConfig>, Failure> {
    let LoraArgs { enable_lora, lora_modules, max_loras, max_cpu_loras } = args;
    if !enable_lora {
        return Ok(None);
    }
    if let Some(few) = max_cpu_loras.filter(|most| most < max_loras) {
        let message = format!("--max-cpu-loras ({few}) must be at least --max-loras ({max_loras})");
        return Err(Failure::usage(message).hint("raise it, or leave it out"));
    }
    Ok(Some(LoraConfig { max_loras: size(*max_loras), lora_modules: lora_modules.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_named_in_either_form() {
        let of = |text| module(text).map(|module| (module.name, module.path, module.base_model_name));
        assert_eq!(of("sql=/l/sql=1"), Ok(("sql".to_owned(), "/l/sql=1".to_owned(), None)));
        let json = "{\"name\": \"a=b\", \"path\": \"x\", \"base_model_name\": \"m\"}";
        assert_eq!(of(json), Ok(("a=b".to_owned(), "x".to_owned(), Some("m".to_owned()))));
        let without_path = r#"{"name": "a"}"#;
        assert_eq!(of(without_path), Ok(("a".to_owned(), "a".to_owned(), None)));
        for wrong in ["sql", "a=b,c", "{\"name\": \"a\", \"path\": \"x\", \"rank\": 8}"] {
            assert!(of(wrong).unwrap_err().contains("NAME=PATH"), "{wrong}");
        }
    }
}
