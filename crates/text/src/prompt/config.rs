//! Fields of `tokenizer_config.json` and `generation_config.json`: special tokens, chat templates, end-of-sequence ids.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::PromptError;

/// The parts of `tokenizer_config.json` that matter here.
#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    /// `bos_token`, `eos_token` … as a chat template sees them; only those that are set.
    pub special_tokens: Map<String, Value>,
    /// Everything as it was written; null in the place of the templates.
    pub fields: Map<String, Value>,
    /// The templates it carries.
    pub templates: Templates,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Templates {
    /// For every conversation.
    pub default: Option<String>,
    /// For conversations with tools, where it differs.
    pub tool_use: Option<String>,
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TemplateField {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EosIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenizerConfig {
    /// Reads `tokenizer_config.json`; `origin` names the tokenizer in errors.
    pub(super) fn parse(json: &[u8], origin: &str) -> Result<Self, PromptError> {
        let bad = |error: serde_json::Error| bad(&format!("tokenizer_config.json of {origin}"), &error);
        let mut fields: Map<String, Value> = serde_json::from_slice(json).map_err(bad)?;
        let templates = match fields.get_mut("chat_template").map(Value::take) {
            None | Some(Value::Null) => Templates::default(),
            Some(value) => Templates::from(serde_json::from_value::<TemplateField>(value).map_err(bad)?),
        };
        let special_tokens = fields
            .iter()
            .filter(|(key, _)| key.ends_with("_token"))
            .filter_map(|(key, value)| token_content(value).map(|content| (key.clone(), Value::from(content))))
            .collect();
        Ok(Self { special_tokens, fields, templates })
    }
}

impl From<TemplateField> for Templates {
    fn from(field: TemplateField) -> Self {
        match field {
            TemplateField::One(template) => Self { default: Some(template), tool_use: None },
            TemplateField::Named(list) => {
                let named = |name: &str| list.iter().find(|t| t.name == name).map(|t| t.template.clone());
                Self { default: named("default"), tool_use: named("tool_use") }
            }
        }
    }
}

/// Reads the size of the model's vocabulary from its `config.json`.
pub(super) fn vocabulary(json: &[u8]) -> Option<u32> {
    vocabulary_of(&serde_json::from_slice(json).ok()?)
}

/// A model of several parts has the vocabulary of its language part.
fn vocabulary_of(config: &Value) -> Option<u32> {
    const LANGUAGE_PARTS: [&str; 5] = ["text_config", "llm_config", "language_config", "thinker_config", "decoder"];
    let own = config.get("vocab_size").and_then(Value::as_u64).and_then(|size| u32::try_from(size).ok());
    own.or_else(|| LANGUAGE_PARTS.iter().find_map(|part| vocabulary_of(config.get(part)?)))
}

/// `generation_config.json`, and its end-of-sequence ids in their order; `origin` names the tokenizer in errors.
pub(super) fn generation(json: &[u8], origin: &str) -> Result<(Map<String, Value>, Vec<u32>), PromptError> {
    let bad = |error: serde_json::Error| bad(&format!("generation_config.json of {origin}"), &error);
    let config: Map<String, Value> = serde_json::from_slice(json).map_err(bad)?;
    let eos = config.get("eos_token_id").map(Option::<EosIds>::deserialize).transpose().map_err(bad)?;
    let eos = match eos.flatten() {
        None => Vec::new(),
        Some(EosIds::One(id)) => vec![id],
        Some(EosIds::Many(ids)) => ids,
    };
    Ok((config, eos))
}

/// A special token is a string, or an object with its `content`.
fn token_content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn bad(origin: &str, error: &serde_json::Error) -> PromptError {
    PromptError::BadConfig { origin: origin.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_strings_or_objects_and_templates_one_or_named() {
        let json = br#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","unk_token":null,"add_bos_token":true,
            "chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"}]}"#;
        let config = TokenizerConfig::parse(json, "x").unwrap();
        assert_eq!(Value::from(config.special_tokens), serde_json::json!({"bos_token": "<s>", "eos_token": "</s>"}));
        assert_eq!(config.templates.default.as_deref(), Some("a"));
        assert_eq!(config.templates.tool_use.as_deref(), Some("b"));
        let one = TokenizerConfig::parse(br#"{"chat_template":"c"}"#, "x").unwrap();
        assert_eq!(one.templates.default.as_deref(), Some("c"));
    }

    #[test]
    fn the_vocabulary_is_the_language_models() {
        for (json, size) in [
            (&br#"{"vocab_size":7}"#[..], Some(7)),
            (br#"{"vocab_size":null,"vision_config":{"vocab_size":1},"text_config":{"vocab_size":8}}"#, Some(8)),
            (br#"{"thinker_config":{"text_config":{"vocab_size":9}}}"#, Some(9)),
            (br#"{"vocab_size":-1}"#, None),
            (b"[", None),
        ] {
            assert_eq!(vocabulary(json), size);
        }
    }

    #[test]
    fn eos_is_one_id_or_many_or_none() {
        let eos = |json: &[u8]| generation(json, "m").map(|(_, eos)| eos);
        assert_eq!(eos(br#"{"eos_token_id":2}"#).unwrap(), [2]);
        assert_eq!(eos(br#"{"eos_token_id":[5,3]}"#).unwrap(), [5, 3]);
        assert!(eos(b"{}").unwrap().is_empty());
        let error = eos(br#"{"eos_token_id":"x"}"#).unwrap_err().to_string();
        assert!(error.contains("generation_config.json of m"), "{error}");
    }
}
