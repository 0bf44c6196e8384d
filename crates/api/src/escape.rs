//! Values as JSON, appended to what is about to be sent: the buffer of a write, or a body.
//!
//! Limits: texts are escaped as serde_json does it, which leaves everything beyond ASCII as it is.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

pub(super) trait EscapeOutput {
    fn put(&mut self, text: &str);
}

impl EscapeOutput for BytesMut {
    fn put(&mut self, text: &str) {
        self.put_slice(text.as_bytes());
    }
}

impl EscapeOutput for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

/// Appends a text with its quotes. Most texts have nothing to escape and are copied.
pub(super) fn put_escaped(out: &mut impl EscapeOutput, text: &str) {
    if text.bytes().all(is_plain) {
        out.put("\"");
        out.put(text);
        out.put("\"");
    } else {
        out.put(&serde_json::Value::from(text).to_string());
    }
}

pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    put_escaped(&mut out, text);
    out
}

/// Appends a text, or null.
pub(super) fn put_escaped_or_null(out: &mut impl EscapeOutput, text: Option<&str>) {
    match text {
        Some(text) => put_escaped(out, text),
        None => out.put("null"),
    }
}

/// Appends a list of ids, or null.
pub(super) fn put_ids(out: &mut impl EscapeOutput, ids: Option<&[u32]>) {
    let Some(ids) = ids else { return out.put("null") };
    out.put("[");
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            out.put(",");
        }
        put_number(out, *id);
    }
    out.put("]");
}

/// Appends a value as JSON.
#[expect(clippy::expect_used, reason = "a buffer takes all, and what is written has texts as keys")]
pub(super) fn put_json(out: &mut BytesMut, value: &impl Serialize) {
    serde_json::to_writer(out.writer(), value).expect("invariant: values of answers are JSON");
}

pub(super) fn put_number(out: &mut impl EscapeOutput, number: u32) {
    out.put(itoa::Buffer::new().format(number));
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
