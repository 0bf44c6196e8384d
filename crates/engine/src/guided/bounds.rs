//! Limits on constraints. Any client may send any constraint, and the library that reads them recurses
//! once for each rule that leads to another.
//!
//! Limits: a constraint of more than [`MOST_BYTES`] bytes is not read. [`STACK`] is more than a chain of as many rules
//! as fit into them needs: 2 to 4 KiB for one, written in 10 bytes at least. The library counts the expressions that it
//! makes as fuel: 30 bytes of memory for one, and 100 ns. Each step has its own, and a text has [`TEXT_FUEL`].
//!
//! Patterns of property names it compares by pairs, 0.1 ms for each, and the pairs anew where schemas are combined; so these
//! comparisons are counted before a schema is read.
//!
//! See docs/decisions/0070-limits-of-conforming-text.md.

use std::thread;

use llguidance::{api::ParserLimits, earley::regexvec::LexerStats};
use serde_json::{Deserializer, Map, Value};

use super::grammar::GuideError;
use api::Constraint;
use base::cancellation::Cancellation;

/// Bytes of a constraint.
pub(super) const MOST_BYTES: usize = 128 * 1024;

/// The most comparisons of patterns of a schema's property names.
const MOST_COMPARISONS: usize = 8192;

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

/// Expressions of a text.
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

/// Checks that the patterns of a schema's property names are not too many to be compared.
pub(super) fn check_patterns(schema: &Value) -> Result<(), GuideError> {
    let mut found = Patterns::default();
    found.add(schema);
    // Schemas that are combined may bring all patterns together.
    let comparisons = match found.combined {
        0 => found.pairs,
        combined => pairs(found.patterns).saturating_mul(combined.saturating_add(1)),
    };
    if comparisons <= MOST_COMPARISONS {
        return Ok(());
    }
    Err(GuideError::unsupported(&format!("{comparisons} comparisons of patternProperties are too many")))
}

/// Checks the schemas within a grammar in Lark's notation.
pub(super) fn check_embedded(lark: &str) -> Result<(), GuideError> {
    let schemas = lark.split("%json").skip(1);
    let schemas = schemas.filter_map(|rest| Deserializer::from_str(rest).into_iter::<Value>().next()?.ok());
    schemas.into_iter().try_for_each(|schema| check_patterns(&schema))
}

fn pairs(count: usize) -> usize {
    count.saturating_mul(count.saturating_sub(1)) / 2
}

/// What a schema has of patterns of property names, and of places where schemas are combined.
#[derive(Default)]
struct Patterns {
    patterns: usize,
    pairs: usize,
    combined: usize,
}

impl Patterns {
    fn add(&mut self, schema: &Value) {
        match schema {
            Value::Object(map) => {
                let patterns = map.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
                self.patterns += patterns;
                self.pairs += pairs(patterns);
                let items = ["allOf", "anyOf", "oneOf"].iter().filter_map(|key| map.get(*key)?.as_array());
                self.combined += items.map(Vec::len).sum::<usize>();
                self.combined += usize::from(map.contains_key("$ref") && map.len() > 1);
                map.values().for_each(|part| self.add(part));
            }
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
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
