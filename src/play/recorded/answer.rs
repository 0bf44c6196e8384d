//! The deadlines of a trace's recorded response.

use std::time::Duration;

use crate::{
    recording::trace::{Chunk, FinishReason, Record},
    replay::{
        delivery::RecordedContent,
        meter::{chunks_of, event_data},
        timing::{Pacing, ResponseSchedule, TokenChunk},
    },
};

/// Gives the content of a record its deadlines. The chunks of a stream are those of the record; those of a body that is sent as
/// a stream are found in its events.
pub(super) fn schedule(content: &RecordedContent, record: &Record, pacing: Pacing) -> ResponseSchedule {
    let totals = [record.output_tokens];
    let is_recorded_stream = record.stream != Some(false);
    match content {
        RecordedContent::Events(events) => {
            let times: Vec<Duration> = events.iter().map(|(at, _)| *at).collect();
            let chunks = if is_recorded_stream {
                chunks_at(&times, record)
            } else {
                chunks_of(events.iter().map(|(at, event)| (*at, event_data(event))), &totals)
            };
            ResponseSchedule::stream(&times, &chunks, pacing)
        }
        RecordedContent::Body(_) => {
            let chunks = chunks_at(&[], record);
            let last = chunks.last().map_or(Duration::ZERO, |chunk| chunk.at);
            let end = record.e2e.map_or(last, |e2e| e2e.max(last));
            let chunks = if is_recorded_stream { chunks.as_slice() } else { &[] };
            ResponseSchedule::body(end, chunks, &totals, pacing)
        }
    }
}

/// The chunks of a record, each with the first event that came with it or after it.
fn chunks_at(times: &[Duration], record: &Record) -> Vec<TokenChunk> {
    let (mut at, mut event) = (Duration::ZERO, 0);
    let chunk = |chunk: Chunk| {
        at = at.saturating_add(chunk.gap);
        while times.get(event).is_some_and(|time| *time < at) && event + 1 < times.len() {
            event += 1;
        }
        TokenChunk { event, at, choice: 0, tokens: chunk.tokens }
    };
    record.emissions().map(chunk).collect()
}

/// The engine's word for the end of a record.
pub(super) fn finish(record: &Record) -> &'static str {
    match record.finish_reason {
        Some(FinishReason::Stop) => "stop",
        Some(FinishReason::Length) => "length",
        Some(FinishReason::Error) => "error",
        Some(FinishReason::Repetition) => "repetition",
        Some(FinishReason::Abort) | None => "abort",
    }
}
