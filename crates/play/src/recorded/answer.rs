//! The deadlines of a trace's recorded response, and its tokens as a simulated engine computes them.

use std::time::Duration;

use serde_json::Value;

use super::Candidate;
use crate::{ServerState, http::header_text, selection::select::missing_reason};
use net::wire::json_as_utf8;
use recording::trace::{Chunk, FinishReason, Record, Response};
use replay::{
    delivery::RecordedContent,
    meter::{chunks_of, event_data},
    player::{EngineExchange, EngineInput, Generated, GeneratedChoice, response_texts},
    timing::{Pacing, ResponseSchedule, TokenChunk},
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
fn finish(record: &Record) -> &'static str {
    record.finish_reason.or_else(|| missing_reason(record, u32::MAX)).map_or("abort", FinishReason::name)
}

/// The counts of a response, with its token ids where an engine is simulated. The choices of a request are one request of the engine, with
/// the tokens of the first.
pub(super) fn generated(
    state: &ServerState,
    (record, response): (&Record, &Response),
    request: &Candidate,
) -> Generated {
    Generated {
        prompt_tokens: record.prompt_tokens,
        cached_tokens: record.cached_tokens.unwrap_or(0),
        max_tokens: request.limit,
        choices: vec![GeneratedChoice {
            prompt_tokens: record.prompt_tokens,
            tokens: record.output_tokens,
            finish: finish(record),
        }],
        engine_input: state.engine.as_ref().and_then(|_| engine_input(state, record, response, request)),
    }
}

fn engine_input(state: &ServerState, record: &Record, response: &Response, request: &Candidate) -> Option<EngineInput> {
    let body: Value = serde_json::from_slice(&json_as_utf8(&request.body)).unwrap_or_default();
    let path = request.uri.path();
    let exchange = EngineExchange {
        path,
        bytes: &request.body,
        body: &body,
        session: header_text(&request.headers, "x-session-id"),
        prompt_tokens: record.prompt_tokens,
        outputs: vec![(record.output_tokens, response_texts(path, response).concat())],
    };
    let model = &state.model;
    let tokenizer = Some(&model.tokenizer).filter(|tokenizer| !tokenizer.is_ids_only());
    EngineInput::of(&exchange, tokenizer, model.max_model_len)
}
