//! JSON as Python's `json.dumps` writes it: a space after commas and colons, ASCII only.

use std::fmt::{Display, Write};

use crate::text::python::{json_float, write_string};

/// Writes a list.
pub(super) fn list<T>(out: &mut String, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut String, T)) {
    out.push('[');
    for (at, value) in items.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        item(out, value);
    }
    out.push(']');
}

/// Writes an object with one entry for each item; `entry` gives the key and writes the value behind it.
pub(super) fn object<'a, T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> &'a str,
    mut value: impl FnMut(&mut String, T),
) {
    out.push('{');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        text(out, key(&item));
        out.push_str(": ");
        value(out, item);
    }
    out.push('}');
}

/// Writes a number.
pub(super) fn number(out: &mut String, number: impl Display) {
    let _infallible = write!(out, "{number}");
}

/// Writes a text.
pub(super) fn text(out: &mut String, text: &str) {
    write_string(text, true, out);
}

/// Writes a share from 0 to 1, rounded to six places.
pub(super) fn share(out: &mut String, share: f64) {
    // Formatting rounds the exact value, as Python's `round` does; a product would be rounded twice.
    out.push_str(&json_float(format!("{share:.6}").parse().unwrap_or(share)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    #[test]
    fn shares_are_pythons() {
        let cases = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.25, "0.25"),
            (0.050_847_457, "0.050847"),
            (0.0001, "0.0001"),
            (0.000_099_4, "9.9e-05"),
            (0.000_05, "5e-05"),
            (0.000_001_4, "1e-06"),
            (0.000_000_4, "0.0"),
        ];
        for (value, expected) in cases {
            assert_eq!(written(|out| share(out, value)), expected, "{value}");
        }
    }

    #[test]
    fn texts_are_ascii() {
        assert_eq!(written(|out| text(out, "a\"\\\n\u{7f}é😀")), r#""a\"\\\n\u007f\u00e9\ud83d\ude00""#);
    }
}
