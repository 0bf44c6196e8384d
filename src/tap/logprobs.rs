//! Log probabilities that pass: kept as they are told, and made compact when the record is made.
//!
//! They are kept only where they are to be recorded, and no more than [`MOST_BYTES`] of them for one choice: an engine
//! may tell the whole vocabulary at every token. What is over the limit, or is not as long as the output, is left out of
//! the record, which says so (`logprobs_dropped`).

use serde_json::{Value, value::RawValue};

use crate::recording::trace::{Endpoint, Logprobs, PromptLogprobs, TokenLogprobs};

/// Bytes of log probabilities that are kept of one choice.
const MOST_BYTES: usize = 16 << 20;

/// What the request asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AskedLogprobs {
    /// Ranks of which all is told at each output token.
    pub(super) top: u32,
    /// The same of each prompt token.
    pub(super) prompt: u32,
    /// Ids that are told instead of the best ones.
    pub(super) named: Vec<u32>,
    /// Whether the prompt is repeated and nothing more: the one token that the engine generates is not told.
    pub(super) only_prompt: bool,
    /// Whether the tokens of a completion's prompt are told before those of its output.
    pub(super) echoes: bool,
}

impl AskedLogprobs {
    /// Reads the fields of a request by their names.
    pub(super) fn read<'a>(endpoint: Endpoint, field: impl Fn(&str) -> Option<&'a RawValue>) -> Self {
        let count = |name: &str| field(name).and_then(count);
        // A chat is told as many as it asks for, the token itself among them; a completion is told it besides.
        let (top, beside) = if endpoint == Endpoint::Completions {
            (count("logprobs"), count("logprobs"))
        } else {
            (count("top_logprobs").map(|top| top.saturating_sub(1)), count("top_logprobs"))
        };
        Self {
            top: top.unwrap_or(0),
            prompt: count("prompt_logprobs").or(beside).unwrap_or(0),
            named: field("logprob_token_ids").and_then(|ids| serde_json::from_str(ids.get()).ok()).unwrap_or_default(),
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

/// Log probabilities of one choice as they were told.
#[derive(Debug, Default)]
pub(super) struct ObservedLogprobs {
    /// The value of each event, or of the whole answer.
    told: Vec<Box<str>>,
    prompt: Option<Box<str>>,
    bytes: usize,
    is_over: bool,
}

impl ObservedLogprobs {
    /// KeptContent what an event or an answer tells of the output.
    pub(super) fn saw(&mut self, told: Option<&RawValue>) {
        if let Some(told) = told.and_then(|told| self.kept(told)) {
            self.told.push(told);
        }
    }

    /// KeptContent what an answer tells of the prompt.
    pub(super) fn saw_prompt(&mut self, told: Option<&RawValue>) {
        if let Some(told) = told.and_then(|told| self.kept(told)) {
            self.prompt = Some(told);
        }
    }

    fn kept(&mut self, told: &RawValue) -> Option<Box<str>> {
        let told = told.get();
        if told == "null" {
            return None;
        }
        self.bytes = self.bytes.saturating_add(told.len());
        self.is_over |= self.bytes > MOST_BYTES;
        if self.is_over {
            (self.told, self.prompt) = (Vec::new(), None);
            return None;
        }
        Some(told.into())
    }

    /// What is recorded of a choice with so many output tokens.
    pub(super) fn record(self, output_tokens: u32, asked: &AskedLogprobs) -> RecordedLogprobs {
        let is_told = !self.told.is_empty();
        let told = Logprobs::of_wire(self.told.iter().map(AsRef::as_ref)).filter(|_| is_told);
        let output = told.and_then(|tokens| split(tokens, output_tokens, asked));
        let prompt = self.prompt.as_deref().and_then(|prompt| PromptLogprobs::of_wire(prompt, asked.prompt));
        let is_dropped = self.is_over || (is_told && output.is_none()) || (self.prompt.is_some() && prompt.is_none());
        RecordedLogprobs { output, prompt, is_dropped }
    }
}

/// What a record gets.
#[derive(Debug, Default)]
pub(super) struct RecordedLogprobs {
    pub(super) output: Option<Logprobs>,
    pub(super) prompt: Option<PromptLogprobs>,
    /// Whether some were told and cannot be recorded.
    pub(super) is_dropped: bool,
}

/// The output's tokens are the last ones: a completion that repeats its prompt tells of that first.
fn split(mut tokens: Vec<TokenLogprobs>, output_tokens: u32, asked: &AskedLogprobs) -> Option<Logprobs> {
    let output_tokens = usize::try_from(output_tokens).ok()?;
    let output = if asked.only_prompt {
        vec![TokenLogprobs::default(); output_tokens]
    } else {
        tokens.split_off(tokens.len().checked_sub(output_tokens)?)
    };
    Some(Logprobs { top: asked.top, named: asked.named.clone(), prompt: tokens, tokens: output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        serde_json::from_str(json).unwrap()
    }

    fn asked(endpoint: Endpoint, body: &str) -> AskedLogprobs {
        let fields: std::collections::HashMap<String, Box<RawValue>> = serde_json::from_str(body).unwrap();
        AskedLogprobs::read(endpoint, |name| fields.get(name).map(AsRef::as_ref))
    }

    #[test]
    fn counts_are_those_of_whole_ranks() {
        let counts = |asked: AskedLogprobs| (asked.top, asked.prompt, asked.named);
        for (endpoint, body, expected) in [
            (Endpoint::Chat, r#"{"logprobs":true}"#, (0, 0, vec![])),
            (Endpoint::Chat, r#"{"logprobs":true,"top_logprobs":3,"prompt_logprobs":1}"#, (2, 1, vec![])),
            (Endpoint::Chat, r#"{"top_logprobs":3,"echo":true}"#, (2, 3, vec![])),
            (Endpoint::Completions, r#"{"logprobs":"2"}"#, (2, 2, vec![])),
            (Endpoint::Completions, r#"{"logprobs":1,"logprob_token_ids":[5,7]}"#, (1, 1, vec![5, 7])),
            (Endpoint::Completions, r#"{"logprobs":-1}"#, (0, 0, vec![])),
        ] {
            assert_eq!(counts(asked(endpoint, body)), expected, "{body}");
        }
    }

    #[test]
    fn events_are_joined_and_an_echoed_prompt_is_told_apart() {
        let mut seen = ObservedLogprobs::default();
        for told in [
            r#"{"text_offset":[0,1],"token_logprobs":[null,-1.5],"tokens":["A","b"],"top_logprobs":[null,{"b":-1.5}]}"#,
            "null",
            r#"{"text_offset":[2],"token_logprobs":[-2.5],"tokens":["c"],"top_logprobs":[{"c":-2.5}]}"#,
        ] {
            seen.saw(Some(&raw(told)));
        }
        let recorded = seen.record(2, &AskedLogprobs::default());
        let output = recorded.output.unwrap();
        assert_eq!((output.prompt.len(), output.tokens.len(), recorded.is_dropped), (1, 2, false));
        assert_eq!(output.tokens[1].logprob, Some(-2.5));
    }

    #[test]
    fn of_an_answer_that_only_repeats_its_prompt_no_output_is_told() {
        let mut seen = ObservedLogprobs::default();
        let told =
            r#"{"text_offset":[0,1],"token_logprobs":[null,-1.5],"tokens":["A","b"],"top_logprobs":[null,{"b":-1.5}]}"#;
        seen.saw(Some(&raw(told)));
        let output = seen.record(1, &AskedLogprobs { only_prompt: true, ..AskedLogprobs::default() }).output.unwrap();
        assert_eq!((output.prompt.len(), output.tokens), (2, vec![TokenLogprobs::default()]));
    }

    #[test]
    fn what_is_too_much_or_too_few_is_left_out_and_said() {
        let mut seen = ObservedLogprobs::default();
        seen.saw(Some(&raw(r#"{"content":[]}"#)));
        let recorded = seen.record(1, &AskedLogprobs::default());
        assert!(recorded.output.is_none() && recorded.is_dropped);
        let mut seen = ObservedLogprobs::default();
        let long = raw(&format!(r#"{{"content":[],"x":"{}"}}"#, "x".repeat(MOST_BYTES / 2)));
        seen.saw(Some(&long));
        seen.saw(Some(&long));
        seen.saw(Some(&raw(r#"{"content":[]}"#)));
        let recorded = seen.record(0, &AskedLogprobs::default());
        assert!(recorded.output.is_none() && recorded.is_dropped);
        assert!(!ObservedLogprobs::default().record(3, &AskedLogprobs::default()).is_dropped);
    }
}
