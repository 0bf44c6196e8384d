//! `truncate_prompt_tokens`: how many of a prompt's tokens are kept, and from which side.
//!
//! Deviation: special tokens that the tokenizer puts around a prompt are cut like any others.

use super::{body::ValidBody, error::ApiError};

/// The side that is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationSide {
    /// The last tokens are kept: the engine's default.
    Left,
    /// The first tokens are kept.
    Right,
}

/// Truncation that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens to keep; `None` for as many as fit (`-1`).
    most: Option<i64>,
    named: Option<TruncationSide>,
    /// True where one token is left for an answer where as many are kept as fit.
    leaves_room: bool,
}

impl Truncation {
    /// `None` where nothing is to be cut.
    pub(super) fn read(body: &ValidBody<'_>, asked_tokens: Option<i128>) -> Option<Self> {
        let most = body.int("truncate_prompt_tokens")?;
        let named = match body.text("truncation_side").as_deref() {
            Some("left") => Some(TruncationSide::Left),
            Some("right") => Some(TruncationSide::Right),
            _ => None,
        };
        let leaves_room = asked_tokens.is_some_and(|requested| requested != 0);
        Some(Self { most: (most >= 0).then_some(most), named, leaves_room })
    }

    /// Errors: 400 where more is to be kept than fits.
    pub(super) fn check(self, max_model_len: u32) -> Result<(), ApiError> {
        let Some(most) = self.most.filter(|most| *most > i64::from(max_model_len)) else { return Ok(()) };
        let message = format!(
            "truncate_prompt_tokens={most} cannot be greater than max_model_len = {max_model_len}. Please request a \
             smaller truncation size."
        );
        Err(ApiError::parameter_value("truncate_prompt_tokens", &message, &most.to_string()))
    }

    /// The part of a text of which no more characters than these are looked at: with a named side, that side.
    #[must_use]
    pub fn looked_at(self, text: &str, most_chars: usize) -> &str {
        let cut = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
        match self.named {
            None => text,
            Some(TruncationSide::Right) => text.get(..cut(most_chars)).unwrap_or(text),
            Some(TruncationSide::Left) => {
                let skipped = text.chars().count().saturating_sub(most_chars);
                text.get(cut(skipped)..).unwrap_or(text)
            }
        }
    }

    /// Returns the part of a prompt that is kept.
    pub fn apply(self, ids: &mut Vec<u32>, max_model_len: u32) {
        let room = i64::from(max_model_len).saturating_sub(i64::from(self.leaves_room)).max(0);
        let kept = usize::try_from(self.most.unwrap_or(room)).unwrap_or(usize::MAX);
        match self.named.unwrap_or(TruncationSide::Left) {
            TruncationSide::Left => drop(ids.drain(..ids.len().saturating_sub(kept))),
            TruncationSide::Right => ids.truncate(kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn truncation(body: &Value, requested: Option<i128>) -> Option<Truncation> {
        Truncation::read(&ValidBody(body.as_object().unwrap()), requested)
    }

    #[test]
    fn the_end_of_a_prompt_is_kept_unless_the_request_names_a_side() {
        for (body, requested, kept) in [
            (json!({"truncate_prompt_tokens": 2}), Some(16), vec![4, 5]),
            (json!({"truncate_prompt_tokens": 2, "truncation_side": "right"}), Some(16), vec![1, 2]),
            (json!({"truncate_prompt_tokens": -1}), Some(16), vec![3, 4, 5]),
            (json!({"truncate_prompt_tokens": -1}), None, vec![2, 3, 4, 5]),
            (json!({"truncate_prompt_tokens": 0}), None, vec![]),
            (json!({"truncate_prompt_tokens": 9}), None, vec![1, 2, 3, 4, 5]),
        ] {
            let mut ids = vec![1, 2, 3, 4, 5];
            truncation(&body, requested).unwrap().apply(&mut ids, 4);
            assert_eq!(ids, kept, "{body}");
        }
        assert_eq!(truncation(&json!({"truncate_prompt_tokens": null}), None), None);
    }

    #[test]
    fn more_than_fits_is_refused_with_the_engines_words() {
        let refused = truncation(&json!({"truncate_prompt_tokens": 5000}), None).unwrap().check(4096).unwrap_err();
        assert_eq!(
            refused.message,
            "truncate_prompt_tokens=5000 cannot be greater than max_model_len = 4096. Please request a smaller \
             truncation size. (parameter=truncate_prompt_tokens, value=5000)"
        );
    }

    #[test]
    fn a_named_side_bounds_what_is_looked_at() {
        let left = truncation(&json!({"truncate_prompt_tokens": 1, "truncation_side": "left"}), None).unwrap();
        assert_eq!(left.looked_at("aé日b", 2), "日b");
        let right = truncation(&json!({"truncate_prompt_tokens": 1, "truncation_side": "right"}), None).unwrap();
        assert_eq!(right.looked_at("aé日b", 2), "aé");
    }
}
