//! Text for a page: nothing that a trace holds may become markup, or end the element that it stands in.

use std::{borrow::Cow, fmt::Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::digest::{SHA256, digest};

use crate::base::{
    control_characters::{shown, shown_in_json},
    one_line::clipped,
};

/// Characters of a text that a page shows, at most.
const MOST: usize = 400;

/// Text for people, in an element or in an attribute: the beginning of a long one, control characters shown.
pub(super) fn escaped(text: &str) -> String {
    attribute(&shown(&clipped(text, MOST)))
}

/// Text for programs, in an attribute in quotes: it stays the same text.
pub(super) fn attribute(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other if matches!(shown(other.encode_utf8(&mut [0; 4])), Cow::Owned(_)) => {
                let _ = write!(escaped, "&#{};", u32::from(other));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// JSON for the content of a `script` element. The characters of markup are within strings only, where they can be written as numbers.
pub(super) fn script_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in shown_in_json(json).chars() {
        match char {
            '<' | '>' | '&' => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(char));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// Source of a Content-Security-Policy that allows this text of an element, and no other.
pub(super) fn policy_source(content: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, content.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "</script><script>alert('1')</script><!-- \"&amp; \u{202e}\u{2028}\u{9b}";

    #[test]
    fn no_text_becomes_markup() {
        let escaped = escaped(HOSTILE);
        assert!(!escaped.contains(['<', '>', '"', '\'', '\u{202e}', '\u{9b}']), "{escaped}");
        assert!(escaped.starts_with("&lt;/script&gt;") && escaped.contains("&amp;amp; \\u{202e}"), "{escaped}");
        assert!(attribute("a\u{202e}\"\n").eq("a&#8238;&quot;\n"), "{}", attribute(HOSTILE));
        assert_eq!(super::escaped(&"é".repeat(500)).chars().count(), MOST + 1);
    }

    #[test]
    fn json_in_a_script_stays_the_same_json() {
        let value = serde_json::json!({HOSTILE: [HOSTILE, 1.5, null]});
        let json = script_json(&value.to_string());
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
    }

    #[test]
    fn a_policy_names_the_digest() {
        // The example of the specification's own tests: the digest of an empty text.
        assert_eq!(policy_source(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }
}
