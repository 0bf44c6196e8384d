//! A copy of a response as the client gets it, made while it passes.
//!
//! Copies are bounded, each and all together: one that would exceed them is given up, and its recorder counts that.
//!
//! See docs/decisions/0027-copies-only-while-needed.md.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use crate::{
    cassette::Moment,
    trace::{Response, ResponseContent},
};
use api::ends_stream;
use base::units::Millis;
use net::wire::{Event, SseSplitter};

/// Bytes of a response that are held although token ids may stand for it.
const SHORT: usize = 16 << 10;

/// Headers that are kept: those of the content, and when to send the request again.
const KEPT: [&str; 3] = ["content-type", "retry-after", "x-should-retry"];
const KEPT_STARTS: [&str; 3] = ["x-ratelimit-", "openai-", "mcp-"];

/// Bounds of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureLimits {
    /// Bytes of one copy.
    pub each: usize,
    /// Bytes of all copies at a time.
    pub together: usize,
}

/// Bytes that all copies of a recorder hold.
#[derive(Debug)]
pub struct Captures {
    limits: CaptureLimits,
    bytes: AtomicUsize,
}

impl Captures {
    /// No copies yet.
    #[must_use]
    pub fn new(limits: CaptureLimits) -> Self {
        Self { limits, bytes: AtomicUsize::new(0) }
    }
}

/// A copy of a response, with the request that it answers.
#[derive(Debug)]
pub struct Capture {
    all: Arc<Captures>,
    /// Path with query, and body of the request.
    request: (String, Bytes),
    headers: Vec<(String, String)>,
    /// Splits the events of a stream that is not split elsewhere.
    splitter: Option<SseSplitter>,
    events: Vec<CapturedEvent>,
    /// An event came, perhaps one without data.
    has_events: bool,
    body: Option<Bytes>,
    received: BytesMut,
    held: usize,
    is_lost: bool,
}

/// An event of a stream that has data, apart from its framing.
#[derive(Debug)]
struct CapturedEvent {
    at: Duration,
    name: Option<Box<[u8]>>,
    data: Box<[u8]>,
}

impl CapturedEvent {
    fn into_moment(self) -> Moment {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Moment(Millis::from(self.at).0, Some(text(&self.data)), self.name.as_deref().map(text))
    }
}

impl Capture {
    /// A copy of what answers this request, of which nothing has come yet.
    #[must_use]
    pub fn new(all: Arc<Captures>, target: String, body: Bytes) -> Self {
        let mut capture = Self {
            all,
            request: (target, Bytes::new()),
            headers: Vec::new(),
            splitter: None,
            events: Vec::new(),
            has_events: false,
            body: None,
            received: BytesMut::new(),
            held: 0,
            is_lost: false,
        };
        if capture.has_room(body.len()) {
            capture.request.1 = body;
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
        let is_kept = |name: &str| KEPT.contains(&name) || KEPT_STARTS.iter().any(|start| name.starts_with(start));
        let kept = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        self.headers = kept.map(text).collect();
    }

    /// Returns true if the copy is longer than what is kept if token ids may stand for it.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.held.saturating_sub(self.request.1.len()) > SHORT
    }

    /// Copies an event that was sent to the client. Comments and empty lines are no part of a record.
    pub fn event(&mut self, event: &Event, at: Duration) {
        self.has_events = true;
        let Some(data) = event.data() else { return };
        if self.has_room(event.raw.len() + size_of::<CapturedEvent>()) {
            // Slices of what was received would hold all of it.
            let (name, data) = (event.name().map(Box::from), Box::from(data));
            self.events.push(CapturedEvent { at, name, data });
        }
    }

    /// Copies the whole body that was sent to the client.
    pub fn body(&mut self, body: Bytes) {
        if self.has_room(body.len()) {
            self.body = Some(body);
        }
    }

    /// Copies bytes that are sent to the client: the next part of a body, or of a stream.
    pub fn received(&mut self, bytes: &Bytes, at: Duration) {
        let Some(mut splitter) = self.splitter.take() else {
            if self.has_room(bytes.len()) {
                self.received.extend_from_slice(bytes);
            }
            return;
        };
        splitter.push(bytes.clone());
        while let Some(event) = splitter.next_event() {
            self.event(&event, at);
        }
        if splitter.pending_len() > self.all.limits.each {
            self.lose();
        }
        self.splitter = Some(splitter).filter(|_| !self.is_lost);
    }

    /// Gives the copy up.
    pub fn lose(&mut self) {
        self.is_lost = true;
        (self.events, self.body, self.request.1) = (Vec::new(), None, Bytes::new());
        self.received = BytesMut::new();
    }

    fn has_room(&mut self, more: usize) -> bool {
        if self.is_lost {
            return false;
        }
        let together = self.all.bytes.fetch_add(more, Relaxed) + more;
        self.held += more;
        if self.held > self.all.limits.each || together > self.all.limits.together {
            self.lose();
        }
        !self.is_lost
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn size(&self) -> usize {
        if self.is_lost { 0 } else { self.held }
    }

    /// Returns true if it was given up.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns true if the last event so far is the last one of its stream.
    #[must_use]
    pub fn is_whole_stream(&self) -> bool {
        self.events.last().is_some_and(|event| ends_stream(&event.data))
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
            None => ResponseContent::Events(self.events.drain(..).map(CapturedEvent::into_moment).collect()),
        };
        Response { headers, content }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.held, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_each_and_together() {
        let all = Arc::new(Captures::new(CaptureLimits { each: 1 << 20, together: 1 << 24 }));
        let capture = || Capture::new(Arc::clone(&all), "/x".to_owned(), Bytes::from_static(b"{}"));
        let mut one = capture();
        let event = |raw: &'static [u8]| Event { raw: Bytes::from_static(raw) };
        one.event(&event(b"event: a\ndata: 1\n\n"), Duration::from_millis(3));
        one.event(&event(b": a comment\n\n"), Duration::from_millis(4));
        let response = one.response().unwrap();
        let events = vec![Moment(3.0, Some("1".to_owned()), Some("a".to_owned()))];
        assert_eq!(response.content, ResponseContent::Events(events));
        let mut empty = capture();
        (0..1_000_000).for_each(|_| empty.event(&event(b":\n\n"), Duration::ZERO));
        assert_eq!((empty.events.capacity(), empty.size()), (0, 2), "comments are not kept");
        assert_eq!(empty.response().unwrap().content, ResponseContent::Events(Vec::new()));
        let mut short = capture();
        (0..100_000).for_each(|_| short.event(&event(b"data\n\n"), Duration::ZERO));
        assert!(short.is_lost(), "an event takes more memory than its bytes");
        let mut large = capture();
        large.body(Bytes::from(vec![0; (1 << 20) + 1]));
        large.event(&event(b"data: 1\n\n"), Duration::ZERO);
        assert_eq!((large.response(), large.request()), (None, None));
        drop((one, large, empty, short));
        assert_eq!(all.bytes.load(Relaxed), 0);
    }
}
