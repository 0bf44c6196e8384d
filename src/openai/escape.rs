//! Values as JSON, appended to a buffer that is about to be sent.
//!
//! Limits: texts are escaped as serde_json does it, which leaves everything beyond ASCII as it is.

use bytes::{BufMut, BytesMut};

/// Appends a text with its quotes. Most texts have nothing to escape and are copied.
pub(super) fn put_escaped(out: &mut BytesMut, text: &str) {
    if text.bytes().all(is_plain) {
        out.put_u8(b'"');
        out.put_slice(text.as_bytes());
        out.put_u8(b'"');
    } else {
        // A text always serialises, and a buffer takes every write.
        let _ = serde_json::to_writer(out.writer(), text);
    }
}

/// A text with its quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    if text.bytes().all(is_plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
    out
}

/// Appends a list of ids, or null.
pub(super) fn put_ids(out: &mut BytesMut, ids: Option<&[u32]>) {
    let Some(ids) = ids else { return out.put_slice(b"null") };
    out.put_u8(b'[');
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            out.put_u8(b',');
        }
        put_number(out, *id);
    }
    out.put_u8(b']');
}

/// Appends a number.
pub(super) fn put_number(out: &mut BytesMut, number: u32) {
    out.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn is_plain(byte: u8) -> bool {
    byte >= b' ' && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(put: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        put(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    proptest! {
        #[test]
        fn everything_is_written_as_serde_json_writes_it(text: String, number: u32, ids: Option<Vec<u32>>) {
            prop_assert_eq!(written(|out| put_escaped(out, &text)), serde_json::to_string(&text).unwrap());
            prop_assert_eq!(escaped(&text), serde_json::to_string(&text).unwrap());
            prop_assert_eq!(written(|out| put_number(out, number)), number.to_string());
            prop_assert_eq!(written(|out| put_ids(out, ids.as_deref())), serde_json::to_string(&ids).unwrap());
        }
    }

    #[test]
    fn control_characters_quotes_and_borders_are_right() {
        for text in ["", "a\"b", "\\", "\u{0}\u{1f}\u{7f}", "\n\t\r", "é日\u{2028}", "</script>"] {
            assert_eq!(written(|out| put_escaped(out, text)), serde_json::to_string(text).unwrap());
        }
        assert_eq!(written(|out| put_number(out, 0)), "0");
        assert_eq!(written(|out| put_number(out, u32::MAX)), "4294967295");
    }
}
