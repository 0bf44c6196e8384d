//! Text of JSON values, and edits of JSON text by spans; all bytes outside the spans stay as they are.

use std::{borrow::Cow, collections::VecDeque, ops::Range};

use bytes::Bytes;
use serde_json::Value;

/// Returns a value as text: a string as it is, any other value as JSON.
#[must_use]
pub fn value_text(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed)
}

/// Replacements in a text, to be applied together.
#[derive(Debug, Default)]
pub struct Edits {
    replacements: Vec<(Range<usize>, String)>,
}

impl Edits {
    /// Replaces the bytes of `span`; an empty span inserts. Spans must not overlap.
    pub fn replace(&mut self, span: Range<usize>, with: impl Into<String>) {
        self.replacements.push((span, with.into()));
    }

    /// Returns whether there are no replacements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.replacements.is_empty()
    }

    /// Applies all replacements. A span outside the text, or one that overlaps an earlier one, is skipped.
    #[must_use]
    pub fn apply(self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        let of_text = |out: &mut Vec<u8>, span: Range<usize>| out.extend_from_slice(text.get(span).unwrap_or_default());
        self.each(text.len(), &mut out, of_text, |out, with| out.extend_from_slice(with.as_bytes()));
        out
    }

    /// Applies all replacements without a copy of the text: its pieces share its bytes.
    #[must_use]
    pub fn pieces(self, text: &Bytes) -> VecDeque<Bytes> {
        let mut out = VecDeque::with_capacity(2 * self.replacements.len() + 1);
        let of_text = |out: &mut VecDeque<Bytes>, span: Range<usize>| out.push_back(text.slice(span));
        self.each(text.len(), &mut out, of_text, |out, with| out.push_back(Bytes::from(with)));
        out
    }

    /// Calls `keep` for each span of a text of `len` bytes that stays, and `put` for what comes between.
    fn each<O>(mut self, len: usize, out: &mut O, keep: impl Fn(&mut O, Range<usize>), put: impl Fn(&mut O, String)) {
        self.replacements.sort_by_key(|(span, _)| span.start);
        let mut at = 0;
        for (span, with) in self.replacements {
            if span.start < at || span.end < span.start || span.end > len {
                continue;
            }
            keep(out, at..span.start);
            put(out, with);
            at = span.end;
        }
        keep(out, at..len);
    }
}

/// Returns the span of `part` in `whole`; `None` unless it is a slice of it.
#[must_use]
pub fn span_in(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_spans_change() {
        let text = br#"{"a": [1, 2] ,"b":null}"#;
        let mut edits = Edits::default();
        edits.replace(text.len() - 1..text.len() - 1, ",\"c\":1");
        edits.replace(6..12, "null");
        edits.replace(8..9, "overlaps");
        edits.replace(90..91, "outside");
        let pieces = Edits { replacements: edits.replacements.clone() }.pieces(&Bytes::from_static(text));
        assert_eq!(edits.apply(text), br#"{"a": null ,"b":null,"c":1}"#);
        assert_eq!(Vec::from(pieces).concat(), br#"{"a": null ,"b":null,"c":1}"#);
    }

    #[test]
    fn the_span_of_a_slice_is_its_place() {
        let text = b"hello world";
        assert_eq!(span_in(text, &text[6..]), Some(6..11));
        assert_eq!(span_in(&text[..5], &text[6..]), None);
        assert_eq!(span_in(&text[6..], &text[..5]), None);
    }
}
