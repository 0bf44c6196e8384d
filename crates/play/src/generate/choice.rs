//! One choice of an answer: its tokens, when they are due, and what ends them.

use std::{iter, sync::Arc, time::Duration};

use crate::generate::{
    begun::BegunAnswer,
    output::{ChoiceStep, OutputText},
};
use ::engine::synthetic::MadeUpText;
use api::StopReason;
use recording::trace::Logprobs;
use replay::timing::{Due, Pacing, Schedule};
use text::prompt::Detokenizer;

/// End of a choice when nothing in the request ends it earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChoiceFinish {
    /// The API's word.
    pub(crate) reason: &'static str,
    /// Its details.
    pub(crate) stop_reason: StopReason,
    /// True where the last token only ends the text and is no part of it.
    pub(crate) hides_last_token: bool,
}

impl ChoiceFinish {
    /// An end without details, after a token like others.
    pub(crate) fn of(reason: &'static str) -> Self {
        Self { reason, stop_reason: StopReason::Unnamed, hides_last_token: false }
    }
}

/// The tokens of a choice in order.
#[derive(Debug, Clone)]
pub(crate) enum ChoiceTokens {
    /// These.
    Known(Vec<u32>),
    /// Random ones, each made when it is needed.
    MadeUp(MadeUpText),
    /// These again and again, so many in all.
    Repeated { ids: Arc<[u32]>, count: usize },
}

impl ChoiceTokens {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Known(ids) => ids.len(),
            Self::MadeUp(text) => text.len(),
            Self::Repeated { count, .. } => *count,
        }
    }

    fn truncate(&mut self, most: usize) {
        match self {
            Self::Known(ids) => ids.truncate(most),
            Self::MadeUp(text) => text.truncate(most),
            Self::Repeated { count, .. } => *count = most.min(*count),
        }
    }

    /// The token at a place; places are asked for in order.
    pub(crate) fn take(&mut self, at: usize) -> Option<u32> {
        match self {
            Self::Known(ids) => ids.get(at).copied(),
            Self::MadeUp(text) => text.token(at),
            Self::Repeated { ids, count } => ids.get(at.checked_rem(ids.len())?).copied().filter(|_| at < *count),
        }
    }
}

/// Tokens of a choice, with their deadlines and end.
#[derive(Debug)]
pub(crate) struct ChoiceScript {
    /// All tokens, `max_tokens` not yet applied.
    pub(crate) ids: ChoiceTokens,
    /// When they are due; together as many as `ids`, or as many as `max_tokens` leaves of them.
    pub(crate) schedule: Schedule,
    /// Their end.
    pub(crate) finish: ChoiceFinish,
    /// Their recorded log probabilities, those of what was delivered too, where the request asks for some.
    pub(crate) logprobs: Option<Arc<Logprobs>>,
    /// What was delivered of the answer before these tokens.
    pub(crate) begun: Option<Box<BegunAnswer>>,
    /// True where the recorded stream broke off after these tokens.
    pub(crate) breaks_off: bool,
}

/// The request's conditions for the end of its output.
#[derive(Debug, Clone)]
pub(crate) struct OutputLimits {
    pub(crate) max_tokens: u32,
    pub(crate) min_tokens: u32,
    /// In order.
    pub(crate) stop_token_ids: Arc<[u32]>,
    /// True where the end of sequence is a token like others, which ends the output only where it is a stop token too.
    pub(crate) ignores_eos: bool,
    /// True where a stop token's text is part of the output.
    pub(crate) shows_stop_token: bool,
    /// Tokens that a step waits for, after the first step.
    pub(crate) interval: u32,
}

#[derive(Debug)]
pub(crate) struct OpenChoice {
    script: ChoiceScript,
    next: Option<Due>,
    limits: OutputLimits,
    detokenizer: Detokenizer,
    output: OutputText,
    produced: usize,
    finished: bool,
    /// True where the last token only ended the text.
    ended_by_token: bool,
    /// Bytes of the text to come that are left out.
    skipped: usize,
}

impl OpenChoice {
    pub(crate) fn new(
        mut script: ChoiceScript,
        limits: OutputLimits,
        detokenizer: Detokenizer,
        output: OutputText,
    ) -> Self {
        let next = script.schedule.next();
        Self {
            script,
            next,
            limits,
            detokenizer,
            output,
            produced: 0,
            finished: false,
            ended_by_token: false,
            skipped: 0,
        }
    }

    /// Leaves out so many bytes of its text.
    pub(crate) fn skipping(self, skipped: usize) -> Self {
        Self { skipped, ..self }
    }

    /// When the next step is due; `None` once the choice is finished. A choice without tokens has one step, at once.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        if self.finished {
            return None;
        }
        Some(self.next.map_or(Duration::ZERO, |next| next.due))
    }

    /// When its tokens are due, chunk by chunk, at most all that it may have.
    pub(crate) fn times(&self) -> Vec<Duration> {
        let most = self.script.ids.len().min(usize::try_from(self.limits.max_tokens).unwrap_or(usize::MAX));
        let dues = self.next.into_iter().chain(self.script.schedule.clone());
        let each = dues.flat_map(|due| iter::repeat_n(due.due, usize::try_from(due.tokens).unwrap_or(usize::MAX)));
        each.take(most).collect()
    }

    /// Checks whether its last token only ended the text, whether it is shown or not.
    pub(crate) fn ended_by_last_token(&self) -> bool {
        self.ended_by_token
    }

    /// Checks whether it was played to its end.
    pub(crate) fn is_whole(&self) -> bool {
        self.produced == self.script.ids.len()
    }

    /// When the answer is over by its schedule, where that is later than the last token.
    pub(crate) fn scheduled_end(&self) -> Option<Duration> {
        self.script.schedule.end()
    }

    /// Takes its times from elsewhere, token by token or in the chunks of its schedule; gives all tokens that it will have unless a text
    /// ends it earlier.
    pub(crate) fn plan(&mut self, keeps_chunks: bool) -> Vec<u32> {
        let (mut ids, mut planned) = (self.script.ids.clone(), Vec::new());
        while let Some(id) = ids.take(planned.len()) {
            planned.push(id);
            if self.end_after(id, planned.len()).is_some() {
                break;
            }
        }
        if !planned.is_empty() && !keeps_chunks {
            self.script.schedule = Schedule::uniform(u32::try_from(planned.len()).ok(), Pacing::Instant);
            self.next = self.script.schedule.next();
        }
        planned
    }

    /// Numbers of tokens after which a chunk of the schedule ends; none where each has one token. To be asked for before
    /// [`plan`](Self::plan).
    pub(crate) fn burst_ends(&self) -> Vec<usize> {
        let chunks = self.next.into_iter().chain(self.script.schedule.clone()).take(self.script.ids.len());
        let tokens: Vec<usize> = chunks.map(|chunk| usize::try_from(chunk.tokens).unwrap_or(usize::MAX)).collect();
        if tokens.iter().all(|tokens| *tokens <= 1) {
            return Vec::new();
        }
        let end = |ends: &mut usize, tokens: usize| {
            *ends = ends.saturating_add(tokens);
            Some(*ends)
        };
        tokens.into_iter().scan(0, end).collect()
    }

    /// Lets the next step have so many tokens, where it would have fewer.
    pub(crate) fn widen(&mut self, tokens: u32) {
        let Some(next) = &mut self.next else { return };
        while next.tokens < tokens {
            let Some(more) = self.script.schedule.next() else { return };
            next.tokens = next.tokens.saturating_add(more.tokens);
        }
    }

    /// Tokens of the next step.
    pub(crate) fn needed(&self) -> u32 {
        self.next.map_or(0, |next| next.tokens)
    }

    /// Checks whether it was played up to where the recorded stream broke off.
    pub(crate) fn breaks_off(&self) -> bool {
        self.script.breaks_off && self.is_whole()
    }

    /// Checks whether the engine failed before the first token.
    pub(crate) fn fails_at_once(&self) -> bool {
        self.script.ids.len() == 0 && self.script.finish.reason == "error"
    }

    /// Ends the choice with its next step, which adds no text.
    pub(crate) fn abort(&mut self) {
        self.script.ids.truncate(self.produced);
        self.script.finish = ChoiceFinish::of("abort");
        self.next = None;
    }

    /// When the answer is over, where that was later than the last token; only of a choice that was played to its end.
    pub(crate) fn end(&self) -> Option<Duration> {
        self.script.schedule.end().filter(|_| self.is_whole())
    }

    /// The next step, written over another one. After the last one there is nothing to call for.
    pub(crate) fn step(&mut self, step: &mut ChoiceStep) {
        let tokens = self.next.map_or(0, |next| next.tokens);
        self.next = self.gather();
        let ChoiceStep { text, ids, finish } = step;
        text.clear();
        ids.clear();
        let mut end = None;
        for _ in 0..tokens {
            let Some(id) = self.script.ids.take(self.produced) else { break };
            self.produced += 1;
            ids.push(id);
            end = self.end_after(id, self.produced);
            if end.is_some() {
                break;
            }
        }
        if end.is_none() && (self.next.is_none() || self.produced >= self.script.ids.len()) {
            end = Some(ChoiceFinish { hides_last_token: false, ..self.script.finish.clone() });
        }
        let hides_last = end.as_ref().is_some_and(|end| end.hides_last_token);
        let is_stop = end.as_ref().is_some_and(|end| end.reason == "stop");
        self.ended_by_token = is_stop && self.script.finish.hides_last_token && self.produced >= self.script.ids.len();
        *finish = end.map(|end| (end.reason, end.stop_reason));
        if !self.output.looks() {
            self.put_text(ids, hides_last, text);
            self.finished = finish.is_some();
            self.skip(text);
            return;
        }
        let texts = self.texts(ids, hides_last);
        if let Some(stopped) = self.output.push(&texts) {
            ids.truncate(stopped.kept);
            *finish = Some(("stop", StopReason::Text(stopped.by)));
        }
        self.finished = finish.is_some();
        *text = if self.finished { self.output.finish() } else { self.output.release() };
        self.skip(text);
    }

    fn skip(&mut self, text: &mut String) {
        let skipped = self.skipped.min(text.len());
        self.skipped -= skipped;
        // What is left out ended between characters.
        if text.is_char_boundary(skipped) {
            text.drain(..skipped);
        }
    }

    /// The next chunks of the schedule as one, due with the last of them.
    fn gather(&mut self) -> Option<Due> {
        let mut gathered = self.script.schedule.next()?;
        while gathered.tokens < self.limits.interval {
            let Some(more) = self.script.schedule.next() else { break };
            gathered = Due { due: more.due, tokens: gathered.tokens.saturating_add(more.tokens) };
        }
        Some(gathered)
    }

    /// Checks whether the last one of so many tokens ends the choice, as the engine looks for it: stop tokens before length.
    fn end_after(&self, id: u32, count: usize) -> Option<ChoiceFinish> {
        let produced = u32::try_from(count).unwrap_or(u32::MAX);
        let is_last = count == self.script.ids.len();
        let is_stop_token = self.limits.stop_token_ids.binary_search(&id).is_ok();
        if is_last && self.script.finish.hides_last_token && !(self.limits.ignores_eos && is_stop_token) {
            return Some(ChoiceFinish {
                hides_last_token: !self.limits.shows_stop_token,
                ..self.script.finish.clone()
            });
        }
        if produced >= self.limits.min_tokens && is_stop_token {
            let (stop_reason, hides_last_token) = (StopReason::Token(id), !self.limits.shows_stop_token);
            return Some(ChoiceFinish { reason: "stop", stop_reason, hides_last_token });
        }
        if is_last {
            return Some(self.script.finish.clone());
        }
        (produced >= self.limits.max_tokens).then(|| ChoiceFinish::of("length"))
    }

    /// The text of all tokens in one piece.
    fn put_text(&mut self, ids: &[u32], hides_last: bool, text: &mut String) {
        let shown = ids.len().saturating_sub(usize::from(hides_last));
        for id in ids.iter().take(shown) {
            // A token that the decoder cannot place has no text, as in the engine.
            let _ = self.detokenizer.push_onto(*id, text);
        }
    }

    /// The text of each token; none for a token that only stops.
    fn texts(&mut self, ids: &[u32], hides_last: bool) -> Vec<String> {
        let shown = ids.len().saturating_sub(usize::from(hides_last));
        let text = |(at, id): (usize, &u32)| {
            // A token that the decoder cannot place has no text, as in the engine.
            if at < shown { self.detokenizer.push(*id).unwrap_or_default() } else { String::new() }
        };
        ids.iter().enumerate().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated<const N: usize>(ids: [u32; N], count: usize) -> Vec<u32> {
        let mut tokens = ChoiceTokens::Repeated { ids: Arc::new(ids), count };
        (0..).map_while(|at| tokens.take(at)).collect()
    }

    #[test]
    fn repeated_tokens_stop_at_their_count_or_start_over() {
        assert_eq!(repeated([1, 2, 3], 3), [1, 2, 3]);
        assert_eq!(repeated([1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(ChoiceTokens::Repeated { ids: Arc::new([]), count: 1 }.take(0), None);
    }
}
