//! Cuts of a long text at which the pieces' ids, joined, are the whole text's ids.
//!
//! The tokenizer needs some 120 bytes of memory per byte of text, which a large prompt must not cost. Byte-level
//! tokenizers never let a token reach from a letter into the white space after it, so a cut goes there; each cut is
//! also tried on the text around it, in one piece and in two, and is not made where the ids differ. Tokenizers of other
//! kinds, and texts without such a place, are encoded whole.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Result, Tokenizer};

/// Length in bytes from which on a piece ends at the next good place.
const PIECE: usize = 64 * 1024;
/// Length of text on either side of a cut on which it is tried, in bytes.
const WINDOW: usize = 256;
/// Number of places that are tried before the rest is encoded whole.
const TRIES: usize = 64;

/// The ids of a text of any length, without the special tokens around it.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let cuttable = tokenizer.get_pre_tokenizer().is_some_and(is_byte_level);
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(at) = if cuttable { cut(tokenizer, rest)? } else { None } {
        let (piece, after) = rest.split_at(at);
        ids.extend_from_slice(tokenizer.encode_fast(piece, false)?.get_ids());
        rest = after;
    }
    ids.extend_from_slice(tokenizer.encode_fast(rest, false)?.get_ids());
    Ok(ids)
}

/// Returns true if a text is long enough to be cut.
pub(super) fn is_long(text: &str) -> bool {
    text.len() > PIECE
}

fn is_byte_level(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(byte_level) => !byte_level.add_prefix_space,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().last().is_some_and(is_byte_level),
        _ => false,
    }
}

/// The first good place after the length of a piece.
fn cut(tokenizer: &Tokenizer, text: &str) -> Result<Option<usize>> {
    let places = text.as_bytes().windows(2).enumerate().skip(PIECE);
    let good = places.filter(|(_, pair)| matches!(pair, [b'a'..=b'z' | b'A'..=b'Z', b' ' | b'\n']));
    for (at, _) in good.take(TRIES) {
        if joins(tokenizer, text, at + 1)? {
            return Ok(Some(at + 1));
        }
    }
    Ok(None)
}

/// Returns true if the ids of the text around `at` are those of its two halves.
fn joins(tokenizer: &Tokenizer, text: &str, at: usize) -> Result<bool> {
    let start = text.floor_char_boundary(at.saturating_sub(WINDOW));
    let end = text.ceil_char_boundary(at.saturating_add(WINDOW).min(text.len()));
    let ids = |from: usize, to: usize| tokenizer.encode_fast(text.get(from..to).unwrap_or_default(), false);
    let (whole, left, right) = (ids(start, end)?, ids(start, at)?, ids(at, end)?);
    Ok(whole.get_ids().iter().eq(left.get_ids().iter().chain(right.get_ids())))
}
