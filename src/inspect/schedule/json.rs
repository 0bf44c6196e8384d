//! JSON as Python's `json.dumps` writes it: a space after commas and colons, ASCII only.

use std::fmt::{Display, Write};

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
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| number(out, format_args!("\\u{unit:04x}"))),
        }
    }
    out.push('"');
}

/// Writes a share from 0 to 1, rounded to six places.
pub(super) fn share(out: &mut String, share: f64) {
    let rounded = format!("{share:.6}");
    match rounded.strip_prefix("0.0000").and_then(|digits| digits.parse::<u32>().ok()) {
        // Below 0.0001 Python writes an exponent.
        Some(millionths @ 1..10) => number(out, format_args!("{millionths}e-06")),
        Some(millionths @ 10..) => {
            let (whole, part) = (millionths / 10, millionths % 10);
            let part = if part == 0 { String::new() } else { format!(".{part}") };
            number(out, format_args!("{whole}{part}e-05"));
        }
        _ => {
            let short = rounded.trim_end_matches('0');
            out.push_str(short);
            if short.ends_with('.') {
                out.push('0');
            }
        }
    }
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
