//! The model that is served, as far as a server without weights has one: names, tokenizer, template, defaults, parsers.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Config, PlayError,
    dialect::ENGINE_VERSION,
    load::{LoadedSources, generation::SamplingDefaults},
    metrics::ToolParserCalls,
};
use ::engine::guided::{Guide, GuideError};
use text::{
    parsers::{Formats, Vocabulary},
    prompt::{ChatTemplate, PromptError, SpecialTokens, Tokenizer},
};

/// A model without weights.
#[derive(Debug)]
pub(crate) struct Model {
    /// At least one.
    pub(crate) names: Vec<String>,
    pub(crate) recorded: Vec<String>,
    /// A Hub id or a directory.
    pub(crate) root: String,
    /// Prompt and output tokens that a request may have together.
    pub(crate) max_model_len: u32,
    /// True where images, audio and video are taken.
    pub(crate) takes_media: bool,
    pub(crate) tokenizer: Tokenizer,
    /// The server's own chat template, which wins over the tokenizer's.
    own_template: Option<ChatTemplate>,
    pub(crate) sampling: SamplingDefaults,
    /// Parameters of generation in the model's configuration, by its names.
    pub(crate) generation: Map<String, Value>,
    pub(crate) parsers: Arc<Parsers>,
    pub(crate) fingerprint: Option<String>,
    /// Made with the first text that has to conform.
    guide: OnceLock<Result<Guide, GuideError>>,
}

impl Model {
    /// The model of a configuration and of what was loaded for it.
    /// Errors: a chat template or a configuration of generation that cannot be read.
    pub(crate) fn new(config: &Config, loaded: LoadedSources) -> Result<Self, PlayError> {
        let LoadedSources { replay, tokenizer, model, recorded_models, max_model_len } = loaded;
        let root = config.answers.model.clone().unwrap_or(model);
        let is_adapter =
            |name: &String| config.lora.iter().flat_map(|lora| &lora.lora_modules).any(|adapter| adapter.name == *name);
        let of_model: Vec<String> = recorded_models.iter().filter(|name| !is_adapter(name)).cloned().collect();
        let names = match config.served_model_names.as_slice() {
            [] if recorded_models.len() > 1 && !of_model.is_empty() => of_model,
            [] => vec![root.clone()],
            named => named.to_vec(),
        };
        let hash = xxh3_64_with_seed(tokenizer.fingerprint().as_bytes(), config.seed);
        let has_media = replay.is_some_and(|replay| replay.records.iter().any(|record| record.has_media()));
        let own_template = config.chat_template.as_deref();
        let generation = config.generation.given(&tokenizer)?;
        Ok(Self {
            names,
            recorded: recorded_models,
            root,
            max_model_len,
            takes_media: config.multimodal || has_media,
            own_template: own_template.map(|given| template_of(given, &tokenizer)).transpose()?,
            sampling: SamplingDefaults::read(&generation),
            generation,
            parsers: Arc::new(Parsers::new(config.parsers, &tokenizer)),
            fingerprint: config.answers.fingerprint.text(ENGINE_VERSION, hash),
            guide: OnceLock::new(),
            tokenizer,
        })
    }

    /// Makes now, beside the first requests, what one of them would have to wait for: up to 0.1 s for a large vocabulary.
    pub(crate) fn warm(&self) {
        let _ = self.tokenizer.words();
        let _ = self.tokenizer.ordinary_ids();
        let _ = self.tokenizer.encode("Hello there, 1 + 1!", SpecialTokens::Skip);
    }

    /// The chat template of requests that bring none.
    pub(crate) fn chat_template(&self) -> Option<&ChatTemplate> {
        self.own_template.as_ref().or(self.tokenizer.chat_template())
    }

    /// The maker of text with a constraint, or why this tokenizer has none.
    pub(crate) fn guide(&self) -> &Result<Guide, GuideError> {
        self.guide.get_or_init(|| Guide::new(&self.tokenizer))
    }

    /// The name for requests that give none.
    #[allow(clippy::expect_used)] // an empty name would be a wrong answer
    pub(crate) fn first_name(&self) -> &str {
        self.names.first().expect("invariant: a player serves at least one model")
    }
}

/// Compiles the value of `--chat-template`: the file of that name, or else the template itself, which differs from the name
/// of a missing file by a brace or a line feed in it.
/// Errors: a file that is not there or cannot be read, or a template that does not compile.
fn template_of(given: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, PlayError> {
    let path = Path::new(given);
    let is_inline = given.contains(['{', '}', '\n']) && !path.is_file();
    let source = if is_inline {
        given.to_owned()
    } else {
        let unreadable = |source| PromptError::Unreadable { path: path.to_owned(), source };
        base::bounded_read::read_text(path).map_err(unreadable)?
    };
    Ok(tokenizer.other_chat_template(&source)?)
}

#[derive(Debug)]
pub(crate) struct Parsers {
    pub(crate) formats: Formats,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) tool_calls: ToolParserCalls,
}

impl Parsers {
    pub(crate) fn new(formats: Formats, tokenizer: &Tokenizer) -> Self {
        let vocabulary = Vocabulary::of(tokenizer, formats);
        Self { formats, vocabulary, tool_calls: ToolParserCalls::default() }
    }

    /// Checks whether anything is parsed.
    pub(crate) fn parses(&self) -> bool {
        self.formats != Formats::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::Player;
    use crate::load::model::*;

    #[test]
    fn a_file_wins_over_its_name_and_a_missing_one_is_named() {
        let tokenizer = Player::builtin_tokenizer().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("{chat}.jinja");
        std::fs::write(&path, "{{ messages[0].content }}").unwrap();
        assert!(template_of(&path.display().to_string(), &tokenizer).is_ok());
        assert!(template_of("{{ messages[0].content }}", &tokenizer).is_ok());
        assert!(template_of("{% for", &tokenizer).unwrap_err().to_string().contains("does not compile"));
        assert!(template_of("no/such.jinja", &tokenizer).unwrap_err().to_string().contains("no/such.jinja"));
    }
}
