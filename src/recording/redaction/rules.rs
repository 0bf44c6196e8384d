//! What counts as a secret.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, LazyLock},
};

use aho_corasick::AhoCorasick;
use regex::Regex;

use super::{
    patterns::{BUILT_IN, KEY_ENDS, KEYS, Pattern},
    percent::Decoded,
    scan::Step,
};
use crate::recording::field_path::{FieldPath, PathError};

/// What counts as a secret. The default has the built-in names and patterns; more can be added, nothing taken away.
#[derive(Debug, Clone)]
pub struct Rules {
    keys: BTreeSet<String>,
    built_in: Arc<BuiltIn>,
    patterns: Vec<(String, Regex)>,
    literals: Vec<(String, String)>,
    places: Vec<FieldPath>,
}

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RulesError {
    /// A name that cannot stand in a placeholder.
    #[error("`{0}` cannot name a rule; use letters, digits, `_`, `-` and `.`")]
    Name(String),
    /// A pattern that is no regular expression.
    #[error("the pattern `{name}` is not a regular expression")]
    Pattern {
        /// The pattern's name.
        name: String,
        /// Where and why.
        source: regex::Error,
    },
    /// A literal too short to be distinguished from ordinary text.
    #[error("the value of `{0}` is shorter than 4 characters: it would be found everywhere")]
    Short(String),
    /// A place that is none.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The shortest literal that is looked for, in bytes.
const SHORTEST_LITERAL: usize = 4;

/// A card's number has so many digits or more.
const SHORTEST_CARD: usize = 13;

/// What JSON schemas list their fields under, and what among a field's words is a value of it.
const SCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const SCHEMA_VALUES: [&str; 5] = ["const", "default", "enum", "example", "examples"];

/// The built-in patterns, compiled, and the signs by which a text is known not to hold any of some of them.
#[derive(Debug, Default)]
struct BuiltIn {
    patterns: Vec<(&'static Pattern, Regex)>,
    /// Finds signs of any case; `None` where it could not be made: then all patterns are tried.
    signs: Option<AhoCorasick>,
    /// The pattern of each sign.
    of_sign: Vec<usize>,
}

/// Compiled once: it takes milliseconds.
static COMPILED: LazyLock<Arc<BuiltIn>> = LazyLock::new(|| Arc::new(BuiltIn::compiled()));

impl BuiltIn {
    fn compiled() -> Self {
        // Word boundaries of ASCII: those of Unicode make a search slow in any text that is not.
        let compile = |pattern: &Pattern| Regex::new(&pattern.regex.replace(r"\b", r"(?-u:\b)")).ok();
        let patterns: Vec<(&Pattern, Regex)> =
            BUILT_IN.iter().filter_map(|pattern| Some((pattern, compile(pattern)?))).collect();
        let signs = |(at, (pattern, _)): (usize, &(&'static Pattern, Regex))| {
            pattern.signs.iter().map(move |sign| (at, *sign)).collect::<Vec<_>>()
        };
        let (of_sign, signs): (Vec<usize>, Vec<&str>) = patterns.iter().enumerate().flat_map(signs).unzip();
        let signs = AhoCorasick::builder().ascii_case_insensitive(true).build(signs).ok();
        Self { patterns, signs, of_sign }
    }

    /// The patterns that a text can match: a bit for each.
    fn possible(&self, text: &str) -> u64 {
        let all = u64::MAX >> (64 - self.patterns.len().clamp(1, 64));
        let Some(signs) = &self.signs else { return all };
        let mut possible = 0;
        for found in signs.find_overlapping_iter(text) {
            possible |= self.of_sign.get(found.pattern().as_usize()).map_or(0, |at| 1_u64 << *at);
            if possible == all {
                break;
            }
        }
        possible
    }
}

impl Default for Rules {
    fn default() -> Self {
        let built_in = Arc::clone(&COMPILED);
        Self { keys: BTreeSet::new(), built_in, patterns: Vec::new(), literals: Vec::new(), places: Vec::new() }
    }
}

impl Rules {
    /// The same, and values under `key` (of any case, with `-`, `_` or without) are secrets too.
    ///
    /// # Errors
    /// When the key is empty or cannot stand in a placeholder.
    pub fn key(mut self, key: &str) -> Result<Self, RulesError> {
        self.keys.insert(normal(named(key)?));
        Ok(self)
    }

    /// The same, and what `pattern` matches is a secret too; its first group where it has one.
    ///
    /// # Errors
    /// When the pattern is no regular expression or its name cannot stand in a placeholder.
    pub fn pattern(mut self, name: &str, pattern: &str) -> Result<Self, RulesError> {
        let name = named(name)?.to_owned();
        match Regex::new(pattern) {
            Ok(regex) => self.patterns.push((name, regex)),
            Err(source) => return Err(RulesError::Pattern { name, source }),
        }
        Ok(self)
    }

    /// The same, and `value` is a secret wherever it stands, called `name`, such as an environment variable's value.
    ///
    /// # Errors
    /// When the value is shorter than 4 bytes or its name cannot stand in a placeholder.
    pub fn literal(mut self, name: &str, value: &str) -> Result<Self, RulesError> {
        if value.len() < SHORTEST_LITERAL {
            return Err(RulesError::Short(name.to_owned()));
        }
        self.literals.push((named(name)?.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// The same, and everything at or below `place` (`$.metadata.email`) is a secret.
    ///
    /// # Errors
    /// When it is no place.
    pub fn place(mut self, place: &str) -> Result<Self, RulesError> {
        self.places.push(place.parse()?);
        Ok(self)
    }

    /// Whether values under this name are secrets.
    #[must_use]
    pub fn is_secret_key(&self, name: &str) -> bool {
        let name = normal(name);
        KEYS.contains(&name.as_str()) || KEY_ENDS.iter().any(|end| name.ends_with(end)) || self.keys.contains(&name)
    }

    /// The kind of secret that a scalar is by its name or its place.
    pub(super) fn kind_by_place(&self, steps: &[Step<'_>]) -> Option<String> {
        let kind = |key: &str| normal(key).chars().filter(is_of_name).collect::<String>();
        let keys = || steps.iter().filter_map(Step::key);
        if self.places.iter().any(|place| place.covers(steps)) {
            return Some(keys().next_back().map_or_else(|| "place".to_owned(), kind));
        }
        if keys().any(is_exempt_under) {
            return None;
        }
        let last = keys().next_back()?;
        if self.is_secret_key(last) {
            return Some(kind(last));
        }
        self.secret_above(steps).map(kind)
    }

    /// The secret's name further up: what is in an object under it is a secret too. A `token` is often an object of
    /// other things, and a schema describes.
    fn secret_above<'s>(&self, steps: &'s [Step<'_>]) -> Option<&'s str> {
        let is_secret =
            |step: &Step<'_>| step.key().is_some_and(|key| self.is_secret_key(key) && normal(key) != "token");
        let at = steps.iter().position(is_secret)?;
        let (before, after) = (steps.get(..at)?, steps.get(at + 1..)?);
        let is_schema = before.last().and_then(Step::key).is_some_and(|key| SCHEMAS.contains(&key));
        let is_value = || after.iter().filter_map(Step::key).any(|key| SCHEMA_VALUES.contains(&key));
        (!is_schema || is_value()).then(|| steps.get(at)?.key()).flatten()
    }

    /// Whether a number may be a secret: a card's, or one that was named or described.
    pub(super) fn may_be_secret(&self, number: &str) -> bool {
        let is_searched = number.len() >= SHORTEST_CARD || !self.literals.is_empty() || !self.patterns.is_empty();
        is_searched && number.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// Whether nothing is a secret for standing at the beginning or the end of a text, so that texts can be searched as one.
    pub(super) fn takes_texts_as_one(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Where the secrets of a text are, and of which kind: in order, without overlaps. They may be percent-encoded.
    pub(super) fn spans(&self, text: &str, known: &[(String, String)]) -> Vec<(Range<usize>, String)> {
        let mut found = self.found(text, known);
        if let Some(decoded) = Decoded::of(text) {
            let further = self.found(&decoded.text, known).into_iter();
            found.extend(further.map(|(span, name)| (decoded.original(&span), name)));
        }
        found.sort_by_key(|(span, _)| (span.start, std::cmp::Reverse(span.end)));
        let mut merged: Vec<(Range<usize>, String)> = Vec::new();
        for (span, name) in found {
            match merged.last_mut() {
                Some((last, _)) if span.start < last.end => last.end = last.end.max(span.end),
                _ => merged.push((span, name.to_owned())),
            }
        }
        merged
    }

    /// Every secret of a text as it stands there, in no order.
    fn found<'r>(&'r self, text: &str, known: &'r [(String, String)]) -> Vec<(Range<usize>, &'r str)> {
        let mut found: Vec<(Range<usize>, &str)> = Vec::new();
        for (name, value) in self.literals.iter().chain(known) {
            found.extend(text.match_indices(value.as_str()).map(|(at, part)| (at..at + part.len(), name.as_str())));
        }
        let possible = self.built_in.possible(text);
        let built_in = self.built_in.patterns.iter().enumerate();
        for (_, (pattern, regex)) in built_in.filter(|(at, _)| possible & (1_u64 << at) != 0) {
            let spans = matched(regex, text).filter_map(|span| after_escape(text, span));
            found.extend(spans.filter(|span| holds(pattern, text, span)).map(|span| (span, pattern.name)));
        }
        for (name, regex) in &self.patterns {
            found.extend(matched(regex, text).map(|span| (span, name.as_str())));
        }
        if !found.is_empty() {
            let placeholders: Vec<Range<usize>> = placeholders(text);
            found.retain(|(span, _)| !placeholders.iter().any(|own| own.start <= span.start && span.end <= own.end));
        }
        found
    }
}

/// Where an expression matches: its first group where it has one.
fn matched<'t>(regex: &'t Regex, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
    let spans = regex.captures_iter(text).filter_map(|groups| groups.get(1).or_else(|| groups.get(0)));
    spans.filter(|span| !span.is_empty()).map(|span| span.range())
}

/// In JSON within text the `n` of a line break is no part of an address after it; without it there may be none left.
fn after_escape(text: &str, span: Range<usize>) -> Option<Range<usize>> {
    let is_escape = text.get(..span.start).is_some_and(|before| before.ends_with('\\'));
    match text.get(span.clone())?.strip_prefix(['n', 'r', 't', 'b', 'f']).filter(|_| is_escape) {
        None => Some(span),
        Some(rest) => (!rest.starts_with('@')).then_some(span.start + 1..span.end),
    }
}

fn holds(pattern: &Pattern, text: &str, span: &Range<usize>) -> bool {
    text.get(span.clone()).is_some_and(pattern.holds)
}

/// Where an earlier redaction left placeholders.
fn placeholders(text: &str) -> Vec<Range<usize>> {
    let starts = text.match_indices("[REDACTED:");
    starts.filter_map(|(at, _)| Some(at..at + text.get(at..)?.find(']')? + 1)).collect()
}

/// Log probabilities name tokens `token`, and usage counts them under many names.
fn is_exempt_under(key: &str) -> bool {
    matches!(
        key,
        "logprobs" | "top_logprobs" | "prompt_logprobs" | "completion_probabilities" | "top_probs" | "probs" | "usage"
    )
}

fn normal(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase).collect()
}

fn is_of_name(c: &char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn named(name: &str) -> Result<&str, RulesError> {
    let is_name = !name.is_empty() && name.chars().all(|c| is_of_name(&c));
    if is_name { Ok(name) } else { Err(RulesError::Name(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_pattern_compiles() {
        let rules = Rules::default();
        assert_eq!(rules.built_in.patterns.len(), BUILT_IN.len());
        assert!(BUILT_IN.len() < 64 && rules.built_in.signs.is_some());
    }

    #[test]
    fn names_are_told_however_they_are_spelled() {
        let rules = Rules::default().key("x-internal-id").unwrap();
        for name in ["Authorization", "x-api-key", "API_KEY", "openaiApiKey", "db_password", "token", "X_INTERNAL_ID"] {
            assert!(rules.is_secret_key(name), "{name}");
        }
        for name in ["content", "max_tokens", "tokens", "stop_token_ids", "key", "secretary", "tokenizer"] {
            assert!(!rules.is_secret_key(name), "{name}");
        }
    }

    #[test]
    fn what_is_escaped_is_no_part_of_an_address() {
        let found = |text: &str| {
            let spans = Rules::default().spans(text, &[]);
            spans.into_iter().map(|(span, _)| text[span].to_owned()).collect::<Vec<_>>()
        };
        assert!(found(r"def f():\n\n@app.route('/')\n\t@pytest.mark.slow").is_empty());
        assert_eq!(found(r"to:\nnina@example.com"), ["nina@example.com"]);
        assert_eq!(found("n@example.com"), ["n@example.com"]);
    }

    #[test]
    fn rules_that_cannot_work_are_refused() {
        let rules = Rules::default;
        assert!(matches!(rules().pattern("x", "("), Err(RulesError::Pattern { .. })));
        assert!(matches!(rules().pattern("a:b", "x"), Err(RulesError::Name(_))));
        assert!(matches!(rules().literal("HF", "abc"), Err(RulesError::Short(_))));
        assert!(matches!(rules().place("metadata"), Err(RulesError::Path(_))));
    }
}
