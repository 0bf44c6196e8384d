//! The built-in patterns, compiled.

use std::sync::{Arc, LazyLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex::Regex;

use super::patterns::{BUILT_IN, Pattern};

/// The word for all shapes of personal data.
const ALL: &str = "all";

/// The built-in patterns, compiled, and the signs by which a text is known not to hold any of some of them.
#[derive(Debug, Default)]
pub(super) struct BuiltIn {
    pub(super) patterns: Vec<(&'static Pattern, Regex)>,
    /// Finds signs of any case; `None` where it could not be made: then all patterns are tried.
    signs: Option<AhoCorasick>,
    /// The pattern of each sign.
    of_sign: Vec<usize>,
    /// A bit for each pattern that has no signs.
    always: u64,
    /// A bit for each pattern of personal data.
    pub(super) personal: u64,
    /// The names of patterns.
    pub(super) kinds: Vec<Arc<str>>,
}

/// Compiled once: it takes milliseconds.
static COMPILED: LazyLock<Arc<BuiltIn>> = LazyLock::new(|| Arc::new(BuiltIn::compiled()));

impl BuiltIn {
    /// The patterns, which are compiled with the first use.
    pub(super) fn shared() -> Arc<Self> {
        Arc::clone(&COMPILED)
    }

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
        let personal = patterns.iter().enumerate().filter(|(_, (pattern, _))| pattern.is_personal);
        let personal = personal.fold(0, |bits, (at, _)| bits | 1_u64 << at);
        let kinds = patterns.iter().map(|(pattern, _)| Arc::from(pattern.name)).collect();
        Self { patterns, signs, of_sign, always, personal, kinds }
    }

    /// A bit for each pattern.
    pub(super) fn all(&self) -> u64 {
        u64::MAX >> (64 - self.patterns.len().clamp(1, 64))
    }

    /// A bit for each pattern of personal data of this kind, or of any.
    pub(super) fn personal(&self, kind: &str) -> u64 {
        let of_kind = self.patterns.iter().enumerate().filter(|(_, (pattern, _))| kind == ALL || pattern.name == kind);
        self.personal & of_kind.fold(0, |bits, (at, _)| bits | 1_u64 << at)
    }

    /// The patterns that a text can match: a bit for each.
    pub(super) fn possible(&self, text: &str) -> u64 {
        let all = self.all();
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
        assert_eq!(built_in.patterns.len(), BUILT_IN.len());
        assert!(BUILT_IN.len() < 64 && built_in.signs.is_some());
    }
}
