//! Text cut into literals and the rest, with what may yet become a literal held back.

use super::{grammar::Mark, scanner::Piece};

/// Cuts text at literals.
#[derive(Debug, Clone, Default)]
pub(super) struct Lexer {
    literals: Vec<(Mark, String)>,
    firsts: Vec<char>,
    held: String,
}

impl Lexer {
    pub(super) fn new(literals: Vec<(Mark, String)>) -> Self {
        let mut firsts: Vec<char> = literals.iter().filter_map(|(_, text)| text.chars().next()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        Self { literals, firsts, held: String::new() }
    }

    /// Takes more text, of tokens that are counted elsewhere; what may be the start of a literal waits for the next.
    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        self.cut(true)
    }

    /// Returns the text that was held back.
    pub(super) fn flush(&mut self) -> Vec<Piece> {
        self.cut(false)
    }

    fn cut(&mut self, may_go_on: bool) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let mut left = held.as_str();
        let mut found = Vec::new();
        while !left.is_empty() {
            let is_begun = |(_, text): &(Mark, String)| text.len() > left.len() && text.starts_with(left);
            if may_go_on && self.literals.iter().any(is_begun) {
                break;
            }
            let whole = self.literals.iter().filter(|(_, text)| left.starts_with(text.as_str()));
            let longest = whole.max_by_key(|(_, text)| text.len()).cloned();
            let end = longest.as_ref().map_or_else(|| self.text_end(left), |(_, text)| text.len());
            let (piece, after) = left.split_at_checked(end).unwrap_or((left, ""));
            left = after;
            found
                .push(longest.map_or_else(|| Piece::Text(piece.to_owned(), 0), |(mark, text)| Piece::Mark(mark, text)));
        }
        left.clone_into(&mut self.held);
        found
    }

    /// Finds the next literal, whole or as far as there is text, after the first character.
    fn text_end(&self, text: &str) -> usize {
        let begins = |(at, c): &(usize, char)| {
            let rest = text.get(*at..).unwrap_or_default();
            let fits = |(_, mark): &(Mark, String)| rest.starts_with(mark.as_str()) || mark.starts_with(rest);
            self.firsts.contains(c) && self.literals.iter().any(fits)
        };
        text.char_indices().skip(1).find(begins).map_or(text.len(), |(at, _)| at)
    }
}
