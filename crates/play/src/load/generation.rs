//! The model's own sampling parameters, which count where a request names none: `generation_config.json` and what the
//! server's flags override.
//!
//! Limits: only what answers show. Recorded tokens are what they are, at whatever temperature.

use std::{fs, io};

use serde_json::{Map, Value};

use crate::{
    PlayError,
    config::{GenerationConfig, GenerationSource},
};
use text::prompt::Tokenizer;

/// The defaults that answers show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SamplingDefaults {
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    /// Output tokens of a request that names none (the file's `max_new_tokens`).
    pub(crate) max_tokens: Option<u32>,
}

impl SamplingDefaults {
    /// Reads them from all values.
    pub(crate) fn read(given: &Map<String, Value>) -> Self {
        let number = |name: &str| given.get(name).and_then(Value::as_f64);
        let max_tokens = given.get("max_new_tokens").and_then(Value::as_u64);
        Self {
            temperature: number("temperature").unwrap_or(1.0),
            top_p: number("top_p").unwrap_or(1.0),
            max_tokens: max_tokens.and_then(|most| u32::try_from(most).ok()),
        }
    }
}

impl GenerationConfig {
    /// All values, by the file's names.
    /// Errors: a directory without a readable `generation_config.json`.
    pub(crate) fn given(&self, tokenizer: &Tokenizer) -> Result<Map<String, Value>, PlayError> {
        let mut given = match &self.source {
            GenerationSource::Auto => tokenizer.generation_config().clone(),
            GenerationSource::Neutral => Map::new(),
            GenerationSource::Directory(directory) => {
                let path = directory.join("generation_config.json");
                let read = || serde_json::from_slice(&fs::read(&path)?).map_err(io::Error::from);
                read().map_err(|source| PlayError::GenerationConfig { path: path.clone(), source })?
            }
        };
        given.extend(self.overrides.clone());
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::Player;

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_nothing() {
        let tokenizer = Player::builtin_tokenizer().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = json!({"temperature": 0.6, "top_p": 0.95, "max_new_tokens": 7, "eos_token_id": 2});
        fs::write(directory.path().join("generation_config.json"), file.to_string()).unwrap();
        let source = GenerationSource::Directory(directory.path().to_owned());
        let overrides = json!({"temperature": 0.1}).as_object().unwrap().clone();
        let read = SamplingDefaults::read(&GenerationConfig { source, overrides }.given(&tokenizer).unwrap());
        assert_eq!(read, SamplingDefaults { temperature: 0.1, top_p: 0.95, max_tokens: Some(7) });
        let neutral = GenerationConfig { source: GenerationSource::Neutral, overrides: Map::new() };
        let read = SamplingDefaults::read(&neutral.given(&tokenizer).unwrap());
        assert_eq!(read, SamplingDefaults { temperature: 1.0, top_p: 1.0, max_tokens: None });
    }

    #[test]
    fn a_directory_without_the_file_is_named() {
        let tokenizer = Player::builtin_tokenizer().unwrap();
        let source = GenerationSource::Directory(PathBuf::from("/nowhere"));
        let error = GenerationConfig { source, overrides: Map::new() }.given(&tokenizer).unwrap_err();
        assert!(error.to_string().contains("/nowhere/generation_config.json"), "{error}");
    }
}
