//! Whole words of a vocabulary whose texts, put together, are encoded to the same tokens again: what made-up text is made
//! of, so that counting the tokens of an answer's text gives as many as were sent.
//!
//! A word has two tokens: one with the space before it, and one without for the start of a text, so that nothing is lost
//! where a client strips what it reads. Pre-tokenizers cut before the space, so that no merge crosses it; whether that is
//! so for a vocabulary is tried out.
//!
//! Limits: tokenizers that put a space before every text (those of Llama 2) encode the first word as its token with the
//! space: another id, the same count. Where a vocabulary has too few such words, any printable tokens are taken, and a
//! text may be encoded to another number of tokens.

use tokenizers::DecoderWrapper;

use super::{SkipSpecial, SpecialTokens, Tokenizer};

/// More words than this are not looked for.
const MOST: usize = 4096;

/// With fewer words than this a text would repeat itself.
const LEAST: usize = 64;

/// Words that are tried out together.
const TRIED: usize = 64;

/// Characters that stand for a space in vocabularies.
const SPACES: [char; 2] = ['Ġ', '▁'];

/// Tokens to make text of; see [`Tokenizer::words`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WordTokens {
    /// Tokens that a text may begin with.
    pub first: Vec<u32>,
    /// Tokens that may follow any of these.
    pub next: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    bare: u32,
    spaced: u32,
}

impl WordTokens {
    /// The same tokens at every place.
    pub(crate) fn anywhere(ids: &[u32]) -> Self {
        Self { first: ids.to_vec(), next: ids.to_vec() }
    }

    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        if tokenizer.is_ids_only() {
            return Self::anywhere(tokenizer.ordinary_ids());
        }
        let words = stable(tokenizer, &found(tokenizer));
        if words.len() < LEAST {
            return Self::anywhere(tokenizer.ordinary_ids());
        }
        Self {
            first: words.iter().map(|word| word.bare).collect(),
            next: words.iter().map(|word| word.spaced).collect(),
        }
    }
}

/// The first words of a vocabulary, which are its most frequent ones.
fn found(tokenizer: &Tokenizer) -> Vec<Word> {
    let joins_by_space = matches!(tokenizer.inner().tokenizer().get_decoder(), Some(DecoderWrapper::WordPiece(_)));
    let word = |id: u32| {
        let spelled = tokenizer.token_str(id)?;
        let word = if joins_by_space { spelled.as_str() } else { spelled.strip_prefix(SPACES)? };
        let is_word = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_alphabetic());
        let bare = is_word.then(|| tokenizer.token_id(word)).flatten()?;
        Some(Word { bare, spaced: id })
    };
    (0..tokenizer.vocab_size()).filter_map(word).take(MOST).collect()
}

/// The words of these that are encoded to themselves; none where they are not when they stand together.
fn stable(tokenizer: &Tokenizer, words: &[Word]) -> Vec<Word> {
    let mut kept = Vec::with_capacity(words.len());
    for tried in words.chunks(TRIED) {
        if comes_back(tokenizer, tried) {
            kept.extend_from_slice(tried);
        } else {
            kept.extend(tried.iter().filter(|word| comes_back(tokenizer, &[**word, **word])));
        }
    }
    // Each word between others than before.
    let (even, odd): (Vec<_>, Vec<_>) = kept.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    let mixed: Vec<Word> = even.iter().chain(odd.iter().rev()).map(|(_, word)| **word).collect();
    if mixed.chunks(TRIED).all(|tried| comes_back(tokenizer, tried)) { kept } else { Vec::new() }
}

/// Returns true if a text of these words is encoded to their tokens.
fn comes_back(tokenizer: &Tokenizer, words: &[Word]) -> bool {
    let Some((first, rest)) = words.split_first() else { return true };
    let ids: Vec<u32> = std::iter::once(first.bare).chain(rest.iter().map(|word| word.spaced)).collect();
    let text = tokenizer.decode(&ids, SkipSpecial::Skip).unwrap_or_default();
    let again = tokenizer.encode(&text, SpecialTokens::Skip).unwrap_or_default();
    match (again.split_first(), ids.split_first()) {
        (Some((start, again)), Some((bare, rest))) => again == rest && (start == bare || *start == first.spaced),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::prompt::TokenizerParts;

    fn tokenizer(json: &Value) -> Tokenizer {
        Tokenizer::from_parts(&TokenizerParts {
            name: "made",
            tokenizer_json: json.to_string().as_bytes(),
            config_json: None,
            chat_template: None,
            generation_config_json: None,
        })
        .unwrap()
    }

    /// Words of two letters that begin with these.
    fn pairs(letters: &str) -> Vec<String> {
        letters.chars().flat_map(|first| ('a'..='z').map(move |second| format!("{first}{second}"))).collect()
    }

    /// A vocabulary of SentencePiece's kind.
    fn pieces(words: &[String]) -> Value {
        let mut vocabulary = vec![json!(["<unk>", 0.0]), json!(["▁", -20.0])];
        vocabulary.extend(('a'..='z').map(|letter| json!([letter.to_string(), -10.0])));
        vocabulary.extend(words.iter().flat_map(|word| [json!([word, -5.0]), json!([format!("▁{word}"), -4.0])]));
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": metaspace, "decoder": metaspace,
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary},
        })
    }

    #[test]
    fn words_of_sentence_pieces_are_found_with_and_without_their_space() {
        let tokenizer = tokenizer(&pieces(&pairs("abc")));
        let words = tokenizer.words();
        assert_eq!((words.first.len(), words.next.len()), (78, 78));
        assert_eq!(tokenizer.token_str(words.first[0]).unwrap(), "aa");
        assert_eq!(tokenizer.token_str(words.next[0]).unwrap(), "▁aa");
    }

    #[test]
    fn a_word_that_is_encoded_to_something_else_is_left_out() {
        let mut json = pieces(&pairs("abc"));
        // Two letters are likelier than this word.
        for word in json["model"]["vocab"].as_array_mut().unwrap().iter_mut().filter(|word| word[0] == "▁cz") {
            word[1] = json!(-90.0);
        }
        let tokenizer = tokenizer(&json);
        let words = tokenizer.words();
        assert_eq!(words.next.len(), 77);
        assert!(!words.next.contains(&tokenizer.token_id("▁cz").unwrap()));
    }

    #[test]
    fn a_vocabulary_of_few_words_gives_any_printable_tokens() {
        let tokenizer = tokenizer(&pieces(&pairs("a")));
        assert_eq!(tokenizer.words().as_ref(), &WordTokens::anywhere(tokenizer.ordinary_ids()));
        assert!(!tokenizer.ordinary_ids().is_empty());
    }
}
