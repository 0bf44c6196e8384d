//! Writes MessagePack. Numbers take the fewest bytes, as `msgspec` writes them.

/// Appends nil.
pub fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

/// Appends a number of 64 bits.
pub fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a whole number.
pub fn uint(out: &mut Vec<u8>, value: u64) {
    if let Ok(byte) = u8::try_from(value) {
        if byte >= 0x80 {
            out.push(0xcc);
        }
        out.push(byte);
    } else if let Ok(short) = u16::try_from(value) {
        out.push(0xcd);
        out.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(word) = u32::try_from(value) {
        out.push(0xce);
        out.extend_from_slice(&word.to_be_bytes());
    } else {
        out.push(0xcf);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends a whole number of either sign.
pub fn int(out: &mut Vec<u8>, value: i64) {
    if let Ok(value) = u64::try_from(value) {
        uint(out, value);
    } else if value >= -32 {
        out.push(value.to_be_bytes()[7]);
    } else if let Ok(byte) = i8::try_from(value) {
        out.push(0xd0);
        out.extend_from_slice(&byte.to_be_bytes());
    } else if let Ok(short) = i16::try_from(value) {
        out.push(0xd1);
        out.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(word) = i32::try_from(value) {
        out.push(0xd2);
        out.extend_from_slice(&word.to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends true or false.
pub fn boolean(out: &mut Vec<u8>, value: bool) {
    out.push(if value { 0xc3 } else { 0xc2 });
}

/// Appends an extension: its type and its bytes.
pub fn ext(out: &mut Vec<u8>, kind: i8, bytes: &[u8]) {
    match bytes.len() {
        1 => out.push(0xd4),
        2 => out.push(0xd5),
        4 => out.push(0xd6),
        8 => out.push(0xd7),
        16 => out.push(0xd8),
        length => head(out, length, &LengthMarkers { short: None, byte: Some(0xc7), word: 0xc8, long: 0xc9 }),
    }
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a text.
pub fn text(out: &mut Vec<u8>, text: &str) {
    head(out, text.len(), &LengthMarkers { short: Some((0xa0, 32)), byte: Some(0xd9), word: 0xda, long: 0xdb });
    out.extend_from_slice(text.as_bytes());
}

/// Appends bytes.
pub fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, bytes.len(), &LengthMarkers { short: None, byte: Some(0xc4), word: 0xc5, long: 0xc6 });
    out.extend_from_slice(bytes);
}

/// The head of an array; its items follow.
pub fn array(out: &mut Vec<u8>, length: usize) {
    head(out, length, &LengthMarkers { short: Some((0x90, 16)), byte: None, word: 0xdc, long: 0xdd });
}

/// The head of a map; its keys follow, each with its value.
pub fn map(out: &mut Vec<u8>, length: usize) {
    head(out, length, &LengthMarkers { short: Some((0x80, 16)), byte: None, word: 0xde, long: 0xdf });
}

struct LengthMarkers {
    /// The marker that holds lengths below a bound itself.
    short: Option<(u8, usize)>,
    byte: Option<u8>,
    word: u8,
    long: u8,
}

fn head(out: &mut Vec<u8>, length: usize, head: &LengthMarkers) {
    let low = length.to_le_bytes()[0];
    match (head.short, head.byte) {
        (Some((marker, bound)), _) if length < bound => out.push(marker | low),
        (_, Some(marker)) if length <= usize::from(u8::MAX) => out.extend_from_slice(&[marker, low]),
        _ => match u16::try_from(length) {
            Ok(length) => {
                out.push(head.word);
                out.extend_from_slice(&length.to_be_bytes());
            }
            Err(_) => {
                out.push(head.long);
                out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use rmpv::Value;

    use super::*;

    fn read(write: impl FnOnce(&mut Vec<u8>)) -> (Value, usize) {
        let mut out = Vec::new();
        write(&mut out);
        let length = out.len();
        (rmpv::decode::read_value(&mut out.as_slice()).unwrap(), length)
    }

    #[test]
    fn numbers_take_the_fewest_bytes() {
        for (value, length) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (255, 2),
            (256, 3),
            (65_535, 3),
            (65_536, 5),
            (u64::from(u32::MAX), 5),
            (1 << 32, 9),
            (u64::MAX, 9),
        ] {
            assert_eq!(read(|out| uint(out, value)), (Value::from(value), length));
        }
        assert_eq!(read(|out| float(out, 1.5)), (Value::from(1.5), 9));
    }

    #[test]
    fn texts_bytes_and_lists_of_any_length_are_read_back() {
        for length in [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536, 70_000] {
            let words = "a".repeat(length);
            assert_eq!(read(|out| text(out, &words)).0, Value::from(words.as_str()));
            assert_eq!(read(|out| bytes(out, words.as_bytes())).0, Value::from(words.as_bytes()));
            let list = read(|out| {
                array(out, length);
                (0..length).for_each(|_| nil(out));
            });
            assert_eq!(list.0.as_array().map(Vec::len), Some(length));
            let table = read(|out| {
                map(out, length);
                (0..2 * length).for_each(|_| nil(out));
            });
            assert_eq!(table.0.as_map().map(Vec::len), Some(length));
        }
    }
}
