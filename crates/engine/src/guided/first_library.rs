//! The engine's first library of constraints (xgrammar), of which an engine asks more than of its second one: it checks each constraint
//! with the first, then with the second, but compiles all of them with the one that took its first constraint. One that only the
//! second takes fails there.
//!
//! Limits: only what was seen to differ: classes of Unicode and flags in expressions, bounds of numbers that are none, schemas of
//! nothing but themselves, negative lengths, empty alternatives. Structural tags and grammars in Lark's notation are taken to compile.

use api::Constraint;
use serde_json::{Map, Value};

use super::{
    bounds::MOST_BYTES,
    ebnf,
    grammar::is_lark,
    patterns::{any_outside_brackets, has_unicode_class},
    schema::{any_part, has_negative_length, is_left_to_guidance, is_of},
};

/// Verdicts of the first library on a constraint that the engine takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstLibrary {
    /// Whether it takes it when a request is checked.
    pub takes: bool,
    /// Whether the engine can compile it with this library.
    pub compiles: bool,
}

impl FirstLibrary {
    /// Returns what the library does with a constraint.
    #[must_use]
    pub fn of(constraint: &Constraint) -> Self {
        let (is_left, is_refused, fails) = match constraint {
            Constraint::Json(schema) => {
                let refers_to_itself = schema.get("$ref").is_some_and(|target| target == "#");
                let fails = refers_to_itself || has_negative_length(schema);
                (is_left_to_guidance(schema), any_part(schema, is_schema_refused), fails)
            }
            Constraint::Regex(regex) => (false, has_unicode_class(regex) || has_flags(regex), false),
            Constraint::Grammar(text) if text.len() <= MOST_BYTES && !is_lark(text) => {
                (false, ebnf::rules(text, "").is_ok_and(|rules| rules.has_empty), false)
            }
            Constraint::JsonObject | Constraint::Choice(_) | Constraint::Grammar(_) | Constraint::StructuralTag(_) => {
                (false, false, false)
            }
        };
        Self { takes: !is_left && !is_refused, compiles: !is_refused && !fails }
    }
}

fn is_schema_refused(map: &Map<String, Value>) -> bool {
    let is_whole = |bound: &Value| bound.as_f64().is_none_or(|bound| bound.fract() == 0.0);
    let is_odd = |key: &str| match map.get(key) {
        Some(Value::Bool(_)) => is_of(map, "number") || is_of(map, "integer"),
        Some(bound) => is_of(map, "integer") && !is_whole(bound),
        None => false,
    };
    let pattern =
        map.get("pattern").and_then(Value::as_str).filter(|_| is_of(map, "string") && !map.contains_key("enum"));
    pattern.is_some_and(has_unicode_class)
        || ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].into_iter().any(is_odd)
}

/// Returns true for flags, such as `(?i)`, and for a name as Python writes it.
fn has_flags(regex: &str) -> bool {
    let is_flag = |sign: char| sign == '-' || sign.is_ascii_alphabetic();
    any_outside_brackets(regex, |rest| rest.strip_prefix("(?").is_some_and(|rest| rest.starts_with(is_flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_refused_for_classes_and_flags_outside_of_brackets() {
        for (regex, compiles) in [
            (r"\p{Lu}{3}", false),
            (r"a\PL", false),
            (r"[\p{L}]+", true),
            (r"\\p", true),
            ("(?i)hello", false),
            ("a(?-i:b)", false),
            ("(?P<n>a)", false),
            ("(?:a)(?<n>b)", true),
            (r"\(?in\)?", true),
            (r"[(?i]\d", true),
        ] {
            let library = FirstLibrary::of(&Constraint::Regex(regex.to_owned()));
            assert_eq!(library, FirstLibrary { takes: compiles, compiles }, "{regex}");
        }
    }
}
