//! The deadlines of a trace's recorded response.

use std::time::Duration;

use crate::{
    play::selection::select::missing_reason,
    recording::trace::{Chunk, FinishReason, Record},
    replay::delivery::RecordedContent,
    replay::meter::{chunks_of, event_data},
    replay::timing::{Pacing, ResponseSchedule, TokenChunk},
};

/// Finds the chunks of a content. Those of a stream are those of the record; those of a body that is sent as a stream are found in
/// its events.
pub(super) fn chunks(content: &RecordedContent, record: &Record) -> Vec<TokenChunk> {
    let RecordedContent::Events(events) = content else { return chunks_at(&[], record) };
    if record.stream == Some(false) {
        return chunks_of(events.iter().map(|(at, event)| (*at, event_data(event))), &[record.output_tokens]);
    }
    let times: Vec<Duration> = events.iter().map(|(at, _)| *at).collect();
    chunks_at(&times, record)
}

/// Gives the content of a record, which has these chunks, its deadlines.
pub(super) fn schedule(
    content: &RecordedContent,
    record: &Record,
    chunks: &[TokenChunk],
    pacing: Pacing,
) -> ResponseSchedule {
    match content {
        RecordedContent::Events(events) => {
            let times: Vec<Duration> = events.iter().map(|(at, _)| *at).collect();
            ResponseSchedule::stream(&times, chunks, pacing)
        }
        RecordedContent::Body(_) => {
            let last = chunks.last().map_or(Duration::ZERO, |chunk| chunk.at);
            let end = record.e2e.map_or(last, |e2e| e2e.max(last));
            let chunks = if record.stream == Some(false) { &[] } else { chunks };
            ResponseSchedule::body(end, chunks, &[record.output_tokens], pacing)
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

/// The engine's word for the end of a record; `abort` for one that was cut short.
pub(super) fn finish(record: &Record) -> &'static str {
    record.finish_reason.or_else(|| missing_reason(record, u32::MAX)).map_or("abort", FinishReason::name)
}
