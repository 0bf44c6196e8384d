//! Text in pieces, which is searched as a whole, and text that is cut within a secret.

use std::{cmp::Reverse, collections::HashSet, sync::Arc};

use super::{EACH, Redactor, json::Action};
use crate::redaction::{
    edits::{TextReplacement, apply_to_pieces, narrowed},
    named_values::is_like_a_word,
    rules::{KindSpan, merged},
};

/// A shorter piece is no text of its own, and a shorter end no beginning of a secret, in bytes.
pub(super) const SHORTEST_PART: usize = 8;

/// Bytes at the end of a text in which the beginning of a secret is looked for.
const LONGEST_END: usize = 256;

impl Redactor<'_> {
    /// Text that was cut into pieces, as the deltas of a stream: it is searched as a whole. A placeholder stands in the
    /// piece where its secret begins. A piece that comes again and holds a secret by itself is a text of its own. True where anything
    /// was found.
    pub fn pieces(&mut self, pieces: &mut [String]) -> bool {
        self.joined(pieces, false)
    }

    /// As [`pieces`](Self::pieces), of what may be lines: each that holds a secret by itself is a text of its own.
    pub fn lines(&mut self, lines: &mut [String]) -> bool {
        self.joined(lines, true)
    }

    fn joined(&mut self, pieces: &mut [String], are_lines: bool) -> bool {
        let text = pieces.concat();
        let mut spans = self.spans(&text);
        if !spans.is_empty() {
            let whole = self.whole_texts(pieces, are_lines);
            if !whole.is_empty() {
                let runs = pieces.chunk_by_mut(|one, next| !whole.contains(one) && !whole.contains(next));
                return runs.filter_map(|run| self.pieces(run).then_some(())).count() > 0;
            }
            spans = self.with_own(spans, pieces);
        }
        let edits = self.edits(&text, spans, None);
        apply_to_pieces(pieces, &edits);
        !edits.is_empty()
    }

    /// As [`pieces`](Self::pieces), for JSON text that was cut into pieces, as a tool call's arguments are.
    pub fn json_pieces(&mut self, pieces: &mut [String]) -> bool {
        let whole = pieces.concat();
        self.visit_text(Action::Learn, &whole, 0);
        let edits = self.visit_text(Action::Replace, &whole, 0);
        let edits: Vec<TextReplacement> = edits.into_iter().map(|edit| narrowed(&whole, edit)).collect();
        apply_to_pieces(pieces, &edits);
        // What is no JSON after all, or stands between its strings.
        self.pieces(pieces) || !edits.is_empty()
    }

    /// The pieces that come more than once, or are lines, and hold a secret by themselves.
    fn whole_texts(&mut self, pieces: &[String], are_lines: bool) -> HashSet<String> {
        let mut seen = HashSet::new();
        let long = pieces.iter().filter(|piece| piece.len() >= SHORTEST_PART);
        let own: HashSet<&String> = long.filter(|piece| !seen.insert(*piece) || are_lines).collect();
        own.into_iter().filter(|piece| !self.spans(piece).is_empty()).cloned().collect()
    }

    /// Adds the secrets of pieces in which a secret of the whole ends: it may have the name of another one in it.
    fn with_own(&mut self, mut spans: Vec<KindSpan>, pieces: &[String]) -> Vec<KindSpan> {
        let (mut start, mut own) = (0, Vec::new());
        for piece in pieces {
            let end = start + piece.len();
            let before = spans.partition_point(|(span, _)| span.start < start);
            let last = before.checked_sub(1).and_then(|at| spans.get(at));
            if last.is_some_and(|(span, _)| start < span.end && span.end < end) {
                own.extend(self.spans(piece).into_iter().map(|(at, kind)| (at.start + start..at.end + start, kind)));
            }
            start = end;
        }
        if !own.is_empty() {
            spans.extend(own);
            spans.sort_by_key(|(span, _)| (span.start, Reverse(span.end)));
            spans = merged(spans.into_iter());
        }
        spans
    }

    /// The secret that was found before with whose beginning a text of an answer ends, and where that is.
    pub(super) fn cut_secret(&mut self, text: &str) -> Option<(usize, Arc<str>, Box<str>)> {
        if !self.is_answer || self.seen.0.numbers.is_empty() {
            return None;
        }
        let word = text.rsplit(char::is_whitespace).next().unwrap_or_default();
        let first = text.len() - word.len().min(LONGEST_END);
        let last = text.len().checked_sub(SHORTEST_PART)?;
        let is_begun = |from: &usize| !text.get(..*from).is_some_and(|before| before.ends_with(char::is_alphanumeric));
        for from in (first..=last).filter(is_begun) {
            let Some(end) = text.get(from..).filter(|end| !is_like_a_word(end)) else { continue };
            self.work += EACH;
            if let Some((kind, secret)) = self.seen.0.beginning_with(end) {
                return Some((from, kind, secret));
            }
        }
        None
    }
}
