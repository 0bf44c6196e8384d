//! A response that is sent as it was recorded, and counted as the engine counts its own.

use std::{
    collections::VecDeque,
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{BufMut, Bytes};
use tokio::{task::yield_now, time::Instant};

use super::{AbortedBy, Deliverable, Gate, Wait, Waited, deadline, held::HeldParts};
use crate::timing::{ResponseSchedule, TokenChunk, TokensDue};
use net::wire::EventBuffer;

/// Content of a response as it is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordedContent {
    /// Events with their recorded times, from the request's arrival.
    Events(Vec<(Duration, Bytes)>),
    /// One body.
    Body(Bytes),
}

impl RecordedContent {
    /// Replaces the body, or each event, by what is given for it.
    pub fn change(&mut self, mut with: impl FnMut(&[u8]) -> Option<String>) {
        let mut change = |part: &mut Bytes| with(part).into_iter().for_each(|changed| *part = changed.into());
        match self {
            Self::Events(events) => events.iter_mut().for_each(|(_, event)| change(event)),
            Self::Body(body) => change(body),
        }
    }
}

/// End of a response after its last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd {
    /// It is complete: its choices have ended.
    Complete,
    /// Events are missing at its end.
    Cut,
    /// The connection breaks.
    Broken,
    /// Nothing more comes, ever.
    Silent,
}

/// A token that an engine has computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineToken {
    /// Its choice, from 0.
    pub choice: usize,
    /// The end of its step, from the request's arrival.
    pub due: Duration,
}

/// Counters of the tokens of a response, and the engine that gives them, where they have no deadlines of their own.
///
/// See docs/decisions/0104-recorded-responses-pass-through-the-engine.md.
pub trait TokenCounter: Send {
    /// Counts tokens of a choice that are sent now.
    fn count(&mut self, tokens: TokensDue, now: Instant);

    /// Counts what was sent since the last call.
    fn settle(&mut self);

    /// Counts the end of all choices: their own, or that they were aborted.
    fn end(&mut self, aborted: Option<AbortedBy>);

    /// Checks whether an engine gives the tokens, and more of them come.
    fn awaits(&self) -> bool {
        false
    }

    /// Checks whether what follows a token comes as long after it as by the schedule.
    fn keeps_gaps(&self) -> bool {
        false
    }

    /// Polls for the next token of the engine; `None` where nothing more comes.
    fn poll_token(&mut self, _context: &mut Context<'_>) -> Poll<Option<EngineToken>> {
        Poll::Ready(None)
    }

    /// Ends the engine's work on a response that breaks off before its first part.
    fn stop(&mut self) {}
}

/// Nothing is counted.
impl TokenCounter for () {
    fn count(&mut self, _: TokensDue, _: Instant) {}

    fn settle(&mut self) {}

    fn end(&mut self, _: Option<AbortedBy>) {}
}

/// A recorded response on its way.
#[derive(Debug)]
pub struct RecordedResponse<C> {
    /// Events, or the one part of a body, with their deadlines.
    parts: VecDeque<(Duration, Bytes)>,
    tokens: VecDeque<TokensDue>,
    /// True where tokens are counted at deadlines of their own, before the body.
    is_body: bool,
    /// Parts that wait for an engine's tokens.
    held: Option<HeldParts>,
    end: ResponseEnd,
    counter: C,
}

/// Step of a recorded response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryStep {
    Part,
    /// Tokens of a body.
    Tokens,
    /// The wait for an event that never comes.
    Silence,
}

impl<C: TokenCounter> RecordedResponse<C> {
    /// The response of this content, as it is scheduled.
    pub fn new(content: RecordedContent, schedule: ResponseSchedule, end: ResponseEnd, counter: C) -> Self {
        let ResponseSchedule { events: dues, tokens } = schedule;
        let (parts, is_body) = match content {
            RecordedContent::Events(events) => {
                (dues.into_iter().zip(events.into_iter().map(|(_, event)| event)).collect(), false)
            }
            RecordedContent::Body(body) => (dues.into_iter().zip([body]).collect(), true),
        };
        Self { parts, tokens: tokens.into(), is_body, held: None, end, counter }
    }

    /// The same response, whose tokens come from its counter's engine where that has one: a part is due with the last of the tokens
    /// that these chunks put into it and into those before it.
    pub fn by_tokens(mut self, chunks: &[TokenChunk]) -> Self {
        if !self.counter.awaits() {
            return self;
        }
        let mut parts = std::mem::take(&mut self.parts);
        let mut latest = self.tokens.iter().map(|tokens| tokens.due).max().unwrap_or_default();
        self.tokens.clear();
        if !self.counter.keeps_gaps() {
            parts.iter_mut().for_each(|(due, _)| *due = Duration::ZERO);
            latest = Duration::ZERO;
        }
        if parts.is_empty() {
            self.counter.stop();
            return self;
        }
        self.held = Some(if self.is_body { HeldParts::body(parts, latest) } else { HeldParts::events(parts, chunks) });
        self
    }

    /// The body, at its deadline; `None` where it was aborted.
    pub async fn body<G: Gate>(mut self, zero: Instant, mut wait: Wait<G>) -> Option<Bytes> {
        let (mut body, mut latest) = (None, zero);
        loop {
            if self.awaits() {
                let token = poll_fn(|context| self.poll_step(context));
                if let Waited::Aborted(by) = wait.for_step(token, None).await {
                    self.abort(by);
                }
            }
            let Some((due, step)) = self.next_due() else { break };
            match wait.until(deadline(zero, due), None).await {
                Waited::Aborted(by) => self.abort(by),
                Waited::Due(at) => {
                    latest = at;
                    body = self.step(step, Instant::now());
                    self.settle();
                    yield_now().await;
                }
                Waited::Comment => {}
            }
        }
        wait.track(latest);
        body
    }

    /// Takes a step; its part, where it has one.
    fn step(&mut self, step: DeliveryStep, now: Instant) -> Option<Bytes> {
        match step {
            DeliveryStep::Part => {
                let (due, part) = self.parts.pop_front()?;
                self.count(due, now);
                Some(part)
            }
            DeliveryStep::Tokens => {
                let due = self.tokens.front()?.due;
                self.count(due, now);
                None
            }
            DeliveryStep::Silence => {
                self.end = ResponseEnd::Cut;
                None
            }
        }
    }

    /// Counts tokens that are due by then, and all that are left at the end.
    fn count(&mut self, until: Duration, now: Instant) {
        let is_last = self.is_sent() && self.end == ResponseEnd::Complete;
        while let Some(tokens) = self.tokens.pop_front_if(|next| is_last || next.due <= until) {
            self.counter.count(tokens, now);
        }
        if is_last {
            self.counter.end(None);
        }
    }

    /// Checks whether no part is left.
    fn is_sent(&self) -> bool {
        self.parts.is_empty() && self.held.is_none()
    }
}

impl<C: TokenCounter> Deliverable for RecordedResponse<C> {
    type Turn = DeliveryStep;

    fn next_due(&self) -> Option<(Duration, DeliveryStep)> {
        match (self.parts.front(), self.tokens.front().filter(|_| self.is_body)) {
            (Some((due, _)), Some(tokens)) if tokens.due < *due => Some((tokens.due, DeliveryStep::Tokens)),
            (Some((due, _)), _) => Some((*due, DeliveryStep::Part)),
            (None, Some(tokens)) if self.held.is_some() => Some((tokens.due, DeliveryStep::Tokens)),
            (None, _) if self.held.is_some() => None,
            (None, _) => (self.end == ResponseEnd::Silent).then_some((Duration::MAX, DeliveryStep::Silence)),
        }
    }

    fn awaits(&self) -> bool {
        self.held.is_some() && self.parts.is_empty() && (self.tokens.is_empty() || !self.is_body)
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.awaits() {
            let Poll::Ready(token) = self.counter.poll_token(context) else { return Poll::Pending };
            let Some(token) = token else {
                self.abort(AbortedBy::Engine);
                break;
            };
            let is_last = !self.counter.awaits();
            let Some(held) = &mut self.held else { break };
            if held.arrive(token, is_last, &mut self.parts, &mut self.tokens) {
                self.held = None;
            }
        }
        Poll::Ready(())
    }

    fn advance(&mut self, step: DeliveryStep, now: Instant, events: &mut EventBuffer) {
        if let Some(part) = self.step(step, now) {
            events.put(part.len(), |out| out.put_slice(&part));
        }
    }

    fn settle(&mut self) {
        self.counter.settle();
    }

    fn abort(&mut self, by: AbortedBy) {
        self.parts.clear();
        self.held = None;
        self.end = ResponseEnd::Cut;
        self.counter.end(Some(by));
    }

    fn break_off(&mut self) -> Option<&'static str> {
        let is_broken = self.end == ResponseEnd::Broken;
        self.end = ResponseEnd::Cut;
        is_broken.then_some("the record ends in a reset")
    }
}
