//! Places at which two lists or two texts differ: what both have in common in the same order is no difference.
//!
//! Limits: beyond [`MOST_CELLS`] comparisons, everything between the first and the last difference counts as one.

use std::ops::Range;

/// Maximum number of pairs of items that are compared.
const MOST_CELLS: usize = 1 << 16;

/// Number of equal words between two edits that makes two of them.
const APART: usize = 3;

/// Ranges of two lists that stand for each other and differ; one of them may be empty.
pub(super) type Changed = (Range<usize>, Range<usize>);

/// One edit in a text, in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEdit {
    /// Characters of the recorded text.
    pub recorded: Range<usize>,
    /// Characters of the received text.
    pub received: Range<usize>,
}

/// Finds the ranges in which two lists differ, in order.
pub(super) fn changed<T: PartialEq>(a: &[T], b: &[T]) -> Vec<Changed> {
    let before = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (a.get(before..).unwrap_or_default(), b.get(before..).unwrap_or_default());
    let after = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let a = a.get(..a.len() - after).unwrap_or_default();
    let b = b.get(..b.len() - after).unwrap_or_default();
    if a.is_empty() && b.is_empty() {
        return Vec::new();
    }
    let found = if a.len().saturating_mul(b.len()) > MOST_CELLS { vec![(0..a.len(), 0..b.len())] } else { gaps(a, b) };
    let moved = |range: Range<usize>| range.start + before..range.end + before;
    found.into_iter().map(|(a, b)| (moved(a), moved(b))).collect()
}

/// Finds the ranges outside of the longest common subsequence.
fn gaps<T: PartialEq>(a: &[T], b: &[T]) -> Vec<Changed> {
    let width = b.len() + 1;
    // Lengths of the longest common subsequence of what follows after i and j.
    let mut table = vec![0_u32; (a.len() + 1) * width];
    let cell = |table: &[u32], i: usize, j: usize| table.get(i * width + j).copied().unwrap_or(0);
    let same = |i: usize, j: usize| a.get(i) == b.get(j);
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let length = match same(i, j) {
                true => cell(&table, i + 1, j + 1) + 1,
                false => cell(&table, i + 1, j).max(cell(&table, i, j + 1)),
            };
            table.get_mut(i * width + j).into_iter().for_each(|cell| *cell = length);
        }
    }
    let (mut i, mut j) = (0, 0);
    let (mut found, mut start) = (Vec::new(), (0, 0));
    let mut close = |start: (usize, usize), i: usize, j: usize| {
        if start != (i, j) {
            found.push((start.0..i, start.1..j));
        }
    };
    while i < a.len() && j < b.len() {
        if same(i, j) {
            close(start, i, j);
            (i, j) = (i + 1, j + 1);
            start = (i, j);
        } else if cell(&table, i + 1, j) >= cell(&table, i, j + 1) {
            i += 1;
        } else {
            j += 1;
        }
    }
    close(start, a.len(), b.len());
    found
}

/// Finds the edits that make one text of another, word by word. Edits with fewer than `APART` words between them are one.
#[must_use]
pub fn text_edits(recorded: &str, received: &str) -> Vec<TextEdit> {
    let (a, b) = (pieces(recorded, '\n'), pieces(received, '\n'));
    let mut edits: Vec<TextEdit> = Vec::new();
    for (lines, others) in changed(&a, &b) {
        let (from, to) = (length(a.get(..lines.start)), length(b.get(..others.start)));
        let of = |pieces: &[&str], range: Range<usize>| pieces.get(range).unwrap_or_default().concat();
        let (one, other) = (of(&a, lines), of(&b, others));
        let (words, replaced) = (pieces(&one, ' '), pieces(&other, ' '));
        for (range, with) in changed(&words, &replaced) {
            let (start, begin) = (length(words.get(..range.start)), length(replaced.get(..with.start)));
            let recorded = from + start..from + start + length(words.get(range));
            let received = to + begin..to + begin + length(replaced.get(with));
            match edits.last_mut() {
                Some(last) if is_near(&a, last.recorded.end, recorded.start) => {
                    (last.recorded.end, last.received.end) = (recorded.end, received.end);
                }
                _ => edits.push(TextEdit { recorded, received }),
            }
        }
    }
    edits
}

/// Returns true if there are few words between two places of a text, given by its lines.
fn is_near(lines: &[&str], from: usize, to: usize) -> bool {
    let between = lines.iter().flat_map(|line| line.chars()).skip(from).take(to.saturating_sub(from));
    let text: String = between.collect();
    !text.contains('\n') && text.split_whitespace().count() < APART
}

/// Cuts a text behind each of these characters.
fn pieces(text: &str, end: char) -> Vec<&str> {
    text.split_inclusive(end).collect()
}

/// Returns the number of characters.
fn length(pieces: Option<&[&str]>) -> usize {
    pieces.unwrap_or_default().iter().map(|piece| piece.chars().count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_lists_have_is_no_difference() {
        let of = |a: &str, b: &str| changed(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(of("abc", "abc"), []);
        assert_eq!(of("abc", "abxc"), [(2..2, 2..3)]);
        assert_eq!(of("abcd", "xbcy"), [(0..1, 0..1), (3..4, 3..4)]);
        assert_eq!(of("uat", "suaT"), [(0..0, 0..1), (2..3, 3..4)]);
        assert_eq!(of("", "a"), [(0..0, 0..1)]);
        let long = |c: &str| c.repeat(400);
        assert_eq!(of(&long("ab"), &long("ba")).len(), 1, "too much to compare is one difference");
    }

    #[test]
    fn edits_far_from_each_other_are_several() {
        let shown = |a: &str, b: &str| -> Vec<(String, String)> {
            let of = |text: &str, range: &Range<usize>| text.chars().skip(range.start).take(range.len()).collect();
            text_edits(a, b).iter().map(|edit| (of(a, &edit.recorded), of(b, &edit.received))).collect()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let (a, b) = (
            "Today is 2026-06-17 .\nBe very brief and kind to ä all.",
            "Today is 2026-06-18 .\nBe very brief and rude to ä all.",
        );
        assert_eq!(shown(a, b), [pair("2026-06-17 ", "2026-06-18 "), pair("kind ", "rude ")]);
        assert_eq!(shown("weather in London now", "weather for Paris now"), [pair("in London ", "for Paris ")]);
        assert_eq!(shown("a", "a b"), [pair("a", "a b")]);
        assert_eq!(shown("same", "same"), []);
    }
}
