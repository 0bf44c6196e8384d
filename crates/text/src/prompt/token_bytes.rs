//! The bytes that each token stands for, so that a token's text costs no decoding.
//!
//! A byte-level decoder maps every letter of a token's spelling to a byte and takes a spelling with any other letter as
//! it is; the text of ids is the lossy UTF-8 of all their bytes, one after the other.
//!
//! See docs/decisions/0021-no-escaped-text-per-record.md.

use tokenizers::DecoderWrapper;

/// The bytes of all tokens, in one piece.
#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// End of each id's bytes; they begin at the end of the id before.
    ends: Vec<u32>,
    /// Ids of special tokens, ascending.
    special: Vec<u32>,
}

impl TokenBytes {
    /// The bytes of a tokenizer's tokens; `None` where its decoder is of another kind.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer, id_count: u32) -> Option<Self> {
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return None;
        }
        let letters = letters();
        let mut made = Self { bytes: Vec::new(), ends: Vec::new(), special: Vec::new() };
        for id in 0..id_count {
            if let Some(token) = tokenizer.id_to_token(id) {
                put(&mut made.bytes, &token, &letters);
            }
            made.ends.push(u32::try_from(made.bytes.len()).ok()?);
        }
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        made.special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        made.special.sort_unstable();
        Some(made)
    }

    /// The bytes of a token; none for ids that there are not.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let end_of = |at: usize| self.ends.get(at).and_then(|end| usize::try_from(*end).ok());
        let Some(at) = usize::try_from(id).ok() else { return &[] };
        let Some(end) = end_of(at) else { return &[] };
        let start = at.checked_sub(1).and_then(end_of).unwrap_or(0);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Returns true for a token without text if special tokens are skipped.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }
}

pub(super) fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(parts) => parts.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// A token of SentencePiece: `▁` is a space, `<0x0A>` a byte.
pub(super) fn pieces(token: &str) -> Vec<u8> {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace('▁', " ").into_bytes(),
    }
}

/// The bytes that letters stand for: printable ones of Latin-1 for themselves, the others by turns from U+0100 on.
pub(super) fn letters() -> Vec<Option<u8>> {
    let mut letters = vec![None; 512];
    let mut next = 256;
    for byte in 0..=u8::MAX {
        let is_itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let letter = if is_itself { usize::from(byte) } else { next };
        next += usize::from(!is_itself);
        if let Some(entry) = letters.get_mut(letter) {
            *entry = Some(byte);
        }
    }
    letters
}

pub(super) fn byte_of(letters: &[Option<u8>], letter: char) -> Option<u8> {
    letters.get(usize::try_from(u32::from(letter)).ok()?).copied().flatten()
}

fn put(bytes: &mut Vec<u8>, token: &str, letters: &[Option<u8>]) {
    let start = bytes.len();
    for letter in token.chars() {
        let Some(byte) = byte_of(letters, letter) else {
            bytes.truncate(start);
            bytes.extend_from_slice(token.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}
