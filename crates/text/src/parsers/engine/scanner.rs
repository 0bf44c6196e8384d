//! A step's text, cut at the tokens that are marks.
//!
//! Where the texts of the step's tokens, one by one, make up its text, each mark stands where its token does. Else, as where a character is cut, a mark
//! is taken for the last place that has its text: the same letters in other tokens are no mark. A mark whose text has not come yet waits for it.

use super::grammar::Mark;
use crate::parsers::vocabulary::{MarkTokens, TokenTexts};

/// A part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text, and the tokens that it stands for.
    Text(String, usize),
    Mark(Mark, String),
}

/// Cuts steps at marks.
#[derive(Debug)]
pub(super) struct Scanner {
    marks: MarkTokens,
    texts: TokenTexts,
    /// Marks that wait for their text, each with the tokens before it.
    deferred: Vec<(Mark, String, usize)>,
    /// Tokens behind these marks.
    trailing: usize,
    /// Text before the first of them.
    waiting: String,
}

impl Scanner {
    pub(super) fn new(marks: MarkTokens, texts: TokenTexts) -> Self {
        Self { marks, texts, deferred: Vec::new(), trailing: 0, waiting: String::new() }
    }

    /// Returns true if a mark has a token of its own.
    pub(super) fn has_token(&self, mark: Mark) -> bool {
        self.marks.iter().any(|(_, known, _)| *known == mark)
    }

    pub(super) fn scan(&mut self, text: &str, ids: &[u32]) -> Vec<Piece> {
        let (mut pieces, text, trailing) = self.resolve(text, ids.len());
        if !ids.iter().any(|id| self.marks.iter().any(|(known, ..)| known == id)) {
            if !text.is_empty() {
                pieces.push(Piece::Text(text, trailing + ids.len()));
            }
            return pieces;
        }
        let (mut tokens, spelled) = self.tokens(ids);
        if trailing > 0 {
            tokens.insert(0, Piece::Text(String::new(), trailing));
        }
        if text.is_empty() {
            self.defer(tokens);
            return pieces;
        }
        match spelled.and_then(|spelled| text.find(&spelled)) {
            Some(at) => {
                if let Some(held) = text.get(..at).filter(|held| !held.is_empty()) {
                    pieces.push(Piece::Text(held.to_owned(), 0));
                }
                pieces.extend(tokens);
            }
            None => self.rebuild(&text, tokens, &mut pieces),
        }
        pieces
    }

    /// Returns what still waits at the end.
    pub(super) fn flush(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let waiting = std::mem::take(&mut self.waiting);
        if !waiting.is_empty() {
            pieces.push(Piece::Text(waiting, self.deferred.first().map_or(0, |(_, _, before)| *before)));
        }
        pieces.extend(self.deferred.drain(..).map(|(mark, text, _)| Piece::Mark(mark, text)));
        pieces.push(Piece::Text(String::new(), std::mem::take(&mut self.trailing)));
        pieces
    }

    /// A step's tokens with the texts of each, and these joined; `None` for that where texts are not known.
    fn tokens(&self, ids: &[u32]) -> (Vec<Piece>, Option<String>) {
        let (mut pieces, mut joined, mut run) = (Vec::new(), String::new(), (String::new(), 0));
        for id in ids {
            if let Some((_, mark, text)) = self.marks.iter().find(|(known, ..)| known == id) {
                let (before, count) = std::mem::take(&mut run);
                joined.push_str(&before);
                joined.push_str(text);
                if count > 0 {
                    pieces.push(Piece::Text(before, count));
                }
                pieces.push(Piece::Mark(*mark, text.clone()));
            } else {
                run.0.push_str(&self.texts.of(&[*id]).unwrap_or_default());
                run.1 += 1;
            }
        }
        if run.1 > 0 {
            joined.push_str(&run.0);
            pieces.push(Piece::Text(run.0, run.1));
        }
        (pieces, self.texts.are_known().then_some(joined))
    }

    /// Lets all marks wait.
    fn defer(&mut self, tokens: Vec<Piece>) {
        let mut before = 0;
        for piece in tokens {
            match piece {
                Piece::Text(_, count) => before += count,
                Piece::Mark(mark, text) => self.deferred.push((mark, text, std::mem::take(&mut before))),
            }
        }
        self.trailing += before;
    }

    /// Finds the text of marks that wait; gives the pieces up to them, the text behind and the tokens before that.
    fn resolve(&mut self, text: &str, count: usize) -> (Vec<Piece>, String, usize) {
        let mut pieces = Vec::new();
        if self.deferred.is_empty() {
            return (pieces, text.to_owned(), 0);
        }
        let trailing = std::mem::take(&mut self.trailing);
        let mut rest = std::mem::take(&mut self.waiting) + text;
        for (mark, spelled, mut before) in std::mem::take(&mut self.deferred) {
            if let Some((text, after)) = rest.split_once(&spelled) {
                if !text.is_empty() {
                    pieces.push(Piece::Text(text.to_owned(), before));
                }
                pieces.push(Piece::Mark(mark, spelled));
                rest = after.to_owned();
                continue;
            }
            if !rest.is_empty() {
                self.waiting.push_str(&std::mem::take(&mut rest));
                before += count;
            }
            self.deferred.push((mark, spelled, before));
        }
        if self.deferred.is_empty() {
            return (pieces, rest, trailing);
        }
        self.trailing = trailing;
        (pieces, rest, 0)
    }

    /// Shares a text out among marks, the last one first; tokens are counted as they stand between the marks.
    fn rebuild(&mut self, text: &str, tokens: Vec<Piece>, pieces: &mut Vec<Piece>) {
        let (mut marks, mut before) = (Vec::new(), 0);
        for token in tokens {
            match token {
                Piece::Text(_, count) => before += count,
                Piece::Mark(mark, spelled) => marks.push((mark, spelled, std::mem::take(&mut before), None)),
            }
        }
        let mut end = text.len();
        for (_, spelled, _, place) in marks.iter_mut().rev() {
            *place = text.get(..end).and_then(|text| text.rfind(spelled.as_str()));
            end = place.unwrap_or(end);
        }
        let (mut consumed, mut left) = (0, marks.iter().filter(|(.., place)| place.is_some()).count());
        for (mark, spelled, count, place) in marks {
            if let Some(at) = place {
                left -= 1;
                if at > consumed {
                    pieces.push(Piece::Text(text.get(consumed..at).unwrap_or_default().to_owned(), count));
                }
                consumed = at + spelled.len();
                pieces.push(Piece::Mark(mark, spelled));
                continue;
            }
            if left == 0 && mark != Mark::Drop {
                self.waiting.push_str(text.get(consumed..).unwrap_or_default());
                consumed = text.len();
            }
            self.deferred.push((mark, spelled, count));
        }
        if let Some(rest) = text.get(consumed..).filter(|rest| !rest.is_empty()) {
            pieces.push(Piece::Text(rest.to_owned(), before));
        }
    }
}
