//! The encoding of JSON bodies: UTF-8, UTF-16 or UTF-32, found by the first bytes as in Python's `json.loads`.

use std::borrow::Cow;

use bytes::Bytes;

/// An encoding of text by units of more than one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wide {
    Utf16 { is_big: bool },
    Utf32 { is_big: bool },
}

/// A JSON body in UTF-8, without a byte order mark. What is no JSON object, list or string in another encoding stays as it is.
#[must_use]
pub fn json_as_utf8(body: &[u8]) -> Cow<'_, [u8]> {
    let Some((wide, text)) = wide(body) else {
        return Cow::Borrowed(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body));
    };
    match decoded(text, wide) {
        (text, true) if text.trim_start().starts_with(['{', '[', '"']) => Cow::Owned(text.into_bytes()),
        _ => Cow::Borrowed(body),
    }
}

/// As [`json_as_utf8`], for what is recorded: JSON with lone surrogates, which Python reads, is searched for secrets too.
/// U+FFFD stands for what is no character.
#[must_use]
pub fn recorded_json_as_utf8(body: &[u8]) -> Cow<'_, [u8]> {
    let strict = json_as_utf8(body);
    let Some((wide, text)) = wide(body).filter(|_| matches!(strict, Cow::Borrowed(_))) else { return strict };
    let (text, _) = decoded(text, wide);
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    if is_json { Cow::Owned(text.into_bytes()) } else { strict }
}

/// As [`recorded_json_as_utf8`], of a shared body.
#[must_use]
pub fn body_as_utf8(body: &Bytes) -> Bytes {
    match recorded_json_as_utf8(body) {
        Cow::Borrowed(text) => body.slice_ref(text),
        Cow::Owned(text) => text.into(),
    }
}

/// The encoding and what follows the byte order mark; `None` for UTF-8.
fn wide(body: &[u8]) -> Option<(Wide, &[u8])> {
    for (mark, wide) in [
        (&b"\x00\x00\xfe\xff"[..], Wide::Utf32 { is_big: true }),
        (b"\xff\xfe\x00\x00", Wide::Utf32 { is_big: false }),
        (b"\xfe\xff", Wide::Utf16 { is_big: true }),
        (b"\xff\xfe", Wide::Utf16 { is_big: false }),
    ] {
        if let Some(text) = body.strip_prefix(mark) {
            return Some((wide, text));
        }
    }
    let wide = match body {
        [0, 0, _, _, ..] => Wide::Utf32 { is_big: true },
        [0, _, _, _, ..] | [0, _] => Wide::Utf16 { is_big: true },
        [_, 0, 0, 0, ..] => Wide::Utf32 { is_big: false },
        [_, 0, _, _, ..] | [_, 0] => Wide::Utf16 { is_big: false },
        _ => return None,
    };
    Some((wide, body))
}

/// The text, with U+FFFD for what is no character, and whether all of it is characters.
fn decoded(text: &[u8], wide: Wide) -> (String, bool) {
    let mut is_whole = true;
    let mut or_replaced = |decoded: Option<char>| {
        is_whole &= decoded.is_some();
        decoded.unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    let (text, rest): (String, &[u8]) = match wide {
        Wide::Utf16 { is_big } => {
            let (units, rest) = text.as_chunks::<2>();
            let unit = |unit: &[u8; 2]| if is_big { u16::from_be_bytes(*unit) } else { u16::from_le_bytes(*unit) };
            (char::decode_utf16(units.iter().map(unit)).map(|char| or_replaced(char.ok())).collect(), rest)
        }
        Wide::Utf32 { is_big } => {
            let (units, rest) = text.as_chunks::<4>();
            let unit = |unit: &[u8; 4]| if is_big { u32::from_be_bytes(*unit) } else { u32::from_le_bytes(*unit) };
            (units.iter().map(|one| or_replaced(char::from_u32(unit(one)))).collect(), rest)
        }
    };
    (text, is_whole && rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text in every encoding, with a byte order mark and without.
    fn encoded(text: &str) -> Vec<Vec<u8>> {
        let utf16 = |bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        let utf32 = |bytes: fn(u32) -> [u8; 4]| text.chars().flat_map(|c| bytes(u32::from(c))).collect::<Vec<u8>>();
        let plain = [
            (text.as_bytes().to_vec(), &b"\xef\xbb\xbf"[..]),
            (utf16(u16::to_be_bytes), b"\xfe\xff"),
            (utf16(u16::to_le_bytes), b"\xff\xfe"),
            (utf32(u32::to_be_bytes), b"\x00\x00\xfe\xff"),
            (utf32(u32::to_le_bytes), b"\xff\xfe\x00\x00"),
        ];
        plain.into_iter().flat_map(|(text, mark)| [[mark, &text].concat(), text]).collect()
    }

    #[test]
    fn every_encoding_is_read() {
        for text in [r#"{"model": "é😀"}"#, "[]", " {}", "[1]"] {
            for bytes in encoded(text) {
                assert_eq!(json_as_utf8(&bytes), text.as_bytes(), "{bytes:?}");
            }
        }
    }

    #[test]
    fn what_is_no_json_in_another_encoding_stays() {
        for bytes in [
            &b""[..],
            b"{}",
            b"x",
            b"\x00",
            b"\xff\xfe{",
            b"\x00\x01\x02\x03",
            b"RIFF\x00\x00",
            b"\xff\xfe{\x00\x00\xd8",
        ] {
            assert_eq!(json_as_utf8(bytes), bytes);
        }
    }

    #[test]
    fn json_with_lone_surrogates_is_read_where_it_is_recorded() {
        for (bytes, text) in [
            (&b"\xff\xfe[\x00\"\x00\x00\xd8\"\x00]\x00"[..], "[\"\u{fffd}\"]"),
            (b"\x00[\x00\"\xdc\x00\x00\"\x00]", "[\"\u{fffd}\"]"),
            (b"\"\x00\x00\x00\x00\xd8\x00\x00\"\x00\x00\x00", "\"\u{fffd}\""),
        ] {
            assert_eq!(json_as_utf8(bytes), bytes, "{bytes:?}");
            assert_eq!(recorded_json_as_utf8(bytes), text.as_bytes(), "{bytes:?}");
        }
        for bytes in [&b"RIFF\x00\x00"[..], b"[\x00\x00\xd8", b"\xff\xfe{\x00\x00\xd8"] {
            assert_eq!(recorded_json_as_utf8(bytes), bytes, "{bytes:?}");
        }
    }
}
