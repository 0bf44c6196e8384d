//! Ranges of the sampling parameters, checked after the prompt was tokenized, in the engine's order. The values have no
//! effect on replayed tokens.

use std::collections::HashSet;

use serde_json::Value;

use super::{body::ValidBody, error::ApiError, python};

/// Below this temperature nothing is drawn.
const GREEDY: f64 = 1e-5;

const MOST_CHOICES: i128 = 16384;

/// The most forms of bad words of one request.
const MOST_BAD_WORDS: usize = 128;

/// The sampling parameters as they were requested.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sampling {
    n: i128,
    presence_penalty: f64,
    frequency_penalty: f64,
    repetition_penalty: f64,
    temperature: Option<f64>,
    top_p: f64,
    top_k: i128,
    min_p: f64,
    min_tokens: i128,
    stop: Vec<String>,
    /// Each once.
    bad_words: Vec<String>,
    bad_logit_keys: Vec<String>,
    /// True where several answers are searched for at a time; most parameters have no meaning then, and are not looked at.
    pub(super) is_beam_search: bool,
}

impl Sampling {
    pub(super) fn read(body: &ValidBody<'_>) -> Self {
        let is_id = |key: &str| python::int(key).is_some();
        let words = body.get("bad_words").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let mut known = HashSet::new();
        let bias = body.object("logit_bias");
        Self {
            n: body.whole("n").unwrap_or(1),
            presence_penalty: body.float("presence_penalty").unwrap_or(0.0),
            frequency_penalty: body.float("frequency_penalty").unwrap_or(0.0),
            repetition_penalty: body.float("repetition_penalty").unwrap_or(1.0),
            temperature: body.float("temperature"),
            top_p: body.float("top_p").unwrap_or(1.0),
            top_k: body.whole("top_k").unwrap_or(0),
            min_p: body.float("min_p").unwrap_or(0.0),
            min_tokens: body.whole("min_tokens").unwrap_or(0),
            stop: body.texts("stop"),
            bad_words: words.filter(|word| known.insert(*word)).map(str::to_owned).collect(),
            is_beam_search: body.flag("use_beam_search", false),
            bad_logit_keys: bias.into_iter().flatten().map(|(key, _)| key.clone()).filter(|key| !is_id(key)).collect(),
        }
    }

    /// Checks every range. `max_tokens` is what is left of the model's length, or less if the request asks for less.
    pub(super) fn check(&self, max_tokens: i128) -> Result<(), ApiError> {
        if self.is_beam_search {
            return self.check_beams();
        }
        self.check_bias()?;
        self.check_penalties()?;
        self.check_temperature()?;
        self.check_nucleus()?;
        self.check_lengths(max_tokens)?;
        self.check_texts()
    }

    fn check_bias(&self) -> Result<(), ApiError> {
        if !self.bad_logit_keys.is_empty() {
            let keys: Vec<String> = self.bad_logit_keys.iter().map(|key| python::repr(key)).collect();
            let keys = format!("[{}]", keys.join(", "));
            let message = format!("logit_bias contains key(s) that cannot be converted to integer token IDs: {keys}");
            return Err(ApiError::parameter_value("logit_bias", &message, &keys));
        }
        self.check_choices("n")
    }

    fn check_choices(&self, name: &str) -> Result<(), ApiError> {
        if self.n < 1 {
            return Err(ApiError::bad_request(format!("{name} must be at least 1, got {}.", self.n)));
        }
        if self.n > MOST_CHOICES {
            return Err(ApiError::bad_request(format!(
                "{name} must be at most {MOST_CHOICES}, got {}. To increase this limit, set the VLLM_MAX_N_SEQUENCES \
                 environment variable.",
                self.n
            )));
        }
        Ok(())
    }

    fn check_beams(&self) -> Result<(), ApiError> {
        self.check_choices("beam_width")?;
        self.check_temperature()
    }

    fn check_penalties(&self) -> Result<(), ApiError> {
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if !(-2.0..=2.0).contains(&value) {
                return Err(ApiError::bad_request(format!("{name} must be in [-2, 2], got {}.", python::float(value))));
            }
        }
        let shown = python::float(self.repetition_penalty);
        if !self.repetition_penalty.is_finite() {
            return Err(ApiError::bad_request(format!("repetition_penalty must be a finite number, got {shown}.")));
        }
        if self.repetition_penalty <= 0.0 {
            return Err(ApiError::bad_request(format!("repetition_penalty must be greater than zero, got {shown}.")));
        }
        Ok(())
    }

    /// Returns whether the likeliest token is taken at each place; `default` is the temperature of a request that names none.
    pub(super) fn is_greedy(&self, default: f64) -> bool {
        self.is_beam_search || self.temperature.unwrap_or(default) < GREEDY
    }

    fn check_temperature(&self) -> Result<(), ApiError> {
        let temperature = self.temperature.unwrap_or(1.0);
        let shown = python::float(temperature);
        let refuse = |message: String| Err(ApiError::parameter_value("temperature", &message, &shown));
        if !temperature.is_finite() {
            return refuse(format!("temperature must be a finite number, got {shown}."));
        }
        if temperature < 0.0 {
            return refuse(format!("temperature must be non-negative, got {shown}."));
        }
        if temperature > 2.0 {
            return refuse(format!("temperature must be in [0, 2], got {shown}."));
        }
        Ok(())
    }

    fn check_nucleus(&self) -> Result<(), ApiError> {
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            let shown = python::float(self.top_p);
            let message = format!("top_p must be in (0, 1], got {shown}.");
            return Err(ApiError::parameter_value("top_p", &message, &shown));
        }
        if self.top_k < -1 {
            let message = format!("top_k must be 0 (disable), or at least 1, got {}.", self.top_k);
            return Err(ApiError::bad_request(message));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            let message = format!("min_p must be in [0, 1], got {}.", python::float(self.min_p));
            return Err(ApiError::bad_request(message));
        }
        Ok(())
    }

    fn check_lengths(&self, max_tokens: i128) -> Result<(), ApiError> {
        if max_tokens < 1 {
            let message = format!("max_tokens must be at least 1, got {max_tokens}.");
            return Err(ApiError::parameter_value("max_tokens", &message, &max_tokens.to_string()));
        }
        let least = self.min_tokens;
        if least < 0 {
            return Err(ApiError::bad_request(format!("min_tokens must be greater than or equal to 0, got {least}.")));
        }
        if least > max_tokens {
            let message = format!("min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}.");
            return Err(ApiError::bad_request(message));
        }
        Ok(())
    }

    fn check_texts(&self) -> Result<(), ApiError> {
        if self.stop.iter().any(String::is_empty) {
            return Err(ApiError::bad_request("stop cannot contain an empty string."));
        }
        self.check_bad_words()?;
        if self.temperature.is_some_and(|temperature| temperature < GREEDY) && self.n > 1 {
            return Err(ApiError::bad_request(format!("n must be 1 when using greedy sampling, got {}.", self.n)));
        }
        Ok(())
    }

    fn check_bad_words(&self) -> Result<(), ApiError> {
        if self.bad_words.iter().any(String::is_empty) {
            let shown = python::texts(&self.bad_words);
            let message = format!("bad_words cannot contain an empty string. Got bad_words={shown}");
            return Err(ApiError::bad_request(message));
        }
        Ok(())
    }

    /// Checks bad words with a tokenizer, one after the other up to the first that is refused. Each counts twice where it is
    /// another token after a space.
    /// Errors: 400 for a word without tokens, and for more words than the engine takes; those of `encode`.
    pub(super) fn check_words(&self, encode: impl Fn(&str) -> Result<Vec<u32>, ApiError>) -> Result<(), ApiError> {
        let words = if self.is_beam_search { &[] } else { self.bad_words.as_slice() };
        let refused = |message: &str| Err(ApiError::parameter_value("bad_words", message, &python::texts(words)));
        let mut count = 0;
        for word in words {
            let word = word.trim_start();
            let bare = encode(word)?;
            if bare.is_empty() {
                return refused("bad_words entries must tokenize to at least one token.");
            }
            let spaced = encode(&format!(" {word}"))?;
            let is_other = spaced.len() == bare.len() && spaced.first() != bare.first();
            for _ in 0..=usize::from(is_other) {
                count += 1;
                if count > MOST_BAD_WORDS {
                    return refused(&format!(
                        "Too many bad words after tokenization: {count}. The max number is {MOST_BAD_WORDS}."
                    ));
                }
            }
        }
        Ok(())
    }
}
