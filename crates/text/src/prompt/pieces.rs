//! Cuts of a long text at which the pieces' ids, joined, are the whole text's ids.
//!
//! The tokenizer needs some 120 bytes of memory per byte of text, which a large prompt must not cost. Byte-level
//! tokenizers never let a token reach from a letter or digit into the white space after it, nor into the punctuation of
//! scripts without spaces, so a cut goes there; each cut is also tried on the text around it, in one piece and in two, and
//! is not made where the ids differ. Tokenizers of other kinds, and texts without such a place, are encoded whole, up to a
//! limit. Encoding ends at the next cut once nobody waits for it.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Result, Tokenizer};

use base::cancellation::is_cancelled;

/// Length in bytes from which on a piece ends at the next good place.
const PIECE: usize = 64 * 1024;
/// Length of text on either side of a cut on which it is tried, in bytes.
const WINDOW: usize = 256;
/// Characters that no token joins to a letter or digit before them.
const ENDS: [char; 10] = [' ', '\n', '\u{3000}', '，', '。', '、', '；', '：', '！', '？'];
/// Length in bytes of the longest text that is encoded without a cut.
const LONGEST: usize = 4 * 1024 * 1024;
/// Number of places that are tried before the rest is encoded whole.
const TRIES: usize = 64;

/// The ids of a text, without the special tokens around it.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let cuttable = tokenizer.get_pre_tokenizer().is_some_and(is_byte_level);
    let mut ids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = if cuttable { cut(tokenizer, rest)? } else { None };
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        check_length(piece)?;
        check_cancelled()?;
        ids.extend_from_slice(tokenizer.encode_fast(piece, false)?.get_ids());
        rest = after;
    }
    Ok(ids)
}

/// Ends the encoding of a text whose client has left.
pub(super) fn check_cancelled() -> Result<()> {
    if is_cancelled() { Err("its client has left".into()) } else { Ok(()) }
}

/// Refuses a text without a cut that would take seconds, and gigabytes, and cannot be ended before.
fn check_length(text: &str) -> Result<()> {
    if text.len() <= LONGEST {
        return Ok(());
    }
    let bytes = text.len();
    Err(format!(
        "{bytes} bytes of it have no place at which they can be cut, such as a space after a word, and this server \
         encodes at most {LONGEST} such bytes"
    )
    .into())
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
    let start = text.floor_char_boundary(PIECE);
    let (_, after) = text.split_at(start);
    let places = after.char_indices().zip(after.chars().skip(1));
    let good = places.filter(|((_, before), next)| before.is_alphanumeric() && ENDS.contains(next));
    for ((at, before), _) in good.take(TRIES) {
        let place = start + at + before.len_utf8();
        if joins(tokenizer, text, place)? {
            return Ok(Some(place));
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
