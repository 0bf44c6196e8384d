//! An answer on its way: its choices, interleaved by when they are due, as events or as one body.

pub(crate) mod collect;
mod scheduled;
pub(crate) mod tokens;

use std::{cmp::Reverse, collections::BinaryHeap, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

pub(super) use self::scheduled::created;

use crate::{
    engine::EngineRun,
    generate::{choice::OpenChoice, logprobs::SequenceLogprobs, output::ChoiceStep, parse::SequenceParser},
    metrics::ChoiceMetrics,
    request::budget::MemoryReservation,
};
use api::{
    CachedTokens, ChoiceChunk, Opening, Position, RequestTimes, StopReason, Usage,
    answers::{Encoder, ResponseForm},
};
use net::wire::EventBuffer;
use replay::delivery::{AbortedBy, TOGETHER};

/// A choice with the parts of the answer about its prompt.
#[derive(Debug)]
pub(super) struct AnswerSequence {
    pub(super) choice: OpenChoice,
    pub(super) prompt: Arc<[u32]>,
    pub(super) prompt_tokens: u32,
    /// Text of the prompt, where a completion is to repeat it.
    pub(super) echo: Option<Arc<str>>,
    /// True where the prompt is all that is shown; of the tokens only their ids are.
    pub(super) only_echoes: bool,
    /// Role of a chat's message; `None` for the assistant.
    pub(super) role: Option<Arc<str>>,
    /// Content of the last message, where a chat repeats it.
    pub(super) repeated: Option<Arc<str>>,
    pub(super) parser: Option<SequenceParser>,
    pub(super) logprobs: Option<SequenceLogprobs>,
    /// Log probabilities of the prompt as JSON, where they were requested.
    pub(super) prompt_logprobs: Option<Arc<str>>,
    /// The same as values, where those are wanted.
    pub(super) prompt_positions: Option<Arc<[Position]>>,
    pub(super) produced: u32,
    pub(super) opened: bool,
    pub(super) metrics: ChoiceMetrics,
}

impl AnswerSequence {
    /// Checks whether data about single tokens would reveal hidden text.
    fn hides_tokens(&self) -> bool {
        self.parser.as_ref().is_some_and(SequenceParser::hides_tokens)
    }

    fn reasoning_tokens(&self) -> Option<u32> {
        self.parser.as_ref()?.reasoning_tokens()
    }

    /// Counts before the first token.
    fn opening_usage(&self) -> Usage {
        Usage { prompt: self.prompt_tokens, reasoning: self.reasoning_tokens(), ..Usage::default() }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct AnswerParts {
    pub(super) token_ids: bool,
    pub(super) prompt_text: Option<Arc<str>>,
    pub(super) prompt_tokens: u32,
    pub(super) cached: CachedTokens,
    /// True where the times of the only choice are sent.
    pub(super) times: bool,
    /// The payload of the event that ended a recorded stream, where it failed.
    pub(super) failing_event: Option<String>,
}

#[derive(Debug)]
pub(super) struct AnswerStream {
    encoder: Encoder,
    parts: AnswerParts,
    sequences: Vec<AnswerSequence>,
    /// Choices that go on: when, after how many tokens, and which.
    waiting: BinaryHeap<Reverse<(Duration, u32, usize)>>,
    /// Events before the first token that were made: the roles of all choices, then what each repeats.
    opened: usize,
    /// True where the engine failed in the middle of a choice.
    failed: bool,
    /// Where its choices that went on were aborted.
    aborted: Option<AbortedBy>,
    /// True where the end was sent, or the stream broke off instead.
    closed: bool,
    /// True where it breaks off now.
    broken: bool,
    /// The step that is being sent.
    step: ChoiceStep,
    /// What it takes of the memory for answers.
    pub(super) memory: MemoryReservation,
    /// Its requests of a simulated engine, where there is one.
    run: Option<EngineRun>,
    /// The choice that the engine gave the first token, and the tokens of its blocks.
    emitted: Option<usize>,
    cache_block: u32,
    /// When its latest step was due, and how long after the last one it is over.
    latest: Duration,
    closing: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerStep {
    /// The next step of this choice.
    Step(usize),
    Close,
}

impl AnswerStream {
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.parts.prompt_tokens
    }

    /// Checks whether the recorded stream of a choice broke off, up to which it was played.
    pub(super) fn breaks_off(&self) -> bool {
        self.aborted.is_none() && self.sequences.iter().any(|sequence| sequence.choice.breaks_off())
    }

    /// Checks whether the engine failed in the middle.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) fn new(encoder: Encoder, parts: AnswerParts, sequences: Vec<AnswerSequence>) -> Self {
        let due = |(index, sequence): (usize, &AnswerSequence)| {
            Some(Reverse((sequence.choice.next_due()?, sequence.produced, index)))
        };
        let waiting = sequences.iter().enumerate().filter_map(due).collect();
        let answer = Self {
            encoder,
            parts,
            waiting,
            opened: 0,
            failed: false,
            aborted: None,
            closed: false,
            broken: false,
            step: ChoiceStep::default(),
            memory: MemoryReservation::default(),
            run: None,
            emitted: None,
            cache_block: 0,
            latest: Duration::ZERO,
            closing: Duration::ZERO,
            sequences,
        };
        let fails = answer.sequences.iter().any(|sequence| sequence.choice.fails_at_once());
        if fails { answer.failed_at_once() } else { answer }
    }

    /// An answer that is nothing but the event of this payload.
    pub(super) fn failing(encoder: Encoder, payload: String) -> Self {
        let parts = AnswerParts { failing_event: Some(payload), ..AnswerParts::default() };
        Self::new(encoder, parts, Vec::new()).failed_at_once()
    }

    /// An engine that failed before the first token has not sent the role either.
    fn failed_at_once(self) -> Self {
        Self { failed: true, opened: usize::MAX, waiting: BinaryHeap::new(), ..self }
    }

    /// Encodes it in another form than its own.
    pub(super) fn set_form(&mut self, form: ResponseForm) {
        self.encoder.set_form(form);
    }

    /// End of the answer, where that was later than its last token.
    fn end(&self) -> Duration {
        if !self.closing.is_zero() && self.sequences.iter().all(|sequence| sequence.choice.is_whole()) {
            return self.latest.saturating_add(self.closing);
        }
        self.sequences.iter().filter_map(|sequence| sequence.choice.end()).max().unwrap_or_default()
    }

    pub(super) fn choices(&self) -> u32 {
        u32::try_from(self.sequences.len()).unwrap_or(u32::MAX)
    }

    /// Steps the choice that `next_due` named, and gives its step to `put`; nothing where there is no such choice.
    fn step<T>(&mut self, index: usize, now: Instant, put: impl FnOnce(&mut Self, &mut ChoiceStep) -> T) -> Option<T> {
        let due = self.waiting.pop().map_or(Duration::ZERO, |Reverse((due, ..))| due);
        self.latest = self.latest.max(due);
        let sequence = self.sequences.get_mut(index)?;
        let run = self.run.as_mut().filter(|run| run.has(index));
        // The engine's times are those at which its steps end.
        let now = if run.is_some() { sequence.metrics.at(due) } else { now };
        let mut step = mem::take(&mut self.step);
        sequence.choice.step(&mut step);
        if sequence.only_echoes {
            step.text.clear();
        }
        let tokens = u32::try_from(step.ids.len()).unwrap_or(u32::MAX);
        match (&step.finish, self.aborted) {
            (Some(("abort", _)), Some(AbortedBy::Engine)) if tokens == 0 => sequence.metrics.end_before_first(now),
            // Nothing comes from the engine for it.
            (Some(("abort", _)), _) if tokens == 0 => {}
            _ => sequence.metrics.step(tokens, now),
        }
        if let Some((reason, _)) = &step.finish {
            sequence.metrics.finish(reason, self.aborted);
            self.failed |= *reason == "error";
            let breaks_off = *reason == "abort" && self.aborted.is_none() && sequence.choice.breaks_off();
            step.finish.take_if(|(reason, _)| *reason == "error" || breaks_off);
        }
        sequence.produced = sequence.produced.saturating_add(tokens);
        match (run, sequence.choice.next_due()) {
            (None, next) => self.waiting.extend(next.map(|due| Reverse((due, sequence.produced, index)))),
            (Some(run), None) => run.finish(index, sequence.produced),
            (Some(_), Some(_)) => {}
        }
        let put = put(self, &mut step);
        self.step = step;
        Some(put)
    }

    /// Puts events before the first token, as many as are written together; whether that was all of them.
    fn open(&mut self, events: &mut EventBuffer) -> bool {
        let count = self.sequences.len();
        while self.opened < 2 * count {
            if events.size() >= TOGETHER {
                return false;
            }
            match self.opened.checked_sub(count) {
                None => self.put_role(self.opened, events),
                Some(index) => self.put_repeated(index, events),
            }
            self.opened += 1;
        }
        true
    }

    fn put_role(&mut self, index: usize, events: &mut EventBuffer) {
        let Some(sequence) = self.sequences.get(index) else { return };
        let prompt_ids = self.parts.token_ids.then_some(&*sequence.prompt);
        let (usage, prompt_text) = (sequence.opening_usage(), self.parts.prompt_text.as_deref());
        let opening = Opening { role: sequence.role.as_deref(), prompt_ids, prompt_text, usage };
        self.encoder.open(u32::try_from(index).unwrap_or(u32::MAX), &opening, events);
    }

    fn put_repeated(&mut self, index: usize, events: &mut EventBuffer) {
        let Some(sequence) = self.sequences.get(index) else { return };
        let Some(content) = sequence.repeated.as_deref().filter(|content| !content.is_empty()) else { return };
        let (usage, index) = (sequence.opening_usage(), u32::try_from(index).unwrap_or(u32::MAX));
        self.encoder.echo(index, content, usage, events);
    }

    /// Appends the event of a step; none where a parser holds its text back and its tokens were not asked for.
    fn put_event(&mut self, index: usize, step: &mut ChoiceStep, events: &mut EventBuffer) {
        let echoed = self.echo(index);
        let Some(sequence) = self.sequences.get_mut(index) else { return };
        let was_opened = mem::replace(&mut sequence.opened, true);
        let parsed = sequence.parser.as_mut().map(|parser| parser.event(step));
        let is_held_back = parsed.as_ref().is_some_and(Option::is_none);
        let parsed = parsed.map(Option::unwrap_or_default);
        let text = match &echoed {
            Some(echo) => &format!("{echo}{}", step.text),
            None => &step.text,
        };
        let logprobs = sequence.logprobs.as_mut().map(|logprobs| logprobs.event(&step.ids));
        let has_ids = self.parts.token_ids && !sequence.hides_tokens();
        if is_held_back && step.finish.is_none() && logprobs.is_none() && !has_ids {
            return;
        }
        let has_prompt = !was_opened && (echoed.is_some() || self.parts.token_ids);
        let piece = ChoiceChunk {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            text,
            delta: parsed.as_ref(),
            ids: has_ids.then_some(step.ids.as_slice()),
            prompt_ids: has_prompt.then_some(&*sequence.prompt),
            logprobs: logprobs.as_deref(),
            finish: step.finish.as_ref().map(|(reason, stop_reason): &(&str, StopReason)| (*reason, stop_reason)),
            usage: Usage {
                prompt: sequence.prompt_tokens,
                completion: sequence.produced,
                reasoning: sequence.reasoning_tokens(),
                ..Usage::default()
            },
        };
        self.encoder.add(&piece, events);
    }

    /// The prompt's text, once, where it is to be repeated.
    fn echo(&mut self, index: usize) -> Option<Arc<str>> {
        self.sequences.get_mut(index).and_then(|sequence| sequence.echo.take())
    }

    fn usage(&self, is_body: bool) -> Usage {
        let completion = self.sequences.iter().map(|sequence| sequence.produced).fold(0, u32::saturating_add);
        Usage {
            prompt: self.parts.prompt_tokens,
            completion,
            cached: self.cached(is_body),
            reasoning: self.sequences.iter().filter_map(AnswerSequence::reasoning_tokens).reduce(u32::saturating_add),
            times: self.times(),
        }
    }

    /// Several choices have times of their own, which are not sent.
    fn times(&self) -> Option<RequestTimes> {
        match self.sequences.as_slice() {
            [sequence] if self.parts.times => Some(sequence.metrics.times()),
            _ => None,
        }
    }
}
