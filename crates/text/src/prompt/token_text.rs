//! The text of single tokens, as in log probabilities, and their bytes.

use tokenizers::PreTokenizerWrapper;

use super::{SkipSpecial, Tokenizer, token_bytes};

/// Tokens before one that its text may depend on: a character has up to four bytes.
const CONTEXT: usize = 4;

/// Replacement for bytes that are no character.
const INCOMPLETE: char = '\u{fffd}';

impl Tokenizer {
    /// A token's text after these: whole characters only, with the bytes that earlier tokens left over. A token that only
    /// completes a character later has none.
    #[must_use]
    pub fn token_text(&self, id: u32, before: &[u32]) -> String {
        let alone = self.alone(id);
        if !alone.ends_with(INCOMPLETE) {
            return self.with_spaces(id, alone);
        }
        for length in 1..=before.len().min(CONTEXT) {
            let context = before.get(before.len() - length..).unwrap_or_default();
            let whole = self.shown(&[context, &[id]].concat());
            if whole.ends_with(INCOMPLETE) {
                continue;
            }
            let left_over =
                context.iter().rev().take_while(|before| self.alone(**before).ends_with(INCOMPLETE)).count();
            let clean = self.shown(context.get(..context.len() - left_over).unwrap_or_default());
            let common = whole.chars().zip(clean.chars()).take_while(|(one, other)| one == other);
            let common: usize = common.map(|(c, _)| c.len_utf8()).sum();
            return whole.get(common..).unwrap_or_default().to_owned();
        }
        String::new()
    }

    /// The bytes of every token by id; none for special tokens, for ids that no token has, and for spellings that stand
    /// for no bytes. They are exact for byte-level vocabularies and for those of SentencePiece with byte fallback.
    #[must_use]
    pub fn token_bytes(&self) -> Vec<Vec<u8>> {
        let tokenizer = self.inner().tokenizer();
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let letters = token_bytes::letters();
        let is_byte_level = tokenizer.get_decoder().is_some_and(token_bytes::is_byte_level);
        let bytes = |id: u32| match added.get(&id) {
            Some(token) if token.special => Vec::new(),
            Some(token) => token.content.clone().into_bytes(),
            None => {
                let token = tokenizer.id_to_token(id).unwrap_or_default();
                if is_byte_level {
                    token
                        .chars()
                        .map(|letter| token_bytes::byte_of(&letters, letter))
                        .collect::<Option<_>>()
                        .unwrap_or_default()
                } else {
                    token_bytes::pieces(&token)
                }
            }
        };
        (0..self.vocab_size()).map(bytes).collect()
    }

    fn alone(&self, id: u32) -> String {
        self.shown(&[id])
    }

    fn shown(&self, ids: &[u32]) -> String {
        self.decode(ids, SkipSpecial::Keep).unwrap_or_default()
    }

    /// The spaces at a token's start that a decoder drops from the first token of a text.
    fn with_spaces(&self, id: u32, text: String) -> String {
        let Some(marker) = self.space_marker() else { return text };
        let marked = self.token_str(id).unwrap_or_default().chars().take_while(|c| *c == marker).count();
        let there = text.chars().take_while(|c| *c == ' ').count();
        format!("{}{text}", " ".repeat(marked.saturating_sub(there)))
    }

    fn space_marker(&self) -> Option<char> {
        let marker = |one: &PreTokenizerWrapper| match one {
            PreTokenizerWrapper::Metaspace(metaspace) => Some(metaspace.get_replacement()),
            _ => None,
        };
        match self.inner().tokenizer().get_pre_tokenizer()? {
            PreTokenizerWrapper::Sequence(all) => all.as_ref().iter().find_map(marker),
            one => marker(one),
        }
    }
}
