//! Log probabilities of responses: stored as raw JSON while they pass, converted when the record is made.
//!
//! They are stored only if they are to be recorded, at most [`MAX_BYTES`] for one choice: an engine
//! may return the whole vocabulary at every token. Log probabilities over the limit, or fewer than the output's tokens, are left out of
//! the record, which has `logprobs_dropped` then.

use serde_json::{Value, value::RawValue};

use recording::trace::{Endpoint, Logprobs, PromptLogprobs, TokenLogprobs};

/// Maximum size of the log probabilities of one choice, in bytes of JSON.
const MAX_BYTES: usize = 16 << 20;

/// Maximum number of ids in `logprob_token_ids` that are recorded.
const MAX_NAMED: usize = 128;

/// Log probabilities that a request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RequestedLogprobs {
    /// Number of candidates returned in full at each output token.
    pub(super) top: u32,
    /// Number of candidates returned in full at each prompt token.
    pub(super) prompt: u32,
    /// Ids (`logprob_token_ids`) that are returned instead of the most probable ones.
    pub(super) named: Vec<u32>,
    /// The response has the echoed prompt only; the one token that the engine generates has no log probability.
    pub(super) only_prompt: bool,
    /// Log probabilities of a completion's echoed prompt come before those of its output.
    pub(super) echoes: bool,
}

impl RequestedLogprobs {
    pub(super) fn read<'a>(endpoint: Endpoint, field: impl Fn(&str) -> Option<&'a RawValue>) -> Self {
        let count = |name: &str| field(name).and_then(count);
        // The record of each choice repeats them, and no engine takes more.
        let named = field("logprob_token_ids").and_then(|ids| serde_json::from_str(ids.get()).ok());
        let named = named.filter(|ids: &Vec<u32>| ids.len() <= MAX_NAMED);
        // The sampled token counts among a chat's `top_logprobs`; a completion returns it in addition.
        let (top, beside) = if endpoint == Endpoint::Completions {
            (count("logprobs"), count("logprobs"))
        } else {
            (count("top_logprobs").map(|top| top.saturating_sub(1)), count("top_logprobs"))
        };
        Self {
            top: top.unwrap_or(0),
            prompt: count("prompt_logprobs").or(beside).unwrap_or(0),
            named: named.unwrap_or_default(),
            only_prompt: false,
            echoes: false,
        }
    }
}

/// A count, as a number or as its digits in a string.
fn count(raw: &RawValue) -> Option<u32> {
    match serde_json::from_str(raw.get()).ok()? {
        Value::String(digits) => digits.trim().parse().ok(),
        number => number.as_u64().and_then(|count| u32::try_from(count).ok()),
    }
}

/// Log probabilities of one choice, as raw JSON.
#[derive(Debug, Default)]
pub(super) struct ObservedLogprobs {
    /// The value of each event, or of the whole response.
    output: Vec<Box<str>>,
    prompt: Option<Box<str>>,
    bytes: usize,
    is_over: bool,
}

impl ObservedLogprobs {
    /// Appends the log probabilities of an event, or of a whole response's output.
    pub(super) fn push(&mut self, value: Option<&RawValue>) {
        if let Some(value) = value.and_then(|value| self.copy_within_limit(value)) {
            self.output.push(value);
        }
    }

    /// Sets the log probabilities of the prompt.
    pub(super) fn push_prompt(&mut self, value: Option<&RawValue>) {
        if let Some(value) = value.and_then(|value| self.copy_within_limit(value)) {
            self.prompt = Some(value);
        }
    }

    /// Copies a value; `None` for `null`. Over the limit everything is dropped, because a part would not match the output.
    fn copy_within_limit(&mut self, value: &RawValue) -> Option<Box<str>> {
        let value = value.get();
        if value == "null" {
            return None;
        }
        self.bytes = self.bytes.saturating_add(value.len());
        self.is_over |= self.bytes > MAX_BYTES;
        if self.is_over {
            (self.output, self.prompt) = (Vec::new(), None);
            return None;
        }
        Some(value.into())
    }

    /// Returns the bytes that they hold.
    pub(super) fn heap(&self) -> usize {
        let output = self.output.capacity() * size_of::<Box<str>>();
        output + self.output.iter().chain(&self.prompt).map(|value| value.len()).sum::<usize>()
    }

    /// Converts them for the record of a choice with so many output tokens.
    pub(super) fn record(self, output_tokens: u32, requested: &RequestedLogprobs) -> RecordedLogprobs {
        let has_output = !self.output.is_empty();
        let tokens = Logprobs::of_wire(self.output.iter().map(AsRef::as_ref)).filter(|_| has_output);
        let output = tokens.and_then(|tokens| split(tokens, output_tokens, requested));
        let prompt = self.prompt.as_deref().and_then(|prompt| PromptLogprobs::of_wire(prompt, requested.prompt));
        let is_dropped =
            self.is_over || (has_output && output.is_none()) || (self.prompt.is_some() && prompt.is_none());
        RecordedLogprobs { output, prompt, is_dropped }
    }
}

/// Log probabilities in a record's form.
#[derive(Debug, Default)]
pub(super) struct RecordedLogprobs {
    pub(super) output: Option<Logprobs>,
    pub(super) prompt: Option<PromptLogprobs>,
    /// The response had log probabilities that cannot be recorded.
    pub(super) is_dropped: bool,
}

/// Splits prompt and output: the output's tokens come last, after those of an echoed prompt.
fn split(mut tokens: Vec<TokenLogprobs>, output_tokens: u32, requested: &RequestedLogprobs) -> Option<Logprobs> {
    let output_tokens = usize::try_from(output_tokens).ok()?;
    let output = if requested.only_prompt {
        vec![TokenLogprobs::default(); output_tokens]
    } else {
        tokens.split_off(tokens.len().checked_sub(output_tokens)?)
    };
    Some(Logprobs { top: requested.top, named: requested.named.clone(), prompt: tokens, tokens: output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        serde_json::from_str(json).unwrap()
    }

    fn requested(endpoint: Endpoint, body: &str) -> RequestedLogprobs {
        let fields: std::collections::HashMap<String, Box<RawValue>> = serde_json::from_str(body).unwrap();
        RequestedLogprobs::read(endpoint, |name| fields.get(name).map(AsRef::as_ref))
    }

    #[test]
    fn counts_are_those_of_whole_ranks() {
        let counts = |requested: RequestedLogprobs| (requested.top, requested.prompt, requested.named);
        for (endpoint, body, expected) in [
            (Endpoint::Chat, r#"{"logprobs":true}"#, (0, 0, vec![])),
            (Endpoint::Chat, r#"{"logprobs":true,"top_logprobs":3,"prompt_logprobs":1}"#, (2, 1, vec![])),
            (Endpoint::Chat, r#"{"top_logprobs":3,"echo":true}"#, (2, 3, vec![])),
            (Endpoint::Completions, r#"{"logprobs":"2"}"#, (2, 2, vec![])),
            (Endpoint::Completions, r#"{"logprobs":1,"logprob_token_ids":[5,7]}"#, (1, 1, vec![5, 7])),
            (Endpoint::Completions, r#"{"logprobs":-1}"#, (0, 0, vec![])),
            (Endpoint::Completions, &format!(r#"{{"logprob_token_ids":[{}1]}}"#, "1,".repeat(128)), (0, 0, vec![])),
        ] {
            assert_eq!(counts(requested(endpoint, body)), expected, "{body}");
        }
    }

    #[test]
    fn events_are_joined_and_an_echoed_prompt_is_split_off() {
        let mut seen = ObservedLogprobs::default();
        for value in [
            r#"{"text_offset":[0,1],"token_logprobs":[null,-1.5],"tokens":["A","b"],"top_logprobs":[null,{"b":-1.5}]}"#,
            "null",
            r#"{"text_offset":[2],"token_logprobs":[-2.5],"tokens":["c"],"top_logprobs":[{"c":-2.5}]}"#,
        ] {
            seen.push(Some(&raw(value)));
        }
        let recorded = seen.record(2, &RequestedLogprobs::default());
        let output = recorded.output.unwrap();
        assert_eq!((output.prompt.len(), output.tokens.len(), recorded.is_dropped), (1, 2, false));
        assert_eq!(output.tokens[1].logprob, Some(-2.5));
    }

    #[test]
    fn a_response_that_is_only_its_echoed_prompt_has_empty_output() {
        let mut seen = ObservedLogprobs::default();
        let value =
            r#"{"text_offset":[0,1],"token_logprobs":[null,-1.5],"tokens":["A","b"],"top_logprobs":[null,{"b":-1.5}]}"#;
        seen.push(Some(&raw(value)));
        let output =
            seen.record(1, &RequestedLogprobs { only_prompt: true, ..RequestedLogprobs::default() }).output.unwrap();
        assert_eq!((output.prompt.len(), output.tokens), (2, vec![TokenLogprobs::default()]));
    }

    #[test]
    fn too_many_bytes_or_too_few_tokens_are_dropped_and_flagged() {
        let mut seen = ObservedLogprobs::default();
        seen.push(Some(&raw(r#"{"content":[]}"#)));
        let recorded = seen.record(1, &RequestedLogprobs::default());
        assert!(recorded.output.is_none() && recorded.is_dropped);
        let mut seen = ObservedLogprobs::default();
        let long = raw(&format!(r#"{{"content":[],"x":"{}"}}"#, "x".repeat(MAX_BYTES / 2)));
        seen.push(Some(&long));
        seen.push(Some(&long));
        seen.push(Some(&raw(r#"{"content":[]}"#)));
        let recorded = seen.record(0, &RequestedLogprobs::default());
        assert!(recorded.output.is_none() && recorded.is_dropped);
        assert!(!ObservedLogprobs::default().record(3, &RequestedLogprobs::default()).is_dropped);
    }
}
