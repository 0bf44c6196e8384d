//! Text in pieces, which is searched as a whole, and text that is cut within a secret.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{EACH, Redactor, json::Action};
use crate::redaction::{
    edits::{TextReplacement, apply_to_pieces, narrowed},
    named_values::is_like_a_word,
    rules::{KindSpan, merged},
};

/// A shorter piece is no text of its own, and a shorter end no beginning of a secret, in bytes.
const SHORTEST_PART: usize = 8;

/// Bytes at the end of a text in which the beginning of a secret is looked for.
const LONGEST_END: usize = 256;

/// A piece of a text, which begins at `start` of it.
struct TextPiece<'p> {
    start: usize,
    text: &'p str,
    /// Its secrets where it may be a text of its own: it holds some by itself, and comes again or is a line.
    own: Option<&'p [KindSpan]>,
}

impl TextPiece<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Where its first own secret begins in the whole text.
    fn first_secret(&self) -> usize {
        self.start + self.own.and_then(<[_]>::first).map_or(0, |(span, _)| span.start)
    }
}

impl Redactor<'_> {
    /// Text that was cut into pieces, as the deltas of a stream: it is searched as a whole. A placeholder stands in the
    /// piece where its secret begins. A piece that comes again and holds a secret by itself has a placeholder each time; what follows
    /// without anything between may be the rest of the secret, and is redacted too. True where anything was found.
    pub fn pieces(&mut self, pieces: &mut [String]) -> bool {
        self.joined(pieces, false)
    }

    /// As [`pieces`](Self::pieces), of what may be lines: each that holds a secret by itself has a placeholder.
    pub fn lines(&mut self, lines: &mut [String]) -> bool {
        self.joined(lines, true)
    }

    fn joined(&mut self, pieces: &mut [String], are_lines: bool) -> bool {
        let text = pieces.concat();
        let mut spans = self.spans(&text);
        if !spans.is_empty() {
            spans = self.with_apart(spans, pieces, are_lines);
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

    /// Adds the secrets of pieces that may be texts of their own, each with what follows it, and of what stands between them.
    fn with_apart(&mut self, mut spans: Vec<KindSpan>, pieces: &[String], are_lines: bool) -> Vec<KindSpan> {
        let own = self.own(pieces, are_lines);
        if own.is_empty() {
            return spans;
        }
        let mut end = 0;
        let pieces = pieces.iter().map(|text| {
            end += text.len();
            TextPiece { start: end - text.len(), text, own: own.get(&**text).map(Vec::as_slice) }
        });
        let pieces: Vec<TextPiece<'_>> = pieces.collect();
        for part in pieces.chunk_by(|_, next| next.own.is_none()) {
            let [head, rest @ ..] = part else { continue };
            if head.own.is_none() || !rest.is_empty() {
                spans.extend(self.spans_of(part));
            }
            if head.own.is_some() {
                spans.extend(self.spans_of(rest));
            }
        }
        let mut apart = cut_at_own(&in_order(spans), &pieces);
        for TextPiece { start, own, .. } in &pieces {
            apart.extend(moved(own.unwrap_or_default(), *start));
        }
        in_order(apart)
    }

    /// Where in the whole text the secrets of some pieces are, which are searched as one.
    fn spans_of(&mut self, pieces: &[TextPiece<'_>]) -> Vec<KindSpan> {
        let text: String = pieces.iter().map(|piece| piece.text).collect();
        let spans = self.spans(&text);
        moved(&spans, pieces.first().map_or(0, |piece| piece.start)).collect()
    }

    /// The secrets of pieces that come more than once, or are lines, and hold some by themselves.
    fn own<'p>(&mut self, pieces: &'p [String], are_lines: bool) -> HashMap<&'p str, Vec<KindSpan>> {
        let mut seen = HashSet::new();
        let long = pieces.iter().map(String::as_str).filter(|piece| piece.len() >= SHORTEST_PART);
        let own: HashSet<&str> = long.filter(|piece| !seen.insert(*piece) || are_lines).collect();
        own.into_iter().map(|piece| (piece, self.spans(piece))).filter(|(_, spans)| !spans.is_empty()).collect()
    }

    /// Adds the secrets of pieces in which a secret of the whole ends: it may have the name of another one in it.
    fn with_own(&mut self, mut spans: Vec<KindSpan>, pieces: &[String]) -> Vec<KindSpan> {
        let (mut start, mut own) = (0, Vec::new());
        for piece in pieces {
            let end = start + piece.len();
            let before = spans.partition_point(|(span, _)| span.start < start);
            let last = before.checked_sub(1).and_then(|at| spans.get(at));
            if last.is_some_and(|(span, _)| start < span.end && span.end < end) {
                own.extend(moved(&self.spans(piece), start));
            }
            start = end;
        }
        if !own.is_empty() {
            spans.extend(own);
            spans = in_order(spans);
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

fn moved(spans: &[KindSpan], by: usize) -> impl Iterator<Item = KindSpan> {
    spans.iter().map(move |(span, kind)| (span.start + by..span.end + by, Arc::clone(kind)))
}

fn in_order(mut spans: Vec<KindSpan>) -> Vec<KindSpan> {
    spans.sort_by_key(|(span, _)| (span.start, Reverse(span.end)));
    merged(spans.into_iter())
}

/// Ends secrets of the whole where a piece begins that may be a text of its own. Where a secret runs into such a piece, what that has
/// before its own stays if it is seen elsewhere.
fn cut_at_own(spans: &[KindSpan], pieces: &[TextPiece<'_>]) -> Vec<KindSpan> {
    let is_plain = |piece: &&TextPiece<'_>| {
        let before = spans.partition_point(|(span, _)| span.start < piece.first_secret());
        before.checked_sub(1).and_then(|last| spans.get(last)).is_none_or(|(span, _)| span.end <= piece.start)
    };
    let begun_plainly = pieces.iter().filter(|piece| piece.own.is_some()).filter(is_plain);
    let seen: HashSet<&str> = begun_plainly.map(|piece| piece.text).collect();
    let mut cut = Vec::with_capacity(spans.len());
    for (span, kind) in spans {
        let first = pieces.partition_point(|piece| piece.start <= span.start).saturating_sub(1);
        let last = pieces.partition_point(|piece| piece.start < span.end);
        let over = pieces.get(first..last).unwrap_or_default();
        for part in over.chunk_by(|_, next| next.own.is_none()) {
            let [head, ..] = part else { continue };
            let stays = head.start > span.start && seen.contains(head.text);
            let start = if stays { head.first_secret() } else { head.start.max(span.start) };
            let end = part.last().map_or(0, TextPiece::end).min(span.end);
            cut.extend((start < end).then(|| (start..end, Arc::clone(kind))));
        }
    }
    cut
}
