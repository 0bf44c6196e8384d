//! Replacements in texts.

use std::{borrow::Cow, ops::Range};

pub(super) type TextReplacement = (Range<usize>, String);

/// The text with its edits applied, which are in order and do not overlap.
pub(super) fn apply(text: &str, edits: &[TextReplacement]) -> String {
    let mut pieces = [text.to_owned()];
    apply_to_pieces(&mut pieces, edits);
    pieces.concat()
}

/// The text with an empty string of JSON in place of each edit, which are in order and do not overlap.
pub(super) fn elided<'t>(text: &'t str, edits: &[TextReplacement]) -> Cow<'t, str> {
    if edits.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut rest, mut at) = (String::with_capacity(text.len()), 0);
    for (span, _) in edits {
        rest.push_str(text.get(at..span.start).unwrap_or_default());
        rest.push_str("\"\"");
        at = span.end;
    }
    rest.push_str(text.get(at..).unwrap_or_default());
    Cow::Owned(rest)
}

/// Applies edits of the pieces' whole, which are in order and do not overlap. A replacement stands in the piece where it begins.
pub(super) fn apply_to_pieces(pieces: &mut [String], edits: &[TextReplacement]) {
    let (mut start, mut left) = (0, edits);
    for piece in pieces {
        let end = start + piece.len();
        let (mut at, mut kept) = (start, String::new());
        while let Some((span, with)) = left.first().filter(|(span, _)| span.start < end) {
            if at == start {
                kept.reserve(piece.len());
            }
            kept.push_str(piece.get(at - start..span.start.max(at) - start).unwrap_or_default());
            if span.start >= start {
                kept.push_str(with);
            }
            at = span.end.min(end);
            if span.end > end {
                break;
            }
            left = left.get(1..).unwrap_or_default();
        }
        if at > start {
            kept.push_str(piece.get(at - start..).unwrap_or_default());
            *piece = kept;
        }
        start = end;
    }
}

/// The same edit without what stays the same at both of its ends.
pub(super) fn narrowed(text: &str, (span, with): TextReplacement) -> TextReplacement {
    let old = text.get(span.clone()).unwrap_or_default();
    let same = |pairs: &mut dyn Iterator<Item = (char, char)>| -> usize {
        pairs.take_while(|(one, other)| one == other).map(|(c, _)| c.len_utf8()).sum()
    };
    let front = same(&mut old.chars().zip(with.chars()));
    let (old_rest, with_rest) = (old.get(front..).unwrap_or_default(), with.get(front..).unwrap_or_default());
    let back = same(&mut old_rest.chars().rev().zip(with_rest.chars().rev()));
    let kept = with_rest.get(..with_rest.len() - back).unwrap_or_default();
    let narrow = span.start + front..span.end - back;
    if narrow.is_empty() { (span, with) } else { (narrow, kept.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_elided() {
        let edits = [(1..3, "long".to_owned()), (3..4, "X".to_owned()), (5..6, "Y".to_owned())];
        assert_eq!(elided("abcdef", &edits), "a\"\"\"\"e\"\"");
        assert_eq!(elided("abc", &[]), "abc");
    }

    #[test]
    fn edits_are_applied_over_all_pieces_that_they_touch() {
        let applied = |pieces: &[&str], edits: &[(Range<usize>, &str)]| {
            let mut pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
            let edits: Vec<TextReplacement> =
                edits.iter().map(|(span, with)| (span.clone(), (*with).to_owned())).collect();
            apply_to_pieces(&mut pieces, &edits);
            pieces
        };
        assert_eq!(applied(&["abc", "", "def", "ghi"], &[(1..7, "X")]), ["aX", "", "", "hi"]);
        assert_eq!(applied(&["abc", "def"], &[(0..1, "X"), (1..3, "Y"), (3..4, "Z"), (5..6, "W")]), ["XY", "ZeW"]);
        assert_eq!(applied(&["abc"], &[]), ["abc"]);
        assert_eq!(applied(&["ab", "cd"], &[(2..4, "X")]), ["ab", "X"]);
    }
}
