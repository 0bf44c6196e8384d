//! Builds a [`tokenizers::Tokenizer`] from JSON in one pass.
//!
//! The crate's own loader parses the model into a tree of JSON values first, twice over for untagged parts, which costs
//! several times the time and the memory of the result. A BPE model that names its type is read straight into what the
//! builder takes; every other model goes the crate's way. Truncation and padding are left out, as vLLM turns both off.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, SeqAccess, Visitor};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A tokenizer, with what only its JSON tells.
pub(super) struct Loaded {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Highest id of model and added tokens, plus one.
    pub id_count: u32,
    /// Hash over the model's type and, for BPE, its merges in order.
    pub rules: u64,
}

#[derive(Deserialize)]
struct TokenizerJson<M> {
    model: M,
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
}

#[derive(Deserialize)]
struct Added {
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(Deserialize)]
enum BpeTag {
    #[serde(rename = "BPE")]
    Bpe,
}

#[derive(Deserialize)]
struct BpeJson {
    #[serde(rename = "type")]
    _type: BpeTag,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: Vec<Merge>,
}

/// Two tokens that become one: `["a", "b"]`, or `"a b"` in older files.
struct Merge(String, String);

/// Reads a `tokenizer.json`.
///
/// # Errors
/// The parser's or the tokenizer's words.
pub(super) fn load(json: &[u8]) -> Result<Loaded, String> {
    match serde_json::from_slice::<TokenizerJson<BpeJson>>(json) {
        Ok(parts) => assemble(parts, bpe),
        Err(_) => assemble(serde_json::from_slice(json).map_err(|error| error.to_string())?, other),
    }
}

/// A model, its highest id, and the hash of its rules.
type Model = (ModelWrapper, Option<u32>, u64);

fn assemble<M>(parts: TokenizerJson<M>, model: fn(M) -> Result<Model, String>) -> Result<Loaded, String> {
    let (model, highest, rules) = model(parts.model)?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(parts.normalizer).map_err(|error| error.to_string())?;
    tokenizer.with_pre_tokenizer(parts.pre_tokenizer);
    tokenizer.with_post_processor(parts.post_processor);
    tokenizer.with_decoder(parts.decoder);
    tokenizer.add_tokens(parts.added_tokens.into_iter().map(|added| added.token)).map_err(|error| error.to_string())?;
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder().keys().copied().max();
    let id_count = highest.max(added).map_or(0, |id| id.saturating_add(1));
    Ok(Loaded { tokenizer, id_count, rules })
}

fn bpe(json: BpeJson) -> Result<Model, String> {
    let highest = json.vocab.values().copied().max();
    let mut rules = Xxh3::new();
    rules.update(b"BPE");
    let merges = json.merges.into_iter().map(|Merge(left, right)| {
        for part in [&left, &right] {
            rules.update(part.as_bytes());
            rules.update(&[0xff]);
        }
        (left, right)
    });
    let mut builder = BPE::builder().vocab_and_merges(json.vocab, merges.collect());
    builder = apply(builder, json.dropout, BpeBuilder::dropout);
    builder = apply(builder, json.unk_token, BpeBuilder::unk_token);
    builder = apply(builder, json.continuing_subword_prefix, BpeBuilder::continuing_subword_prefix);
    builder = apply(builder, json.end_of_word_suffix, BpeBuilder::end_of_word_suffix);
    builder = apply(builder, json.fuse_unk, BpeBuilder::fuse_unk);
    builder = apply(builder, json.byte_fallback, BpeBuilder::byte_fallback);
    builder = apply(builder, json.ignore_merges, BpeBuilder::ignore_merges);
    let model = builder.build().map_err(|error| error.to_string())?;
    Ok((ModelWrapper::BPE(model), highest, rules.digest()))
}

fn apply<T>(builder: BpeBuilder, value: Option<T>, set: fn(BpeBuilder, T) -> BpeBuilder) -> BpeBuilder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn other(model: ModelWrapper) -> Result<Model, String> {
    let name = match model {
        ModelWrapper::BPE(_) => b"BPE".as_slice(),
        ModelWrapper::WordPiece(_) => b"WordPiece",
        ModelWrapper::WordLevel(_) => b"WordLevel",
        ModelWrapper::Unigram(_) => b"Unigram",
    };
    let highest = tokenizers::Model::get_vocab(&model).into_values().max();
    Ok((model, highest, xxh3_64(name)))
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a merge: two tokens, or one string with a space between them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(Merge(left.to_owned(), right.to_owned())),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let left = list.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
                let right = list.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
                Ok(Merge(left, right))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
