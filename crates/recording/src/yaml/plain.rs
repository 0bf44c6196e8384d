//! Plain and quoted texts.
//!
//! A text stands plain only where YAML 1.1 and 1.2 both read it as that text: it starts with a letter or one of `/$_`, and is no word
//! that either takes for null or a boolean.

use std::fmt::Write;

/// Words that some YAML reads as something else than text.
const WORDS: [&str; 10] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan"];

/// Position of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum YamlContext {
    /// In a line of its own.
    Block,
    /// Within `[…]` or `{…}`, or as a key.
    Flow,
}

/// The text as it is written on one line.
pub(super) fn scalar(text: &str, place: YamlContext) -> String {
    if is_plain(text, place) { text.to_owned() } else { quoted(text) }
}

fn is_plain(text: &str, place: YamlContext) -> bool {
    let Some(first) = text.chars().next() else { return false };
    if !(first.is_alphabetic() || matches!(first, '/' | '$' | '_')) || text.ends_with([' ', ':']) {
        return false;
    }
    // Some readers take a last sign for the mark of a list or a key when a bracket or comma follows.
    if text.ends_with(" -") || text.ends_with(" ?") {
        return false;
    }
    if WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return false;
    }
    let fits = |c: char| match c {
        // PyYAML takes any `?` within brackets for the mark of a key.
        ',' | '[' | ']' | '{' | '}' | '?' => place == YamlContext::Block,
        c => c == ' ' || c.is_ascii_graphic() || (c > '\u{a0}' && is_printable(c)),
    };
    text.chars().all(fits) && !text.contains(": ") && !text.contains(" #") && !text.contains("  ")
}

/// Returns true if a character may be written literally in YAML and is a line break in no version of it.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}')
        || matches!(c, '\u{ff00}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

/// The text in quotes: in single ones where it holds double ones.
pub(super) fn quoted(text: &str) -> String {
    if text.contains(['"', '\\']) && text.chars().all(is_printable) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if u32::from(c) <= 0xffff => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

/// Returns true if a text of several lines is read back unchanged from a literal block.
pub(super) fn fits_block(text: &str) -> bool {
    let is_clean = |line: &str| {
        let is_text = line.is_empty() || !line.trim().is_empty();
        is_text && !line.starts_with('\t') && line.chars().all(|c| c == '\t' || is_printable(c))
    };
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && !text.ends_with("\n\n")
        && text != "\n"
        && text.split('\n').all(is_clean)
}
