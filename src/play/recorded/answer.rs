//! A recorded response on its way: its events by when they are due.

use std::{collections::VecDeque, time::Duration};

use bytes::{BufMut, Bytes};
use tokio::time::Instant;

use crate::{
    net::wire::EventBuffer,
    play::{delivery::Deliverable, metrics::Flight},
    recording::trace::{FinishReason, Record},
    replay::timing::{Pacing, Schedule},
};

/// Content of a response as it is sent.
pub(super) enum Content {
    /// Events with their recorded times.
    Events(Vec<(Duration, Bytes)>),
    Body(Bytes),
}

/// A recorded response on its way.
#[derive(Debug)]
pub(super) struct RecordedAnswer {
    events: VecDeque<(Duration, Bytes)>,
    /// Times and counts of tokens, for the engine's counters.
    tokens: VecDeque<(Duration, u32)>,
    flight: Option<Flight>,
    finish: &'static str,
}

impl RecordedAnswer {
    pub(super) fn new(content: Content, record: &Record, pacing: Pacing, flight: Option<Flight>) -> Self {
        let due: VecDeque<(Duration, u32)> =
            Schedule::of(record, pacing, None).map(|chunk| (chunk.due, chunk.tokens)).collect();
        let events = match content {
            Content::Events(events) => {
                let times = dues(record, events.iter().map(|(at, _)| *at), pacing, &due);
                times.zip(&events).map(|(due, (_, event))| (due, event.clone())).collect()
            }
            Content::Body(body) => {
                let last = due.back().map_or(Duration::ZERO, |(due, _)| *due);
                let end = match pacing {
                    Pacing::Recorded { scale } => scale.apply(record.e2e.unwrap_or_default()).max(last),
                    Pacing::Fixed { ttft, .. } => last.max(ttft),
                    Pacing::Instant => Duration::ZERO,
                };
                VecDeque::from([(end, body)])
            }
        };
        let finish = match record.finish_reason {
            Some(FinishReason::Stop) => "stop",
            Some(FinishReason::Length) => "length",
            Some(FinishReason::Error) => "error",
            Some(FinishReason::Repetition) => "repetition",
            Some(FinishReason::Abort) | None => "abort",
        };
        Self { events, tokens: due, flight, finish }
    }

    fn count(&mut self, until: Duration, now: Instant) {
        let Some(flight) = &mut self.flight else { return };
        let is_last = self.events.is_empty();
        while let Some((_, tokens)) = self.tokens.pop_front_if(|(due, _)| is_last || *due <= until) {
            flight.step(tokens, now);
        }
        if is_last {
            flight.finish(self.finish);
        }
    }
}

/// Deadlines of events: their times, or those of the chunks of tokens that they came with.
fn dues<'a>(
    record: &'a Record,
    times: impl Iterator<Item = Duration> + 'a,
    pacing: Pacing,
    chunks: &'a VecDeque<(Duration, u32)>,
) -> impl Iterator<Item = Duration> + 'a {
    let mut recorded = record
        .emissions()
        .scan(Duration::ZERO, |sum, chunk| {
            *sum = sum.saturating_add(chunk.gap);
            Some(*sum)
        })
        .peekable();
    let mut seen = 0_usize;
    times.map(move |at| match pacing {
        Pacing::Recorded { scale } => scale.apply(at),
        Pacing::Instant => Duration::ZERO,
        Pacing::Fixed { ttft, .. } => {
            while recorded.next_if(|chunk| *chunk <= at).is_some() {
                seen += 1;
            }
            chunks.get(seen.saturating_sub(1)).or(chunks.back()).map_or(ttft, |(due, _)| *due)
        }
    })
}

impl Deliverable for RecordedAnswer {
    type Turn = ();

    fn next_due(&self) -> Option<(Duration, ())> {
        self.events.front().map(|(due, _)| (*due, ()))
    }

    fn advance(&mut self, (): (), now: Instant, events: &mut EventBuffer) {
        let Some((due, event)) = self.events.pop_front() else { return };
        events.put(event.len(), |out| out.put_slice(&event));
        self.count(due, now);
    }

    fn settle(&mut self) {
        self.flight.iter_mut().for_each(Flight::settle);
    }

    fn abort(&mut self) {
        self.events.clear();
    }
}
