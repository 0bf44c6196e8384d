//! Delivers an answer at its deadlines: as a stream of events, or as one body.
//!
//! Events that are due together are handed over together, each an HTTP chunk of its own as the engine has it, and leave in
//! one write. Events that are not never do, however late they are: before the next one is handed over, the connection
//! writes what it has.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::{task::yield_now, time::Instant};

use super::{
    admission::{Hold, Waited, until},
    answer::{Answer, Turn},
    blocking::off_the_loop,
    budget::Share,
};
use crate::{
    api::{AnswerChoice, ApiError},
    base::stats::StreamClass,
    net::{server::LatenessTracker, wire::EventBuffer},
    replay::timing::Pacer,
};

/// Longest wait: a year.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Pacer of a connection's answers, and the record of their lateness.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    pub(super) pacer: Pacer,
    pub(super) lateness: LatenessTracker,
}

/// Means by which an answer waits: a clock, and an admission where the server has one.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) clock: Clock,
    /// Class of its lateness.
    pub(super) class: StreamClass,
    pub(super) hold: Option<Hold>,
}

impl Wait {
    /// Waits until an error is due that is the whole answer.
    pub(super) async fn for_failure(mut self, zero: Instant, due: Duration) {
        if let Waited::Due(at) = self.until(deadline(zero, due), None).await {
            self.clock.lateness.track(self.class, at);
        }
    }

    async fn until(&mut self, due: Instant, comment: Option<Instant>) -> Waited {
        if let Some(hold) = &mut self.hold {
            return hold.wait(&self.clock.pacer, due, comment).await;
        }
        match comment.filter(|at| *at < due) {
            Some(comment) => {
                until(&self.clock.pacer, comment).await;
                Waited::Comment
            }
            None => {
                until(&self.clock.pacer, due).await;
                Waited::Due(due)
            }
        }
    }
}

/// Bytes that are written together at the most, so that a long answer that is due at once neither fills the memory nor keeps
/// others from their turn.
pub(super) const TOGETHER: usize = 32 * 1024;

/// Steps after which others get their turn.
const STEPS: usize = 256;

/// An answer that can be delivered at deadlines: one that is made of tokens, or one that was recorded as it was sent.
pub(super) trait Deliverable {
    /// Next step.
    type Turn: Copy + Send;

    /// The next step and its deadline; `None` once all is sent.
    fn next_due(&self) -> Option<(Duration, Self::Turn)>;

    /// Makes what is due into events.
    fn advance(&mut self, turn: Self::Turn, now: Instant, events: &mut EventBuffer);

    /// Counts what was sent since the last call.
    fn settle(&mut self);

    /// Ends it, at once.
    fn abort(&mut self);
}

impl Deliverable for Answer {
    type Turn = Turn;

    fn next_due(&self) -> Option<(Duration, Turn)> {
        self.next_due()
    }

    fn advance(&mut self, turn: Turn, now: Instant, events: &mut EventBuffer) {
        self.advance(turn, now, events);
    }

    fn settle(&mut self) {
        self.settle();
    }

    fn abort(&mut self) {
        self.abort();
    }
}

/// Comment that a silent stream sends.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The events of an answer, each at its deadline. Dropping the stream, as when the client leaves, frees everything.
pub(super) fn stream_of<A: Deliverable + Send + 'static>(
    answer: A,
    zero: Instant,
    wait: Wait,
    keep_alive: Option<Duration>,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let delivery =
        Delivery { answer, zero, wait, keep_alive, ready: EventBuffer::default(), latest: zero, sent: false };
    stream::unfold(Box::new(delivery), async |mut delivery| {
        let event = delivery.next().await?;
        Some((event, delivery))
    })
}

/// An answer that is being delivered.
struct Delivery<A> {
    answer: A,
    zero: Instant,
    wait: Wait,
    keep_alive: Option<Duration>,
    /// Events that are due.
    ready: EventBuffer,
    /// When something was sent last.
    latest: Instant,
    /// True where anything was sent yet.
    sent: bool,
}

impl<A: Deliverable> Delivery<A> {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.next() {
                return Some(event);
            }
            let (due, turn) = self.answer.next_due()?;
            let comment = self.keep_alive.map(|interval| self.latest + interval);
            match apart(self.sent, self.wait.until(deadline(self.zero, due), comment)).await {
                Waited::Due(at) => {
                    self.latest = at;
                    self.send(due, turn);
                    if self.ready.is_empty() {
                        // Text that is held back, much of which may be due at once.
                        yield_now().await;
                    } else {
                        self.sent = true;
                        self.wait.clock.lateness.track(self.wait.class, at);
                    }
                }
                Waited::Comment => {
                    self.latest = Instant::now();
                    return Some(Bytes::from_static(KEEP_ALIVE));
                }
                Waited::Aborted => self.answer.abort(),
            }
        }
    }

    /// Makes events of a step and of those that are due with it: the same deadline, or none of its own, as the end of an answer has none.
    fn send(&mut self, due: Duration, mut turn: A::Turn) {
        let now = Instant::now();
        for _ in 0..STEPS {
            self.answer.advance(turn, now, &mut self.ready);
            match self.answer.next_due() {
                Some((next, more)) if next <= due && self.ready.size() < TOGETHER => turn = more,
                _ => break,
            }
        }
        self.answer.settle();
    }
}

/// Waits. What is due at once although something was sent before waits until that is written.
async fn apart(was_sent: bool, wait: impl Future<Output = Waited>) -> Waited {
    let mut wait = pin!(wait);
    match poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await {
        Poll::Ready(waited) => {
            if was_sent {
                yield_now().await;
            }
            waited
        }
        Poll::Pending => wait.await,
    }
}

/// A body, and what it takes of the memory for answers.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) text: String,
    pub(super) share: Share,
}

/// The body of an answer that is no stream, at the deadline of its last token.
///
/// # Errors
/// 500 where the record ended in a failure of the engine, 400 and 503 where the answer takes too much.
pub(super) async fn collect(mut answer: Answer, zero: Instant, mut wait: Wait) -> Result<Collected, ApiError> {
    let mut choices = answer.blank();
    let mut latest = zero;
    while let Some((due, turn)) = answer.next_due() {
        match wait.until(deadline(zero, due), None).await {
            Waited::Aborted => answer.abort(),
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
    wait.clock.lateness.track(wait.class, latest);
    if answer.has_failed() {
        return Err(ApiError::internal("Internal server error"));
    }
    let share = std::mem::take(&mut answer.share);
    let text = off_the_loop(share.bytes(), move || Ok(answer.body(&choices))).await?;
    Ok(Collected { text, share })
}

/// The events of an answer one after the other, at the deadline of its last one.
pub(super) async fn gathered<A: Deliverable>(mut answer: A, zero: Instant, mut wait: Wait) -> Bytes {
    let (mut events, mut latest) = (EventBuffer::default(), zero);
    while let Some((due, turn)) = answer.next_due() {
        match wait.until(deadline(zero, due), None).await {
            Waited::Aborted => answer.abort(),
            Waited::Due(at) => {
                latest = at;
                answer.advance(turn, Instant::now(), &mut events);
                answer.settle();
            }
            Waited::Comment => {}
        }
    }
    wait.clock.lateness.track(wait.class, latest);
    events.into_bytes()
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
    answer.share.grow(size)?;
    Ok(goes_on)
}

/// When something is due; what a trace puts further away than a clock can reach is due in a year.
fn deadline(zero: Instant, due: Duration) -> Instant {
    zero + due.min(FAR)
}
