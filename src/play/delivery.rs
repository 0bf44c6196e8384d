//! Tells an answer at its deadlines: as a stream of events, or as one body.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::{task::consume_budget, time::Instant};

use super::answer::Answer;
use crate::{openai::ApiError, timing::Pacer};

/// Nobody waits longer: a year.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a silent stream sends.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The events of an answer, each at its deadline. Dropping the stream, as when the client leaves, frees everything.
pub(super) fn stream_of(
    answer: Answer,
    zero: Instant,
    pacer: Pacer,
    keep_alive: Option<Duration>,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let start = (answer, VecDeque::new(), pacer, zero);
    stream::unfold(start, move |(mut answer, mut ready, pacer, mut latest)| async move {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, (answer, ready, pacer, latest)));
            }
            let (due, turn) = answer.next_due()?;
            let due = deadline(zero, due);
            if let Some(comment) = keep_alive.map(|interval| latest + interval).filter(|at| *at < due) {
                wait_until(&pacer, comment).await;
                let latest = comment.max(Instant::now());
                return Some((Bytes::from_static(KEEP_ALIVE), (answer, ready, pacer, latest)));
            }
            latest = due;
            wait_until(&pacer, due).await;
            answer.advance(turn, &mut ready);
        }
    })
}

/// The body of an answer that is no stream, at the deadline of its last token.
///
/// # Errors
/// 500 where the record ended in a failure of the engine.
pub(super) async fn collect(mut answer: Answer, zero: Instant, pacer: &Pacer) -> Result<String, ApiError> {
    let mut choices = answer.blank();
    while let Some((due, turn)) = answer.next_due() {
        wait_until(pacer, deadline(zero, due)).await;
        answer.collect(turn, &mut choices);
    }
    if answer.has_failed() { Err(ApiError::internal("Internal server error")) } else { Ok(answer.body(&choices)) }
}

/// When something is due; what a trace puts further away than a clock can tell is due in a year.
fn deadline(zero: Instant, due: Duration) -> Instant {
    zero + due.min(FAR)
}

async fn wait_until(pacer: &Pacer, deadline: Instant) {
    if deadline > Instant::now() {
        pacer.sleep_until(deadline).await;
    } else {
        // What is due at once must not keep others from their turn.
        consume_budget().await;
    }
}
