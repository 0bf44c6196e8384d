//! One vocabulary as a grammar sees it: the bytes of its tokens as a tree, and which of them are good for what.

use std::{fmt, sync::Arc};

use llguidance::{ParserFactory, TokenParser, api::GrammarInit};
use toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use super::{
    bounds,
    draw::{DrawLimits, Drawing, Made, TextEnd},
    grammar::{GuideError, grammar},
    lexer,
};
use crate::synthetic::SyntheticKey;
use api::Constraint;
use text::prompt::Tokenizer;

/// Texts that close something, in the order in which they are tried. The order is for JSON: in it everything that is
/// open is closed at last.
const CLOSERS: [&[u8]; 13] = [b"\"", b"}", b"]", b"null", b"n", b"true", b"t", b",", b", ", b")", b">", b"0", b"1"];

const SORTS: [fn(&u8) -> bool; 6] = [
    u8::is_ascii_lowercase,
    u8::is_ascii_uppercase,
    u8::is_ascii_digit,
    u8::is_ascii_whitespace,
    |byte| *byte == b'@',
    |byte| *byte != b'@' && u8::is_ascii_punctuation(byte),
];

/// A vocabulary to draw conforming text from. To make one takes some tenths of a second for a large vocabulary; after
/// that it is shared.
pub struct Guide {
    factory: ParserFactory,
    pub(super) tokens: TokEnv,
    /// Tokens of printable text.
    pub(super) ordinary: SimpleVob,
    /// Tokens with which a number would get an exponent.
    pub(super) exponents: SimpleVob,
    pub(super) closers: Vec<u32>,
    /// Tokens of one ASCII character each: small letters, capitals, digits, spaces, `@`, other signs.
    pub(super) sorts: [SimpleVob; 6],
    /// The token that ends a sequence, where the vocabulary has one.
    eos: Option<u32>,
}

impl fmt::Debug for Guide {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("Guide").field("eos", &self.eos).finish_non_exhaustive()
    }
}

impl Guide {
    /// Reads a vocabulary.
    ///
    /// # Errors
    /// [`GuideError::Unsupported`] for one of no tokens.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GuideError> {
        let mut words = tokenizer.token_bytes();
        // The end has an id of its own, so that no token is lost to it.
        let end = tokenizer.vocab_size();
        words.push(Vec::new());
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        let set = |ids: &mut dyn Iterator<Item = u32>| {
            let mut set = trie.alloc_token_set();
            ids.for_each(|id| set.allow_token(id));
            set
        };
        let ordinary = set(&mut tokenizer.ordinary_ids().iter().copied());
        let exponents = set(&mut (0..).zip(&words).filter(|(_, word)| has_exponent(word)).map(|(id, _)| id));
        let of_bytes = |belongs| (0..0x80_u8).filter(belongs).filter_map(|byte| trie.token_id(&[byte]));
        let sorts = SORTS.map(|belongs| set(&mut of_bytes(belongs)));
        let closers = CLOSERS.iter().filter_map(|closer| trie.token_id(closer)).collect();
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&tokens).map_err(|error| GuideError::unsupported(&error))?;
        factory.quiet();
        bounds::limit(factory.limits_mut());
        let eos = tokenizer.eos_ids().first().copied();
        Ok(Self { factory, tokens, ordinary, exponents, closers, sorts, eos })
    }

    /// Draws a text that conforms, or the beginning of one that did not end within its room.
    ///
    /// # Errors
    /// [`GuideError::Unsupported`] for a constraint that is beyond this module, takes longer than there is time, or is
    /// wanted no more.
    pub fn draw(&self, constraint: &Constraint, key: SyntheticKey, room: DrawLimits) -> Result<Made, GuideError> {
        // A grammar is not read for nothing.
        room.check()?;
        bounds::apart(|| self.draw_here(constraint, key, room))
    }

    fn draw_here(&self, constraint: &Constraint, key: SyntheticKey, room: DrawLimits) -> Result<Made, GuideError> {
        let fresh = self.parser(constraint)?;
        let drawn = Drawing::new(self, fresh.deep_clone(), key, room).run(room.most / 2)?;
        if drawn.ended == TextEnd::Cut {
            // In a hurry from the start, it may yet end in time.
            let hurried = Drawing::new(self, fresh, key, room).run(0)?;
            if hurried.ended == TextEnd::Itself {
                return Ok(self.with_eos(hurried, room));
            }
        }
        Ok(self.with_eos(drawn, room))
    }

    /// A parser at its start, whose lexer is within its limits.
    fn parser(&self, constraint: &Constraint) -> Result<TokenParser, GuideError> {
        let unsupported = |error| GuideError::unsupported(&error);
        let limits = self.factory.limits();
        let grammar = GrammarInit::Serialized(grammar(constraint)?);
        let (grammar, lexemes) =
            grammar.to_internal(Some(Arc::clone(&self.tokens)), limits.clone()).map_err(unsupported)?;
        let mut all = lexemes.clone();
        all.add_extra_lexemes(&self.factory.extra_lexemes());
        lexer::try_first_step(&all, limits)?;
        let parser = self.factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexemes));
        let mut parser = parser.map_err(unsupported)?;
        parser.start_without_prompt();
        // A mask sets the limits of the steps that come before the next one.
        drop(parser.compute_mask());
        Ok(parser)
    }

    /// Ends a text with the token for that, which needs room too.
    fn with_eos(&self, mut made: Made, room: DrawLimits) -> Made {
        match self.eos {
            Some(_) if made.ended == TextEnd::Itself && made.ids.len() >= room.most => made.ended = TextEnd::Cut,
            Some(eos) if made.ended == TextEnd::Itself => {
                made.ids.push(eos);
                made.ended = TextEnd::WithToken;
            }
            _ => {}
        }
        made
    }
}

/// Returns true if a token begins with the letter of an exponent, or has one after a digit.
fn has_exponent(word: &[u8]) -> bool {
    let is_letter = |byte: Option<&u8>| matches!(byte, Some(b'e' | b'E'));
    is_letter(word.first())
        || word.windows(2).any(|pair| pair.first().is_some_and(u8::is_ascii_digit) && is_letter(pair.last()))
}
