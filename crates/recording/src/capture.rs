//! A copy of a response as the client gets it, made while it passes.
//!
//! Copies are bounded, each in what was sent and all together in what they hold: one that would exceed that is given up, and its recorder counts it.
//!
//! See docs/decisions/0027-copies-only-while-needed.md.

mod events;

use std::time::Duration;

use base::held_bytes::{HeldBytes, HeldShare};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use self::events::CapturedEvents;
use crate::trace::{Response, ResponseContent, is_acted_on};
use api::ends_stream;
use net::wire::{SseSplitter, event_data, event_name};

/// Bytes by which what a copy may hold grows, at the least: all copies count them together.
const RESERVED: u64 = 2 << 10;

/// Bytes of a response that are held although token ids may stand for it.
const SHORT: usize = 16 << 10;

/// Bounds of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureLimits {
    /// Bytes of one response and its request.
    pub each: usize,
    /// Bytes that all copies hold at a time.
    pub together: u64,
}

/// Bytes that all copies of a recorder hold.
#[derive(Debug, Clone)]
pub struct Captures {
    each: usize,
    held: HeldBytes,
}

impl Captures {
    /// No copies yet.
    #[must_use]
    pub fn new(limits: CaptureLimits) -> Self {
        Self { each: limits.each, held: HeldBytes::new(limits.together) }
    }
}

/// A copy of a response, with the request that it answers.
#[derive(Debug)]
pub struct Capture {
    /// Bytes that it may have.
    most: usize,
    /// Path with query, and body of the request.
    request: (String, Bytes),
    headers: Vec<(String, String)>,
    /// Splits the events of a stream that is not split elsewhere.
    splitter: Option<SseSplitter>,
    events: CapturedEvents,
    /// An event came, perhaps one without data.
    has_events: bool,
    body: Option<Bytes>,
    received: BytesMut,
    /// Bytes of the response and its request, what an event takes beside its own included.
    sent: usize,
    /// Bytes that all copies count for it.
    reserved: HeldShare,
    is_lost: bool,
}

impl Capture {
    /// A copy of what answers this request, of which nothing has come yet.
    #[must_use]
    pub fn new(all: &Captures, target: String, body: Bytes) -> Self {
        let mut capture = Self {
            most: all.each,
            request: (target, Bytes::new()),
            headers: Vec::new(),
            splitter: None,
            events: CapturedEvents::default(),
            has_events: false,
            body: None,
            received: BytesMut::new(),
            sent: 0,
            reserved: all.held.share(),
            is_lost: false,
        };
        if capture.is_short_enough(body.len()) {
            capture.request.1 = body;
            capture.reserve();
        }
        capture
    }

    /// The same, of a stream whose bytes are [received](Self::received).
    #[must_use]
    pub fn splitting(mut self) -> Self {
        self.splitter = Some(SseSplitter::default());
        self
    }

    /// Keeps the headers that describe the content.
    pub fn headers(&mut self, headers: &HeaderMap) {
        let is_kept = |name: &str| {
            is_acted_on(name) || name == "metadata" || ["openai-", "mcp-"].iter().any(|start| name.starts_with(start))
        };
        let kept = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        self.headers = kept.map(text).collect();
    }

    /// Returns true if the copy is longer than what is kept if token ids may stand for it.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.sent.saturating_sub(self.request.1.len()) > SHORT
    }

    /// Copies an event that was sent to the client. Comments and empty lines are no part of a record.
    pub fn event(&mut self, raw: &[u8], at: Duration) {
        self.has_events = true;
        let Some(data) = event_data(raw) else { return };
        if self.is_short_enough(raw.len() + CapturedEvents::EACH) {
            self.events.push(at, event_name(raw), &data);
            self.reserve();
        }
    }

    /// Copies the whole body that was sent to the client.
    pub fn body(&mut self, body: Bytes) {
        if self.is_short_enough(body.len()) {
            self.body = Some(body);
            self.reserve();
        }
    }

    /// Copies bytes that are sent to the client: the next part of a body, or of a stream.
    pub fn received(&mut self, bytes: &Bytes, at: Duration) {
        let Some(mut splitter) = self.splitter.take() else {
            if self.is_short_enough(bytes.len()) {
                self.received.extend_from_slice(bytes);
                self.reserve();
            }
            return;
        };
        splitter.push(bytes.clone());
        while let Some(event) = splitter.next_event() {
            self.event(&event.raw, at);
        }
        if splitter.pending_len() > self.most {
            self.lose();
        }
        self.splitter = Some(splitter).filter(|_| !self.is_lost);
    }

    /// Gives the copy up.
    pub fn lose(&mut self) {
        self.is_lost = true;
        (self.events, self.body, self.request.1) = (CapturedEvents::default(), None, Bytes::new());
        self.received = BytesMut::new();
    }

    /// Counts so many bytes more. False if the copy is given up.
    fn is_short_enough(&mut self, more: usize) -> bool {
        self.sent += more;
        if self.sent > self.most && !self.is_lost {
            self.lose();
        }
        !self.is_lost
    }

    /// Counts what it holds among all copies; gives it up where that is too much.
    fn reserve(&mut self) {
        let lacking = ((self.bytes() + self.events.used()) as u64).saturating_sub(self.reserved.bytes());
        let more = if self.events.used() == 0 { lacking } else { lacking.max(RESERVED) };
        if lacking > 0 && !self.reserved.add(more) {
            self.lose();
        }
    }

    /// Bytes of the request and of what is no event.
    fn bytes(&self) -> usize {
        self.request.1.len() + self.body.as_ref().map_or(0, Bytes::len) + self.received.len()
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes() + self.events.heap()
    }

    /// Returns true if it was given up.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns true if the last event so far is the last one of its stream.
    #[must_use]
    pub fn is_whole_stream(&self) -> bool {
        self.events.last().is_some_and(|data| ends_stream(&data))
    }

    /// Path with query, and body of the request; `None` where they were given up.
    #[must_use]
    pub fn request(&self) -> Option<(&str, &[u8])> {
        (!self.is_lost).then_some((&self.request.0, &self.request.1))
    }

    /// Takes the response; `None` where it was given up, or nothing of it came.
    pub fn response(&mut self) -> Option<Response> {
        if self.is_lost || (self.body.is_none() && self.received.is_empty() && !self.has_events) {
            return None;
        }
        Some(self.take_response())
    }

    /// Takes the response, of which perhaps nothing came.
    pub fn take_response(&mut self) -> Response {
        let headers = std::mem::take(&mut self.headers);
        let content = match self.body.take() {
            Some(body) => ResponseContent::Body(body.into()),
            None if self.splitter.is_none() && !self.has_events => {
                ResponseContent::Body(std::mem::take(&mut self.received).into())
            }
            None => ResponseContent::Events(std::mem::take(&mut self.events).moments()),
        };
        Response { headers, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cassette::Moment;

    #[test]
    fn copies_are_bounded_each_and_together() {
        let all = Captures::new(CaptureLimits { each: 1 << 20, together: 1 << 24 });
        let capture = || Capture::new(&all, "/x".to_owned(), Bytes::from_static(b"{}"));
        let mut one = capture();
        one.event(b"event: a\ndata: 1\n\n", Duration::from_millis(3));
        one.event(b": a comment\n\n", Duration::from_millis(4));
        let response = one.response().unwrap();
        let events = vec![Moment(3.0, Some("1".to_owned()), Some("a".to_owned()))];
        assert_eq!(response.content, ResponseContent::Events(events));
        let mut empty = capture();
        (0..1_000_000).for_each(|_| empty.event(b":\n\n", Duration::ZERO));
        assert_eq!((empty.events.heap(), empty.size()), (0, 2), "comments are not kept");
        assert_eq!(empty.response().unwrap().content, ResponseContent::Events(Vec::new()));
        let mut short = capture();
        (0..100_000).for_each(|_| short.event(b"data\n\n", Duration::ZERO));
        assert!(short.is_lost(), "an event takes more memory than its bytes");
        let mut large = capture();
        large.body(Bytes::from(vec![0; (1 << 20) + 1]));
        large.event(b"data: 1\n\n", Duration::ZERO);
        assert_eq!((large.response(), large.request()), (None, None));
        drop((one, large, empty, short));
        assert_eq!(all.held.held(), 0);
    }
}
