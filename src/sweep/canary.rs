//! The text that must not come through, and the forms in which answers have it.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_STANDARD};

use super::matrix::CanaryForm;

/// Shortest canary, in bytes: a shorter one would be found in any answer.
const SHORTEST: usize = 4;

/// Longest canary, in bytes.
const LONGEST: usize = 1024;

/// Words of which clean texts are made.
const CLEAN: &str = "a meadow by the river and the old mill near it ";

/// The text, and the same in other languages.
#[derive(Debug, Clone)]
pub struct Canary {
    text: String,
    others: Vec<String>,
}

/// A text that cannot be swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CanaryError {
    /// Too short or too long.
    #[error("has to have {SHORTEST} to {LONGEST} bytes")]
    Size,
    /// A line break or another control character.
    #[error("must not have line breaks or other control characters")]
    Control,
}

impl Canary {
    /// A canary, with the same text in other languages.
    ///
    /// # Errors
    /// A text that is too short or long, or has control characters.
    pub fn new(text: String, others: Vec<String>) -> Result<Self, CanaryError> {
        for text in [&text].into_iter().chain(&others) {
            if !(SHORTEST..=LONGEST).contains(&text.len()) {
                return Err(CanaryError::Size);
            }
            if text.chars().any(char::is_control) {
                return Err(CanaryError::Control);
            }
        }
        Ok(Self { text, others })
    }

    /// The text itself.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn forms(&self) -> Vec<CanaryForm> {
        let others = (1..=self.others.len()).map(CanaryForm::Other);
        [CanaryForm::Plain, CanaryForm::Base64].into_iter().chain(others).collect()
    }

    pub(crate) fn shown(&self, form: CanaryForm) -> Cow<'_, str> {
        match form {
            CanaryForm::Plain => Cow::Borrowed(&self.text),
            CanaryForm::Base64 => Cow::Owned(BASE64_STANDARD.encode(&self.text)),
            CanaryForm::Other(number) => {
                Cow::Borrowed(self.others.get(number.wrapping_sub(1)).map_or("", String::as_str))
            }
        }
    }

    /// A harmless text of as many characters as a form has.
    pub(crate) fn clean(&self, form: CanaryForm) -> String {
        CLEAN.chars().cycle().take(self.shown(form).chars().count()).collect()
    }

    /// Bytes of the text that so many bytes of a form give away.
    pub(crate) fn bytes_of(&self, form: CanaryForm, shown: usize) -> usize {
        match form {
            CanaryForm::Base64 => (shown * 6 / 8).min(self.text.len()),
            CanaryForm::Plain | CanaryForm::Other(_) => shown,
        }
    }

    /// Bytes of a form that give all of the text away.
    pub(crate) fn size(&self, form: CanaryForm) -> usize {
        match form {
            CanaryForm::Base64 => self.text.len(),
            CanaryForm::Plain | CanaryForm::Other(_) => self.shown(form).len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_tell_how_much_they_give_away() {
        let canary = Canary::new("secret".to_owned(), vec!["geheim!".to_owned()]).unwrap();
        assert_eq!(canary.forms(), [CanaryForm::Plain, CanaryForm::Base64, CanaryForm::Other(1)]);
        assert_eq!(canary.shown(CanaryForm::Base64), "c2VjcmV0");
        assert_eq!([0, 1, 2, 4, 8].map(|shown| canary.bytes_of(CanaryForm::Base64, shown)), [0, 0, 1, 3, 6]);
        assert_eq!((canary.size(CanaryForm::Base64), canary.size(CanaryForm::Other(1))), (6, 7));
        assert_eq!(canary.clean(CanaryForm::Plain), "a mead");
        assert_eq!(Canary::new("abc".to_owned(), vec![]).unwrap_err(), CanaryError::Size);
        assert_eq!(Canary::new("a\nbcd".to_owned(), vec![]).unwrap_err(), CanaryError::Control);
    }
}
