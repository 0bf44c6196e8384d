//! An answer that is made of tokens, delivered: its events, or its one body.

use std::{
    cmp::Reverse,
    future::poll_fn,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{task::yield_now, time::Instant};

use crate::{
    answer::{AnswerStep, AnswerStream, ChoiceStep},
    engine::EngineRun,
    generate::logprobs::SequenceLogprobs,
    recorded::failure::error_of_event,
    request::{admission::Hold, blocking::off_the_loop, budget::MemoryReservation},
};
use api::{AnswerChoice, ApiError};
use net::wire::EventBuffer;
use replay::delivery::{AbortedBy, Deliverable, STEPS, TOGETHER, Wait, Waited, deadline};

impl Deliverable for AnswerStream {
    type Turn = AnswerStep;

    /// Choices whose steps are due together alternate.
    fn next_due(&self) -> Option<(Duration, AnswerStep)> {
        if self.closed {
            return None;
        }
        Some(match self.waiting.peek() {
            Some(Reverse((due, _, index))) if !self.failed => (*due, AnswerStep::Step(*index)),
            _ if self.awaits() => (Duration::MAX, AnswerStep::Close),
            _ => (self.end(), AnswerStep::Close),
        })
    }

    fn awaits(&self) -> bool {
        !self.closed && !self.failed && self.waiting.is_empty() && self.run.as_ref().is_some_and(|run| run.is_live())
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.awaits() {
            let Some(run) = self.run.as_mut() else { break };
            let Some(emission) = ready!(run.poll_next(context)) else {
                self.abort(AbortedBy::Engine);
                continue;
            };
            let index = usize::try_from(emission.choice).unwrap_or(usize::MAX);
            let Some(sequence) = self.sequences.get_mut(index) else { continue };
            if let Some(tokens) = run.arrive(index, emission.tokens, sequence.choice.needed()) {
                sequence.choice.widen(tokens);
                if run.is_news(index, sequence.metrics.is_scheduled()) {
                    sequence.metrics.schedule(run.scheduled(index));
                }
                self.emitted.get_or_insert(index);
                let due = sequence.metrics.due(emission.at);
                self.waiting.push(Reverse((due, sequence.produced, index)));
            }
        }
        Poll::Ready(())
    }

    /// Where there is much before the first token, makes only some of that.
    fn advance(&mut self, turn: AnswerStep, now: Instant, events: &mut EventBuffer) {
        if !self.open(events) {
            return;
        }
        match turn {
            AnswerStep::Step(index) => {
                self.step(index, now, |answer, step| answer.put_event(index, step, events));
            }
            AnswerStep::Close => {
                self.closed = true;
                if self.failed {
                    self.broken = !self.encoder.fail(self.parts.failing_event.as_deref(), events);
                } else if self.breaks_off() {
                    self.broken = true;
                } else {
                    let usage = self.usage(false);
                    self.encoder.end(&usage, events);
                }
            }
        }
    }

    fn settle(&mut self) {
        for sequence in &mut self.sequences {
            sequence.metrics.settle();
        }
    }

    fn abort(&mut self, by: AbortedBy) {
        self.aborted.get_or_insert(by);
        self.closing = Duration::ZERO;
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|Reverse((_, _, index))| index);
        let running = self.run.as_mut().map(EngineRun::cancel).unwrap_or_default();
        for index in waiting.chain(running) {
            if let Some(sequence) = self.sequences.get_mut(index) {
                sequence.choice.abort();
                self.waiting.push(Reverse((Duration::ZERO, sequence.produced, index)));
            }
        }
    }

    fn break_off(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.broken).then_some("the stream broke off")
    }
}

/// A body, and what it takes of the memory for answers.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) text: String,
    pub(crate) memory: MemoryReservation,
}

/// The body of an answer that is no stream, at the deadline of its last token.
/// Errors: the recorded one where the record ended in a failure of the engine, else 500, an ended connection where it broke off, 400 and 503 where the answer takes too
/// much.
pub(crate) async fn collect(
    mut answer: AnswerStream,
    zero: Instant,
    mut wait: Wait<Hold>,
) -> Result<Collected, ApiError> {
    let mut choices = answer.blank();
    let mut latest = zero;
    loop {
        if answer.awaits() {
            let step = poll_fn(|context| answer.poll_step(context));
            if let Waited::Aborted(by) = wait.for_step(step, None).await {
                answer.abort(by);
            }
        }
        let Some((due, turn)) = answer.next_due() else { break };
        match wait.until(deadline(zero, due), None).await {
            Waited::Aborted(by) => answer.abort(by),
            Waited::Due(at) => {
                latest = at;
                let goes_on = keep(&mut answer, due, turn, &mut choices)?;
                if goes_on {
                    yield_now().await;
                }
            }
            Waited::Comment => {}
        }
    }
    wait.track(latest);
    if answer.has_failed() {
        let recorded = answer.parts.failing_event.as_deref().and_then(error_of_event);
        return Err(recorded.unwrap_or_else(|| ApiError::internal("Internal server error")));
    }
    if answer.breaks_off() {
        return Err(ApiError::broken_off());
    }
    let memory = std::mem::take(&mut answer.memory);
    let text = off_the_loop(memory.bytes(), move || Ok(answer.body(&choices))).await?;
    Ok(Collected { text, memory })
}

/// Keeps a step and what is due with it, as much as others can wait for; whether more is due.
/// Errors: 400 and 503 where the answer takes too much.
fn keep(
    answer: &mut AnswerStream,
    due: Duration,
    mut turn: AnswerStep,
    choices: &mut [AnswerChoice],
) -> Result<bool, ApiError> {
    let (now, mut size, mut goes_on) = (Instant::now(), 0_usize, true);
    for _ in 0..STEPS {
        size += answer.collect(turn, now, choices);
        match answer.next_due() {
            Some((next, more)) if next <= due => turn = more,
            _ => goes_on = false,
        }
        if !goes_on || size >= TOGETHER {
            break;
        }
    }
    answer.settle();
    answer.memory.try_reserve(size)?;
    Ok(goes_on)
}

impl AnswerStream {
    /// Steps a choice for an answer that is one body, and returns how many bytes it added.
    pub(in super::super) fn collect(&mut self, turn: AnswerStep, now: Instant, into: &mut [AnswerChoice]) -> usize {
        let AnswerStep::Step(index) = turn else {
            self.closed = true;
            return 0;
        };
        self.step(index, now, |answer, step| answer.keep(index, step, into)).unwrap_or_default()
    }

    fn keep(&mut self, index: usize, step: &mut ChoiceStep, into: &mut [AnswerChoice]) -> usize {
        let echoed = self.echo(index);
        let with_ids = self.parts.token_ids;
        let (Some(sequence), Some(choice)) = (self.sequences.get_mut(index), into.get_mut(index)) else { return 0 };
        let mut size = step.text.len() + echoed.as_ref().map_or(0, |echoed| echoed.len()) + size_of_val(&*step.ids);
        if let Some(logprobs) = sequence.logprobs.as_mut() {
            size += logprobs.keep(&step.ids);
        }
        if let Some(parser) = sequence.parser.as_mut() {
            parser.keep(step);
        }
        choice.text.push_str(&echoed.unwrap_or_default());
        choice.text.push_str(&step.text);
        if with_ids && choice.prompt_ids.is_none() {
            size += size_of_val(&*sequence.prompt);
            choice.prompt_ids = Some(sequence.prompt.to_vec());
        }
        if with_ids && !sequence.hides_tokens() {
            choice.ids.get_or_insert_default().extend_from_slice(&step.ids);
        }
        if step.finish.is_some() {
            choice.message = sequence.parser.as_mut().and_then(|parser| parser.message(&choice.text, &mut step.finish));
        }
        if let Some((reason, stop_reason)) = step.finish.take() {
            choice.role.clone_from(&sequence.role);
            repeat(sequence.repeated.as_deref(), choice);
            choice.logprobs = sequence.logprobs.as_mut().map(SequenceLogprobs::body);
            choice.prompt_logprobs = sequence.prompt_logprobs.as_deref().map(str::to_owned);
            size += choice.prompt_logprobs.as_ref().map_or(0, String::len);
            choice.finish = reason.to_owned();
            let kept = self.run.as_ref().and_then(|run| run.kept(index));
            size += kept.as_ref().map_or(0, |params| params.len());
            choice.kv_transfer_params = kept.as_deref().map(str::to_owned);
            choice.stop_reason = stop_reason;
        }
        size
    }

    /// As many empty choices as the answer has.
    pub(in super::super) fn blank(&self) -> Vec<AnswerChoice> {
        vec![AnswerChoice::default(); self.sequences.len()]
    }

    /// The one body of an answer that is no stream.
    pub(in super::super) fn body(&self, choices: &[AnswerChoice]) -> String {
        self.encoder.body(choices, &self.usage(true), self.parts.prompt_text.as_deref())
    }
}

/// Puts what a chat repeats before its own text. Content is a text then, also where the model wrote nothing.
fn repeat(repeated: Option<&str>, choice: &mut AnswerChoice) {
    let Some(repeated) = repeated else { return };
    match choice.message.as_mut() {
        Some(message) => message.content = Some([repeated, message.content.as_deref().unwrap_or_default()].concat()),
        None => choice.text.insert_str(0, repeated),
    }
}
