//! Answers from cassettes, counted as the engine counts its own: a step for each event that tells something, one token each, and
//! what is left with the last one.
//!
//! Limits: an answer that is one body has its tokens evenly between its request and its end; with several choices, tokens are
//! shared out evenly, since a record does not say whose they were.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use memchr::memmem;
use tokio::time::Instant;

use super::{Flight, Group, Metrics};
use crate::{net::server::BodyError, play::http::AnswerBody, replay::player::Generated};

/// How texts that are not empty begin in events; white space aside.
const TEXTS: [&[u8]; 8] = [
    b"\"content\":",
    b"\"reasoning\":",
    b"\"reasoning_content\":",
    b"\"arguments\":",
    b"\"text\":",
    b"\"thinking\":",
    b"\"partial_json\":",
    b"\"delta\":",
];

/// What the last event of a stream holds.
const ENDS: [&[u8]; 3] = [b"[DONE]", b"\"message_stop\"", b"\"response.completed\""];

/// Counts an answer that came from a cassette to a request that came at that time.
pub(in super::super) fn count(
    metrics: &Metrics,
    mut response: Response<AnswerBody>,
    at: Instant,
) -> Response<AnswerBody> {
    let Some(generated) = response.extensions_mut().remove::<Generated>() else { return response };
    let choices = u32::try_from(generated.choices.len()).unwrap_or(u32::MAX);
    // A cassette answers however many there are.
    let Ok(places) = metrics.admit(choices, None) else { return response };
    let group = Group::new(metrics, at, choices, places);
    let sequence = |choice: &crate::replay::player::GeneratedChoice| Sequence {
        flight: Some(group.start(
            generated.prompt_tokens,
            generated.cached_tokens,
            generated.max_tokens.max(choice.tokens),
        )),
        left: choice.tokens,
        finish: choice.finish,
    };
    let sequences = generated.choices.iter().map(sequence).collect();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    response.map(|body| Counted { body, sequences, at, is_stream }.boxed_unsync())
}

/// A choice on its way.
struct Sequence {
    /// `None` once it has ended.
    flight: Option<Flight>,
    /// Tokens that were not told yet.
    left: u32,
    finish: &'static str,
}

impl Sequence {
    fn step(&mut self, tokens: u32, now: Instant) {
        let tokens = tokens.min(self.left);
        if let Some(flight) = self.flight.as_mut().filter(|_| tokens > 0) {
            self.left -= tokens;
            flight.step(tokens, now);
            flight.settle();
        }
    }

    /// Ends, with one more step for what was not told.
    fn end(&mut self, now: Instant) {
        self.step(self.left, now);
        if let Some(mut flight) = self.flight.take() {
            flight.finish(self.finish);
        }
    }
}

/// A body whose parts are counted as they leave. One that is not read to its end ends in no way that counts.
struct Counted {
    body: AnswerBody,
    sequences: Vec<Sequence>,
    at: Instant,
    is_stream: bool,
}

impl Counted {
    fn saw(&mut self, frame: &[u8]) {
        let now = Instant::now();
        if !self.is_stream {
            return self.saw_whole(now);
        }
        if bears_text(frame) {
            let sequence = self.sequences.get_mut(choice_of(frame));
            sequence.into_iter().for_each(|sequence| sequence.step(1, now));
        }
        if ENDS.iter().any(|end| memmem::find(frame, end).is_some()) {
            self.sequences.iter_mut().for_each(|sequence| sequence.end(now));
        }
    }

    fn saw_whole(&mut self, now: Instant) {
        let took = now - self.at;
        for sequence in &mut self.sequences {
            let all = sequence.left.max(1);
            for token in 1..all {
                sequence.step(1, self.at + took.mul_f64(f64::from(token) / f64::from(all)));
            }
            sequence.end(now);
        }
    }
}

/// Whether an event tells something of a choice.
fn bears_text(event: &[u8]) -> bool {
    TEXTS.iter().any(|name| {
        memmem::find_iter(event, name).any(|at| {
            let value = event.get(at + name.len()..).unwrap_or_default().trim_ascii_start();
            value.starts_with(b"\"") && !value.starts_with(b"\"\"")
        })
    })
}

/// The choice that an event is of; the first one in families that have no other.
fn choice_of(event: &[u8]) -> usize {
    let choices = memmem::find(event, b"\"choices\":").and_then(|at| event.get(at..)).unwrap_or_default();
    let index = memmem::find(choices, b"\"index\":").and_then(|at| choices.get(at + b"\"index\":".len()..));
    let digits = index.unwrap_or_default().trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: usize, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')))
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.saw(bytes);
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_tell_something_are_told_from_others() {
        for (event, bears, choice) in [
            (r#"data: {"choices":[{"index":1,"delta":{"content":"a"}}]}"#, true, 1),
            (r#"data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}"#, false, 0),
            (
                r#"data: {"choices":[{"index":12,"delta":{"tool_calls":[{"index":3,"function":{"arguments":"{"}}]}}]}"#,
                true,
                12,
            ),
            (r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, false, 0),
            (r#"event: content_block_delta\ndata: {"index":2,"delta":{"type":"text_delta","text":"a"}}"#, true, 0),
            (r#"data: {"type":"response.output_text.delta","delta":"a"}"#, true, 0),
        ] {
            assert_eq!((bears_text(event.as_bytes()), choice_of(event.as_bytes())), (bears, choice), "{event}");
        }
    }
}
