//! Walks JSON text from scalar to scalar, also where the text is cut or damaged: whatever looks like a string is one.

use std::{borrow::Cow, ops::Range};

use super::trail::Trail;
use crate::children::{number_length, string_length};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueStep<'a> {
    /// Into an object; `None` before its key is known.
    Key(Option<Cow<'a, str>>),
    /// Into a list.
    Index(usize),
}

impl ValueStep<'_> {
    /// The key, where it is one and known.
    pub(super) fn key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => key.as_deref(),
            Self::Index(_) => None,
        }
    }
}

/// A scalar and where it stands, quotes included.
#[derive(Debug)]
pub(super) struct Leaf<'a> {
    pub(super) span: Range<usize>,
    pub(super) value: Scalar<'a>,
}

#[derive(Debug)]
pub(super) enum Scalar<'a> {
    Text {
        decoded: Cow<'a, str>,
        /// Whether the text ends inside it.
        is_cut: bool,
    },
    Number(&'a str),
}

/// Calls `each` for every string and number that is no key, with the way to it.
pub(super) fn leaves<'r, 'a>(text: &'a str, mut trail: Trail<'r, 'a>, mut each: impl FnMut(&Trail<'r, 'a>, Leaf<'a>)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' => trail.enter(ValueStep::Key(None)),
            b'[' => trail.enter(ValueStep::Index(0)),
            b'}' | b']' => trail.leave(),
            b',' => trail.next(),
            b'"' => {
                let length = string_length(bytes.get(at..).unwrap_or_default());
                let token = text.get(at..length.map_or(bytes.len(), |length| at + length)).unwrap_or_default();
                if trail.awaits_key() {
                    trail.key(ValueStep::Key(Some(decoded(token))));
                } else {
                    let decoded = decoded(token);
                    trail.note(&decoded);
                    let value = Scalar::Text { decoded, is_cut: length.is_none() };
                    each(&trail, Leaf { span: at..at + token.len(), value });
                }
                at += token.len().max(1);
                continue;
            }
            b'-' | b'0'..=b'9' => {
                let digits = number_length(bytes.get(at..).unwrap_or_default());
                let span = at..at + digits;
                let number = text.get(span.clone()).unwrap_or_default();
                each(&trail, Leaf { span, value: Scalar::Number(number) });
                at += digits;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

/// The text of a string's token. A cut escape at its end is left out; a token that is broken otherwise stands for itself.
fn decoded(token: &str) -> Cow<'_, str> {
    let inside = token.strip_prefix('"').unwrap_or(token);
    let closed = inside.strip_suffix('"');
    if !inside.contains('\\') {
        return Cow::Borrowed(closed.unwrap_or(inside));
    }
    if let Ok(text) = serde_json::from_str::<String>(token) {
        return Cow::Owned(text);
    }
    // Half a pair of surrogates is the longest thing that can be cut: \ud83d\ude0
    let cut = (0..12).filter_map(|short| inside.get(..inside.len().checked_sub(short)?));
    let whole = cut.map(|text| format!("\"{text}\"")).find_map(|text| serde_json::from_str(&text).ok());
    whole.map_or(Cow::Borrowed(closed.unwrap_or(inside)), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::RedactionRules;

    fn seen(text: &str) -> Vec<String> {
        let mut seen = Vec::new();
        let rules = RedactionRules::default();
        leaves(text, Trail::new(&rules, []), |trail, leaf| {
            let path = trail.spelled().split_off(1);
            seen.push(match leaf.value {
                Scalar::Text { decoded, is_cut } => format!("{path}={decoded}{}", if is_cut { "…" } else { "" }),
                Scalar::Number(number) => format!("{path}={number}"),
            });
        });
        seen
    }

    #[test]
    fn every_scalar_is_seen_with_its_path() {
        assert_eq!(
            seen(r#" {"a": "x", "b" : [1, {"c\n":"\u00e9"}, "d"], "e":{}, "f":-1.5e3} "#),
            [".a=x", ".b[0]=1", ".b[1].c\n=é", ".b[2]=d", ".f=-1.5e3"]
        );
        assert_eq!(seen(r#""bare""#), ["=bare"]);
    }

    #[test]
    fn cut_text_is_seen_up_to_its_cut() {
        assert_eq!(seen(r#"{"a":"hal"#), [".a=hal…"]);
        assert_eq!(seen(r#"{"a":"hal\"#), [".a=hal…"]);
        assert_eq!(seen(r#"{"a":"hal\ud83d\ude0"#), [".a=hal…"]);
        assert_eq!(seen(r#"{"a"#), Vec::<String>::new());
        assert_eq!(seen(r#"]}{,"":"#), Vec::<String>::new());
    }
}
