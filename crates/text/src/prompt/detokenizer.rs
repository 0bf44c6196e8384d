//! Ids to text deltas, one id at a time, as vLLM's `FastIncrementalDetokenizer` gives them.
//!
//! A delta is withheld (`""`) while the bytes so far end inside a character, and comes with the id that completes it. At
//! the end of a stream nothing is flushed: an incomplete character is never shown. The state is seeded with the prompt's
//! ids, because a decoder may treat a first token differently (SentencePiece drops its leading space). For byte-level
//! decoders, whose text is the plain concatenation of the tokens' bytes, a tail of the prompt gives the same deltas as
//! the whole; see [`seed`].

use std::sync::Arc;

use tokenizers::tokenizer::{DecodeStreamError, step_decode_stream};
use tokenizers::{DecoderWrapper, Tokenizer};

use super::PromptError;
use super::ids_only;
use super::tables::SharedTokenizer;
use super::token_bytes::TokenBytes;

/// Number of a prompt's last ids that seed a byte-level decoder.
const TAIL: usize = 16;

/// Special tokens in decoded text; vLLM's `skip_special_tokens`, which is on unless a request turns it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipSpecial {
    /// Leave them out.
    Skip,
    /// Show them.
    Keep,
}

/// The detokenizer of one choice of one answer. Owns what it needs, so it can live in a task of its own.
#[derive(Debug)]
pub struct Detokenizer {
    inner: Arc<SharedTokenizer>,
    skip_special: bool,
    state: DetokenizerState,
    /// With special tokens in a row written without the decoder's separator (vLLM's `spaces_between_special_tokens: false`): whether
    /// the last token was one.
    last_was_added: Option<bool>,
}

#[derive(Debug)]
enum DetokenizerState {
    /// All text so far was whole characters, but for what these ids after it stand for. Only with a byte-level decoder.
    Bytes { pending: Vec<u8>, ids: Vec<u32> },
    /// As the tokenizers library keeps it.
    Decoder { ids: Vec<u32>, prefix: String, prefix_index: usize },
}

impl DetokenizerState {
    fn decoder(ids: Vec<u32>) -> Self {
        Self::Decoder { ids, prefix: String::new(), prefix_index: 0 }
    }
}

impl Detokenizer {
    pub(super) fn new(inner: Arc<SharedTokenizer>, prompt_ids: &[u32], skip_special: SkipSpecial) -> Self {
        let skip_special = skip_special == SkipSpecial::Skip;
        let state = if inner.is_ids_only {
            DetokenizerState::decoder(Vec::new())
        } else if inner.bytes().is_some_and(|table| is_whole(table, tail(prompt_ids), skip_special)) {
            DetokenizerState::Bytes { pending: Vec::new(), ids: Vec::new() }
        } else {
            DetokenizerState::decoder(seed(inner.tokenizer(), prompt_ids, skip_special).to_vec())
        };
        let mut made = Self { inner, skip_special, state, last_was_added: None };
        made.settle();
        made
    }

    /// Shows special tokens in a row without spaces between them, as vLLM's `spaces_between_special_tokens: false`. It
    /// has no effect where special tokens are skipped.
    #[must_use]
    pub fn without_spaces_between_special_tokens(mut self) -> Self {
        if !self.skip_special {
            self.last_was_added = Some(false);
        }
        self
    }

    /// Takes the next id and returns the text that it completes: `""` while a character is incomplete, for skipped
    /// special tokens and for ids outside the vocabulary.
    ///
    /// # Errors
    /// [`PromptError::Decode`] where the tokenizer's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<String, PromptError> {
        if self.inner.is_ids_only {
            return Ok(ids_only::piece(id));
        }
        let text = self.step(id)?.unwrap_or_default();
        let Some(last_was_added) = &mut self.last_was_added else { return Ok(text) };
        let added = self.inner.tokenizer().get_added_vocabulary().get_added_tokens_decoder().get(&id);
        let again = std::mem::replace(last_was_added, added.is_some());
        Ok(match added {
            Some(token) if again => token.content.clone(),
            _ => text,
        })
    }

    /// As [`push`](Self::push), with the text at the end of another one.
    ///
    /// # Errors
    /// [`PromptError::Decode`] where the tokenizer's decoder fails.
    pub fn push_onto(&mut self, id: u32, out: &mut String) -> Result<(), PromptError> {
        match self.whole(id) {
            Some(text) => out.push_str(text),
            None => out.push_str(&self.push(id)?),
        }
        Ok(())
    }

    /// The text of an id that neither completes a character nor leaves one incomplete; `None` where this is not known.
    fn whole(&self, id: u32) -> Option<&str> {
        let DetokenizerState::Bytes { pending, ids } = &self.state else { return None };
        if !pending.is_empty() || !ids.is_empty() || self.last_was_added.is_some() {
            return None;
        }
        let table = self.inner.bytes()?;
        let text = std::str::from_utf8(table.get(id)).ok().filter(|_| !(self.skip_special && table.is_special(id)))?;
        (!text.is_empty() && !text.ends_with('\u{fffd}')).then_some(text)
    }

    fn step(&mut self, id: u32) -> Result<Option<String>, PromptError> {
        if matches!(self.state, DetokenizerState::Bytes { .. }) {
            return Ok(self.append(id));
        }
        let outcome = match self.advance(id) {
            Err(error) if error.is::<DecodeStreamError>() => {
                // The decoder is not monotonic here; vLLM starts a fresh stream with this id, without the prompt.
                self.state = DetokenizerState::decoder(Vec::new());
                self.advance(id)
            }
            outcome => outcome,
        };
        self.settle();
        outcome.map_err(|error| PromptError::Decode { name: self.inner.name.clone(), reason: error.to_string() })
    }

    fn advance(&mut self, id: u32) -> tokenizers::Result<Option<String>> {
        let DetokenizerState::Decoder { ids, prefix, prefix_index } = &mut self.state else { return Ok(None) };
        step_decode_stream(self.inner.tokenizer(), vec![id], self.skip_special, ids, prefix, prefix_index)
    }

    /// The text that an id completes, where all before it was whole characters. The library would decode that again and
    /// take it off as a prefix; both come to the lossy UTF-8 of what is new.
    fn append(&mut self, id: u32) -> Option<String> {
        let DetokenizerState::Bytes { pending, ids } = &mut self.state else { return None };
        let table = self.inner.bytes()?;
        ids.push(id);
        if !(self.skip_special && table.is_special(id)) {
            pending.extend_from_slice(table.get(id));
        }
        let text = match std::str::from_utf8(pending) {
            Ok(text) if text.is_empty() || text.ends_with('\u{fffd}') => return None,
            Ok(text) => text.to_owned(),
            Err(_) => {
                let text = String::from_utf8_lossy(pending).into_owned();
                if !text.ends_with('\u{fffd}') {
                    // What is new is broken in its middle: the library goes on from here.
                    let (ids, prefix) = (std::mem::take(ids), text.clone());
                    self.state = DetokenizerState::Decoder { prefix_index: ids.len(), ids, prefix };
                    return Some(text);
                }
                return None;
            }
        };
        pending.clear();
        ids.clear();
        Some(text)
    }

    /// Leaves the library's decoder once all text so far is whole characters and delivered.
    fn settle(&mut self) {
        let DetokenizerState::Decoder { ids, prefix, prefix_index } = &self.state else { return };
        let is_delivered = prefix.is_empty() && *prefix_index == 0 || *prefix_index == ids.len();
        if !is_delivered {
            return;
        }
        let Some(table) = self.inner.bytes() else { return };
        let skipped = |id: &&u32| !(self.skip_special && table.is_special(**id));
        let bytes: Vec<u8> = ids.iter().filter(skipped).flat_map(|id| table.get(*id)).copied().collect();
        let is_whole = std::str::from_utf8(&bytes).is_ok_and(|text| !text.ends_with('\u{fffd}'));
        if is_whole {
            self.state = DetokenizerState::Bytes { pending: Vec::new(), ids: Vec::new() };
        }
    }
}

fn tail(prompt: &[u32]) -> &[u32] {
    prompt.get(prompt.len().saturating_sub(TAIL)..).unwrap_or(prompt)
}

/// Returns true if ids are a text of whole characters, so that a stream can start after them as if nothing stood before: what
/// [`seed`] and [`Detokenizer::settle`] come to, without decoding.
fn is_whole(table: &TokenBytes, ids: &[u32], skip_special: bool) -> bool {
    let mut bytes = Vec::with_capacity(8 * TAIL);
    for id in ids.iter().filter(|id| !(skip_special && table.is_special(**id))) {
        bytes.extend_from_slice(table.get(*id));
    }
    std::str::from_utf8(&bytes)
        .is_ok_and(|text| !text.ends_with('\u{fffd}') && text.contains(|letter| letter != '\u{fffd}'))
}

/// The ids that a stream starts from: all of the prompt, or a tail that provably gives the same deltas.
///
/// With a byte-level decoder the text of ids is the lossy UTF-8 of their joined bytes. Once a whole character was decoded
/// in the tail, what follows it is decoded alike whether or not anything stood before the tail; and as a stream only ever
/// emits what is longer than its prefix, the common start cancels out, provided that the prefix is taken at all, which
/// is when it does not end in U+FFFD.
fn seed<'a>(tokenizer: &Tokenizer, prompt: &'a [u32], skip_special: bool) -> &'a [u32] {
    if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
        return prompt;
    }
    let tail = tail(prompt);
    match tokenizer.decode(tail, skip_special) {
        Ok(text) if !text.ends_with('\u{fffd}') && text.contains(|c| c != '\u{fffd}') => tail,
        _ => prompt,
    }
}
