//! What shows an exchange to the recorder: its parts in their order, as long as there is room in the queue.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use super::{
    ExchangeEnd, McpRecorder, ProcessLine, TrafficStep, session_of,
    source::{BodyForm, StreamKey},
};
use crate::mcp::Sender;
use net::{
    server::{BodyError, media_type},
    upstream::BodyObserver,
};

/// Copies of the lines of one process.
#[derive(Debug)]
pub struct ProcessObserver {
    pub(super) recorder: Arc<McpRecorder>,
    pub(super) key: StreamKey,
    pub(super) server: usize,
}

impl ProcessObserver {
    /// Takes a line before it goes on.
    pub fn line(&self, sender: Sender, line: &[u8]) {
        let Self { recorder, key, server } = self;
        let place = if sender == Sender::Client { recorder.place(&key.account) } else { None };
        let line = Bytes::copy_from_slice(line);
        self.submit(TrafficStep::Line(Box::new(ProcessLine {
            key: key.clone(),
            server: *server,
            sender,
            line,
            place,
        })));
    }

    /// Takes the end of the process, which is what this side did; of one that never ran, whose lines are not recorded, no side.
    pub fn end(&self, by: Option<Sender>) {
        self.submit(TrafficStep::Closed { key: self.key.clone(), by });
    }

    fn submit(&self, step: TrafficStep) {
        if !self.recorder.submit(self.recorder.next.fetch_add(1, Relaxed), step) {
            self.recorder.gaps.fetch_add(1, Relaxed);
        }
    }
}

/// Copies of one HTTP exchange, or of one side of a connection over stdio. Dropped before its end, the client has left.
#[derive(Debug)]
pub struct ExchangeObserver {
    /// `None` where nothing is recorded.
    pub(super) recorder: Option<Arc<McpRecorder>>,
    pub(super) number: u64,
    pub(super) has_ended: bool,
    /// Bytes were refused, and the recorder does not know it yet.
    pub(super) lacks: bool,
}

impl ExchangeObserver {
    /// Copies of an exchange that is not recorded.
    #[must_use]
    pub fn none() -> Self {
        Self { recorder: None, number: 0, has_ended: true, lacks: false }
    }

    /// Takes the head of the response.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        let is_readable = !headers.contains_key(header::CONTENT_ENCODING);
        let form = match media_type(headers) {
            "text/event-stream" if is_readable => BodyForm::Events,
            "application/json" if is_readable => BodyForm::Json,
            _ => BodyForm::Other,
        };
        self.submit(TrafficStep::Answered { status, session: session_of(headers), form });
    }

    /// Takes a line that answers a request of the client and is not the server's: the request did not come to it, or has no answer.
    pub fn unanswered(&mut self, line: &Bytes) {
        self.submit(TrafficStep::Unanswered(line.clone()));
    }

    /// Takes the end of the exchange.
    pub fn ended(&mut self, end: ExchangeEnd) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.submit(TrafficStep::Ended(end));
        }
    }

    pub(super) fn submit(&mut self, step: TrafficStep) {
        let Some(recorder) = &self.recorder else { return };
        if self.lacks {
            self.lacks = !recorder.submit(self.number, TrafficStep::Lost);
        }
        if !recorder.submit(self.number, step) && !std::mem::replace(&mut self.lacks, true) {
            recorder.gaps.fetch_add(1, Relaxed);
        }
    }
}

impl BodyObserver for ExchangeObserver {
    fn data(&mut self, bytes: &Bytes) {
        self.submit(TrafficStep::Bytes(bytes.clone()));
    }

    fn end(&mut self, error: Option<&BodyError>) {
        self.ended(if error.is_some() { ExchangeEnd::ServerBroke } else { ExchangeEnd::Whole });
    }
}

impl Drop for ExchangeObserver {
    fn drop(&mut self) {
        self.ended(ExchangeEnd::ClientLeft);
    }
}
