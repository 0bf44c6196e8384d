//! A lexer before it is used. The library makes the first step of each lexer without a limit, so that step is tried here
//! under one.
//!
//! An expression that is the intersection of others is followed by all pairs of their branches, in one go. So the product
//! of branches is bounded before anything is followed. The estimate counts branches that exclude each other too.
//!
//! See docs/decisions/0070-limits-of-conforming-text.md.

use llguidance::{
    api::ParserLimits,
    derivre::{ExprRef, raw::ExprSet},
    earley::lexerspec::LexerSpec,
};

use super::{
    bounds::{FIRST_STEP_FUEL, LEXER_STATES},
    grammar::GuideError,
};

const MOST_BRANCHES: u64 = 1 << 20;

/// Follows every first byte within the limits.
pub(super) fn try_first_step(spec: &LexerSpec, limits: &ParserLimits) -> Result<(), GuideError> {
    let branches = most_branches(spec.regex_builder.exprset());
    if branches > MOST_BRANCHES {
        return Err(GuideError::unsupported(&"its intersections have too many branches"));
    }
    let mut limits = limits.clone();
    limits.initial_lexer_fuel = FIRST_STEP_FUEL;
    let mut lexer = spec.to_regex_vec(&mut limits).map_err(|error| GuideError::unsupported(&error))?;
    lexer.set_fuel(limits.initial_lexer_fuel);
    lexer.set_max_states(LEXER_STATES);
    let start = lexer.initial_state(&spec.all_lexemes());
    for byte in 0..=u8::MAX {
        lexer.transition(start, byte);
        if let Some(error) = lexer.get_error() {
            return Err(GuideError::unsupported(&format!("its lexer is too large: {error}")));
        }
    }
    Ok(())
}

/// The most branches that an intersection among these expressions has, or 1.
fn most_branches(expressions: &ExprSet) -> u64 {
    let mut set = expressions.clone();
    // The library does not name the kinds of expressions, but compares them.
    let (a, b) = (set.mk_byte(b'a'), set.mk_byte(b'b'));
    let (many_a, many_b) = (set.mk_repeat(a, 0, u32::MAX), set.mk_repeat(b, 0, u32::MAX));
    let [intersection, union, sequence] =
        [set.mk_and(&mut vec![many_a, many_b]), set.mk_or(&mut vec![many_a, many_b]), set.mk_concat(many_a, many_b)]
            .map(|sample| set.get_tag(sample));
    let mut most = 1;
    let mut counts: Vec<u64> = Vec::with_capacity(expressions.len());
    // An expression comes after its parts.
    for id in (0..).map(ExprRef::new).take(expressions.len()) {
        let parts: Vec<ExprRef> = if id.is_valid() { expressions.get_args(id).to_vec() } else { Vec::new() };
        let of_parts = parts.iter().map(|part| counts.get(part.as_usize()).copied().unwrap_or(1));
        let tag = id.is_valid().then(|| expressions.get_tag(id));
        let count = if tag == Some(intersection) {
            let product = of_parts.fold(1, u64::saturating_mul);
            most = most.max(product);
            product
        } else if tag == Some(union) || (tag == Some(sequence) && may_go_on(&mut set, &parts)) {
            of_parts.fold(0, u64::saturating_add)
        } else {
            of_parts.max().unwrap_or(1)
        };
        counts.push(count.max(1));
    }
    most
}

/// Returns true if what follows the first part may begin in more than one place.
fn may_go_on(set: &mut ExprSet, parts: &[ExprRef]) -> bool {
    parts.first().is_some_and(|first| set.is_nullable(*first) || set.attr_has_repeat(*first))
}
