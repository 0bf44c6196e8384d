//! Edits of JSON text by spans; all bytes outside the spans stay as they are.

use std::ops::Range;

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
    pub fn apply(mut self, text: &[u8]) -> Vec<u8> {
        self.replacements.sort_by_key(|(span, _)| span.start);
        let mut out = Vec::with_capacity(text.len());
        let mut at = 0;
        for (span, with) in self.replacements {
            let Some(before) = text.get(at..span.start) else { continue };
            out.extend_from_slice(before);
            out.extend_from_slice(with.as_bytes());
            at = span.end;
        }
        out.extend_from_slice(text.get(at..).unwrap_or_default());
        out
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
        assert_eq!(edits.apply(text), br#"{"a": null ,"b":null,"c":1}"#);
    }

    #[test]
    fn the_span_of_a_slice_is_its_place() {
        let text = b"hello world";
        assert_eq!(span_in(text, &text[6..]), Some(6..11));
        assert_eq!(span_in(&text[..5], &text[6..]), None);
        assert_eq!(span_in(&text[6..], &text[..5]), None);
    }
}
