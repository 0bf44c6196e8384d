//! Answers from cassettes, counted as the engine counts its own: a step for each event with content, one token each, and
//! what is left with the last one.
//!
//! Limits: an answer that is one body has its tokens evenly between its request and its end; with several choices, tokens are
//! shared out evenly, since a record does not name their choice.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Response, header};
use http_body::{Body, Frame, SizeHint};
use memchr::memmem;
use tokio::time::Instant;

use super::{Flight, Group, Metrics};
use crate::{api::answers::Observation, play::http::ResponseBody, replay::player::Generated};

/// Counts an answer that came from a cassette to a request that came at that time.
pub(in super::super) fn count(
    metrics: &Metrics,
    mut response: Response<ResponseBody>,
    at: Instant,
) -> Response<ResponseBody> {
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
    response.map(|body| ResponseBody::new(Counted { body, sequences, at, is_stream }))
}

/// A choice on its way.
struct Sequence {
    /// `None` once it has ended.
    flight: Option<Flight>,
    /// Tokens that are not counted yet.
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

    /// Ends, with one more step for tokens that are not counted yet.
    fn end(&mut self, now: Instant) {
        self.step(self.left, now);
        if let Some(mut flight) = self.flight.take() {
            flight.finish(self.finish);
        }
    }
}

/// A body whose parts are counted as they leave. One that is not read to its end ends in no way that counts.
struct Counted {
    body: ResponseBody,
    sequences: Vec<Sequence>,
    at: Instant,
    is_stream: bool,
}

impl Counted {
    fn observe(&mut self, frame: &[u8]) {
        let now = Instant::now();
        if !self.is_stream {
            return self.observe_whole(now);
        }
        let data = memmem::find(frame, b"data:").and_then(|at| frame.get(at + b"data:".len()..)).unwrap_or_default();
        let Observation { choice, is_end } = Observation::read(data);
        if let Some(sequence) = choice.and_then(|choice| self.sequences.get_mut(choice)) {
            sequence.step(1, now);
        }
        if is_end {
            self.sequences.iter_mut().for_each(|sequence| sequence.end(now));
        }
    }

    fn observe_whole(&mut self, now: Instant) {
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

impl Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.observe(bytes);
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
