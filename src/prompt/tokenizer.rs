//! The tokenizer: text to ids, ids to text, and what its configuration says about special tokens.
//!
//! Loading keeps the JSON's meaning and drops its truncation and padding, as vLLM does. A post-processor is taken from
//! `tokenizer.json` alone; `add_bos_token` and its like in `tokenizer_config.json` are not applied to it.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::config::{self, TokenizerConfig};
use super::detokenizer::Detokenizer;
use super::{ChatTemplate, PromptError, fast_load, fingerprint, locate, pieces};

/// Whether encoding adds the special tokens around a text that the tokenizer's post-processor names (bos, eos).
///
/// vLLM adds them to the prompts of completions and does not to rendered chat templates, which carry their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Add them.
    Add,
    /// Encode the text alone.
    Skip,
}

/// Whether decoding shows special tokens; vLLM's `skip_special_tokens`, which is on unless a request turns it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipSpecial {
    /// Leave them out.
    Skip,
    /// Show them.
    Keep,
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
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) name: String,
    pub(super) tokenizer: tokenizers::Tokenizer,
    id_count: u32,
    rules: u64,
    eos_ids: Vec<u32>,
    template: Option<ChatTemplate>,
    fingerprint: OnceLock<String>,
    ordinary: OnceLock<Vec<u32>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("Tokenizer")
            .field("name", &self.name)
            .field("id_count", &self.id_count)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads the tokenizer that `spec` names: a directory, the path of a `tokenizer.json` (its siblings are used where
    /// they are there), or a Hub id that is in the local Hub cache. Nothing is fetched over the network.
    ///
    /// # Errors
    /// One variant of [`PromptError`] per way this fails: no such path, no tokenizer in the directory, not in the cache,
    /// unreadable, not a tokenizer, a broken configuration, a template that does not compile.
    pub fn load(spec: &str) -> Result<Self, PromptError> {
        Self::load_from(spec, locate::hub_cache().as_deref())
    }

    fn load_from(spec: &str, hub_cache: Option<&Path>) -> Result<Self, PromptError> {
        let files = locate::read(spec, hub_cache)?;
        let parts = TokenizerParts {
            name: &files.name,
            tokenizer_json: &files.tokenizer,
            config_json: files.config.as_deref(),
            chat_template: files.template.as_deref(),
            generation_config_json: files.generation.as_deref(),
        };
        Self::build(&parts, &files.path.display().to_string())
    }

    /// Loads a tokenizer from memory.
    ///
    /// # Errors
    /// [`PromptError::NotATokenizer`], [`PromptError::BadConfig`] or [`PromptError::BadTemplate`].
    pub fn from_parts(parts: &TokenizerParts) -> Result<Self, PromptError> {
        Self::build(parts, parts.name)
    }

    fn build(parts: &TokenizerParts, origin: &str) -> Result<Self, PromptError> {
        let loaded = fast_load::load(parts.tokenizer_json)
            .map_err(|reason| PromptError::NotATokenizer { origin: origin.to_owned(), reason })?;
        let config = match parts.config_json {
            Some(json) => TokenizerConfig::parse(json, origin)?,
            None => TokenizerConfig::default(),
        };
        let mut eos_ids = Vec::new();
        let eos_token = config.special_tokens.get("eos_token").and_then(|token| token.as_str());
        eos_ids.extend(eos_token.and_then(|token| loaded.tokenizer.token_to_id(token)));
        for id in parts
            .generation_config_json
            .map(|json| config::generation_eos(json, origin))
            .transpose()?
            .into_iter()
            .flatten()
        {
            if !eos_ids.contains(&id) {
                eos_ids.push(id);
            }
        }
        let mut templates = config.templates;
        if let Some(template) = parts.chat_template {
            templates = config::Templates { default: Some(template.to_owned()), tool_use: None };
        }
        let template = ChatTemplate::from_templates(&templates, config.special_tokens, origin)?;
        Ok(Self {
            inner: Arc::new(Inner {
                name: parts.name.to_owned(),
                tokenizer: loaded.tokenizer,
                id_count: loaded.id_count,
                rules: loaded.rules,
                eos_ids,
                template,
                fingerprint: OnceLock::new(),
                ordinary: OnceLock::new(),
            }),
        })
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
        inner.fingerprint.get_or_init(|| fingerprint::fingerprint(&inner.tokenizer, inner.id_count, inner.rules))
    }

    /// One more than the highest id, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        self.inner.id_count
    }

    /// The ids of a text. A long text is encoded in pieces where that gives the same ids, so that it costs little memory.
    ///
    /// # Errors
    /// [`PromptError::Encode`] where the tokenizer fails, such as on characters that it has no token for.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, PromptError> {
        self.encode_any(text, special)
            .map_err(|error| PromptError::Encode { name: self.inner.name.clone(), reason: error.to_string() })
    }

    fn encode_any(&self, text: &str, special: SpecialTokens) -> tokenizers::Result<Vec<u32>> {
        let tokenizer = &self.inner.tokenizer;
        let add = special == SpecialTokens::Add;
        if !pieces::is_long(text) {
            return Ok(tokenizer.encode_fast(text, add)?.get_ids().to_vec());
        }
        let ids = pieces::encode(tokenizer, text)?;
        if !add {
            return Ok(ids);
        }
        // The post-processor puts the same ids around every text: see where an id of our own choosing ends up.
        let none = tokenizer.encode_fast("a", false)?;
        let some = tokenizer.encode_fast("a", true)?;
        let before = some.get_ids().windows(none.len().max(1)).position(|ids| ids == none.get_ids()).unwrap_or(0);
        let (start, end) = some.get_ids().split_at(before);
        Ok([start, ids.as_slice(), end.get(none.len()..).unwrap_or_default()].concat())
    }

    /// The text of ids. Bytes that are no characters become U+FFFD; ids outside the vocabulary are left out.
    ///
    /// # Errors
    /// [`PromptError::Decode`] where the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], special: SkipSpecial) -> Result<String, PromptError> {
        self.inner
            .tokenizer
            .decode(ids, special == SkipSpecial::Skip)
            .map_err(|error| PromptError::Decode { name: self.inner.name.clone(), reason: error.to_string() })
    }

    /// A token as the vocabulary spells it (`Ġthe` for " the"); `None` outside the vocabulary.
    #[must_use]
    pub fn token_str(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    /// The id of a token as the vocabulary spells it.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// The ids that end a sequence: that of the `eos_token` first, then those of `generation_config.json` in its order.
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.inner.eos_ids
    }

    /// The ids whose token alone decodes to complete, printable text: what random output is made of. In ascending order,
    /// without added tokens. The first call decodes the vocabulary (some ten milliseconds).
    #[must_use]
    pub fn ordinary_ids(&self) -> &[u32] {
        self.inner.ordinary.get_or_init(|| {
            let added = self.inner.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
            (0..self.inner.id_count).filter(|id| !added.contains_key(id) && self.is_printable(*id)).collect()
        })
    }

    /// The special tokens among the added ones, with their text.
    #[must_use]
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        let added = self.inner.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special);
        special.map(|(id, token)| (*id, token.content.clone())).collect()
    }

    fn is_printable(&self, id: u32) -> bool {
        let text = self.inner.tokenizer.decode(&[id], false).unwrap_or_default();
        !text.is_empty() && !text.contains(|c: char| c == '\u{fffd}' || c.is_control())
    }

    /// A detokenizer for one answer to the prompt of these ids.
    #[must_use]
    pub fn detokenizer(&self, prompt_ids: &[u32], skip_special: SkipSpecial) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner), prompt_ids, skip_special)
    }

    /// The chat template, where the tokenizer carries one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.inner.template.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The SmolLM2 tokenizer's directory, or `None` with a loud word.
    fn smollm2() -> Option<PathBuf> {
        let shared = std::env::var_os("VLLM_VCR_SHARED")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
        let directory = shared.join("tokenizers/smollm2-135m");
        let there = directory.join("tokenizer.json").is_file();
        if !there {
            eprintln!("SKIPPED: no SmolLM2 tokenizer in {}", directory.display());
        }
        there.then_some(directory)
    }

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
    fn the_fast_loader_builds_what_the_crate_builds() {
        let Some(directory) = smollm2() else { return };
        let json = std::fs::read(directory.join("tokenizer.json")).unwrap();
        let ours = Tokenizer::from_parts(&parts("x", &json)).unwrap();
        let theirs = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        assert_eq!(ours.inner.tokenizer.get_vocab(true), theirs.get_vocab(true));
        for text in ["Hello, world 1234", "<|im_start|>user\nÜber 日本語 🎞️\u{2028}<|im_end|>", "  tabs\t\n\n", ""]
        {
            let expected = theirs.encode(text, true).unwrap();
            assert_eq!(ours.encode(text, SpecialTokens::Add).unwrap(), expected.get_ids(), "{text:?}");
        }
    }

    #[test]
    fn a_long_text_in_pieces_has_the_same_ids() {
        let Some(directory) = smollm2() else { return };
        let tokenizer = Tokenizer::load(&directory.display().to_string()).unwrap();
        let words = ["river", " ", "  ", "\n", "runs", "日本", " 12", "'s", "<|im_end|>", "\n\n", "x1", ". ", "\t"];
        let mut state = 7_u32;
        let text: String = (0..90_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                words[(state >> 16) as usize % words.len()]
            })
            .collect();
        assert!(text.len() > 3 * 64 * 1024);
        for special in [SpecialTokens::Add, SpecialTokens::Skip] {
            let whole = tokenizer.inner.tokenizer.encode_fast(text.as_str(), special == SpecialTokens::Add).unwrap();
            assert_eq!(tokenizer.encode(&text, special).unwrap(), whole.get_ids());
        }
    }

    #[test]
    fn a_fingerprint_is_the_vocabularys_not_the_files() {
        let Some(directory) = smollm2() else { return };
        let json = std::fs::read(directory.join("tokenizer.json")).unwrap();
        let mut value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let original = Tokenizer::from_parts(&parts("x", &json)).unwrap();
        let minified = serde_json::to_vec(&value).unwrap();
        assert_eq!(Tokenizer::from_parts(&parts("y", &minified)).unwrap().fingerprint(), original.fingerprint());
        value["added_tokens"][2]["special"] = false.into();
        let changed = serde_json::to_vec(&value).unwrap();
        assert_ne!(Tokenizer::from_parts(&parts("z", &changed)).unwrap().fingerprint(), original.fingerprint());
    }

    #[test]
    fn smollm2_renders_and_tells_its_ids() {
        let Some(directory) = smollm2() else { return };
        let tokenizer = Tokenizer::load(&directory.display().to_string()).unwrap();
        assert_eq!((tokenizer.name(), tokenizer.eos_ids()), ("smollm2-135m", [2].as_slice()));
        let ordinary = tokenizer.ordinary_ids();
        assert!(ordinary.len() > 40_000 && ordinary.iter().all(|id| *id > 16 && *id < tokenizer.vocab_size()));
        let messages = [serde_json::json!({"role": "user", "content": "Hi"})];
        let conversation = crate::prompt::Conversation {
            messages: &messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &serde_json::Map::new(),
        };
        let text = tokenizer.chat_template().unwrap().render(&conversation).unwrap();
        assert!(text.starts_with("<|im_start|>system\nYou are") && text.ends_with("<|im_start|>assistant\n"), "{text}");
        let ids = tokenizer.encode(&text, SpecialTokens::Skip).unwrap();
        assert_eq!(tokenizer.decode(&ids, SkipSpecial::Keep).unwrap(), text);
    }

    #[test]
    fn what_is_no_tokenizer_is_named() {
        let error = Tokenizer::from_parts(&parts("mine", br#"{"a":1}"#)).unwrap_err();
        assert!(matches!(&error, PromptError::NotATokenizer { origin, .. } if origin == "mine"), "{error}");
        assert!(error.to_string().contains("model"), "{error}");
    }
}
