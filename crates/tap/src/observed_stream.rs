//! Stream of events that is observed, and restored, while it passes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use super::{
    amend::Added,
    capabilities::{Capabilities, StreamFingerprint},
    event::StreamEvent,
    exchange::OpenExchange,
    other_apis::ApiEvent,
    output_frames::OutputFrames,
    pattern::EventPattern,
    restore::{Restored, member_at, restore_event},
};
use api::DONE;
use net::upstream::UpstreamBody;
use net::{
    server::BodyError,
    upstream::Relayed,
    wire::{RawEvent, SseSplitter, event_data},
};
use recording::{exchange::outcome_of, trace::Outcome};
use replay::player::CompletedBody;

/// An event longer than this is passed on without being looked at, and so is the rest of its stream.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Maximum number of choices with patterns; events of further choices are parsed.
const MAX_PATTERNS: usize = 8;

/// A stream of events that is looked at, and restored, while it passes.
#[derive(Debug)]
pub(super) struct ObservedStream {
    upstream: Relayed<UpstreamBody>,
    exchange: OpenExchange,
    capabilities: Arc<Capabilities>,
    added: Added,
    fingerprint: Option<StreamFingerprint>,
    /// Pattern of each choice's last plain event, which most events after it fit.
    patterns: Vec<EventPattern>,
    /// `None` once an event was too long: the rest passes undecoded.
    splitter: Option<SseSplitter>,
    /// Restored events that wait to be sent.
    ready: OutputFrames,
    /// Trailers or an upstream's error, delivered after the events.
    last: Option<Result<Frame<Bytes>, BodyError>>,
    /// The server was given a chance to write the events before an error.
    is_flushed: bool,
}

impl ObservedStream {
    /// Observes `upstream`, the response to a request amended by `added`.
    pub(super) fn new(
        upstream: Relayed<UpstreamBody>,
        exchange: OpenExchange,
        added: Added,
        capabilities: Arc<Capabilities>,
    ) -> Self {
        let fingerprint = capabilities.fingerprint();
        let splitter = Some(SseSplitter::default());
        Self {
            upstream,
            exchange,
            capabilities,
            added,
            fingerprint,
            patterns: Vec::new(),
            splitter,
            ready: OutputFrames::default(),
            last: None,
            is_flushed: false,
        }
    }

    /// Tokens of the first choice so far.
    pub(super) fn tokens(&self) -> u32 {
        self.exchange.observed.choices.first().map_or(0, |choice| choice.meter.tokens())
    }

    /// Ends the exchange of a stream that is given up.
    pub(super) fn time_out(&mut self) {
        self.exchange.end(Outcome::TimedOut);
    }

    /// Observes received bytes. They pass unchanged if nothing has to be restored.
    fn received(&mut self, bytes: Bytes) {
        let at = self.exchange.elapsed();
        let Some(mut splitter) = self.splitter.take() else {
            self.ready.push(bytes);
            return;
        };
        if self.added.any() {
            splitter.push(bytes);
        } else {
            splitter.push(bytes.clone());
            self.ready.push(bytes);
        }
        let mut without_data = BytesMut::new();
        while let Some(event) = splitter.next_event() {
            let restored = self.observe(&event, at);
            let capture = self.exchange.capture();
            let raw = match restored {
                Restored::Kept => event.raw,
                Restored::Edited(raw) => raw,
                Restored::Without { span, with } => {
                    self.ready.push(without_data.split().freeze());
                    let sent = self.ready.push_edited(&event.raw, span, with);
                    capture.into_iter().for_each(|capture| capture.event(sent, at));
                    continue;
                }
                Restored::Dropped => continue,
            };
            capture.into_iter().for_each(|capture| capture.event(&raw, at));
            if !self.added.any() {
                continue;
            }
            // Those without data go as one: an engine may send millions.
            if !raw.starts_with(b"data") && event_data(&raw).is_none() {
                without_data.extend_from_slice(&raw);
            } else {
                self.ready.push(without_data.split().freeze());
                self.ready.push(raw);
            }
        }
        self.ready.push(without_data.freeze());
        if splitter.pending_len() <= MAX_EVENT_BYTES {
            self.splitter = Some(splitter);
            return;
        }
        self.exchange.observed.unread = true;
        self.exchange.observed.unread_events += 1;
        if let Some(capture) = self.exchange.capture() {
            capture.lose();
        }
        if self.added.any() {
            self.ready.push(splitter.take_rest());
        }
    }

    /// Observes one event and decides what the client gets of it.
    fn observe(&mut self, event: &RawEvent, at: Duration) -> Restored {
        if let Some(restored) = self.recognise(&event.raw, at) {
            return restored;
        }
        let Some(payload) = event.data() else { return Restored::Kept };
        let observed = &mut self.exchange.observed;
        if payload.as_ref() == DONE.as_bytes() {
            observed.done = true;
            return Restored::Kept;
        }
        if !observed.facts.has_choices() {
            match ApiEvent::read(&payload) {
                Some(event) => observed.observe_api_event(event, at),
                None => observed.unread_events += 1,
            }
            return Restored::Kept;
        }
        let Some(parsed) = StreamEvent::read(&payload) else {
            observed.unread_events += 1;
            return Restored::Kept;
        };
        observed.observe_event(&parsed, at);
        if let Some(pattern) = EventPattern::of(&event.raw, &parsed) {
            let has_room = self.patterns.len() < MAX_PATTERNS;
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

    /// Observes an event that fits a pattern of an earlier one; `None` if none fits.
    fn recognise(&mut self, raw: &[u8], at: Duration) -> Option<Restored> {
        // Most events of a stream take this path, which needs no JSON parser.
        let (pattern, hit) = self.patterns.iter().find_map(|pattern| Some((pattern, pattern.hit(raw)?)))?;
        let (index, omits) = (pattern.index, pattern.omits_empty_fields);
        self.exchange.observed.observe_match(index, &hit, at);
        let Some((_, list)) = hit.ids.filter(|_| self.added.ids) else { return Some(Restored::Kept) };
        Some(match omits {
            true => Restored::Without { span: member_at(raw, list), with: b"" },
            false => Restored::Without { span: list, with: b"null" },
        })
    }

    fn learn(&self, event: &StreamEvent<'_>, client_wants_usage: bool) {
        // Tokens in and out, which have a `request_id` instead, never have a fingerprint: that says nothing of other streams.
        if event.id.is_none() {
            return;
        }
        let fingerprint = event.system_fingerprint.as_deref();
        if event.is_usage_only() {
            if self.added.usage {
                self.capabilities.compare_fingerprint(fingerprint);
            } else if !client_wants_usage {
                self.capabilities.observe_forced_usage();
            }
        } else if !client_wants_usage
            && !self.added.usage
            && self.fingerprint.is_none()
            && event.choices.iter().any(|choice| choice.finish_reason.is_some())
        {
            self.capabilities.observe_fingerprint(fingerprint);
        }
    }

    fn rest(&mut self) -> Option<Bytes> {
        let rest = self.splitter.take()?.take_rest();
        (self.added.any() && !rest.is_empty()).then_some(rest)
    }
}

impl CompletedBody for ObservedStream {
    fn is_whole(&self) -> bool {
        self.ready.is_empty() && self.exchange.is_whole_stream()
    }
}

impl Body for ObservedStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(bytes) = self.ready.take() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(last) = self.last.take() {
                if last.is_err() && !std::mem::replace(&mut self.is_flushed, true) {
                    // The server writes its buffer when a body is pending but not after an error, so the events before it would be lost.
                    self.last = Some(last);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return Poll::Ready(Some(last));
            }
            let Poll::Ready(frame) = Pin::new(&mut self.upstream).poll_frame(cx) else {
                self.ready.free();
                return Poll::Pending;
            };
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.received(bytes),
                    Err(trailers) => self.last = Some(Ok(trailers)),
                },
                Some(Err(error)) => {
                    tracing::debug!(%error, "the upstream broke off in the middle of a stream");
                    self.exchange.end(outcome_of(&error));
                    let rest = self.rest().unwrap_or_default();
                    self.ready.push(rest);
                    self.last = Some(Err(error));
                }
                None => {
                    self.exchange.end_of_answer();
                    let Some(rest) = self.rest() else { return Poll::Ready(None) };
                    self.ready.push(rest);
                }
            }
        }
    }
}
