//! Tells an answer at its deadlines: as a stream of events, or as one body.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::time::Instant;

use super::{
    answer::Answer,
    gate::{Hold, Waited, until},
};
use crate::{openai::ApiError, serve::Outbox, stats::StreamClass, timing::Pacer};

/// Nobody waits longer: a year.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a connection's answers wait by, and where they note what they hand over.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    pub(super) pacer: Pacer,
    pub(super) outbox: Outbox,
}

/// What lets an answer wait: a clock, and a gate where the server has one.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) clock: Clock,
    /// What its lateness counts among.
    pub(super) class: StreamClass,
    pub(super) hold: Option<Hold>,
}

impl Wait {
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

/// What a silent stream sends.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The events of an answer, each at its deadline. Dropping the stream, as when the client leaves, frees everything.
pub(super) fn stream_of(
    answer: Answer,
    zero: Instant,
    wait: Wait,
    keep_alive: Option<Duration>,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let start = (answer, VecDeque::new(), wait, zero);
    stream::unfold(start, move |(mut answer, mut ready, mut wait, mut latest)| async move {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, (answer, ready, wait, latest)));
            }
            let (due, turn) = answer.next_due()?;
            match wait.until(deadline(zero, due), keep_alive.map(|interval| latest + interval)).await {
                Waited::Due(at) => {
                    latest = at;
                    answer.advance(turn, &mut ready);
                    if !ready.is_empty() {
                        wait.clock.outbox.note(wait.class, at);
                    }
                }
                Waited::Comment => {
                    let latest = Instant::now();
                    return Some((Bytes::from_static(KEEP_ALIVE), (answer, ready, wait, latest)));
                }
                Waited::Aborted => answer.abort(),
            }
        }
    })
}

/// The body of an answer that is no stream, at the deadline of its last token.
///
/// # Errors
/// 500 where the record ended in a failure of the engine.
pub(super) async fn collect(mut answer: Answer, zero: Instant, mut wait: Wait) -> Result<String, ApiError> {
    let mut choices = answer.blank();
    let mut latest = zero;
    while let Some((due, turn)) = answer.next_due() {
        match wait.until(deadline(zero, due), None).await {
            Waited::Aborted => answer.abort(),
            Waited::Due(at) => {
                latest = at;
                answer.collect(turn, &mut choices);
            }
            Waited::Comment => {}
        }
    }
    wait.clock.outbox.note(wait.class, latest);
    if answer.has_failed() { Err(ApiError::internal("Internal server error")) } else { Ok(answer.body(&choices)) }
}

/// When something is due; what a trace puts further away than a clock can tell is due in a year.
fn deadline(zero: Instant, due: Duration) -> Instant {
    zero + due.min(FAR)
}
