//! Builds a [`tokenizers::Tokenizer`] from JSON in one pass.
//!
//! The crate's own loader parses the model into a tree of JSON values first, twice over for untagged parts, which costs
//! several times the time and the memory of the result. A BPE model that names its type is read straight into what the
//! builder takes, vocabulary and merges at the same time; every other model goes the crate's way. Truncation and padding
//! are left out, as vLLM turns both off.

use std::{fmt, thread};

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A tokenizer, with facts that only its JSON has.
pub(super) struct LoadedTokenizer {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Highest id of model and added tokens, plus one.
    pub id_count: u32,
    /// Characters of the longest token, as it is spelled.
    pub longest: usize,
    /// Hash over the model's type and, for BPE, its merges in order.
    pub rules: u64,
}

impl LoadedTokenizer {
    /// A tokenizer without tokens.
    pub(super) fn none() -> Self {
        Self { tokenizer: Tokenizer::new(BPE::default()), id_count: 0, longest: 0, rules: 0 }
    }
}

#[derive(Deserialize)]
struct TokenizerJson<M> {
    model: M,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
}

#[derive(Deserialize)]
enum BpeTag {
    #[serde(rename = "BPE")]
    Bpe,
}

#[derive(Deserialize)]
struct BpeJson<'a> {
    #[serde(rename = "type")]
    _type: BpeTag,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    #[serde(borrow)]
    vocab: &'a RawValue,
    #[serde(borrow)]
    merges: &'a RawValue,
}

/// Merges of a BPE model and their results.
struct BpeTables {
    vocab: Vocab,
    merges: Vec<(String, String)>,
    /// Over the merges in order.
    rules: u64,
}

/// Bytes of JSON for an entry of a vocabulary, to make room before they are counted: more than most vocabularies have, so
/// that no room is left over.
const ENTRY_BYTES: usize = 20;

/// Two tokens that become one: `["a", "b"]`, or `"a b"` in older files.
struct Merge(String, String);

/// Reads a `tokenizer.json`.
pub(super) fn load(json: &[u8]) -> Result<LoadedTokenizer, String> {
    let parts = serde_json::from_slice::<TokenizerJson<BpeJson>>(json).ok();
    match parts.and_then(|parts| Some((tables(&parts.model)?, parts))) {
        Some((tables, parts)) => assemble(parts, |model| bpe(model, tables)),
        None => assemble(serde_json::from_slice(json).map_err(|error| error.to_string())?, other),
    }
}

/// Reads the two tables of a model side by side; `None` where one of them is none.
fn tables(model: &BpeJson) -> Option<BpeTables> {
    let (vocab, merges) = thread::scope(|scope| {
        let merges = scope.spawn(|| merges(model.merges));
        (vocabulary(model.vocab), merges.join())
    });
    let (merges, rules) = merges.ok()??;
    Some(BpeTables { vocab: vocab?, merges, rules })
}

fn vocabulary(json: &RawValue) -> Option<Vocab> {
    let mut vocab = Vocab::with_capacity_and_hasher(json.get().len() / ENTRY_BYTES, Default::default());
    let mut json = serde_json::Deserializer::from_str(json.get());
    Entries(&mut vocab).deserialize(&mut json).ok()?;
    Some(vocab)
}

fn merges(json: &RawValue) -> Option<(Vec<(String, String)>, u64)> {
    let merges: Vec<Merge> = serde_json::from_str(json.get()).ok()?;
    let mut rules = Xxh3::new();
    rules.update(b"BPE");
    let merges = merges.into_iter().map(|Merge(left, right)| {
        for part in [&left, &right] {
            rules.update(part.as_bytes());
            rules.update(&[0xff]);
        }
        (left, right)
    });
    let merges = merges.collect();
    Some((merges, rules.digest()))
}

/// A model, its extremes, and the hash of its rules.
type LoadedModel = (ModelWrapper, Extremes, u64);

/// The highest id of a vocabulary, and the characters of its longest token.
type Extremes = (Option<u32>, usize);

fn extremes<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Extremes {
    let both = |(highest, longest): Extremes, (token, id): (&str, u32)| {
        // Counting characters is not needed where there are not even as many bytes.
        let length = if token.len() > longest { token.chars().count() } else { 0 };
        (highest.max(Some(id)), longest.max(length))
    };
    tokens.fold((None, 0), both)
}

fn assemble<M>(
    parts: TokenizerJson<M>,
    model: impl FnOnce(M) -> Result<LoadedModel, String>,
) -> Result<LoadedTokenizer, String> {
    let (model, (highest, longest), rules) = model(parts.model)?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(parts.normalizer).map_err(|error| error.to_string())?;
    tokenizer.with_pre_tokenizer(parts.pre_tokenizer);
    tokenizer.with_post_processor(parts.post_processor);
    tokenizer.with_decoder(parts.decoder);
    tokenizer.add_tokens(parts.added_tokens).map_err(|error| error.to_string())?;
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let added = extremes(added.iter().map(|(id, token)| (token.content.as_str(), *id)));
    let id_count = highest.max(added.0).map_or(0, |id| id.saturating_add(1));
    Ok(LoadedTokenizer { tokenizer, id_count, longest: longest.max(added.1), rules })
}

fn bpe(json: BpeJson, tables: BpeTables) -> Result<LoadedModel, String> {
    let BpeTables { vocab, merges, rules } = tables;
    let extremes = extremes(vocab.iter().map(|(token, id)| (token.as_str(), *id)));
    let mut builder = BPE::builder().vocab_and_merges(vocab, merges);
    builder = apply(builder, json.dropout, BpeBuilder::dropout);
    builder = apply(builder, json.unk_token, BpeBuilder::unk_token);
    builder = apply(builder, json.continuing_subword_prefix, BpeBuilder::continuing_subword_prefix);
    builder = apply(builder, json.end_of_word_suffix, BpeBuilder::end_of_word_suffix);
    builder = apply(builder, json.fuse_unk, BpeBuilder::fuse_unk);
    builder = apply(builder, json.byte_fallback, BpeBuilder::byte_fallback);
    builder = apply(builder, json.ignore_merges, BpeBuilder::ignore_merges);
    let model = builder.build().map_err(|error| error.to_string())?;
    Ok((ModelWrapper::BPE(model), extremes, rules))
}

fn apply<T>(builder: BpeBuilder, value: Option<T>, set: fn(BpeBuilder, T) -> BpeBuilder) -> BpeBuilder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn other(model: ModelWrapper) -> Result<LoadedModel, String> {
    let name = match model {
        ModelWrapper::BPE(_) => b"BPE".as_slice(),
        ModelWrapper::WordPiece(_) => b"WordPiece",
        ModelWrapper::WordLevel(_) => b"WordLevel",
        ModelWrapper::Unigram(_) => b"Unigram",
    };
    let vocab = tokenizers::Model::get_vocab(&model);
    let extremes = extremes(vocab.iter().map(|(token, id)| (token.as_str(), *id)));
    Ok((model, extremes, xxh3_64(name)))
}

/// Reads a vocabulary's entries into room that was made before.
struct Entries<'a>(&'a mut Vocab);

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a vocabulary: tokens with their ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some((token, id)) = entries.next_entry()? {
            self.0.insert(token, id);
        }
        Ok(())
    }
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
