//! The built-in patterns, each compiled when a text may match it: all of them take 10 MB and tens of milliseconds.

use std::sync::{Arc, LazyLock, OnceLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex::Regex;

use super::patterns::{BUILT_IN, SecretShape};

/// The word for all shapes of personal data.
const ALL: &str = "all";

/// The built-in patterns, and the signs by which a text is known not to hold any of some of them.
#[derive(Debug)]
pub(super) struct BuiltIn {
    patterns: Vec<CompiledPattern>,
    /// Finds signs of any case; `None` where it could not be made: then all patterns are tried.
    signs: Option<AhoCorasick>,
    /// The pattern of each sign.
    of_sign: Vec<usize>,
    /// A bit for each pattern that has no signs.
    always: u64,
}

#[derive(Debug)]
pub(super) struct CompiledPattern {
    pub(super) pattern: &'static SecretShape,
    /// Its name.
    pub(super) kind: Arc<str>,
    regex: OnceLock<Option<Regex>>,
}

impl CompiledPattern {
    fn new(pattern: &'static SecretShape) -> Self {
        Self { pattern, kind: Arc::from(pattern.kind), regex: OnceLock::new() }
    }

    /// The expression, which is compiled with the first use.
    pub(super) fn regex(&self) -> Option<&Regex> {
        // Word boundaries of ASCII: those of Unicode make a search slow in any text that is not.
        self.regex.get_or_init(|| Regex::new(&self.pattern.regex.replace(r"\b", r"(?-u:\b)")).ok()).as_ref()
    }
}

static SHARED: LazyLock<BuiltIn> = LazyLock::new(BuiltIn::new);

/// A bit for each pattern.
pub(super) fn all() -> u64 {
    u64::MAX >> (64 - BUILT_IN.len().clamp(1, 64))
}

/// A bit for each pattern of personal data of this kind, or of any.
pub(super) fn personal(kind: &str) -> u64 {
    bits(|pattern| pattern.is_personal && (kind == ALL || pattern.kind == kind))
}

/// A bit for each pattern of keys and tokens.
pub(super) fn secrets() -> u64 {
    bits(|pattern| !pattern.is_personal)
}

/// A bit for each pattern that is so.
fn bits(is_so: impl Fn(&SecretShape) -> bool) -> u64 {
    let found = BUILT_IN.iter().enumerate().filter(|(_, pattern)| is_so(pattern));
    found.fold(0, |bits, (at, _)| bits | 1_u64 << at)
}

impl BuiltIn {
    /// The patterns of this process.
    pub(super) fn shared() -> &'static Self {
        &SHARED
    }

    fn new() -> Self {
        let signs = |(at, pattern): (usize, &SecretShape)| pattern.signs.iter().map(move |sign| (at, *sign));
        let (of_sign, signs): (Vec<usize>, Vec<&str>) = BUILT_IN.iter().enumerate().flat_map(signs).unzip();
        let kind = Some(AhoCorasickKind::DFA);
        let signs = AhoCorasick::builder().ascii_case_insensitive(true).kind(kind).build(signs).ok();
        let patterns = BUILT_IN.iter().map(CompiledPattern::new).collect();
        Self { patterns, signs, of_sign, always: bits(|pattern| pattern.signs.is_empty()) }
    }

    pub(super) fn chosen(&self, bits: u64) -> impl Iterator<Item = &CompiledPattern> {
        self.patterns.iter().enumerate().filter(move |(at, _)| bits & (1_u64 << at) != 0).map(|(_, compiled)| compiled)
    }

    /// Returns true if it is certain that none of these patterns matches a text, nor any text that is this one over and over, in which
    /// it stands for a kilobyte or more: what has no sign is short.
    pub(super) fn has_no_trace(&self, text: &str, enabled: u64) -> bool {
        let possible = self.possible(text) & enabled;
        let mut unsigned = self.chosen(possible & self.always);
        possible & !self.always == 0 && unsigned.all(|it| it.regex().is_some_and(|regex| !regex.is_match(text)))
    }

    /// The patterns that a text can match: a bit for each.
    pub(super) fn possible(&self, text: &str) -> u64 {
        let all = all();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_pattern_compiles() {
        let built_in = BuiltIn::shared();
        assert!(built_in.chosen(all()).all(|compiled| compiled.regex().is_some()));
        assert_eq!(built_in.chosen(all()).count(), BUILT_IN.len());
        assert!(BUILT_IN.len() < 64 && built_in.signs.is_some());
        assert_eq!((secrets() | personal(ALL), secrets() & personal(ALL)), (all(), 0));
    }

    #[test]
    fn what_has_no_sign_is_short_and_in_one_piece() {
        // Without escapes and classes, an expression has no sign of what repeats without end, and none matches a zero byte.
        let simple = Regex::new(r"\\[^sSwWdD]|\[[^\]^]+\]").unwrap();
        let counts = Regex::new(r"\{[0-9]+(?:,[0-9]+)?\}").unwrap();
        let built_in = BuiltIn::shared();
        for CompiledPattern { pattern, .. } in built_in.chosen(built_in.always) {
            let rest = simple.replace_all(pattern.regex, "");
            let rest = counts.replace_all(&rest, "");
            assert!(!rest.contains(['*', '+', '{', '[', '.', '\\']), "{}: {rest}", pattern.kind);
        }
    }

    #[test]
    fn only_what_can_hold_nothing_has_no_trace() {
        let built_in = BuiltIn::shared();
        for (text, expected) in [
            ("chat.completion.chunk ".repeat(60), true),
            ("a word".to_owned(), true),
            ("4111111111111112".to_owned(), false),
            ("sk-".to_owned(), false),
        ] {
            assert_eq!(built_in.has_no_trace(&text, secrets()), expected, "{text}");
        }
        assert!(!built_in.has_no_trace("555-123-4567", all()) && built_in.has_no_trace("555-123-4567", secrets()));
    }
}
