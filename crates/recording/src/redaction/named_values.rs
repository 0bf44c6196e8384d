//! Secrets that names show anywhere in a recording, to be found in all of it: a prompt spells a password that a later call names.
//!
//! Limits: a value that may be a word of the language is found in its own record only, and so are values beyond [`MOST_BYTES`].
//!
//! See docs/decisions/0116-named-values-count-in-the-whole-recording.md.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::SeenSecrets;

/// Bytes of values that are kept.
const MOST_BYTES: usize = 16 << 20;

/// Letters alone, fewer bytes of them, may be a word: `disabled`, `same-origin`.
const LONGEST_WORD: usize = 15;

/// Values with their kinds. They are secrets: none is shown by `{:?}`.
#[derive(Clone, Default)]
pub struct NamedValues {
    kinds: BTreeMap<Box<str>, Arc<str>>,
    bytes: usize,
}

impl fmt::Debug for NamedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedValues({})", self.kinds.len())
    }
}

impl NamedValues {
    /// Adds those of a record. A value of several kinds has the first of them by the alphabet, in whatever order records come.
    pub fn add(&mut self, of_record: &SeenSecrets) {
        for (value, kind) in of_record.named().filter(|(value, _)| !is_like_a_word(value)) {
            if let Some(known) = self.kinds.get_mut(&*value) {
                *known = Arc::clone(known).min(Arc::clone(kind));
            } else if self.bytes + value.len() <= MOST_BYTES {
                self.bytes += value.len();
                self.kinds.insert(value.into(), Arc::clone(kind));
            }
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// What redactors of the recording's records know from the start.
    #[must_use]
    pub fn seen(&self) -> SeenSecrets {
        SeenSecrets::of_named(self.kinds.iter().map(|(value, kind)| (&**value, kind)))
    }
}

pub(super) fn is_like_a_word(value: &str) -> bool {
    value.len() <= LONGEST_WORD && value.chars().all(|c| c.is_alphabetic() || matches!(c, '-' | '_' | '.' | '\''))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::{RedactionRules, Redactor};

    #[test]
    fn values_of_one_record_are_found_in_another_and_words_are_not() {
        let rules = RedactionRules::default();
        let mut named = NamedValues::default();
        for text in [
            r#"{"password": "Tr0ub4dor&3xyz", "secret": "disabled", "cookie": "same-origin"}"#,
            r#"{"api_key": "Tr0ub4dor&3xyz", "token": "short"}"#,
        ] {
            let mut redactor = Redactor::new(&rules);
            redactor.learn_text(text);
            named.add(&redactor.seen());
        }
        assert_eq!(format!("{named:?}"), "NamedValues(1)");
        let mut redactor = Redactor::new(&rules).knowing(&named.seen());
        for _ in 0..2 {
            redactor.begin_another();
            assert_eq!(redactor.text("pw Tr0ub4dor&3xyz disabled").unwrap(), "pw [REDACTED:apikey:1] disabled");
            assert_eq!(redactor.known(), 0);
        }
    }
}
