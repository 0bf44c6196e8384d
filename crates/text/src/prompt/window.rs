//! Text of tokens that come in separate requests: the state between them is plain data, which the client carries.
//!
//! It is vLLM's slow detokenizer (`detokenize_incrementally`), which keeps the spellings of the tokens whose text is not
//! settled yet. What it makes of a prompt that ends within a character, or of a state that was tampered with, is the
//! engine's too: offsets count from the end where they are negative, as Python's do.
//!
//! Deviation: [`MOST`] tokens in a row that make no text are forgotten, so that hostile tokens cost no square of their
//! number; the engine refuses a state with so many.

use super::{PromptError, SkipSpecial, Tokenizer, tables::SharedTokenizer};

/// Tokens that a state may hold.
const MOST: usize = 1024;

/// Tokens of a prompt that are looked at, and how many of them the text before an output begins with.
const LOOK_BACK: usize = 7;
const PREFIX: usize = 5;

/// Decoding position in a text, as a client carries it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecodeWindow {
    /// The tokens whose text is not settled, as the vocabulary spells them.
    pub tokens: Vec<String>,
    /// Index of the id at which the decoded text begins.
    pub prefix: i64,
    /// Index of the first token whose text was not sent.
    pub read: i64,
}

impl Tokenizer {
    /// The state before the first token after a prompt. Ids outside the vocabulary leave no text.
    #[must_use]
    pub fn window_after(&self, prompt: &[u32], special: SkipSpecial) -> DecodeWindow {
        let start = prompt.len().saturating_sub(LOOK_BACK);
        let tokens: Vec<String> = prompt.iter().skip(start).filter_map(|id| self.spelling(*id, special)).collect();
        let prefix = tokens.len().saturating_sub(PREFIX);
        DecodeWindow { prefix: offset(prefix), read: offset(tokens.len()), tokens }
    }

    /// A token as the vocabulary spells it, empty for ids that there are not; `None` where it is skipped.
    fn spelling(&self, id: u32, special: SkipSpecial) -> Option<String> {
        let added = self.inner().tokenizer().get_added_vocabulary().get_added_tokens_decoder();
        let is_skipped = special == SkipSpecial::Skip && added.get(&id).is_some_and(|token| token.special);
        (!is_skipped).then(|| self.token_str(id).unwrap_or_default())
    }
}

impl DecodeWindow {
    /// Takes the next token and returns the text that it completes.
    ///
    /// # Errors
    /// [`PromptError::Decode`] where the tokenizer's decoder fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, special: SkipSpecial) -> Result<String, PromptError> {
        let new = tokenizer.spelling(id, special);
        let before = offset(self.tokens.len());
        let start = self.prefix.min(self.read).min(before);
        let mut looked_at = slice(&self.tokens, start, None).to_vec();
        looked_at.extend(new.clone());
        self.tokens.extend(new);
        let inner = tokenizer.inner();
        let (prefix, read) = (self.prefix - start, self.read - start);
        let sent = decode(inner, slice(&looked_at, prefix, Some(read)))?;
        let text = decode(inner, slice(&looked_at, prefix, None))?;
        let sent = sent.chars().count();
        let is_new = text.chars().count() > sent && !text.ends_with('\u{fffd}');
        if is_new {
            (self.prefix, self.read) = (self.read, offset(self.tokens.len()));
        }
        self.tokens = slice(&self.tokens, self.prefix, None).to_vec();
        (self.read, self.prefix) = (self.read - self.prefix, 0);
        if self.tokens.len() > MOST {
            *self = Self::default();
        }
        Ok(if is_new { text.chars().skip(sent).collect() } else { String::new() })
    }
}

/// The text of tokens as the vocabulary spells them.
fn decode(inner: &SharedTokenizer, tokens: &[String]) -> Result<String, PromptError> {
    use tokenizers::Decoder;
    let Some(decoder) = inner.tokenizer().get_decoder() else { return Ok(tokens.join(" ")) };
    decoder
        .decode(tokens.to_vec())
        .map_err(|error| PromptError::Decode { name: inner.name.clone(), reason: error.to_string() })
}

fn offset(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// `items[start:end]` as Python has it.
fn slice<T>(items: &[T], start: i64, end: Option<i64>) -> &[T] {
    let count = offset(items.len());
    let place = |at: i64| {
        let at = if at < 0 { at.saturating_add(count).max(0) } else { at.min(count) };
        usize::try_from(at).unwrap_or(usize::MAX)
    };
    let end = end.map_or(items.len(), place);
    items.get(place(start).min(end)..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_pythons() {
        let items = [0, 1, 2, 3];
        for (start, end, expected) in [
            (0, None, &items[..]),
            (-2, None, &items[2..]),
            (-9, Some(1), &items[..1]),
            (1, Some(-1), &items[1..3]),
            (3, Some(1), &[]),
            (9, None, &[]),
        ] {
            assert_eq!(slice(&items, start, end), expected, "{start}:{end:?}");
        }
    }
}
