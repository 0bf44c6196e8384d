//! A response as a stream of events, each at its deadline.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::{task::yield_now, time::Instant};

use super::{AbortedBy, Gate, Wait, Waited, deadline};
use net::{server::BodyError, wire::EventBuffer};

/// Bytes that are written together at the most, so that a long response that is due at once neither fills the memory nor keeps
/// others from their turn.
pub const TOGETHER: usize = 32 * 1024;

/// Steps after which others get their turn.
pub const STEPS: usize = 256;

/// Comment that a silent stream sends.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// A response that can be delivered at deadlines: one that is made of tokens, or one that is sent as it was recorded.
pub trait Deliverable {
    /// Next step.
    type Turn: Copy + Send;

    /// The next step and its deadline; `None` once all is sent.
    fn next_due(&self) -> Option<(Duration, Self::Turn)>;

    /// Checks whether the next step comes from elsewhere and has not come; its deadline is known then only.
    fn awaits(&self) -> bool {
        false
    }

    /// Polls for the step that is awaited.
    fn poll_step(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Makes what is due into events.
    fn advance(&mut self, turn: Self::Turn, now: Instant, events: &mut EventBuffer);

    /// Counts what was sent since the last call.
    fn settle(&mut self);

    /// Ends it, at once.
    fn abort(&mut self, by: AbortedBy);

    /// Returns why the connection breaks after the last step, where it does.
    fn break_off(&mut self) -> Option<&'static str> {
        None
    }
}

/// The events of a response in the shape that is wanted, such as frames of a body, each at its deadline, and the error with which it breaks
/// off where it does. Dropping the stream, as when the client leaves, frees everything.
pub fn stream_of<A, G, T>(
    response: A,
    zero: Instant,
    wait: Wait<G>,
    keep_alive: Option<Duration>,
    shape: impl Fn(Bytes) -> T + Send + 'static,
) -> impl Stream<Item = Result<T, BodyError>> + Send + 'static
where
    A: Deliverable + Send + 'static,
    G: Gate + 'static,
{
    let ready = EventBuffer::default();
    let delivery = Box::new(StreamDelivery { response, zero, wait, keep_alive, ready, latest: zero, sent: false });
    // Shaped here and not by a stream around this one: each event would pass through that too.
    stream::unfold((delivery, shape), async |(mut delivery, shape)| {
        if let Some(event) = delivery.next().await {
            return Some((Ok(shape(event)), (delivery, shape)));
        }
        let why = delivery.response.break_off()?;
        Some((Err(BodyError::Aborted(why)), (delivery, shape)))
    })
}

struct StreamDelivery<A, G> {
    response: A,
    zero: Instant,
    wait: Wait<G>,
    keep_alive: Option<Duration>,
    ready: EventBuffer,
    /// When something was sent last.
    latest: Instant,
    /// True where anything was sent yet.
    sent: bool,
}

impl<A: Deliverable + Send, G: Gate> StreamDelivery<A, G> {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.next() {
                return Some(event);
            }
            let comment = self.keep_alive.map(|interval| self.latest + interval);
            let mut sent = self.sent;
            if self.response.awaits() {
                // While it waits, what was sent before is written.
                let step = poll_fn(|context| {
                    let polled = self.response.poll_step(context);
                    sent &= polled.is_ready();
                    polled
                });
                match self.wait.for_step(step, comment).await {
                    Waited::Due(_) => {}
                    Waited::Comment => return Some(self.comment()),
                    Waited::Aborted(by) => self.response.abort(by),
                }
            }
            let (due, turn) = self.response.next_due()?;
            match after_written(sent, self.wait.until(deadline(self.zero, due), comment)).await {
                Waited::Due(at) => {
                    self.latest = at;
                    self.send(due, turn);
                    if self.ready.is_empty() {
                        // Text that is held back, much of which may be due at once.
                        yield_now().await;
                    } else {
                        self.sent = true;
                        self.wait.track(at);
                    }
                }
                Waited::Comment => return Some(self.comment()),
                Waited::Aborted(by) => self.response.abort(by),
            }
        }
    }

    fn comment(&mut self) -> Bytes {
        self.latest = Instant::now();
        Bytes::from_static(KEEP_ALIVE)
    }

    /// Makes events of a step and of those that are due with it: the same deadline, or none of its own, as the end of an answer has none.
    fn send(&mut self, due: Duration, mut turn: A::Turn) {
        let now = Instant::now();
        for _ in 0..STEPS {
            self.response.advance(turn, now, &mut self.ready);
            match self.response.next_due() {
                Some((next, more)) if next <= due && self.ready.size() < TOGETHER => turn = more,
                _ => break,
            }
        }
        self.response.settle();
    }
}

/// Waits. What is due at once although something was sent before waits until that is written.
async fn after_written(was_sent: bool, wait: impl Future<Output = Waited>) -> Waited {
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
