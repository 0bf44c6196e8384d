//! One choice of an exchange, as its events or its part of a whole answer tell it.

use std::time::Duration;

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{
    event::{Choice, ids},
    logprobs::ObservedLogprobs,
    shared_state::KeptContent,
};
use crate::replay::meter::ChoiceMeter;

/// One choice as it was seen.
#[derive(Debug, Default)]
pub(super) struct ObservedChoice {
    pub(super) index: u32,
    pub(super) meter: ChoiceMeter,
    /// The ids that the engine named; `None` when it named none.
    pub(super) ids: Option<Vec<u32>>,
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) finish_reason: Option<String>,
    pub(super) stop_token: Option<u32>,
    /// Whether an event is to come that repeats the chat's last message.
    pub(super) awaits_echo: bool,
    /// Whether a parser made any of its deltas.
    pub(super) parsed: bool,
    /// The words of each chunk, where they are kept.
    pub(super) text: Vec<String>,
    /// Where they are kept.
    pub(super) logprobs: ObservedLogprobs,
    /// Tokens of which a whole answer tells log probabilities.
    pub(super) scored: Option<u32>,
    /// The same of the prompt.
    pub(super) scored_prompt: Option<u32>,
}

impl ObservedChoice {
    pub(super) fn saw_part(&mut self, part: &Choice<'_>, at: Duration, keeps: KeptContent) {
        if part.prompt_token_ids.is_some() {
            self.prompt_ids = ids(part.prompt_token_ids);
        }
        let kind = part.kind();
        if kind.is_role {
            return;
        }
        // No token is in what is repeated.
        let is_first = std::mem::take(&mut self.awaits_echo);
        if is_first && part.token_ids.is_none() && kind.has_words && part.finish_reason.is_none() {
            return;
        }
        self.parsed |= kind.is_parsed;
        self.saw_finish(part);
        if keeps.logprobs {
            self.logprobs.saw(part.logprobs);
        }
        match ids(part.token_ids) {
            Some(named) => {
                self.meter.chunk(at, u32::try_from(named.len()).unwrap_or(u32::MAX), part.weight());
                self.ids.get_or_insert_default().extend(named);
            }
            None if kind.has_words => self.meter.chunk(at, 1, part.weight()),
            None => {}
        }
        if keeps.text {
            self.heard(part.spoken());
        }
    }

    /// KeptContent words with the chunk that was seen last.
    pub(super) fn heard(&mut self, words: String) {
        let chunks = self.meter.len();
        if self.text.len() < chunks {
            self.text.resize(chunks - 1, String::new());
            self.text.push(words);
        } else if let Some(last) = self.text.last_mut() {
            last.push_str(&words);
        } else if !words.is_empty() {
            self.text.push(words);
        }
    }

    pub(super) fn saw_whole(&mut self, part: &Choice<'_>, counted: Option<u32>, at: Duration) {
        self.prompt_ids = ids(part.prompt_token_ids);
        self.ids = ids(part.token_ids);
        self.scored = part.logprobs.and_then(scored);
        self.scored_prompt = part.prompt_logprobs.and_then(length);
        self.saw_finish(part);
        let named = self.ids.as_ref().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        self.meter.chunk(at, counted.or(named).unwrap_or(1), 1);
    }

    fn saw_finish(&mut self, part: &Choice<'_>) {
        if let Some(reason) = &part.finish_reason {
            self.finish_reason = Some(reason.as_ref().to_owned());
            self.stop_token = part.stop_token();
        }
    }
}

/// The tokens of log probabilities, in the form of completions or of chats.
fn scored(raw: &RawValue) -> Option<u32> {
    #[derive(Deserialize)]
    struct Told<'a> {
        #[serde(default, borrow)]
        tokens: Option<&'a RawValue>,
        #[serde(default, borrow)]
        content: Option<&'a RawValue>,
    }
    let told = serde_json::from_str::<Option<Told<'_>>>(raw.get()).ok()??;
    length(told.tokens.or(told.content)?)
}

/// The length of a list.
fn length(raw: &RawValue) -> Option<u32> {
    let list: Option<Vec<IgnoredAny>> = serde_json::from_str(raw.get()).ok()?;
    u32::try_from(list?.len()).ok()
}
