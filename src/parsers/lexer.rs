//! Text cut into tags and the rest, with what may yet become a tag held back.

/// Cuts text at literals.
#[derive(Debug, Clone)]
pub(super) struct Lexer {
    literals: Vec<String>,
    held: String,
}

/// A piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lexeme {
    /// One of the literals.
    Literal(String),
    /// Other text.
    Text(String),
}

impl Lexer {
    pub(super) fn new(literals: Vec<String>) -> Self {
        Self { literals, held: String::new() }
    }

    /// Takes more text; what may be the start of a literal waits for the next.
    pub(super) fn push(&mut self, text: &str) -> Vec<Lexeme> {
        let mut rest = std::mem::take(&mut self.held);
        rest.push_str(text);
        let kept = partial_suffix(&rest, self.literals.iter().map(String::as_str));
        self.held = rest.split_off(rest.len() - kept);
        self.cut(&rest)
    }

    /// What was held back.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn cut(&self, text: &str) -> Vec<Lexeme> {
        let mut found = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let next = self.literals.iter().filter_map(|literal| Some((rest.find(literal.as_str())?, literal))).min();
            let Some((at, literal)) = next else {
                found.push(Lexeme::Text(rest.to_owned()));
                break;
            };
            let (before, after) = rest.split_at(at);
            if !before.is_empty() {
                found.push(Lexeme::Text(before.to_owned()));
            }
            found.push(Lexeme::Literal(literal.clone()));
            rest = after.strip_prefix(literal.as_str()).unwrap_or_default();
        }
        found
    }
}

/// Bytes of the longest end of a text that begins one of these and is not the whole of it.
pub(super) fn partial_suffix<'a>(text: &str, literals: impl Iterator<Item = &'a str>) -> usize {
    let longest = |literal: &str| {
        let fits = |length: &usize| literal.get(..*length).is_some_and(|start| text.ends_with(start));
        (1..literal.len()).rev().find(fits).unwrap_or(0)
    };
    literals.map(longest).max().unwrap_or(0)
}
