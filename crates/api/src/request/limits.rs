//! Limits of a request's tokens.

use super::GenerationRequest;
use crate::{Api, ApiError, structured};

/// Limit of a request's output tokens; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokens {
    /// Set by the request.
    Requested(u32),
    /// Not set by the request: all that is left of the model's length.
    Left(u32),
}

impl MaxTokens {
    /// So many tokens less, where there are so many.
    #[must_use]
    pub fn less(self, tokens: u32) -> Self {
        match self {
            Self::Requested(most) => Self::Requested(most.saturating_sub(tokens)),
            Self::Left(most) => Self::Left(most.saturating_sub(tokens)),
        }
    }
}

impl GenerationRequest {
    /// Checks a tokenized prompt's length and the sampling ranges; gives the most output tokens it may have. A request
    /// that names none gets `unlimited`, or what is left of the model's length.
    ///
    /// # Errors
    /// A prompt beyond `max_model_len`, or a parameter out of its range.
    pub fn check_prompt(&self, prompt_tokens: u32, max_model_len: u32) -> Result<MaxTokens, ApiError> {
        if prompt_tokens > max_model_len {
            return Err(ApiError::prompt_too_long(prompt_tokens, max_model_len));
        }
        let left = max_model_len - prompt_tokens;
        let requested = if self.only_echoes() { Some(1) } else { self.max_tokens.map(|(_, count)| count) };
        let most = requested.or(self.most_unasked.map(i128::from));
        // Of a prompt that only has to be repeated the engine does not ask whether a token more has room.
        let left_at_least = if self.only_echoes() { left.max(1) } else { left };
        let effective = most.map_or(i128::from(left), |most| most.min(i128::from(left_at_least)));
        self.structured.as_ref().map_or(Ok(()), structured::RequestedStructure::check_count)?;
        self.sampling.check(effective)?;
        let limit = u32::try_from(effective).unwrap_or(left);
        Ok(if requested.is_some() { MaxTokens::Requested(limit) } else { MaxTokens::Left(limit) })
    }

    /// Returns whether a completion repeats its prompt and nothing more: the engine generates one token then, and shows only its id.
    #[must_use]
    pub fn only_echoes(&self) -> bool {
        let is_asked_for_none = self.max_tokens.is_some_and(|(_, count)| count == 0);
        self.api == Api::Completions && self.echo && is_asked_for_none && !self.sampling.is_beam_search
    }

    /// Checks that a prompt, after everything else about it, leaves room for one output token.
    ///
    /// # Errors
    /// 400 for a prompt as long as the model's length.
    pub fn check_room(prompt_tokens: u32, max_model_len: u32) -> Result<(), ApiError> {
        if prompt_tokens < max_model_len {
            return Ok(());
        }
        Err(ApiError::bad_request(format!(
            "The decoder prompt (length {prompt_tokens}) plus the number of requested output tokens (at least 1) is longer \
             than the maximum model length of {max_model_len}. Make sure that `max_model_len` is no smaller than the number \
             of text tokens (prompt + requested output tokens)."
        )))
    }

    /// Checks that the experts of a prompt's tokens are asked for from a place within it; a beam search asks for none.
    ///
    /// # Errors
    /// 400 for a place beyond the prompt.
    pub fn check_routed_experts(&self, prompt_tokens: u32) -> Result<(), ApiError> {
        let start = self.routed_experts_prompt_start;
        if self.sampling.is_beam_search || (0..=prompt_tokens.into()).contains(&start) {
            return Ok(());
        }
        let name = "routed_experts_prompt_start";
        let message = format!("{name} must be between 0 and the prompt length ({prompt_tokens}), inclusive.");
        Err(ApiError::parameter_value(name, &message, &start.to_string()))
    }

    /// Checks the words that the answer may not have, after everything else about the first prompt. `encode` gives the ids of a
    /// text without special tokens.
    ///
    /// # Errors
    /// 400 for a word without tokens and for too many of them; those of `encode`.
    pub fn check_bad_words(&self, encode: impl Fn(&str) -> Result<Vec<u32>, ApiError>) -> Result<(), ApiError> {
        self.sampling.check_words(encode)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn completion(fields: &serde_json::Value) -> GenerationRequest {
        let mut body = json!({"prompt": "x", "max_tokens": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        GenerationRequest::parse(Api::Completions, body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn no_token_is_too_few_unless_the_prompt_is_repeated() {
        assert!(completion(&json!({})).check_prompt(5, 8).is_err());
        let echo = completion(&json!({"echo": true}));
        assert!(echo.only_echoes());
        assert_eq!(echo.check_prompt(5, 8), Ok(MaxTokens::Requested(1)));
        assert_eq!(echo.check_prompt(8, 8), Ok(MaxTokens::Requested(1)));
        let least = completion(&json!({"echo": true, "min_tokens": 2})).check_prompt(5, 8).unwrap_err();
        assert_eq!(least.message, "min_tokens must be less than or equal to max_tokens=1, got 2.");
        assert!(!completion(&json!({"echo": true, "max_tokens": 1})).only_echoes());
        assert!(!completion(&json!({"echo": true, "max_tokens": null})).only_echoes());
    }

    #[test]
    fn a_prompt_as_long_as_the_model_has_no_room_for_a_token() {
        assert_eq!(GenerationRequest::check_room(4095, 4096), Ok(()));
        assert_eq!(
            GenerationRequest::check_room(4096, 4096).unwrap_err().message,
            "The decoder prompt (length 4096) plus the number of requested output tokens (at least 1) is longer than the \
             maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens \
             (prompt + requested output tokens)."
        );
    }

    #[test]
    fn bad_words_are_counted_as_the_engine_counts_them_and_no_further_than_it_does() {
        let tokenized = std::cell::Cell::new(0);
        let check = |words: &[String], beams| {
            tokenized.set(0);
            // A word is one token, another one after a space where it begins with `a`.
            completion(&json!({"bad_words": words, "use_beam_search": beams})).check_bad_words(|text| {
                tokenized.set(tokenized.get() + 1);
                Ok(match text.trim_start() {
                    "" => Vec::new(),
                    word if word.starts_with('a') => vec![u32::from(text.starts_with(' '))],
                    _ => vec![7],
                })
            })
        };
        let message = |checked: Result<(), ApiError>| checked.unwrap_err().message;
        let words = |first: char, count| (0..count).map(|at| format!("{first}{at}")).collect::<Vec<_>>();
        assert_eq!((check(&words('a', 64), false), check(&words('b', 128), false)), (Ok(()), Ok(())));
        assert_eq!(check(&vec!["b1".to_owned(); 300], false), Ok(()), "the same word is one");
        let too_many = message(check(&words('b', 300_000), false));
        let expected = "Too many bad words after tokenization: 129. The max number is 128. (parameter=bad_words, value=['b0', 'b1', ";
        assert!(too_many.starts_with(expected), "{too_many:.200}");
        assert_eq!(tokenized.get(), 2 * 129, "the rest is not looked at");
        assert!(message(check(&words('a', 65), false)).starts_with(expected.split("value").next().unwrap()));
        assert_eq!(check(&words('b', 129), true), Ok(()), "a beam search has none");
        assert_eq!(
            message(check(&["b".to_owned(), " ".to_owned()], false)),
            "bad_words entries must tokenize to at least one token. (parameter=bad_words, value=['b', ' '])"
        );
    }
}
