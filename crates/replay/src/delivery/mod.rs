//! Delivery of responses at their deadlines: made of tokens or sent as recorded, from a trace or from a cassette.
//!
//! A [`Deliverable`] gives its next deadline and makes what is due into events. The [`Wait`] for a deadline measures lateness and
//! obeys the [`Gate`] of a server that can pause and abort.
//!
//! Events that are due together are handed over together, each an HTTP chunk of its own as the engine has it, and leave in
//! one write. Events that are not never do, however late they are: before the next one is handed over, the connection
//! writes what it has.
//!
//! See docs/decisions/0058-one-delivery.md.

mod held;
mod recorded;
mod stream;

use std::{convert::Infallible, future::Future, time::Duration};

use tokio::{
    select,
    task::consume_budget,
    time::{Instant, sleep_until},
};

pub use self::{
    recorded::{EngineToken, RecordedContent, RecordedResponse, ResponseEnd, TokenCounter},
    stream::{Deliverable, STEPS, TOGETHER, stream_of},
};
use super::timing::{Pacer, Pacing};
use base::stats::StreamClass;
use net::server::LatenessTracker;

/// Longest wait: a year.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Pacer of a connection's responses, and the record of their lateness.
#[derive(Debug, Clone)]
pub struct Clock {
    /// What waits until a deadline.
    pub pacer: Pacer,
    /// Where it is counted how late each event left.
    pub lateness: LatenessTracker,
}

/// End of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// At the deadline of what was waited for, or as soon as it was let through.
    Due(Instant),
    /// At the time of the comment.
    Comment,
    /// The response is to end now. Given once; what follows waits for nothing.
    Aborted(AbortedBy),
}

/// Origin of an abort. vLLM counts requests that the engine ended as finished, and none that the server took back from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortedBy {
    /// A pause of the engine, or its end.
    Engine,
    /// The server, for a client or by `/abort_requests`.
    Server,
}

/// Admission of a response on its way, by a server that can hold it back and abort it.
pub trait Gate: Send {
    /// Waits for a deadline, moved on by the time that the response was held, or for the earlier time of a comment.
    fn wait(&mut self, pacer: &Pacer, due: Instant, comment: Option<Instant>) -> impl Future<Output = Waited> + Send;

    /// Waits for a step that comes from elsewhere, or for the time of a comment.
    fn wait_for(
        &mut self,
        step: impl Future<Output = ()> + Send,
        comment: Option<Instant>,
    ) -> impl Future<Output = Waited> + Send;
}

/// The gate of a server that holds nothing back: there is none.
impl Gate for Infallible {
    async fn wait(&mut self, _: &Pacer, _: Instant, _: Option<Instant>) -> Waited {
        match *self {}
    }

    async fn wait_for(&mut self, _: impl Future<Output = ()> + Send, _: Option<Instant>) -> Waited {
        match *self {}
    }
}

/// Means by which a response waits: a clock, and a gate where the server has one.
#[derive(Debug)]
pub struct Wait<G = Infallible> {
    /// The connection's clock.
    pub clock: Clock,
    /// Class of its lateness.
    pub class: StreamClass,
    /// What an event waits for beside its deadline.
    pub gate: Option<G>,
}

impl<G: Gate> Wait<G> {
    /// Waits until an error is due that is the whole response.
    pub async fn for_failure(mut self, zero: Instant, due: Duration) {
        if let Waited::Due(at) = self.until(deadline(zero, due), None).await {
            self.track(at);
        }
    }

    /// Waits for a deadline, or for the earlier time of a comment.
    pub async fn until(&mut self, due: Instant, comment: Option<Instant>) -> Waited {
        if let Some(gate) = &mut self.gate {
            return gate.wait(&self.clock.pacer, due, comment).await;
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

    /// Waits for a step that comes from elsewhere, or for the time of a comment.
    pub async fn for_step(&mut self, step: impl Future<Output = ()> + Send, comment: Option<Instant>) -> Waited {
        match &mut self.gate {
            Some(gate) => gate.wait_for(step, comment).await,
            None => step_or_comment(step, comment).await,
        }
    }

    /// Registers an event that is handed over now and was due then.
    pub fn track(&self, due: Instant) {
        self.clock.lateness.track(self.class, due);
    }
}

/// Waits for a step, or for the time of a comment.
pub async fn step_or_comment(step: impl Future<Output = ()>, comment: Option<Instant>) -> Waited {
    let Some(comment) = comment else {
        step.await;
        return Waited::Due(Instant::now());
    };
    select! {
        biased;
        () = step => Waited::Due(Instant::now()),
        () = sleep_until(comment) => Waited::Comment,
    }
}

/// Waits for a deadline.
pub async fn until(pacer: &Pacer, deadline: Instant) {
    if deadline > Instant::now() {
        pacer.sleep_until(deadline).await;
    } else {
        // What is due at once must not keep others from their turn.
        consume_budget().await;
    }
}

/// When something is due; what a record puts further away than a clock can reach is due in a year.
#[must_use]
pub fn deadline(zero: Instant, due: Duration) -> Instant {
    zero + due.min(FAR)
}

/// Class of the lateness of a recorded response.
#[must_use]
pub fn class_of(is_stream: bool, pacing: Pacing) -> StreamClass {
    match pacing {
        _ if !is_stream => StreamClass::Whole,
        Pacing::Recorded { .. } => StreamClass::Recorded,
        Pacing::Fixed { .. } => StreamClass::Fixed,
        Pacing::Instant => StreamClass::Instant,
    }
}
