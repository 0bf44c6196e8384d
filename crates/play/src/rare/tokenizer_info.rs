//! `/tokenizer_info`: the tokenizer's configuration as the engine's library holds it once it is loaded.
//!
//! The library puts what a tokenizer's class names in front, adds what it found out by itself, and takes the objects of
//! tokens for their text. Limits: that is spelled as for Qwen; other classes put other fields in front.

use std::path::Path;

use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::{HandlerState, http::JsonText};
use text::prompt::ChatTemplate;

/// Fields of the class, null where the file has nothing.
const TOKENS: [&str; 4] = ["unk_token", "bos_token", "eos_token", "pad_token"];

/// Fields that the loaded class does not show, or shows under another name.
const LEFT_OUT: [&str; 6] = [
    "tokenizer_class",
    "add_bos_token",
    "add_eos_token",
    "additional_special_tokens",
    "extra_special_tokens",
    "auto_map",
];

/// `/tokenizer_info`
pub(in super::super) async fn answer(State(state): HandlerState) -> JsonText {
    let model = &state.model;
    let template = model.chat_template().and_then(ChatTemplate::source);
    let is_local = Path::new(&model.root).is_absolute() || Path::new(&model.root).is_dir();
    JsonText(Value::Object(info(model.tokenizer.config(), template, &model.root, is_local)).to_string())
}

fn info(config: &Map<String, Value>, template: Option<&str>, root: &str, is_local: bool) -> Map<String, Value> {
    let mut out = Map::new();
    let mut put = |name: &str, value: Value| drop(out.insert(name.to_owned(), value));
    put("tokenizer_class", class(config).into());
    for name in TOKENS {
        put(name, text_of_tokens(config.get(name).unwrap_or(&Value::Null)));
    }
    let front = ["add_prefix_space"].into_iter().filter_map(|name| Some((name, config.get(name)?)));
    let rest = config.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in front.chain(rest.filter(|(name, _)| !LEFT_OUT.contains(name))) {
        if !TOKENS.contains(&name) {
            put(name, text_of_tokens(value));
        }
    }
    if let Some(template) = template {
        put("chat_template", template.into());
    }
    put("truncation_side", config.get("truncation_side").cloned().unwrap_or_else(|| "left".into()));
    let extra = config.get("extra_special_tokens").or(config.get("additional_special_tokens"));
    if let Some(extra) = extra {
        put("extra_special_tokens", text_of_tokens(extra));
    }
    put("name_or_path", root.into());
    put("is_local", is_local.into());
    put("local_files_only", true.into());
    put("backend", "tokenizers".into());
    out
}

/// The class that the engine wraps around the library's.
fn class(config: &Map<String, Value>) -> String {
    let named = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("PreTrainedTokenizerFast");
    let class = match named.strip_suffix("Fast").unwrap_or(named) {
        "PreTrainedTokenizer" => "TokenizersBackend",
        class => class,
    };
    format!("TokenizerPoolCached{class}")
}

/// Tokens that are objects are written as their text.
fn text_of_tokens(value: &Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get("content") {
            Some(content) => content.clone(),
            None => Value::Object(fields.iter().map(|(key, value)| (key.clone(), text_of_tokens(value))).collect()),
        },
        Value::Array(items) => items.iter().map(text_of_tokens).collect(),
        other => json!(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_texts_and_the_template_is_the_one_in_use() {
        let config = json!({
            "add_bos_token": false, "added_tokens_decoder": {"1": {"content": "</s>", "lstrip": false}},
            "additional_special_tokens": ["<x>"], "chat_template": null, "eos_token": {"content": "</s>"},
            "tokenizer_class": "LlamaTokenizerFast",
        });
        let body = Value::Object(info(config.as_object().unwrap(), Some("t"), "/models/x", true));
        let expected = json!({
            "tokenizer_class": "TokenizerPoolCachedLlamaTokenizer", "unk_token": null, "bos_token": null,
            "eos_token": "</s>", "pad_token": null, "added_tokens_decoder": {"1": "</s>"}, "chat_template": "t",
            "truncation_side": "left", "extra_special_tokens": ["<x>"], "name_or_path": "/models/x", "is_local": true,
            "local_files_only": true, "backend": "tokenizers",
        });
        assert_eq!(body.to_string(), expected.to_string());
    }
}
