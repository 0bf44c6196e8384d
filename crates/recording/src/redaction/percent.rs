//! Text as it reads: characters that are written as `%40`, as in paths and queries, and characters of no width, which part a word unseen.

use std::ops::Range;

/// A text as it reads once such characters are put in their places.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) text: String,
    /// Where each byte of it begins in the original, and where the last one ends.
    starts: Vec<usize>,
}

impl Decoded {
    /// Reads a text; `None` where it reads as it is written. Printable ASCII only: no secret has its shape by anything else.
    pub(super) fn of(text: &str) -> Option<Self> {
        let mut signs = memchr::memchr3_iter(b'%', UNSEEN_FIRST[0], UNSEEN_FIRST[1], text.as_bytes());
        let first = signs.find(|at| encoded(text.as_bytes(), *at).is_some() || unseen(text, *at).is_some())?;
        let mut decoded = Self { text: String::with_capacity(text.len()), starts: Vec::with_capacity(text.len() + 1) };
        decoded.put(0, text.get(..first).unwrap_or_default());
        let mut at = first;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            if let Some(byte) = encoded(text.as_bytes(), at) {
                decoded.starts.push(at);
                decoded.text.push(char::from(byte));
                at += 3;
                continue;
            }
            let length = rest.chars().next().map_or(1, char::len_utf8);
            if unseen(text, at).is_some() {
                at += length;
                continue;
            }
            decoded.put(at, rest.get(..length).unwrap_or_default());
            at += length;
        }
        decoded.starts.push(text.len());
        Some(decoded)
    }

    fn put(&mut self, at: usize, text: &str) {
        self.text.push_str(text);
        self.starts.extend(at..at + text.len());
    }

    /// Where a part of the text is in the original.
    pub(super) fn original(&self, span: &Range<usize>) -> Range<usize> {
        let place = |at: usize| self.starts.get(at).or(self.starts.last()).copied().unwrap_or_default();
        place(span.start)..place(span.end)
    }
}

/// The first bytes of characters that are not seen.
const UNSEEN_FIRST: [u8; 2] = [0xe2, 0xef];

/// Whether a character has no width: zero-width spaces and joiners, word joiners, byte order marks.
pub(super) fn is_unseen(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}

/// The character at this place, where it is not seen.
fn unseen(text: &str, at: usize) -> Option<char> {
    text.get(at..)?.chars().next().filter(|c| is_unseen(*c))
}

/// The character that is written at this place.
fn encoded(bytes: &[u8], at: usize) -> Option<u8> {
    let [b'%', high, low] = bytes.get(at..at + 3)? else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = digit(*high)? * 16 + digit(*low)?;
    (b' '..=b'~').contains(&byte).then_some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_is_found_in_the_original() {
        let raw = "/é%/u%2Fjane%40x.org?50%25%zz";
        let decoded = Decoded::of(raw).unwrap();
        assert_eq!(decoded.text, "/é%/u/jane@x.org?50%%zz");
        let at = decoded.text.find("jane@x.org").unwrap();
        assert_eq!(&raw[decoded.original(&(at..at + 10))], "jane%40x.org");
        assert_eq!(decoded.original(&(0..decoded.text.len())), 0..raw.len());
    }

    #[test]
    fn what_is_not_seen_is_left_out() {
        let raw = "\u{feff}a “pass\u{200b}word” %40";
        let decoded = Decoded::of(raw).unwrap();
        assert_eq!(decoded.text, "a “password” @");
        let at = decoded.text.find("password").unwrap();
        assert_eq!(&raw[decoded.original(&(at..at + 8))], "pass\u{200b}word");
        assert!(Decoded::of("“é” — 日本").is_none());
    }

    #[test]
    fn what_is_not_encoded_is_not_decoded() {
        for text in ["", "%", "%4", "100 %", "%zz %é1", "%00%0a%80%ff"] {
            assert!(Decoded::of(text).is_none(), "{text}");
        }
    }
}
