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

use super::tokenizer::Inner;
use super::{PromptError, SkipSpecial};

/// How many of a prompt's last ids seed a byte-level decoder.
const TAIL: usize = 16;

/// The detokenizer of one choice of one answer. Owns what it needs, so it can live in a task of its own.
#[derive(Debug)]
pub struct Detokenizer {
    inner: Arc<Inner>,
    skip_special: bool,
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
    spacing: Spacing,
}

/// What stands between two special tokens in a row, where they are shown at all.
#[derive(Debug)]
enum Spacing {
    /// What the decoder puts there (vLLM's default).
    Decoder,
    /// Nothing: vLLM's `spaces_between_special_tokens: false`.
    None { last_was_added: bool },
}

impl Detokenizer {
    pub(super) fn new(inner: Arc<Inner>, prompt_ids: &[u32], skip_special: SkipSpecial) -> Self {
        let skip_special = skip_special == SkipSpecial::Skip;
        let ids = seed(&inner.tokenizer, prompt_ids, skip_special).to_vec();
        Self { inner, skip_special, ids, prefix: String::new(), prefix_index: 0, spacing: Spacing::Decoder }
    }

    /// Shows special tokens in a row without spaces between them, as vLLM's `spaces_between_special_tokens: false`. It
    /// has no effect where special tokens are skipped.
    #[must_use]
    pub fn without_spaces_between_special_tokens(mut self) -> Self {
        if !self.skip_special {
            self.spacing = Spacing::None { last_was_added: false };
        }
        self
    }

    /// Takes the next id and returns the text that it completes: `""` while a character is incomplete, for skipped
    /// special tokens and for ids outside the vocabulary.
    ///
    /// # Errors
    /// [`PromptError::Decode`] where the tokenizer's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<String, PromptError> {
        let text = self.step(id)?.unwrap_or_default();
        let Spacing::None { last_was_added } = &mut self.spacing else { return Ok(text) };
        let added = self.inner.tokenizer.get_added_vocabulary().get_added_tokens_decoder().get(&id);
        let again = std::mem::replace(last_was_added, added.is_some());
        Ok(match added {
            Some(token) if again => token.content.clone(),
            _ => text,
        })
    }

    fn step(&mut self, id: u32) -> Result<Option<String>, PromptError> {
        match self.advance(id) {
            Err(error) if error.is::<DecodeStreamError>() => {
                // The decoder is not monotonic here; vLLM starts a fresh stream with this id, without the prompt.
                self.ids.clear();
                self.prefix.clear();
                self.prefix_index = 0;
                self.advance(id)
            }
            outcome => outcome,
        }
        .map_err(|error| PromptError::Decode { name: self.inner.name.clone(), reason: error.to_string() })
    }

    fn advance(&mut self, id: u32) -> tokenizers::Result<Option<String>> {
        step_decode_stream(
            &self.inner.tokenizer,
            vec![id],
            self.skip_special,
            &mut self.ids,
            &mut self.prefix,
            &mut self.prefix_index,
        )
    }
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
    let tail = prompt.get(prompt.len().saturating_sub(TAIL)..).unwrap_or(prompt);
    match tokenizer.decode(tail, skip_special) {
        Ok(text) if !text.ends_with('\u{fffd}') && text.contains(|c| c != '\u{fffd}') => tail,
        _ => prompt,
    }
}
