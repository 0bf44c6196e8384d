//! Memory of answers: what one request and all of them may take.
//!
//! A stream is made as it is sent, so it takes little however long it is. Three things do grow: the choices of a request, the
//! log probabilities of its prompts, and an answer that is one body. They are counted in bytes as they come, before they are made where
//! the size is known. One request that wants too much is refused with 400; where all together want too much, those that
//! want more get vLLM's 503.
//!
//! See docs/decisions/0056-answers-have-a-budget.md.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::http::{JSON, body_of_type};
use api::{ApiError, GenerationRequest};

/// Bytes of one answer.
const OF_ONE: usize = 256 << 20;

/// Bytes of all answers together.
const OF_ALL: usize = 1 << 30;

/// Bytes of an answer that count for nothing, so that small answers go on where large ones took all there is.
const FREE: usize = 64 << 10;

/// Fewest bytes of a body for a token that has a logarithm.
const SPELLED: usize = 24;

#[derive(Debug)]
struct Budget {
    of_one: usize,
    of_all: usize,
    taken: AtomicUsize,
}

static ANSWERS: Budget = Budget { of_one: OF_ONE, of_all: OF_ALL, taken: AtomicUsize::new(0) };

base::with_defaults! {
    /// Memory that one answer takes; given back when this is dropped.
    #[derive(Debug)]
    pub(crate) struct MemoryReservation {
        from: &'static Budget = &ANSWERS,
        bytes: usize,
    }
}

impl MemoryReservation {
    /// Takes more.
    /// Errors: 400 where it is too much for one answer, 503 where others took what there is.
    pub(crate) fn try_reserve(&mut self, more: usize) -> Result<(), ApiError> {
        let bytes = self.bytes.saturating_add(more);
        if bytes > self.from.of_one {
            return Err(too_large(self.from.of_one));
        }
        let more = bytes.saturating_sub(FREE) - self.counted();
        let taken = self.from.taken.fetch_add(more, Relaxed);
        if more > 0 && taken.saturating_add(more) > self.from.of_all {
            self.from.taken.fetch_sub(more, Relaxed);
            return Err(ApiError::busy());
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Whether it counts among what all answers take.
    pub(crate) fn counts(&self) -> bool {
        self.counted() > 0
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn counted(&self) -> usize {
        self.bytes.saturating_sub(FREE)
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.from.taken.fetch_sub(self.counted(), Relaxed);
    }
}

fn too_large(most: usize) -> ApiError {
    ApiError::bad_request(format!(
        "The answer to this request takes more than {most} bytes, the most that this server keeps of one answer. Please \
         reduce `n`, `max_tokens` or the number of log probabilities, or set `stream` to true."
    ))
}

/// Refuses an answer that is one body and certainly too large: one of so many tokens that nothing ends earlier.
/// Errors: 400 for that.
pub(crate) fn check_whole(request: &GenerationRequest, tokens: usize, shows_logprobs: bool) -> Result<(), ApiError> {
    let may_end = !request.stop.is_empty() || !request.stop_token_ids.is_empty();
    if request.stream || may_end || request.only_echoes() {
        return Ok(());
    }
    let scored = request.logprobs.sample.filter(|_| shows_logprobs).map_or(0, |others| others.saturating_add(1));
    let bytes = tokens.saturating_mul(scored.saturating_mul(SPELLED).saturating_add(1));
    if bytes > OF_ONE { Err(too_large(OF_ONE)) } else { Ok(()) }
}

/// A JSON answer that takes memory of that for answers until it is written.
pub(crate) fn held_json(body: String, memory: MemoryReservation, extra: HeaderMap) -> Response {
    let body = if memory.counts() { Bytes::from_owner(ReservedBody { body, _memory: memory }) } else { body.into() };
    body_of_type(StatusCode::OK, Some(JSON), body, extra)
}

struct ReservedBody {
    body: String,
    _memory: MemoryReservation,
}

impl AsRef<[u8]> for ReservedBody {
    fn as_ref(&self) -> &[u8] {
        self.body.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(of_one: usize, of_all: usize) -> &'static Budget {
        Box::leak(Box::new(Budget { of_one: of_one + FREE, of_all, taken: AtomicUsize::new(0) }))
    }

    #[test]
    fn one_answer_has_its_limit_and_all_together_have_theirs() {
        let from = budget(100, 150);
        let mut first = MemoryReservation { from, bytes: 0 };
        first.try_reserve(FREE + 60).unwrap();
        first.try_reserve(40).unwrap();
        assert_eq!(first.try_reserve(1).unwrap_err().status, 400);
        let mut second = MemoryReservation { from, bytes: 0 };
        second.try_reserve(FREE + 50).unwrap();
        assert_eq!(second.try_reserve(1).unwrap_err().status, 503);
        MemoryReservation { from, bytes: 0 }.try_reserve(FREE).unwrap();
        drop(first);
        second.try_reserve(50).unwrap();
        drop(second);
        assert_eq!(from.taken.load(Relaxed), 0, "what was refused is not counted");
    }
}
