//! A stream of events that is looked at, and restored, while it passes.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::{
    amend::Added,
    body::{BodyError, Received, Relayed},
    capabilities::{Capabilities, Fingerprint},
    event::StreamEvent,
    exchange::Exchange,
    other_answers::Said,
    pattern::Pattern,
    restore::{Restored, restore_event},
};
use crate::{
    api::DONE,
    net::wire::{Event, SseSplitter},
    recording::capture::Capture,
};

/// An event longer than this is passed on without being looked at, and so is the rest of its stream.
const LONGEST_EVENT: usize = 16 << 20;

/// So many choices have patterns; events of the others are parsed.
const MOST_PATTERNS: usize = 8;

/// A stream of events that is looked at, and restored, while it passes.
#[derive(Debug)]
pub(super) struct ObservedStream {
    upstream: Relayed<Received>,
    exchange: Exchange,
    learned: Arc<Capabilities>,
    added: Added,
    fingerprint: Option<Fingerprint>,
    /// What the last event of each choice looked like that may have likes.
    patterns: Vec<Pattern>,
    /// `None` once the stream turned out not to be worth looking at.
    splitter: Option<SseSplitter>,
    /// Restored events that wait to be sent.
    ready: VecDeque<Bytes>,
    /// What follows them: trailers, or that the upstream broke.
    last: Option<Result<Frame<Bytes>, BodyError>>,
    /// Whether the server had a chance to write what came before an error.
    is_flushed: bool,
}

impl ObservedStream {
    /// Watches `upstream`, the answer of a request to which `added` was added.
    pub(super) fn new(
        upstream: Relayed<Received>,
        exchange: Exchange,
        added: Added,
        learned: Arc<Capabilities>,
    ) -> Self {
        let fingerprint = learned.fingerprint();
        let splitter = Some(SseSplitter::default());
        Self {
            upstream,
            exchange,
            learned,
            added,
            fingerprint,
            patterns: Vec::new(),
            splitter,
            ready: VecDeque::new(),
            last: None,
            is_flushed: false,
        }
    }

    /// Looks at what arrived. Where nothing has to be restored the bytes pass as they are.
    fn received(&mut self, bytes: Bytes) {
        let at = self.exchange.elapsed();
        let Some(mut splitter) = self.splitter.take() else {
            self.ready.push_back(bytes);
            return;
        };
        if self.added.any() {
            splitter.push(bytes);
        } else {
            splitter.push(bytes.clone());
            self.ready.push_back(bytes);
        }
        while let Some(event) = splitter.next_event() {
            let restored = self.look_at(&event, at);
            if let Some(capture) = self.exchange.capture() {
                match &restored {
                    Restored::Kept => capture.event(&event.raw, at),
                    Restored::Edited(bytes) => capture.event(bytes, at),
                    Restored::Dropped => {}
                }
            }
            if self.added.any() {
                match restored {
                    Restored::Kept => self.ready.push_back(event.raw),
                    Restored::Edited(bytes) => self.ready.push_back(bytes),
                    Restored::Dropped => {}
                }
            }
        }
        if splitter.pending_len() <= LONGEST_EVENT {
            self.splitter = Some(splitter);
            return;
        }
        self.exchange.unread();
        self.exchange.capture().into_iter().for_each(Capture::lose);
        if self.added.any() {
            self.ready.push_back(splitter.take_rest());
        }
    }

    fn look_at(&mut self, event: &Event, at: Duration) -> Restored {
        if let Some(restored) = self.recognise(&event.raw, at) {
            return restored;
        }
        let Some(payload) = event.data() else { return Restored::Kept };
        let Some(observed) = self.exchange.observed() else { return Restored::Kept };
        if payload.as_ref() == DONE.as_bytes() {
            observed.saw_done();
            return Restored::Kept;
        }
        if !observed.facts.has_choices() {
            if let Some(said) = Said::read(&payload) {
                observed.saw_said(said, at);
            }
            return Restored::Kept;
        }
        let Some(parsed) = StreamEvent::read(&payload) else { return Restored::Kept };
        observed.saw_event(&parsed, at);
        if let Some(pattern) = Pattern::of(&event.raw, &parsed) {
            let has_room = self.patterns.len() < MOST_PATTERNS;
            match self.patterns.iter_mut().find(|known| known.index == pattern.index) {
                Some(known) => *known = pattern,
                None if has_room => self.patterns.push(pattern),
                None => {}
            }
        }
        let client_wants_usage = observed.facts.wants_usage;
        self.learn(&parsed, client_wants_usage);
        restore_event(event, &payload, &parsed, &self.added, self.fingerprint.as_ref())
    }

    /// Sees an event that is like an earlier one; `None` where it is not.
    fn recognise(&mut self, raw: &[u8], at: Duration) -> Option<Restored> {
        let (index, hit) = self.patterns.iter().find_map(|pattern| Some((pattern.index, pattern.hit(raw)?)))?;
        self.exchange.observed()?.saw_hit(index, &hit, at);
        let Some((_, list)) = hit.ids.filter(|_| self.added.ids) else { return Some(Restored::Kept) };
        let (before, after) = (raw.get(..list.start)?, raw.get(list.end..)?);
        Some(Restored::Edited(Bytes::from([before, b"null", after].concat())))
    }

    fn learn(&self, event: &StreamEvent<'_>, client_wants_usage: bool) {
        let fingerprint = event.system_fingerprint.as_deref();
        if event.is_usage_only() {
            if self.added.usage {
                self.learned.compare_fingerprint(fingerprint);
            } else if !client_wants_usage {
                self.learned.saw_forced_usage();
            }
        } else if !client_wants_usage
            && !self.added.usage
            && self.fingerprint.is_none()
            && event.choices.iter().any(|choice| choice.finish_reason.is_some())
        {
            self.learned.saw_fingerprint(fingerprint);
        }
    }

    fn rest(&mut self) -> Option<Bytes> {
        let rest = self.splitter.take()?.take_rest();
        (self.added.any() && !rest.is_empty()).then_some(rest)
    }
}

impl Body for ObservedStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(last) = self.last.take() {
                if last.is_err() && !std::mem::replace(&mut self.is_flushed, true) {
                    // The server writes what it has when nothing more is ready, and not any more after an error.
                    self.last = Some(last);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return Poll::Ready(Some(last));
            }
            match std::task::ready!(Pin::new(&mut self.upstream).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.received(bytes),
                    Err(trailers) => self.last = Some(Ok(trailers)),
                },
                Some(Err(error)) => {
                    tracing::debug!(%error, "the upstream broke off in the middle of a stream");
                    self.exchange.end(error.outcome());
                    let rest = self.rest();
                    self.ready.extend(rest);
                    self.last = Some(Err(error));
                }
                None => {
                    self.exchange.end_of_answer();
                    let Some(rest) = self.rest() else { return Poll::Ready(None) };
                    self.ready.push_back(rest);
                }
            }
        }
    }
}
