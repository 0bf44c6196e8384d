//! Patterns in JSON schemas before they are read. The library compares those of property names by pairs, 0.1 ms for each, and
//! the pairs again where schemas are combined; strings with several patterns it follows by all combinations of their branches
//! in one go, for minutes and gigabytes. Neither has a limit there, so both are estimated here.
//!
//! Limits: the estimates are of the text of a schema, not of its meaning, and count property names that are combined as if
//! all of them came together. See docs/decisions/0070-limits-of-conforming-text.md.

use std::collections::HashMap;

use serde_json::{Deserializer, Map, Value};

use super::grammar::GuideError;

/// The most comparisons of patterns of a schema's property names.
const MOST_COMPARISONS: usize = 8192;

/// The most combinations of branches of the patterns of a string.
const MOST_COMBINATIONS: u64 = 1 << 20;

/// Checks that a schema does not have more patterns than can be compared and combined.
pub(super) fn check_patterns(schema: &Value) -> Result<(), GuideError> {
    let mut found = PatternCounts::default();
    found.add(schema);
    let comparisons = found.comparisons();
    if comparisons > MOST_COMPARISONS {
        return Err(GuideError::unsupported(&format!("{comparisons} comparisons of patternProperties are too many")));
    }
    let mut strings = Strings { schema, targets: HashMap::new() };
    let combinations = strings.combinations(schema);
    if combinations > MOST_COMBINATIONS {
        return Err(GuideError::unsupported(&format!("{combinations} combinations of patterns are too many")));
    }
    Ok(())
}

/// Checks the schemas within a grammar in Lark's notation.
pub(super) fn check_embedded(lark: &str) -> Result<(), GuideError> {
    let mut schemas = lark.split("%json").skip(1);
    schemas.try_for_each(|rest| match Deserializer::from_str(rest).into_iter::<Value>().next() {
        Some(Ok(schema)) => check_patterns(&schema),
        _ => Ok(()),
    })
}

/// Numbers of a schema's patterns of property names, and of places where schemas are combined.
#[derive(Default)]
struct PatternCounts {
    patterns: usize,
    pairs: usize,
    combined: usize,
}

impl PatternCounts {
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

    /// Schemas that are combined may bring all patterns together.
    fn comparisons(&self) -> usize {
        match self.combined {
            0 => self.pairs,
            combined => pairs(self.patterns).saturating_mul(combined.saturating_add(1)),
        }
    }
}

fn pairs(count: usize) -> usize {
    count.saturating_mul(count.saturating_sub(1)) / 2
}

struct Strings<'a> {
    schema: &'a Value,
    /// Combinations of what references name; 1 while they are counted.
    targets: HashMap<&'a str, u64>,
}

impl<'a> Strings<'a> {
    /// Combinations of branches of the patterns that may come together in a string of a schema.
    fn combinations(&mut self, schema: &'a Value) -> u64 {
        match schema {
            Value::Object(map) => {
                let (mut own, mut combined) = (1, 1_u64);
                for (key, value) in map {
                    match (key.as_str(), value) {
                        ("pattern", Value::String(pattern)) => own = own.max(branches(pattern)),
                        ("$ref", Value::String(target)) => combined = combined.saturating_mul(self.of_target(target)),
                        ("allOf", Value::Array(items)) => {
                            let each = items.iter().map(|item| self.combinations(item));
                            combined = each.fold(combined, u64::saturating_mul);
                        }
                        ("anyOf" | "oneOf", Value::Array(_)) => {
                            combined = combined.saturating_mul(self.combinations(value));
                        }
                        // They count where they are named.
                        ("$defs" | "definitions", Value::Object(_)) => {}
                        (_, value) => own = own.max(self.combinations(value)),
                    }
                }
                combined.saturating_mul(own)
            }
            Value::Array(items) => items.iter().map(|item| self.combinations(item)).max().unwrap_or(1),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
        }
    }

    /// Those of what a reference names; of one by another name than its place, those of all patterns together.
    fn of_target(&mut self, target: &'a str) -> u64 {
        if let Some(known) = self.targets.get(target) {
            return *known;
        }
        self.targets.insert(target, 1);
        let found = target.strip_prefix('#').and_then(|pointer| self.schema.pointer(pointer));
        let count = match found {
            Some(schema) => self.combinations(schema),
            None => all(self.schema),
        };
        self.targets.insert(target, count);
        count
    }
}

fn all(schema: &Value) -> u64 {
    match schema {
        Value::Object(map) => map.iter().fold(1, |count, (key, value)| match value {
            Value::String(pattern) if key == "pattern" => count.saturating_mul(branches(pattern)),
            value => count.saturating_mul(all(value)),
        }),
        Value::Array(items) => items.iter().map(all).fold(1, u64::saturating_mul),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Places of a pattern at which it goes on in more than one way, and one.
fn branches(pattern: &str) -> u64 {
    let places = pattern.bytes().filter(|byte| b"|*+?{".contains(byte)).count();
    u64::try_from(places).unwrap_or(u64::MAX).saturating_add(1)
}

/// Returns true for `\p` or `\P` outside of brackets; within, the library takes the letter.
pub(super) fn has_unicode_class(regex: &str) -> bool {
    any_outside_brackets(regex, |rest| rest.starts_with(r"\p") || rest.starts_with(r"\P"))
}

pub(super) fn any_outside_brackets(regex: &str, is_so: impl Fn(&str) -> bool) -> bool {
    let (mut signs, mut is_in_brackets) = (regex.chars(), false);
    loop {
        if !is_in_brackets && is_so(signs.as_str()) {
            return true;
        }
        match signs.next() {
            Some('\\') => drop(signs.next()),
            Some('[') => is_in_brackets = true,
            Some(']') => is_in_brackets = false,
            Some(_) => {}
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: &Value) -> Option<String> {
        check_patterns(schema).err().map(|error| error.to_string())
    }

    #[test]
    fn patterns_that_come_together_in_a_string_are_multiplied_and_others_are_not() {
        let pattern = |at: usize| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{at}}}$")});
        let apart: Map<String, Value> = (0..100).map(|at| (format!("p{at}"), pattern(at))).collect();
        assert_eq!(refused(&json!({"properties": apart, "allOf": [pattern(1)]})), None);
        let many: Vec<Value> = (0..30).map(pattern).collect();
        assert_eq!(refused(&json!({"anyOf": many})), None);
        let message = refused(&json!({"allOf": many})).unwrap();
        assert!(message.contains("combinations of patterns are too many"), "{message}");
        let named: Map<String, Value> = (0..30).map(|at| (format!("d{at}"), pattern(at))).collect();
        let refs: Vec<Value> = (0..30).map(|at| json!({"$ref": format!("#/$defs/d{at}")})).collect();
        assert!(refused(&json!({"$defs": named, "allOf": refs})).is_some());
        assert_eq!(refused(&json!({"$defs": named, "anyOf": refs})), None);
        let chain: Map<String, Value> = (0..30)
            .map(|at| (format!("d{at}"), json!({"pattern": "(a|b)*", "$ref": format!("#/$defs/d{}", at + 1)})))
            .collect();
        assert!(refused(&json!({"$defs": chain, "$ref": "#/$defs/d0"})).is_some());
        assert!(refused(&json!({"$defs": named, "allOf": vec![json!({"$ref": "#name"}); 2]})).is_some());
    }

    #[test]
    fn schemas_that_name_themselves_and_widen_without_patterns_are_followed() {
        assert_eq!(
            refused(&json!({"properties": {"a": {"$ref": "#"}, "b": {"pattern": "a*"}}, "allOf": [{"$ref": "#"}]})),
            None
        );
        let wide: Map<String, Value> = (0..40)
            .map(|at| (format!("a{at}"), json!({"allOf": vec![json!({"$ref": format!("#/$defs/a{}", at + 1)}); 20]})))
            .collect();
        assert_eq!(refused(&json!({"$defs": wide, "$ref": "#/$defs/a0"})), None);
    }
}
