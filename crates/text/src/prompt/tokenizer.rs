//! The tokenizer: text to ids, ids to text, and the special tokens of its configuration.
//!
//! Loading keeps the JSON's meaning and drops its truncation and padding, as vLLM does. A post-processor is taken from
//! `tokenizer.json` alone; `add_bos_token` and its like in `tokenizer_config.json` are not applied to it.
//!
//! The tables of a tokenizer that is known beforehand are built in parallel with the start of a program; their first use
//! waits for them.

use std::sync::{Arc, LazyLock};
use std::thread;

use serde_json::{Map, Value};

use super::config::{self, TokenizerConfig};
use super::detokenizer::{Detokenizer, SkipSpecial};
use super::{
    ChatTemplate, Conversation, PromptError,
    fast_load::{self, LoadedTokenizer},
    hub::{Download, Hub},
    ids_only, locate, pieces,
    tables::{KnownTokenizer, SharedTokenizer, TokenizerTables},
    words::WordTokens,
};

/// Addition of the special tokens (bos, eos) that the tokenizer's post-processor puts around a text.
///
/// vLLM adds them to the prompts of completions and does not to rendered chat templates, which carry their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Add them.
    Add,
    /// Encode the text alone.
    Skip,
}

/// A tokenizer's files in memory.
#[derive(Debug, Clone, Copy)]
pub struct TokenizerParts<'a> {
    /// A name for people.
    pub name: &'a str,
    /// `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// `tokenizer_config.json`.
    pub config_json: Option<&'a [u8]>,
    /// `chat_template.jinja`; wins over a template in `config_json`.
    pub chat_template: Option<&'a str>,
    /// `generation_config.json`.
    pub generation_config_json: Option<&'a [u8]>,
}

/// A loaded tokenizer. Cloning is cheap: clones share everything.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<SharedTokenizer>,
    model_vocabulary: Option<u32>,
}

impl Tokenizer {
    /// Loads the tokenizer that `spec` names: a directory, the path of a `tokenizer.json` (its siblings are used where
    /// they are there), or a Hub id, which is looked up in the local Hub cache and downloaded where it is not there, unless
    /// `HF_HUB_OFFLINE` is set. Blocks.
    ///
    /// # Errors
    /// One variant of [`PromptError`] per way this fails: no such path, no tokenizer in the directory, not on the Hub,
    /// unreadable, not a tokenizer, a broken configuration, a template that does not compile.
    pub fn load(spec: &str, download: &Download) -> Result<Self, PromptError> {
        let cache = locate::hub_cache();
        let files = locate::read(spec, cache.as_deref(), Hub::from_env(cache.as_deref(), download).as_ref())?;
        let parts = TokenizerParts {
            name: &files.name,
            tokenizer_json: &files.tokenizer,
            config_json: files.config.as_deref(),
            chat_template: files.template.as_deref(),
            generation_config_json: files.generation.as_deref(),
        };
        let loaded = Self::build(&parts, &files.path.display().to_string())?;
        Ok(match files.model.as_deref().and_then(config::vocabulary) {
            Some(size) => loaded.with_model_vocabulary(size),
            None => loaded,
        })
    }

    /// Loads a tokenizer from memory.
    ///
    /// # Errors
    /// [`PromptError::NotATokenizer`], [`PromptError::BadConfig`] or [`PromptError::BadTemplate`].
    pub fn from_parts(parts: &TokenizerParts) -> Result<Self, PromptError> {
        Self::build(parts, parts.name)
    }

    /// A tokenizer of which this much is known, and whose `tokenizer.json` is one: its tables are built by a thread of their
    /// own. `parts` has everything else.
    ///
    /// # Errors
    /// [`PromptError::BadConfig`] or [`PromptError::BadTemplate`].
    pub fn beside(
        parts: &TokenizerParts,
        known: KnownTokenizer,
        json: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Result<Self, PromptError> {
        let made = Self::with_tables(parts, parts.name, Some(known), move || {
            fast_load::load(&json()).unwrap_or_else(|error| {
                tracing::error!(%error, "a tokenizer that is known to be one is none");
                LoadedTokenizer::none()
            })
        })?;
        let inner = Arc::clone(&made.inner);
        let build = move || {
            LazyLock::force(&inner.tables);
        };
        if let Err(error) = thread::Builder::new().name("tokenizer".to_owned()).spawn(build) {
            tracing::debug!(%error, "no thread for the tokenizer: the first request builds it");
        }
        Ok(made)
    }

    fn build(parts: &TokenizerParts, origin: &str) -> Result<Self, PromptError> {
        let loaded = fast_load::load(parts.tokenizer_json)
            .map_err(|reason| PromptError::NotATokenizer { origin: origin.to_owned(), reason })?;
        let made = Self::with_tables(parts, origin, None, move || loaded)?;
        LazyLock::force(&made.inner.tables);
        Ok(made)
    }

    fn with_tables(
        parts: &TokenizerParts,
        origin: &str,
        known: Option<KnownTokenizer>,
        load: impl FnOnce() -> LoadedTokenizer + Send + 'static,
    ) -> Result<Self, PromptError> {
        let config = match parts.config_json {
            Some(json) => TokenizerConfig::parse(json, origin)?,
            None => TokenizerConfig::default(),
        };
        let eos_token = config.special_tokens.get("eos_token").and_then(|token| token.as_str()).map(str::to_owned);
        let generation = parts.generation_config_json.map(|json| config::generation(json, origin)).transpose()?;
        let (generation, more_eos_ids) = generation.unwrap_or_default();
        let mut templates = config.templates;
        if let Some(template) = parts.chat_template {
            templates = config::Templates { default: Some(template.to_owned()), tool_use: None };
        }
        let has_template = templates.default.is_some() || templates.tool_use.is_some();
        let compile = || ChatTemplate::compile(&templates, config.special_tokens, origin);
        let template = has_template.then(compile).transpose()?;
        let make = move || TokenizerTables::new(load(), eos_token.as_deref(), more_eos_ids);
        Ok(Self {
            model_vocabulary: None,
            inner: Arc::new(SharedTokenizer {
                config: config.fields,
                generation,
                template,
                ..SharedTokenizer::new(parts.name, known, Box::new(make))
            }),
        })
    }

    /// A tokenizer without tokens, see [`ids_only`].
    pub(super) fn without_tables(name: &'static str, vocab_size: u32, template: ChatTemplate) -> Self {
        let known = KnownTokenizer { fingerprint: name, vocab_size };
        let make = || TokenizerTables::new(ids_only::tables(), None, Vec::new());
        let inner = SharedTokenizer {
            is_ids_only: true,
            template: Some(template),
            ..SharedTokenizer::new(name, Some(known), Box::new(make))
        };
        Self { inner: Arc::new(inner), model_vocabulary: Some(u32::MAX) }
    }

    pub(super) fn inner(&self) -> &SharedTokenizer {
        &self.inner
    }

    /// The tokenizer's name for people: a Hub id or a directory's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Names the vocabulary: 16 hexadecimal digits, equal for every copy whatever its JSON looks like. The first call
    /// walks the vocabulary (some milliseconds), later ones cost nothing.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        let inner = &*self.inner;
        match inner.known {
            Some(known) => known.fingerprint,
            None => inner.fingerprint.get_or_init(|| inner.tables.fingerprint()),
        }
    }

    /// The same tokenizer for a model whose vocabulary is padded to this size.
    #[must_use]
    pub fn with_model_vocabulary(mut self, size: u32) -> Self {
        self.model_vocabulary = Some(size.max(self.vocab_size()));
        self
    }

    /// The number of ids that the model has: the tokenizer's, or more by `config.json` or its user. Those beyond
    /// the tokenizer's have no text.
    #[must_use]
    pub fn model_vocabulary(&self) -> u32 {
        self.known_model_vocabulary().unwrap_or_else(|| self.vocab_size())
    }

    /// As [`model_vocabulary`](Self::model_vocabulary); `None` where neither `config.json` nor a user gives it.
    #[must_use]
    pub fn known_model_vocabulary(&self) -> Option<u32> {
        self.model_vocabulary
    }

    /// One more than the highest id, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.inner.id_count()
    }

    /// Characters of the longest token as the vocabulary spells it, added tokens included.
    #[must_use]
    pub fn longest_token(&self) -> usize {
        self.inner.tables.loaded.longest
    }

    /// The ids of a text. Messages of a chat that were encoded before are remembered; a long text is encoded in pieces
    /// where that gives the same ids, so that it costs little memory.
    ///
    /// # Errors
    /// [`PromptError::Encode`] where the tokenizer fails, such as on characters that it has no token for.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, PromptError> {
        if self.is_ids_only() {
            return Ok(ids_only::encode(text, self.vocab_size()));
        }
        self.encode_any(text, special)
            .map_err(|error| PromptError::Encode { name: self.inner.name.clone(), reason: error.to_string() })
    }

    fn encode_any(&self, text: &str, special: SpecialTokens) -> tokenizers::Result<Vec<u32>> {
        let tokenizer = self.inner.tokenizer();
        let add = special == SpecialTokens::Add;
        let ids = match &self.inner.tables.segments {
            Some(segments) => segments.encode(tokenizer, text)?,
            None if pieces::is_long(text) => pieces::encode(tokenizer, text)?,
            None => return Ok(tokenizer.encode_fast(text, add)?.get_ids().to_vec()),
        };
        if !add {
            return Ok(ids);
        }
        let (before, after) = self.around()?;
        Ok([before, &ids, after].concat())
    }

    /// Returns the ids that the post-processor puts before and after a text, which are the same for every text.
    fn around(&self) -> tokenizers::Result<(&[u32], &[u32])> {
        let found = match self.inner.around.get() {
            Some(found) => found,
            None => {
                let none = self.inner.tokenizer().encode_fast("a", false)?;
                let some = self.inner.tokenizer().encode_fast("a", true)?;
                let width = none.len().max(1);
                let before = some.get_ids().windows(width).position(|ids| ids == none.get_ids()).unwrap_or(0);
                let (start, end) = some.get_ids().split_at(before);
                let end = end.get(none.len()..).unwrap_or_default();
                self.inner.around.get_or_init(|| (start.to_vec(), end.to_vec()))
            }
        };
        Ok((&found.0, &found.1))
    }

    /// The text of ids. Bytes that are no characters become U+FFFD; ids outside the vocabulary are left out.
    ///
    /// # Errors
    /// [`PromptError::Decode`] where the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], special: SkipSpecial) -> Result<String, PromptError> {
        if self.is_ids_only() {
            return Ok(ids.iter().map(|id| ids_only::piece(*id)).collect());
        }
        self.inner
            .tokenizer()
            .decode(ids, special == SkipSpecial::Skip)
            .map_err(|error| PromptError::Decode { name: self.inner.name.clone(), reason: error.to_string() })
    }

    /// A token as the vocabulary spells it (`Ġthe` for " the"); `None` outside the vocabulary.
    #[must_use]
    pub fn token_str(&self, id: u32) -> Option<String> {
        if self.is_ids_only() { Some(ids_only::piece(id)) } else { self.inner.tokenizer().id_to_token(id) }
    }

    /// The id of a token as the vocabulary spells it.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        if self.is_ids_only() { ids_only::id_of(token) } else { self.inner.tokenizer().token_to_id(token) }
    }

    /// Returns `generation_config.json`; empty where there is none.
    #[must_use]
    pub fn generation_config(&self) -> &Map<String, Value> {
        &self.inner.generation
    }

    /// The ids that end a sequence: that of the `eos_token` first, then those of `generation_config.json` in its order.
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.inner.tables.eos_ids
    }

    /// The ids whose token alone decodes to complete, printable text, in ascending order and without added tokens. The first call decodes the vocabulary (some ten milliseconds).
    #[must_use]
    pub fn ordinary_ids(&self) -> &[u32] {
        self.inner.ordinary.get_or_init(|| {
            if self.is_ids_only() {
                return (0..self.vocab_size().min(ids_only::MOST_ORDINARY)).collect();
            }
            let added = self.inner.tokenizer().get_added_vocabulary().get_added_tokens_decoder();
            (0..self.inner.id_count()).filter(|id| !added.contains_key(id) && self.is_printable(*id)).collect()
        })
    }

    /// The words that made-up text consists of: in any order they are encoded to themselves. The first call looks for them
    /// (some milliseconds).
    #[must_use]
    pub fn words(&self) -> Arc<WordTokens> {
        Arc::clone(self.inner.words.get_or_init(|| Arc::new(WordTokens::of(self))))
    }

    /// The special tokens among the added ones, with their text.
    pub(crate) fn special_tokens(&self) -> Vec<(u32, String)> {
        let added = self.inner.tokenizer().get_added_vocabulary().get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special);
        special.map(|(id, token)| (*id, token.content.clone())).collect()
    }

    fn is_printable(&self, id: u32) -> bool {
        let is_plain = |text: &str| !text.is_empty() && !text.contains(|c: char| c == '\u{fffd}' || c.is_control());
        match self.inner.bytes() {
            Some(table) => std::str::from_utf8(table.get(id)).is_ok_and(is_plain),
            None => is_plain(&self.inner.tokenizer().decode(&[id], false).unwrap_or_default()),
        }
    }

    /// A detokenizer for one answer to the prompt of these ids.
    #[must_use]
    pub fn detokenizer(&self, prompt_ids: &[u32], skip_special: SkipSpecial) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner), prompt_ids, skip_special)
    }

    /// Another chat template with this tokenizer's special tokens.
    ///
    /// # Errors
    /// [`PromptError::BadTemplate`] with its line.
    pub fn other_chat_template(&self, source: &str) -> Result<ChatTemplate, PromptError> {
        let special_tokens = self.chat_template().map(|own| own.special_tokens.clone()).unwrap_or_default();
        ChatTemplate::new(source, special_tokens)
    }

    /// `tokenizer_config.json` as it was written, with null in the place of chat templates; empty where there is none.
    #[must_use]
    pub fn config(&self) -> &Map<String, Value> {
        &self.inner.config
    }

    /// The chat template, where the tokenizer carries one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.inner.template.as_ref()
    }

    /// The ids of a completion's `prompt`, a text or ids; `None` for anything else.
    #[must_use]
    pub fn ids_of_completion(&self, prompt: &Value) -> Option<Vec<u32>> {
        match prompt {
            Value::String(text) => self.encode(text, SpecialTokens::Add).ok(),
            given => serde_json::from_value(given.clone()).ok(),
        }
    }

    /// The ids of a chat request as this tokenizer's template renders it, with these arguments of the template; `None`
    /// where there is no template, or it refuses.
    #[must_use]
    pub fn ids_of_chat(&self, body: &Map<String, Value>, kwargs: &Map<String, Value>) -> Option<Vec<u32>> {
        let text = self.chat_template()?.render(&Conversation::of_request(body, kwargs)?).ok()?;
        self.encode(&text, SpecialTokens::Skip).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(name: &'a str, json: &'a [u8]) -> TokenizerParts<'a> {
        TokenizerParts {
            name,
            tokenizer_json: json,
            config_json: None,
            chat_template: None,
            generation_config_json: None,
        }
    }

    #[test]
    fn what_is_no_tokenizer_is_named() {
        let error = Tokenizer::from_parts(&parts("mine", br#"{"a":1}"#)).unwrap_err();
        assert!(matches!(&error, PromptError::NotATokenizer { origin, .. } if origin == "mine"), "{error}");
        assert!(error.to_string().contains("model"), "{error}");
    }
}
