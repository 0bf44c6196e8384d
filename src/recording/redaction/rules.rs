//! What counts as a secret.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, LazyLock},
};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex::Regex;

use super::{
    known::Known,
    names,
    patterns::{BUILT_IN, Pattern},
    percent::Decoded,
};
use crate::recording::field_path::{FieldPath, PathError};

/// What counts as a secret. The default has the built-in names and patterns; more can be added, nothing taken away.
#[derive(Debug, Clone)]
pub struct Rules {
    keys: BTreeSet<String>,
    built_in: Arc<BuiltIn>,
    patterns: Vec<(Arc<str>, Regex)>,
    literals: Vec<(Arc<str>, String)>,
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

/// Generic shapes, which name a secret less well than others that begin at the same place.
const GENERIC: [&str; 2] = ["assigned", "parameter"];

/// Bytes within which a placeholder ends.
const LONGEST_PLACEHOLDER: usize = 256;

/// Where a placeholder begins.
pub(super) const PLACEHOLDER: &str = "[REDACTED:";

/// Where secrets are, and of which kind; beside them the bytes of work that it took.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub(super) found: Vec<(Range<usize>, Arc<str>)>,
    pub(super) work: u64,
}

/// How a secret was found; of several at one place the first names it. A shape comes before the name under which the same value stands
/// elsewhere: a request that is sent again may be searched without that elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Shape,
    GenericShape,
    Name,
}

/// A secret that was found: others may overlap it.
type Candidate = (Range<usize>, By, Arc<str>);

/// The built-in patterns, compiled, and the signs by which a text is known not to hold any of some of them.
#[derive(Debug, Default)]
struct BuiltIn {
    patterns: Vec<(&'static Pattern, Regex)>,
    /// Finds signs of any case; `None` where it could not be made: then all patterns are tried.
    signs: Option<AhoCorasick>,
    /// The pattern of each sign.
    of_sign: Vec<usize>,
    /// A bit for each pattern that has no signs.
    always: u64,
    /// The names of patterns.
    kinds: Vec<Arc<str>>,
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
        let kind = Some(AhoCorasickKind::DFA);
        let signs = AhoCorasick::builder().ascii_case_insensitive(true).kind(kind).build(signs).ok();
        let unsigned = patterns.iter().enumerate().filter(|(_, (pattern, _))| pattern.signs.is_empty());
        let always = unsigned.fold(0, |bits, (at, _)| bits | 1_u64 << at);
        let kinds = patterns.iter().map(|(pattern, _)| Arc::from(pattern.name)).collect();
        Self { patterns, signs, of_sign, always, kinds }
    }

    /// The patterns that a text can match: a bit for each.
    fn possible(&self, text: &str) -> u64 {
        let all = u64::MAX >> (64 - self.patterns.len().clamp(1, 64));
        let Some(signs) = &self.signs else { return all };
        let mut possible = self.always;
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
        self.keys.insert(names::normal(named(key)?));
        Ok(self)
    }

    /// The same, and what `pattern` matches is a secret too; its first group where it has one.
    ///
    /// # Errors
    /// When the pattern is no regular expression or its name cannot stand in a placeholder.
    pub fn pattern(mut self, name: &str, pattern: &str) -> Result<Self, RulesError> {
        let name = named(name)?.to_owned();
        match Regex::new(pattern) {
            Ok(regex) => self.patterns.push((name.into(), regex)),
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
        self.literals.push((named(name)?.into(), value.to_owned()));
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
        // A name that was a secret itself stands for one already; the kind in it is not that of the value.
        if name.starts_with(PLACEHOLDER) {
            return false;
        }
        names::is_secret(name) || (!self.keys.is_empty() && self.keys.contains(&names::normal(name)))
    }

    /// The kind of what stands under a name; `None` where that is no secret.
    pub(super) fn kind_of_name(&self, name: &str) -> Option<Arc<str>> {
        self.is_secret_key(name).then(|| names::kind(name))
    }

    pub(super) fn places(&self) -> &[FieldPath] {
        &self.places
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
    pub(super) fn spans(&self, text: &str, known: &Known) -> Spans {
        let (mut found, mut work) = self.found(text, known);
        if let Some(decoded) = Decoded::of(text) {
            let (further, more) = self.found(&decoded.text, known);
            work += more;
            found.extend(further.into_iter().map(|(span, by, kind)| (decoded.original(&span), by, kind)));
        }
        found.sort_by_key(|(span, by, _)| (span.start, std::cmp::Reverse(span.end), *by));
        let mut merged: Vec<(Range<usize>, Arc<str>)> = Vec::new();
        for (span, _, kind) in found {
            match merged.last_mut() {
                Some((last, _)) if span.start < last.end => last.end = last.end.max(span.end),
                _ => merged.push((span, kind)),
            }
        }
        Spans { found: merged, work }
    }

    /// Every secret of a text as it stands there, in no order, and the bytes of work that it took.
    fn found(&self, text: &str, known: &Known) -> (Vec<Candidate>, u64) {
        let (spans, compared) = known.spans(text);
        let mut found: Vec<Candidate> =
            spans.into_iter().map(|(span, kind)| (span, By::Name, Arc::clone(kind))).collect();
        for (kind, value) in &self.literals {
            let parts = text.match_indices(value);
            found.extend(parts.map(|(at, part)| (at..at + part.len(), By::Shape, Arc::clone(kind))));
        }
        let possible = self.built_in.possible(text);
        let built_in = self.built_in.patterns.iter().zip(&self.built_in.kinds).enumerate();
        for (_, ((pattern, regex), kind)) in built_in.filter(|(at, _)| possible & (1_u64 << at) != 0) {
            let by = if GENERIC.contains(&pattern.name) { By::GenericShape } else { By::Shape };
            let spans = matched(regex, text).filter_map(|span| after_escape(text, span));
            found.extend(spans.filter(|span| (pattern.holds)(text, span)).map(|span| (span, by, Arc::clone(kind))));
        }
        for (kind, regex) in &self.patterns {
            found.extend(matched(regex, text).map(|span| (span, By::Shape, Arc::clone(kind))));
        }
        if !found.is_empty() {
            leave_placeholders(text, &mut found);
        }
        let passes = 1 + possible.count_ones() as usize + self.patterns.len() + self.literals.len();
        (found, (text.len() * passes) as u64 + compared * 64)
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

/// Takes out what stands within placeholders that an earlier redaction left.
fn leave_placeholders(text: &str, found: &mut Vec<Candidate>) {
    let mut left: Vec<Range<usize>> = Vec::new();
    for (at, _) in text.match_indices(PLACEHOLDER) {
        let near = text.as_bytes().get(at..(at + LONGEST_PLACEHOLDER).min(text.len())).unwrap_or_default();
        left.extend(near.iter().position(|byte| *byte == b']').map(|end| at..at + end + 1));
    }
    let is_within = |span: &Range<usize>| {
        let before = left.get(..left.partition_point(|own| own.start <= span.start)).unwrap_or_default();
        before.last().is_some_and(|own| span.end <= own.end)
    };
    found.retain(|(span, ..)| !is_within(span));
}

fn named(name: &str) -> Result<&str, RulesError> {
    let is_name = !name.is_empty() && name.chars().all(|c| names::is_of_name(&c));
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
    fn names_are_found_however_they_are_spelled() {
        let rules = Rules::default().key("x-internal-id").unwrap();
        assert!(rules.is_secret_key("X_INTERNAL_ID") && rules.is_secret_key("xInternalId"));
        assert!(!Rules::default().is_secret_key("x-internal-id"));
    }

    #[test]
    fn what_is_escaped_is_no_part_of_an_address() {
        let found = |text: &str| {
            let spans = Rules::default().spans(text, &Known::default()).found;
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
