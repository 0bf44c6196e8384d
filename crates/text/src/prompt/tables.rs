//! Tables of a tokenizer, shared by its clones: made once, perhaps later, with the values derived from them.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::Xxh3;

use super::{ChatTemplate, fast_load::LoadedTokenizer, segments::Segments, token_bytes::TokenBytes, words::WordTokens};

/// Properties of a tokenizer that are known before its tables are built.
#[derive(Debug, Clone, Copy)]
pub struct KnownTokenizer {
    /// See [`Tokenizer::fingerprint`](super::Tokenizer::fingerprint).
    pub fingerprint: &'static str,
    /// See [`Tokenizer::vocab_size`](super::Tokenizer::vocab_size).
    pub vocab_size: u32,
}

/// Makes tables: reads the JSON, or waits for who does.
pub(super) type MakeTables = Box<dyn FnOnce() -> TokenizerTables + Send>;

/// State that the clones of a tokenizer share.
pub(super) struct SharedTokenizer {
    pub(super) name: String,
    /// There is no tokenizer, see [`ids_only`](super::ids_only).
    pub(super) is_ids_only: bool,
    pub(super) tables: LazyLock<TokenizerTables, MakeTables>,
    pub(super) known: Option<KnownTokenizer>,
    pub(super) generation: Map<String, Value>,
    pub(super) config: Map<String, Value>,
    pub(super) template: Option<ChatTemplate>,
    pub(super) around: OnceLock<(Vec<u32>, Vec<u32>)>,
    pub(super) fingerprint: OnceLock<String>,
    pub(super) ordinary: OnceLock<Vec<u32>>,
    pub(super) words: OnceLock<Arc<WordTokens>>,
    pub(super) bytes: OnceLock<Option<TokenBytes>>,
}

/// The tables, and what follows from them alone.
pub(super) struct TokenizerTables {
    pub(super) loaded: LoadedTokenizer,
    pub(super) eos_ids: Vec<u32>,
    pub(super) segments: Option<Segments>,
}

impl TokenizerTables {
    pub(super) fn new(loaded: LoadedTokenizer, eos_token: Option<&str>, more_eos_ids: Vec<u32>) -> Self {
        let mut eos_ids: Vec<u32> =
            eos_token.and_then(|token| loaded.tokenizer.token_to_id(token)).into_iter().collect();
        for id in more_eos_ids {
            if !eos_ids.contains(&id) {
                eos_ids.push(id);
            }
        }
        Self { segments: Segments::of(&loaded.tokenizer), loaded, eos_ids }
    }

    /// One hash that names a vocabulary, as 16 hexadecimal digits: equal ones mean that ids mean the same. Hashed are the model's type,
    /// its merges (BPE), every token in the order of its id, and the added tokens with their flags. How the JSON was laid out, and
    /// the settings of the normaliser and the pre-tokenizer, are not part of it.
    pub(super) fn fingerprint(&self) -> String {
        let LoadedTokenizer { tokenizer, id_count, rules, .. } = &self.loaded;
        let mut hash = Xxh3::new();
        hash.update(&rules.to_le_bytes());
        for id in 0..*id_count {
            if let Some(token) = tokenizer.id_to_token(id) {
                hash.update(&id.to_le_bytes());
                hash.update(token.as_bytes());
                hash.update(&[0xff]);
            }
        }
        let mut added: Vec<_> = tokenizer.get_added_vocabulary().get_added_tokens_decoder().iter().collect();
        added.sort_by_key(|(id, _)| **id);
        for (id, token) in added {
            let flags = [token.special, token.normalized, token.lstrip, token.rstrip, token.single_word];
            hash.update(&id.to_le_bytes());
            hash.update(&flags.map(u8::from));
        }
        format!("{:016x}", hash.digest())
    }
}

impl SharedTokenizer {
    /// A tokenizer of nothing but tables, which `make` makes when they are needed first.
    pub(super) fn new(name: &str, known: Option<KnownTokenizer>, make: MakeTables) -> Self {
        Self {
            name: name.to_owned(),
            is_ids_only: false,
            tables: LazyLock::new(make),
            known,
            generation: Map::new(),
            config: Map::new(),
            template: None,
            around: OnceLock::new(),
            fingerprint: OnceLock::new(),
            ordinary: OnceLock::new(),
            words: OnceLock::new(),
            bytes: OnceLock::new(),
        }
    }

    pub(super) fn tokenizer(&self) -> &tokenizers::Tokenizer {
        &self.tables.loaded.tokenizer
    }

    pub(super) fn id_count(&self) -> u32 {
        self.known.map_or_else(|| self.tables.loaded.id_count, |known| known.vocab_size)
    }

    /// The bytes of the tokens, made once; `None` where the decoder is no byte-level one.
    pub(super) fn bytes(&self) -> Option<&TokenBytes> {
        self.bytes.get_or_init(|| TokenBytes::of(self.tokenizer(), self.id_count())).as_ref()
    }
}

impl fmt::Debug for SharedTokenizer {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("Tokenizer").field("name", &self.name).field("known", &self.known).finish_non_exhaustive()
    }
}
