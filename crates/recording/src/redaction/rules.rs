//! What counts as a secret.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use regex::Regex;

use super::{
    built_in::{self, BuiltIn},
    known::KnownSecrets,
    names,
    patterns::{MatchedText, shapes},
    percent::Decoded,
    placeholder::{self, PLACEHOLDER},
};
use crate::field_path::{FieldPath, PathError};

/// What counts as a secret. The default has the built-in names and patterns of keys and tokens; more can be added, nothing taken
/// away.
#[derive(Debug, Clone)]
pub struct RedactionRules {
    /// Whether the built-in names count.
    has_names: bool,
    keys: BTreeSet<String>,
    key_patterns: Vec<Regex>,
    /// A bit for each built-in pattern that counts.
    enabled: u64,
    patterns: Vec<(Arc<str>, Regex)>,
    /// Kinds and values of literals, those of them too that count where nothing else is found.
    literals: Vec<(Arc<str>, String, By)>,
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
    /// A name of personal data that is none.
    #[error("`{0}` is no personal data that is found by its shape: {list}, or all", list = personal())]
    Shape(String),
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
const GENERIC: [&str; 3] = ["assigned", "parameter", "aws_secret"];

/// Expressions are not tried on longer names, in bytes.
const LONGEST_NAME: usize = 256;

/// Place and kind of a secret.
pub(super) type KindSpan = (Range<usize>, Arc<str>);

/// Places and kinds of secrets, and the bytes of work that finding them took.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub(super) found: Vec<KindSpan>,
    pub(super) work: u64,
}

/// How a secret was found; of several at one place the first names it. A shape comes before the name under which the same value stands
/// elsewhere: a request that is sent again may be searched without that elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Shape,
    GenericShape,
    Name,
    /// It was supplied: a recording that did not know it has what it found otherwise.
    Supplied,
}

/// A secret that was found: others may overlap it.
type SecretCandidate = (Range<usize>, By, Arc<str>);

impl Default for RedactionRules {
    fn default() -> Self {
        Self::none().secrets()
    }
}

/// The kinds of personal data, for people.
fn personal() -> String {
    shapes().filter(|shape| shape.is_personal).map(|shape| shape.kind).collect::<Vec<_>>().join(", ")
}

impl RedactionRules {
    /// No built-in rules: what is added counts.
    #[must_use]
    pub fn none() -> Self {
        Self {
            has_names: false,
            keys: BTreeSet::new(),
            key_patterns: Vec::new(),
            enabled: 0,
            patterns: Vec::new(),
            literals: Vec::new(),
            places: Vec::new(),
        }
    }

    /// All built-in rules: those of keys and tokens, and those of personal data.
    #[must_use]
    pub fn all() -> Self {
        Self { enabled: built_in::all(), ..Self::default() }
    }

    /// The same, with the built-in rules of keys and tokens.
    #[must_use]
    pub fn secrets(mut self) -> Self {
        self.has_names = true;
        self.enabled |= built_in::secrets();
        self
    }

    /// The same, and personal data of this shape (`email`, or `all` of them) counts too.
    ///
    /// # Errors
    /// When there is no such shape of personal data.
    pub fn shape(mut self, kind: &str) -> Result<Self, RulesError> {
        match built_in::personal(kind) {
            0 => Err(RulesError::Shape(kind.to_owned())),
            bits => {
                self.enabled |= bits;
                Ok(self)
            }
        }
    }

    /// The same, and values under `key` (of any case, with `-`, `_` or without) are secrets too; `/REGEX/` is an expression that is
    /// tried on names as they are spelled.
    ///
    /// # Errors
    /// When the key is empty or cannot stand in a placeholder, or the expression is none.
    pub fn key(mut self, key: &str) -> Result<Self, RulesError> {
        match key.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')).filter(|regex| !regex.is_empty()) {
            Some(regex) => match Regex::new(regex) {
                Ok(regex) => self.key_patterns.push(regex),
                Err(source) => return Err(RulesError::Pattern { name: key.to_owned(), source }),
            },
            None => drop(self.keys.insert(names::normal(named(key)?))),
        }
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
        self.literals.push(literal(name, value, By::Shape)?);
        Ok(self)
    }

    /// As [`literal`](Self::literal), where nothing else is found: what other rules find keeps its kind and its extent.
    ///
    /// # Errors
    /// As those of [`literal`](Self::literal).
    pub fn supplied(mut self, name: &str, value: &str) -> Result<Self, RulesError> {
        self.literals.push(literal(name, value, By::Supplied)?);
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
    pub(crate) fn is_secret_key(&self, name: &str) -> bool {
        // A name that was a secret itself stands for one already; the kind in it is not that of the value.
        if name.starts_with(PLACEHOLDER) {
            return false;
        }
        (self.has_names && names::is_secret(name))
            || (!self.keys.is_empty() && self.keys.contains(&names::normal(name)))
            || (name.len() <= LONGEST_NAME && self.key_patterns.iter().any(|regex| regex.is_match(name)))
    }

    /// Whether a parameter of a query or a form is a secret by its name and its length.
    pub(super) fn is_secret_parameter(&self, name: &str, value: &str) -> bool {
        self.is_secret_key(name) || (self.has_names && names::is_secret_parameter(name, value))
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
        let is_described = !(self.literals.is_empty() && self.patterns.is_empty());
        let is_searched = number.len() >= SHORTEST_CARD || is_described;
        is_searched && number.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// Whether nothing is a secret for standing at the beginning or the end of a text, so that texts can be searched as one.
    pub(super) fn takes_texts_as_one(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns true if a text has no trace of a secret: without a look at where it stands, and of which kind it is.
    pub(super) fn has_no_trace(&self, text: &str) -> bool {
        let is_built_in = self.patterns.is_empty() && self.literals.is_empty();
        is_built_in && !text.contains('%') && BuiltIn::shared().has_no_trace(text, self.enabled)
    }

    /// Where the secrets of a text are, and of which kind: in order, without overlaps. They may be percent-encoded.
    pub(super) fn spans(&self, text: &str, known: &KnownSecrets) -> Spans {
        let (mut found, mut work) = self.found(text, known);
        if let Some(decoded) = Decoded::of(text) {
            let (further, more) = self.found(&decoded.text, known);
            work += more;
            found.extend(further.into_iter().map(|(span, by, kind)| (decoded.original(&span), by, kind)));
        }
        if found.iter().any(|(_, by, _)| *by == By::Supplied) {
            let others: Vec<Range<usize>> =
                found.iter().filter(|(_, by, _)| *by != By::Supplied).map(|(span, ..)| span.clone()).collect();
            let overlaps =
                |span: &Range<usize>| others.iter().any(|other| other.start < span.end && span.start < other.end);
            found.retain(|(span, by, _)| *by != By::Supplied || !overlaps(span));
        }
        found.sort_by_key(|(span, by, _)| (span.start, std::cmp::Reverse(span.end), *by));
        Spans { found: merged(found.into_iter().map(|(span, _, kind)| (span, kind))), work }
    }

    /// Every secret of a text as it stands there, in no order, and the bytes of work that it took.
    fn found(&self, text: &str, known: &KnownSecrets) -> (Vec<SecretCandidate>, u64) {
        let (spans, compared) = known.spans(text);
        let mut found: Vec<SecretCandidate> =
            spans.into_iter().map(|(span, kind)| (span, By::Name, Arc::clone(kind))).collect();
        for (kind, value, by) in &self.literals {
            let parts = text.match_indices(value);
            found.extend(parts.map(|(at, part)| (at..at + part.len(), *by, Arc::clone(kind))));
        }
        let tried = self.find_built_in(text, &mut found);
        for (kind, regex) in &self.patterns {
            found.extend(matched(regex, text).map(|span| (span, By::Shape, Arc::clone(kind))));
        }
        if !found.is_empty() {
            leave_placeholders(text, &mut found);
        }
        let passes = 1 + tried + self.patterns.len() + self.literals.len();
        (found, (text.len() * passes) as u64 + compared * 64)
    }

    /// Finds what has the shape of a built-in pattern; the result is the number of those that were tried.
    fn find_built_in(&self, text: &str, found: &mut Vec<SecretCandidate>) -> usize {
        if self.enabled == 0 {
            return 0;
        }
        let possible = BuiltIn::shared().possible(text) & self.enabled;
        for compiled in BuiltIn::shared().chosen(possible) {
            let Some(regex) = compiled.regex() else { continue };
            let by = if GENERIC.contains(&compiled.pattern.kind) { By::GenericShape } else { By::Shape };
            let spans = matched(regex, text).filter_map(|span| after_escape(text, span));
            let spans = spans.filter(|span| (compiled.pattern.holds)(&MatchedText::of(text, span)));
            found.extend(spans.map(|span| (span, by, Arc::clone(&compiled.kind))));
        }
        possible.count_ones() as usize
    }
}

/// Secrets in the order of their beginnings, those that overlap as one.
pub(super) fn merged(sorted: impl Iterator<Item = KindSpan>) -> Vec<KindSpan> {
    let mut merged: Vec<KindSpan> = Vec::new();
    for (span, kind) in sorted {
        match merged.last_mut() {
            Some((last, _)) if span.start < last.end => last.end = last.end.max(span.end),
            _ => merged.push((span, kind)),
        }
    }
    merged
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

/// Takes out what an earlier redaction left: what stands within placeholders, and what begins with one that stands for all of it.
fn leave_placeholders(text: &str, found: &mut Vec<SecretCandidate>) {
    let left: Vec<Range<usize>> = placeholder::all(text).collect();
    found.retain(|(span, _, kind)| {
        let before = left.get(..left.partition_point(|own| own.start <= span.start)).unwrap_or_default();
        let Some(own) = before.last().filter(|own| span.start < own.end) else { return true };
        let after = text.get(own.end.min(span.end)..span.end).unwrap_or_default();
        let is_own = || {
            text.get(own.start + PLACEHOLDER.len()..)
                .is_some_and(|inside| inside.strip_prefix(&**kind).is_some_and(|rest| rest.starts_with([':', ']'])))
        };
        // An expression that ends at a space takes in what closes the text in JSON or YAML: quotes, commas, further fields.
        let is_left = !after.contains(char::is_alphanumeric) || (is_own() && !after.starts_with(char::is_alphanumeric));
        !is_left
    });
}

fn literal(name: &str, value: &str, by: By) -> Result<(Arc<str>, String, By), RulesError> {
    if value.len() < SHORTEST_LITERAL {
        return Err(RulesError::Short(name.to_owned()));
    }
    Ok((named(name)?.into(), value.to_owned(), by))
}

fn named(name: &str) -> Result<&str, RulesError> {
    let is_name = !name.is_empty() && name.chars().all(|c| names::is_of_name(&c));
    if is_name { Ok(name) } else { Err(RulesError::Name(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn personal_data_counts_where_it_is_asked_for() {
        let text = "jane@example.org +49 30 901820 (555) 123-4567 078-05-1120 ghp_abcdefghijklmnopqrstuvwxyz0123456789";
        let found = |rules: &RedactionRules| {
            let spans = rules.spans(text, &KnownSecrets::default()).found;
            spans.into_iter().map(|(_, kind)| kind.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(found(&RedactionRules::default()), ["github_token"]);
        assert_eq!(found(&RedactionRules::default().shape("email").unwrap()), ["email", "github_token"]);
        assert_eq!(found(&RedactionRules::all()), ["email", "phone", "phone", "ssn", "github_token"]);
        assert_eq!(found(&RedactionRules::default().shape("all").unwrap()), found(&RedactionRules::all()));
        assert_eq!(found(&RedactionRules::none().shape("ssn").unwrap()), ["ssn"]);
        let refused = RedactionRules::default().shape("jwt").unwrap_err().to_string();
        assert_eq!(refused, "`jwt` is no personal data that is found by its shape: email, phone, ssn, or all");
    }

    #[test]
    fn without_built_in_rules_those_that_were_added_count() {
        let rules = RedactionRules::none().key("/^acme[-_]/").unwrap().key("tenant").unwrap();
        assert!(rules.is_secret_key("acme_id") && rules.is_secret_key("Tenant"));
        assert!(
            !rules.is_secret_key("password") && !rules.is_secret_key("ACME_id") && !rules.is_secret_key("my_acme_id")
        );
        assert!(!rules.is_secret_parameter("sig", "0123456789"));
        assert!(RedactionRules::none().key("/(/").is_err() && RedactionRules::none().key("//").is_err());
    }

    #[test]
    fn names_are_found_however_they_are_spelled() {
        let rules = RedactionRules::default().key("x-internal-id").unwrap();
        assert!(rules.is_secret_key("X_INTERNAL_ID") && rules.is_secret_key("xInternalId"));
        assert!(!RedactionRules::default().is_secret_key("x-internal-id"));
    }

    #[test]
    fn what_is_escaped_is_no_part_of_an_address() {
        let found = |text: &str| {
            let spans = RedactionRules::all().spans(text, &KnownSecrets::default()).found;
            spans.into_iter().map(|(span, _)| text[span].to_owned()).collect::<Vec<_>>()
        };
        assert!(found(r"def f():\n\n@app.route('/')\n\t@pytest.mark.slow").is_empty());
        assert_eq!(found(r"to:\nnina@example.com"), ["nina@example.com"]);
        assert_eq!(found("n@example.com"), ["n@example.com"]);
    }

    #[test]
    fn a_pattern_does_not_find_the_placeholders_that_it_left() {
        let rules = RedactionRules::none().pattern("pw", r"pw (\S+)").unwrap();
        let found = |text: &str| {
            let spans = rules.spans(text, &KnownSecrets::default()).found;
            spans.into_iter().map(|(span, _)| text[span].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found(r#"with pw hunter2."}"#), [r#"hunter2."}"#]);
        for left in [r#"pw [REDACTED:pw:1]"}"#, r#"pw [REDACTED:pw:1]","more":"x"}"#, r#"pw [REDACTED:password:2].'}"#]
        {
            assert!(found(left).is_empty(), "{left}");
        }
        for more in ["pw [REDACTED:pw:1]rest", "pw [REDACTED:email:1]:rest", "pw a[REDACTED:pw:1]"] {
            assert_eq!(found(more).len(), 1, "{more}");
        }
    }

    #[test]
    fn what_is_supplied_has_the_kind_that_other_rules_give_it() {
        let rules = RedactionRules::default().supplied("apikey", "sk-live-9f8e7d6c5b4a39281706f5e4d3c2b1a0").unwrap();
        let found = |text: &str| {
            let spans = rules.spans(text, &KnownSecrets::default()).found;
            spans.into_iter().map(|(_, kind)| kind.to_string()).collect::<Vec<_>>()
        };
        let plain = RedactionRules::default();
        let url = "https://x.example/?api_key=sk-live-9f8e7d6c5b4a39281706f5e4d3c2b1a0&n=1";
        let without = plain.spans(url, &KnownSecrets::default()).found;
        assert!(without.len() == 1 && &*without[0].1 != "apikey", "{without:?}");
        assert_eq!(rules.spans(url, &KnownSecrets::default()).found, without);
        let rules = RedactionRules::none().supplied("pin", "12-34-56").unwrap();
        assert_eq!(rules.spans("it is 12-34-56", &KnownSecrets::default()).found, [(6..14, "pin".into())]);
        assert_eq!(found("nothing"), Vec::<String>::new());
    }

    #[test]
    fn rules_that_cannot_work_are_refused() {
        let rules = RedactionRules::default;
        assert!(matches!(rules().pattern("x", "("), Err(RulesError::Pattern { .. })));
        assert!(matches!(rules().pattern("a:b", "x"), Err(RulesError::Name(_))));
        assert!(matches!(rules().literal("HF", "abc"), Err(RulesError::Short(_))));
        assert!(matches!(rules().place("metadata"), Err(RulesError::Path(_))));
    }
}
