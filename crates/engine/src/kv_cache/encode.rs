//! The bytes that a block hash is taken of: a tuple of the parent's hash, the block's token ids and its extra keys, in
//! Python's pickle (protocol 5) or in CBOR.
//!
//! Limit: pickle begins a new frame after 64 KiB, which is not done here; blocks and texts are far shorter.

use super::sequence::ExtraKeys;

/// Writes the pickle of a text: the seed of the hash before the first block.
pub(super) fn pickle_text(out: &mut Vec<u8>, text: &str) {
    pickled(out, |out| pickle_str(out, text));
}

pub(super) fn pickle_block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32], keys: &ExtraKeys) {
    pickled(out, |out| {
        out.push(b'C');
        out.push(u8::try_from(parent.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(parent);
        out.push(MEMOIZE);
        pickle_tuple(out, tokens.len(), |out| tokens.iter().for_each(|token| pickle_int(out, *token)));
        pickle_keys(out, keys);
        out.extend_from_slice(&[TUPLE_OF_1 + 2, MEMOIZE]);
    });
}

const MEMOIZE: u8 = 0x94;
/// Opcode of a tuple of one item; those of two and three follow it.
const TUPLE_OF_1: u8 = 0x85;

/// Header, frame with its length, end.
fn pickled(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[0x80, 5, 0x95]);
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    write(out);
    out.push(b'.');
    let length = (out.len() - start - 8) as u64;
    if let Some(place) = out.get_mut(start..start + 8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

fn pickle_keys(out: &mut Vec<u8>, keys: &ExtraKeys) {
    let count = keys.iter().count();
    if count == 0 {
        return out.push(b'N');
    }
    pickle_tuple(out, count, |out| {
        for key in keys.iter() {
            pickle_tuple(out, key.parts().count(), |out| key.parts().for_each(|part| pickle_str(out, part)));
        }
    });
}

/// Items before the opcode, and a mark before those of a tuple of more than three.
fn pickle_tuple(out: &mut Vec<u8>, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let opcode = match length {
        1 => TUPLE_OF_1,
        2 => TUPLE_OF_1 + 1,
        3 => TUPLE_OF_1 + 2,
        _ => {
            out.push(b'(');
            b't'
        }
    };
    write(out);
    out.extend_from_slice(&[opcode, MEMOIZE]);
}

fn pickle_str(out: &mut Vec<u8>, text: &str) {
    match u8::try_from(text.len()) {
        Ok(length) => out.extend_from_slice(&[0x8c, length]),
        Err(_) => {
            out.push(b'X');
            out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
    out.extend_from_slice(text.as_bytes());
    out.push(MEMOIZE);
}

/// One byte, two bytes, four bytes with a sign, or a number of any length.
fn pickle_int(out: &mut Vec<u8>, value: u32) {
    let [a, b, c, d] = value.to_le_bytes();
    match value {
        0..=0xff => out.extend_from_slice(&[b'K', a]),
        0x100..=0xffff => out.extend_from_slice(&[b'M', a, b]),
        0x1_0000..=0x7fff_ffff => out.extend_from_slice(&[b'J', a, b, c, d]),
        _ => out.extend_from_slice(&[0x8a, 5, a, b, c, d, 0]),
    }
}

pub(super) fn cbor_text(out: &mut Vec<u8>, text: &str) {
    cbor_head(out, 3, text.len());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn cbor_block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32], keys: &ExtraKeys) {
    cbor_head(out, 4, 3);
    cbor_head(out, 2, parent.len());
    out.extend_from_slice(parent);
    cbor_head(out, 4, tokens.len());
    for token in tokens {
        cbor_head(out, 0, *token as usize);
    }
    let count = keys.iter().count();
    if count == 0 {
        return out.push(0xf6);
    }
    cbor_head(out, 4, count);
    for key in keys.iter() {
        cbor_head(out, 4, key.parts().count());
        key.parts().for_each(|part| cbor_text(out, part));
    }
}

/// A major type with its number in the fewest bytes.
fn cbor_head(out: &mut Vec<u8>, major: u8, value: usize) {
    let major = major << 5;
    if let Ok(byte) = u8::try_from(value) {
        if byte >= 24 {
            out.push(major | 24);
            out.push(byte);
        } else {
            out.push(major | byte);
        }
    } else if let Ok(short) = u16::try_from(value) {
        out.push(major | 25);
        out.extend_from_slice(&short.to_be_bytes());
    } else {
        out.push(major | 26);
        out.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes());
    }
}
