//! Limits on constraints. Any client may send any constraint, and the library that reads them recurses
//! once for each rule that leads to another.
//!
//! Limits: a constraint of more than [`MOST_BYTES`] bytes is not read. [`STACK`] is more than a chain of as many rules
//! as fit into them needs: 2 to 4 KiB for one, written in 10 bytes at least. The library counts the expressions that it
//! makes as fuel: 30 bytes of memory for one, and 100 ns. Each step has its own, and a text has [`TEXT_FUEL`].
//!
//! See docs/decisions/0070-limits-of-conforming-text.md.

use std::thread;

use llguidance::{api::ParserLimits, earley::regexvec::LexerStats};

use super::grammar::GuideError;
use api::Constraint;
use base::cancellation::Cancellation;

/// Bytes of a constraint.
pub(super) const MOST_BYTES: usize = 128 * 1024;

/// Bytes of the stack on which constraints are read; only what is used of them is taken.
const STACK: usize = 128 * 1024 * 1024;

/// States of a lexer, of some 3 KB each.
pub(super) const LEXER_STATES: usize = 10_000;

/// Bytes of a lexer, as far as the library counts them.
const LEXER_BYTES: usize = 64 << 20;

/// Expressions of a lexer at its start.
const LEXER_FUEL: u64 = 200_000;

/// Expressions of the first step from its start.
pub(super) const FIRST_STEP_FUEL: u64 = 1_000_000;

/// Expressions that one more token may need.
const STEP_FUEL: u64 = 100_000;

const TEXT_FUEL: usize = 4_000_000;

/// Does work on a constraint where neither its depth nor a panic ends more than the work.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> Result<T, GuideError> + Send) -> Result<T, GuideError> {
    let cancellation = Cancellation::current();
    let work = || cancellation.scope(work);
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("guided".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        let done = thread.map_err(|error| GuideError::unsupported(&error))?.join();
        done.unwrap_or_else(|_| Err(GuideError::unsupported(&"its reader panicked")))
    })
}

/// Checks that a constraint is not too large to be read.
pub(super) fn check_size(constraint: &Constraint) -> Result<(), GuideError> {
    let bytes = match constraint {
        Constraint::Json(value) | Constraint::StructuralTag(value) => value.to_string().len(),
        Constraint::JsonObject => 0,
        Constraint::Regex(text) | Constraint::Grammar(text) => text.len(),
        Constraint::Choice(choices) => choices.iter().map(String::len).fold(choices.len(), usize::saturating_add),
    };
    if bytes <= MOST_BYTES { Ok(()) } else { Err(GuideError::unsupported(&format!("it has {bytes} bytes"))) }
}

/// Checks that a lexer has not grown beyond what a text may take.
pub(super) fn check_lexer(lexer: &LexerStats) -> Result<(), GuideError> {
    if lexer.num_bytes <= LEXER_BYTES && lexer.total_fuel_spent <= TEXT_FUEL {
        return Ok(());
    }
    let (bytes, fuel) = (lexer.num_bytes, lexer.total_fuel_spent);
    Err(GuideError::unsupported(&format!("its lexer has {bytes} bytes after {fuel} expressions")))
}

/// Sets the limits of drawing one text.
pub(super) fn limit(limits: &mut ParserLimits) {
    limits.max_lexer_states = LEXER_STATES;
    limits.initial_lexer_fuel = LEXER_FUEL;
    limits.step_lexer_fuel = STEP_FUEL;
    // It walks the vocabulary once for each large expression, without a limit on their number.
    limits.precompute_large_lexemes = false;
    limits.verbose_errors = false;
}
