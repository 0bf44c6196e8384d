//! A copy of a response as the client gets it, with the request that it answers, for records that no token ids stand for.
//!
//! It is kept while nobody knows whether the engine names its ids, and given up as soon as it does. Copies are bounded, each
//! and all together: one that would take too much is given up too, and counted.
//!
//! See docs/decisions/0027-copies-only-while-needed.md.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;

use crate::{
    base::units::Millis,
    net::wire::{Event, SseSplitter},
    recording::cassette::Moment,
    recording::trace::{Response, ResponseContent},
};

/// The most bytes of one copy.
const LARGEST: usize = 16 << 20;

/// The most bytes of all copies at a time.
const LARGEST_TOGETHER: usize = 256 << 20;

/// Headers that are kept: they tell what the content is, or when to ask again.
const KEPT: [&str; 3] = ["content-type", "retry-after", "x-should-retry"];
const KEPT_STARTS: [&str; 2] = ["x-ratelimit-", "openai-"];

/// What all copies share.
#[derive(Debug, Default)]
pub(super) struct Captures {
    bytes: AtomicUsize,
}

/// A copy.
#[derive(Debug)]
pub(super) struct Capture {
    all: Arc<Captures>,
    /// Path with query, and body of the request.
    request: (String, Bytes),
    headers: Vec<(String, String)>,
    events: Vec<(Duration, Bytes)>,
    body: Option<Bytes>,
    held: usize,
    is_lost: bool,
}

impl Capture {
    /// The copy of what answers this request, of which nothing has come yet.
    pub(super) fn new(all: Arc<Captures>, target: String, body: Bytes) -> Self {
        let mut capture = Self {
            all,
            request: (target, Bytes::new()),
            headers: Vec::new(),
            events: Vec::new(),
            body: None,
            held: 0,
            is_lost: false,
        };
        if capture.has_room(body.len()) {
            capture.request.1 = body;
        }
        capture
    }

    /// Keeps what the headers tell of the content.
    pub(super) fn headers(&mut self, headers: &HeaderMap) {
        let is_kept = |name: &str| KEPT.contains(&name) || KEPT_STARTS.iter().any(|start| name.starts_with(start));
        let kept = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        };
        self.headers = kept.filter_map(text).collect();
    }

    /// An event was sent to the client.
    pub(super) fn event(&mut self, raw: &[u8], at: Duration) {
        if self.has_room(raw.len()) {
            // A part of what was received would hold all of that.
            self.events.push((at, Bytes::copy_from_slice(raw)));
        }
    }

    /// The whole body was sent to the client.
    pub(super) fn body(&mut self, body: Bytes) {
        if self.has_room(body.len()) {
            self.body = Some(body);
        }
    }

    /// The answer is too long to be copied.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        (self.events, self.body, self.request.1) = (Vec::new(), None, Bytes::new());
    }

    fn has_room(&mut self, more: usize) -> bool {
        if self.is_lost {
            return false;
        }
        let together = self.all.bytes.fetch_add(more, Relaxed) + more;
        self.held += more;
        if self.held > LARGEST || together > LARGEST_TOGETHER {
            self.lose();
        }
        !self.is_lost
    }

    /// Path with query, and body of the request; `None` where they were given up.
    pub(super) fn request(&self) -> Option<(&str, &[u8])> {
        (!self.is_lost).then_some((&self.request.0, &self.request.1))
    }

    /// The response; `None` where it was given up, or nothing of it came.
    pub(super) fn response(&mut self) -> Option<Response> {
        if self.is_lost {
            return None;
        }
        let headers = std::mem::take(&mut self.headers);
        let content = match self.body.take() {
            Some(body) => ResponseContent::Body(body.into()),
            None if self.events.is_empty() => return None,
            None => ResponseContent::Events(self.events.drain(..).filter_map(moment).collect()),
        };
        Some(Response { headers, content })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.held, Relaxed);
    }
}

/// An event as a record has it; comments are none.
fn moment((at, raw): (Duration, Bytes)) -> Option<Moment> {
    let mut splitter = SseSplitter::default();
    splitter.push(raw);
    let event: Event = splitter.next_event()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let data = text(&event.data()?);
    Some(Moment(Millis::from(at).0, Some(data), event.name().map(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_each_and_together() {
        let all = Arc::new(Captures::default());
        let capture = || Capture::new(Arc::clone(&all), "/x".to_owned(), Bytes::from_static(b"{}"));
        let mut one = capture();
        one.event(b"event: a\ndata: 1\n\n", Duration::from_millis(3));
        one.event(b": a comment\n\n", Duration::from_millis(4));
        let response = one.response().unwrap();
        let events = vec![Moment(3.0, Some("1".to_owned()), Some("a".to_owned()))];
        assert_eq!(response.content, ResponseContent::Events(events));
        let mut large = capture();
        large.body(Bytes::from(vec![0; LARGEST + 1]));
        large.event(b"data: 1\n\n", Duration::ZERO);
        assert_eq!((large.response(), large.request()), (None, None));
        drop((one, large));
        assert_eq!(all.bytes.load(Relaxed), 0);
    }
}
