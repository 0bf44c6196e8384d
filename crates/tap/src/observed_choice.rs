//! Observation of one choice of an exchange, from a stream's events or from a whole response.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{
    channels::{ChannelText, Channels, PLAIN},
    event::{EventChoice, ids},
    logprobs::ObservedLogprobs,
    other_apis::ApiEvent,
    pattern::Hit,
};
use net::wire::RawObject;
use replay::meter::ChoiceMeter;

/// Content that is kept for the records.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeptContent {
    /// Text of each chunk.
    pub(super) text: bool,
    /// Log probabilities.
    pub(super) logprobs: bool,
    /// Responses that token ids do not stand for.
    pub(super) responses: bool,
}

#[derive(Debug, Default)]
pub(super) struct ObservedChoice {
    pub(super) index: u32,
    pub(super) meter: ChoiceMeter,
    /// Output token ids; `None` if the engine returned none.
    pub(super) ids: Option<Vec<u32>>,
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) finish_reason: Option<String>,
    pub(super) stop_token: Option<u32>,
    /// The next event with text repeats the chat's last message (`echo`).
    pub(super) awaits_echo: bool,
    /// A reasoning or tool parser made one of its deltas.
    pub(super) parsed: bool,
    /// Text of each chunk, if text is recorded.
    pub(super) text: Vec<String>,
    pub(super) channels: Channels,
    /// Log probabilities, if they are recorded.
    pub(super) logprobs: ObservedLogprobs,
    /// The engine's count with every event.
    pub(super) counts: ContinuousCount,
    /// Number of output tokens with log probabilities in a whole response.
    pub(super) scored: Option<u32>,
    /// Number of prompt tokens with log probabilities in a whole response.
    pub(super) scored_prompt: Option<u32>,
}

/// An engine's count of a choice's tokens that comes with every event (`continuous_usage_stats`).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContinuousCount {
    pub(super) so_far: u32,
    /// An event had text and no count, or a count below the one before.
    pub(super) is_broken: bool,
}

impl ContinuousCount {
    /// Returns the tokens that an event adds to those before it, with the count up to it; an event with text and without a count has one.
    fn add(&mut self, so_far: Option<u32>, has_text: bool) -> u32 {
        let added = so_far.map(|so_far| so_far.checked_sub(self.so_far));
        self.is_broken |= match added {
            Some(added) => added.is_none(),
            None => has_text,
        };
        self.so_far = so_far.unwrap_or(self.so_far);
        if self.is_broken { u32::from(has_text) } else { added.flatten().unwrap_or(0) }
    }

    /// Returns true if there are counts that cannot be relied on.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_broken && self.so_far > 0
    }

    /// Returns the number of tokens if each event that brought any was counted, and the sum is the engine's own, if there is one.
    pub(super) fn total(&self, at_end: Option<u32>) -> Option<u32> {
        let is_whole = !self.is_broken && self.so_far > 0 && at_end.is_none_or(|at_end| at_end == self.so_far);
        is_whole.then_some(self.so_far)
    }
}

impl ObservedChoice {
    /// Adds a delta that arrived `at`, with the engine's count of output tokens up to it.
    pub(super) fn observe_delta(
        &mut self,
        part: &EventChoice<'_>,
        so_far: Option<u32>,
        at: Duration,
        keeps: KeptContent,
    ) {
        if part.prompt_token_ids.is_some() {
            self.prompt_ids = ids(part.prompt_token_ids);
        }
        let kind = part.kind();
        if kind.is_role {
            return;
        }
        // The event that repeats the chat's last message has no output token.
        let is_first = std::mem::take(&mut self.awaits_echo);
        if is_first && part.token_ids.is_none() && kind.has_text && part.finish_reason.is_none() {
            return;
        }
        self.parsed |= kind.is_parsed;
        self.observe_finish_reason(part);
        if keeps.logprobs {
            self.logprobs.push(part.logprobs);
        }
        match ids(part.token_ids) {
            Some(named) => self.observe_tokens(&named, part.weight(), at),
            None => self.meter.chunk(at, self.counts.add(so_far, kind.has_text), part.weight()),
        }
        if keeps.text {
            self.push_texts(part.texts());
        }
    }

    /// Adds tokens that came together, in an event or a step of the engine.
    pub(super) fn observe_tokens(&mut self, tokens: &[u32], weight: usize, at: Duration) {
        self.meter.chunk(at, u32::try_from(tokens.len()).unwrap_or(u32::MAX), weight);
        self.ids.get_or_insert_default().extend_from_slice(tokens);
    }

    /// Adds an event that fits a pattern.
    pub(super) fn observe_match(&mut self, hit: &Hit<'_>, at: Duration, keeps: KeptContent) {
        match &hit.ids {
            Some((named, _)) => self.observe_tokens(named, hit.weight, at),
            // Events with a count have no pattern.
            None => self.meter.chunk(at, self.counts.add(None, true), hit.weight),
        }
        if keeps.text {
            self.push_texts([(PLAIN, hit.text.to_owned())]);
        }
    }

    /// Adds an event of another API, or its whole response.
    pub(super) fn observe_api_event(&mut self, event: ApiEvent, at: Duration, keeps: KeptContent) {
        if let Some(reason) = event.finish_reason {
            self.finish_reason = Some(reason);
        }
        let tokens = event.token_ids.as_ref().map_or(1, |ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        if event.token_ids.is_some() || event.text.is_some() {
            self.meter.chunk(at, tokens, event.text.as_ref().map_or(0, String::len));
        }
        if let Some(ids) = event.token_ids {
            self.ids.get_or_insert_default().extend(ids);
        }
        if let Some(text) = event.text.filter(|_| keeps.text) {
            self.push_texts([(event.channel, serde_json::from_str(&text).unwrap_or(text))]);
        }
    }

    /// Appends texts to the last chunk of the meter.
    fn push_texts(&mut self, texts: impl IntoIterator<Item = ChannelText>) {
        for (channel, text) in texts {
            self.channels.push(channel, text.len());
            let chunks = self.meter.len();
            if self.text.len() < chunks {
                self.text.resize(chunks - 1, String::new());
                self.text.push(text);
            } else if let Some(last) = self.text.last_mut() {
                last.push_str(&text);
            } else if !text.is_empty() {
                self.text.push(text);
            }
        }
    }

    /// Adds a choice of a whole response, with the log probabilities of its prompt and the number of tokens that the engine counted.
    pub(super) fn observe_response(
        &mut self,
        part: &EventChoice<'_>,
        prompt_logprobs: Option<&RawValue>,
        counted: Option<u32>,
        at: Duration,
        keeps: KeptContent,
    ) {
        self.prompt_ids = ids(part.prompt_token_ids);
        self.ids = ids(part.token_ids);
        self.scored = part.logprobs.and_then(scored);
        self.scored_prompt = part.prompt_logprobs.and_then(length);
        self.observe_finish_reason(part);
        let named = self.ids.as_ref().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX));
        self.meter.chunk(at, counted.filter(|count| *count > 0).or(named).or(counted).unwrap_or(1), 1);
        if keeps.logprobs {
            self.logprobs.push(part.logprobs);
            self.logprobs.push_prompt(prompt_logprobs);
        }
        if keeps.text {
            self.push_texts(part.texts());
        }
    }

    /// Returns true if something came of it, and no token ids.
    pub(super) fn lacks_ids(&self) -> bool {
        self.ids.is_none() && !(self.meter.is_empty() && self.finish_reason.is_none())
    }

    /// Returns the bytes that it holds beside its own size.
    pub(super) fn heap(&self) -> usize {
        let ids = |ids: &Option<Vec<u32>>| ids.as_ref().map_or(0, Vec::capacity) * size_of::<u32>();
        let text = self.text.capacity() * size_of::<String>() + self.text.iter().map(String::capacity).sum::<usize>();
        let reason = self.finish_reason.as_ref().map_or(0, String::capacity);
        let text = text + self.channels.heap();
        self.meter.heap() + ids(&self.ids) + ids(&self.prompt_ids) + text + reason + self.logprobs.heap()
    }

    fn observe_finish_reason(&mut self, part: &EventChoice<'_>) {
        if let Some(reason) = &part.finish_reason {
            self.finish_reason = Some(reason.as_ref().to_owned());
            self.stop_token = part.stop_token();
        }
    }
}

/// Counts the tokens of log probabilities, in the form of completions (`tokens`) or of chats (`content`).
fn scored(raw: &RawValue) -> Option<u32> {
    let lists = RawObject::read(raw.get().as_bytes())?;
    length(lists.get("tokens").or(lists.get("content"))?)
}

/// Returns the length of a JSON list.
fn length(raw: &RawValue) -> Option<u32> {
    let list: Option<Vec<IgnoredAny>> = serde_json::from_str(raw.get()).ok()?;
    u32::try_from(list?.len()).ok()
}
