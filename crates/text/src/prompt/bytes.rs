//! The bytes that each token stands for, by the way its vocabulary spells them.

use std::collections::HashMap;

use tokenizers::DecoderWrapper;

use super::Tokenizer;

impl Tokenizer {
    /// The bytes of every token by id; none for special tokens, for ids that no token has, and for spellings that stand
    /// for no bytes. They are exact for byte-level vocabularies and for those of SentencePiece with byte fallback.
    #[must_use]
    pub fn token_bytes(&self) -> Vec<Vec<u8>> {
        let tokenizer = self.inner().tokenizer();
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let spelled = spelled_bytes();
        let is_byte_level = tokenizer.get_decoder().is_some_and(is_byte_level);
        let bytes = |id: u32| match added.get(&id) {
            Some(token) if token.special => Vec::new(),
            Some(token) => token.content.clone().into_bytes(),
            None => {
                let token = tokenizer.id_to_token(id).unwrap_or_default();
                if is_byte_level {
                    token.chars().map(|c| spelled.get(&c).copied()).collect::<Option<_>>().unwrap_or_default()
                } else {
                    pieces(&token)
                }
            }
        };
        (0..self.vocab_size()).map(bytes).collect()
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(parts) => parts.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// A token of SentencePiece: `▁` is a space, `<0x0A>` a byte.
fn pieces(token: &str) -> Vec<u8> {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace('▁', " ").into_bytes(),
    }
}

/// Maps the characters of byte-level vocabularies to bytes: printable ones of Latin-1 are themselves, the others are from U+0100 on.
fn spelled_bytes() -> HashMap<char, u8> {
    let mut next = 0x100;
    let mut spelled = HashMap::new();
    for byte in 0..=u8::MAX {
        let c = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => Some(char::from(byte)),
            _ => {
                next += 1;
                char::from_u32(next - 1)
            }
        };
        spelled.extend(c.map(|c| (c, byte)));
    }
    spelled
}
