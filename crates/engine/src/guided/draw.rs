//! The draw of one text, token by token.

use std::time::Duration;

use llguidance::TokenParser;
use rand::{Rng, RngExt, rngs::Xoshiro256PlusPlus};
use tokio::time::Instant;
use toktrie::SimpleVob;

use super::{bounds::check_lexer, grammar::GuideError, vocabulary::Guide};
use crate::synthetic::SyntheticKey;
use base::cancellation::is_cancelled;

/// Tokens after which every text is brought to its end.
const LONG: usize = 256;

/// One of so many tokens closes something, where something can be closed.
const CLOSE_ONE_IN: u32 = 4;

/// A place at which so many tokens may stand is inside free text.
const FREE: usize = 2_000;

/// Number of permitted tokens up to which each of them is tried.
const FEW: usize = 64;

/// Limits of a text: its length in tokens, and the time to draw it.
#[derive(Debug, Clone, Copy)]
pub struct DrawLimits {
    /// Before it may end by choice.
    pub least: usize,
    /// Before it is cut.
    pub most: usize,
    /// When it is given up.
    pub until: Instant,
}

impl DrawLimits {
    /// At most so many tokens, drawn within this time from now on.
    #[must_use]
    pub fn within(most: usize, longest: Duration) -> Self {
        Self { least: 0, most, until: Instant::now() + longest }
    }

    /// Checks that the text is still wanted, and that there is time for it.
    pub(super) fn check(&self) -> Result<(), GuideError> {
        if is_cancelled() {
            return Err(GuideError::unsupported(&"its client has left"));
        }
        if Instant::now() < self.until { Ok(()) } else { Err(GuideError::unsupported(&"it takes too long")) }
    }
}

/// A text that was made up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Reason for its end.
    pub ended: TextEnd,
}

/// Reason for the end of a generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextEnd {
    /// It is complete, and its last token is the one that ends a sequence.
    WithToken,
    /// It is complete; the vocabulary has no token for it.
    Itself,
    /// There was no room for the rest.
    Cut,
}

pub(super) struct Drawing<'a> {
    guide: &'a Guide,
    parser: TokenParser,
    generator: Xoshiro256PlusPlus,
    room: DrawLimits,
    ids: Vec<u32>,
}

impl<'a> Drawing<'a> {
    pub(super) fn new(guide: &'a Guide, parser: TokenParser, key: SyntheticKey, room: DrawLimits) -> Self {
        Self { guide, parser, generator: key.generator(), room, ids: Vec::new() }
    }

    /// Draws to the end; after `leisure` tokens, closing whatever can be closed.
    pub(super) fn run(mut self, leisure: usize) -> Result<Made, GuideError> {
        let leisure = leisure.min(LONG);
        loop {
            if self.has_ended()? {
                return Ok(Made { ids: self.ids, ended: TextEnd::Itself });
            }
            if self.ids.len() >= self.room.most {
                return Ok(Made { ids: self.ids, ended: TextEnd::Cut });
            }
            if self.take_forced()? {
                continue;
            }
            let is_whole = self.parser.is_accepting();
            let allowed = match self.parser.compute_mask() {
                Ok(allowed) => allowed,
                // Nothing may follow.
                Err(_) if is_whole => return Ok(Made { ids: self.ids, ended: TextEnd::Itself }),
                Err(error) => return Err(GuideError::unsupported(&error)),
            };
            let may_end = is_whole && self.ids.len() >= self.room.least;
            let hurries = self.ids.len() >= leisure;
            match self.choose(&allowed, may_end, hurries) {
                Some(id) => self.take(&[id])?,
                None => return Ok(Made { ids: self.ids, ended: TextEnd::Itself }),
            }
        }
    }

    /// Returns true if nothing may follow. An error where the next step may not be taken.
    fn has_ended(&self) -> Result<bool, GuideError> {
        let reason = self.parser.stop_reason();
        if !reason.is_ok() {
            let error = self.parser.error_message();
            return Err(GuideError::Unsupported(error.unwrap_or_else(|| reason.to_string())));
        }
        if self.parser.stopped() {
            return Ok(true);
        }
        check_lexer(&self.parser.parser.lexer_stats())?;
        self.room.check().map(|()| false)
    }

    fn take(&mut self, ids: &[u32]) -> Result<(), GuideError> {
        let taken = ids.iter().try_for_each(|id| self.parser.consume_token(*id).map(drop));
        taken.and_then(|()| self.parser.check_stop()).map_err(|error| GuideError::unsupported(&error))?;
        self.ids.extend_from_slice(ids);
        Ok(())
    }

    /// Takes what there is no choice about, in the longest tokens.
    fn take_forced(&mut self) -> Result<bool, GuideError> {
        let bytes = self.parser.force_bytes();
        let mut forced = self.guide.tokens.tok_trie().greedy_tokenize(&bytes);
        forced.truncate(self.room.most - self.ids.len());
        let fitting = self.parser.validate_tokens_raw(&forced).map_err(|error| GuideError::unsupported(&error))?;
        forced.truncate(fitting);
        self.take(&forced)?;
        Ok(!forced.is_empty())
    }

    /// One of these tokens, or `None` for the end.
    fn choose(&mut self, allowed: &SimpleVob, may_end: bool, hurries: bool) -> Option<u32> {
        if hurries || self.generator.random_ratio(1, CLOSE_ONE_IN) {
            if may_end {
                return None;
            }
            if let Some(closer) = self.closer(allowed, hurries) {
                return Some(closer);
            }
        }
        let mut good = allowed.clone();
        good.disallow_token(self.guide.tokens.tok_trie().eos_token());
        let whole = good.clone();
        if good.num_set() > FEW {
            good.and(&self.guide.ordinary);
        }
        if self.ends_in_digit() {
            good.sub(&self.guide.exponents);
        }
        pick(&mut self.generator, if good.is_zero() { &whole } else { &good })
    }

    /// A token that brings the text nearer to its end: one that closes something, or else one of another sort than those
    /// that could go on for ever.
    fn closer(&mut self, allowed: &SimpleVob, hurries: bool) -> Option<u32> {
        let is_free = allowed.num_set() > FREE;
        let mut closers = self.guide.closers.iter().take(if is_free { 1 } else { usize::MAX });
        let closer = closers.find(|closer| allowed.is_allowed(**closer)).copied();
        // What closes something in JSON may go on for ever elsewhere.
        if closer.is_some() && (!hurries || self.generator.random_ratio(7, 8)) {
            return closer;
        }
        if is_free && !hurries {
            return None;
        }
        let mut sorts: Vec<SimpleVob> = self.guide.sorts.to_vec();
        sorts.iter_mut().for_each(|sort| sort.and(allowed));
        sorts.retain(|sort| !sort.is_zero());
        let sort = if sorts.is_empty() { 0 } else { self.generator.random_range(0..sorts.len()) };
        pick(&mut self.generator, sorts.get(sort)?)
    }

    fn ends_in_digit(&self) -> bool {
        let word = self.ids.last().map(|id| self.guide.tokens.tok_trie().token(*id)).unwrap_or_default();
        word.last().is_some_and(u8::is_ascii_digit)
    }
}

/// One of a set, each as likely as the other.
fn pick(generator: &mut impl Rng, set: &SimpleVob) -> Option<u32> {
    let count = set.num_set();
    let mut nth = if count == 0 { return None } else { generator.random_range(0..count) };
    for (at, word) in (0..).step_by(32).zip(set.as_slice()) {
        let here = usize::try_from(word.count_ones()).unwrap_or(0);
        if nth < here {
            return (0..32).filter(|bit| word >> bit & 1 == 1).nth(nth).map(|bit| at + bit);
        }
        nth -= here;
    }
    None
}
