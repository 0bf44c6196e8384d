//! One choice of an exchange, as its events or its part of a whole answer tell it.

use std::time::Duration;

use super::{
    event::{Choice, ids},
    logprobs::SeenLogprobs,
    room::Keeps,
};
use crate::replay::meter::ChoiceMeter;

/// One choice as it was seen.
#[derive(Debug, Default)]
pub(super) struct SeenChoice {
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
    pub(super) logprobs: SeenLogprobs,
}

impl SeenChoice {
    pub(super) fn saw_part(&mut self, part: &Choice<'_>, at: Duration, keeps: Keeps) {
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

    /// Keeps words with the chunk that was seen last.
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
