//! An answer that is made of tokens, delivered: its events, or its one body.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{task::yield_now, time::Instant};

use crate::{
    api::{AnswerChoice, ApiError},
    net::wire::EventBuffer,
    play::{
        answer::{Answer, Turn},
        request::{admission::Hold, blocking::off_the_loop, budget::MemoryReservation},
    },
    replay::delivery::{AbortedBy, Deliverable, STEPS, TOGETHER, Wait, Waited, deadline},
};

impl Deliverable for Answer {
    type Turn = Turn;

    fn next_due(&self) -> Option<(Duration, Turn)> {
        self.next_due()
    }

    fn awaits(&self) -> bool {
        self.awaits()
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_step(context)
    }

    fn advance(&mut self, turn: Turn, now: Instant, events: &mut EventBuffer) {
        self.advance(turn, now, events);
    }

    fn settle(&mut self) {
        self.settle();
    }

    fn abort(&mut self, by: AbortedBy) {
        self.abort(by);
    }
}

/// A body, and what it takes of the memory for answers.
#[derive(Debug)]
pub(in crate::play) struct Collected {
    pub(in crate::play) text: String,
    pub(in crate::play) memory: MemoryReservation,
}

/// The body of an answer that is no stream, at the deadline of its last token.
///
/// # Errors
/// 500 where the record ended in a failure of the engine, 400 and 503 where the answer takes too much.
pub(in crate::play) async fn collect(
    mut answer: Answer,
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
        return Err(ApiError::internal("Internal server error"));
    }
    let memory = std::mem::take(&mut answer.memory);
    let text = off_the_loop(memory.bytes(), move || Ok(answer.body(&choices))).await?;
    Ok(Collected { text, memory })
}

/// Keeps a step and what is due with it, as much as others can wait for; whether more is due.
///
/// # Errors
/// 400 and 503 where the answer takes too much.
fn keep(answer: &mut Answer, due: Duration, mut turn: Turn, choices: &mut [AnswerChoice]) -> Result<bool, ApiError> {
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
