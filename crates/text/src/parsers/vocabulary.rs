//! The tokens that mean something to a parser.

use std::{fmt, sync::Arc};

use super::{
    engine::{
        grammar::{Grammar, Mark},
        grammars::GRAMMARS,
    },
    names::Formats,
};
use crate::prompt::{SkipSpecial, Tokenizer};

/// The tokens between which DeepSeek's calls stand.
pub(super) const CALLS_START: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const START: &str = "<｜tool▁call▁begin｜>";
pub(super) const END: &str = "<｜tool▁call▁end｜>";
const DEEPSEEK: [&str; 4] = [CALLS_START, CALLS_END, START, END];

/// The tokens that mean something to a parser, and the special ones.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    tokens: Vec<(u32, String)>,
    special: Vec<(u32, String)>,
    pub(super) texts: TokenTexts,
}

/// Marks by their tokens' ids.
pub(super) type MarkTokens = Vec<(u32, Mark, String)>;

/// Gives the text of tokens.
type Decode = dyn Fn(&[u32]) -> String + Send + Sync;

/// The texts of tokens, where they are known.
#[derive(Clone, Default)]
pub(super) struct TokenTexts(Option<Arc<Decode>>);

impl TokenTexts {
    pub(super) fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// The text of these tokens.
    pub(super) fn of(&self, ids: &[u32]) -> Option<String> {
        self.0.as_ref().map(|text| text(ids))
    }
}

impl fmt::Debug for TokenTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenTexts").field(&self.are_known()).finish()
    }
}

impl Vocabulary {
    /// The tokens of a tokenizer that the parsers of these formats look for, and its special ones.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer, formats: impl Into<Formats>) -> Self {
        if formats.into() == Formats::default() {
            return Self::default();
        }
        let decoder = tokenizer.clone();
        Self::new(|token| tokenizer.token_id(token), &tokenizer.special_tokens())
            .with_texts(move |ids| decoder.decode(ids, SkipSpecial::Keep).unwrap_or_default())
    }

    /// The same, with the texts of its tokens.
    #[must_use]
    pub fn with_texts(mut self, text: impl Fn(&[u32]) -> String + Send + Sync + 'static) -> Self {
        self.texts = TokenTexts(Some(Arc::new(text)));
        self
    }

    /// A vocabulary of which only the id of a token is known, and the special tokens.
    pub fn new(id_of: impl Fn(&str) -> Option<u32>, special: &[(u32, String)]) -> Self {
        let by_table = GRAMMARS.iter().flat_map(|grammar| {
            let literals = grammar.literals.iter().filter(|literal| literal.by_id).map(|literal| literal.text);
            literals.chain(grammar.turn_bounds.iter().copied())
        });
        let mut tokens = Vec::new();
        for text in by_table.chain(DEEPSEEK) {
            if let Some(id) = id_of(text).filter(|id| tokens.iter().all(|(known, _)| known != id)) {
                tokens.push((id, text.to_owned()));
            }
        }
        Self { tokens, special: special.to_vec(), texts: TokenTexts::default() }
    }

    /// The id of a token that some format looks for.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().find(|(_, text)| text == token).map(|(id, _)| *id)
    }

    /// Finds the tokens of a grammar's marks, and the literals to cut text at.
    pub(super) fn marks(&self, grammar: &Grammar) -> (MarkTokens, Vec<(Mark, String)>) {
        let by_id = grammar.literals.iter().filter(|literal| literal.by_id);
        let mut ids: Vec<_> =
            by_id.filter_map(|literal| Some((self.id(literal.text)?, literal.mark, literal.text.to_owned()))).collect();
        let mut literals: Vec<_> =
            grammar.literals.iter().map(|literal| (literal.mark, literal.text.to_owned())).collect();
        let is_known = |text: &str| grammar.literals.iter().any(|literal| literal.text == text);
        for (id, text) in self.special.iter().filter(|(_, text)| !is_known(text)) {
            ids.push((*id, Mark::Drop, text.clone()));
            literals.push((Mark::Drop, text.clone()));
        }
        (ids, literals)
    }
}
