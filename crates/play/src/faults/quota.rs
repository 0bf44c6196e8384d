//! What a response takes from quotas: the tokens of its usage, or else of its prompt and of its events.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use serde_json::Value;

use ::faults::{QuotaTicket, tokens_of};
use api::answers::{TokenCounts, usages};
use net::wire::SseSplitter;

/// Largest body that is no stream and is read for its usage.
const LARGEST: usize = 64 << 20;

/// In the extensions of a response that is a stream: tokens of its prompts, which its events may lack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptTokens(pub(crate) u32);

pub(super) struct MeteredBody {
    inner: Body,
    /// `None` where the body is no stream of events.
    splitter: Option<SseSplitter>,
    whole: BytesMut,
    prompt: Option<u64>,
    /// By usage, and by events.
    completion: Option<u64>,
    events: u64,
    tickets: Vec<QuotaTicket>,
}

impl MeteredBody {
    pub(super) fn new(inner: Body, is_stream: bool, prompt: Option<u32>, tickets: Vec<QuotaTicket>) -> Self {
        let splitter = is_stream.then(SseSplitter::default);
        Self {
            inner,
            splitter,
            whole: BytesMut::new(),
            prompt: prompt.map(u64::from),
            completion: None,
            events: 0,
            tickets,
        }
    }

    fn see(&mut self, data: &Bytes) {
        let Some(splitter) = &mut self.splitter else {
            if self.whole.len() + data.len() <= LARGEST {
                self.whole.extend_from_slice(data);
            }
            return;
        };
        splitter.push(data.clone());
        while let Some(event) = self.splitter.as_mut().and_then(SseSplitter::next_event) {
            self.events += tokens_of(&event.raw);
            if let Some(data) = event.data() {
                self.read_usage(&data);
            }
        }
        self.settle();
    }

    fn read_usage(&mut self, json: &[u8]) {
        if !json.windows(7).any(|part| part == b"\"usage\"") {
            return;
        }
        let Ok(value) = serde_json::from_slice::<Value>(json) else { return };
        let Some(usage) = usages(&value).next() else { return };
        let TokenCounts { prompt, completion, .. } = TokenCounts::read(usage);
        self.prompt = prompt.map(u64::from).or(self.prompt);
        self.completion = completion.map(u64::from).max(self.completion);
    }

    /// Passes the counts so far to the quotas, which take them when this is dropped.
    fn settle(&mut self) {
        let tokens = self.prompt.unwrap_or_default() + self.completion.unwrap_or_default().max(self.events);
        self.tickets.iter_mut().for_each(|ticket| ticket.tokens = tokens);
    }

    fn end(&mut self) {
        let whole = std::mem::take(&mut self.whole);
        self.read_usage(&whole);
        self.settle();
        self.tickets.clear();
    }
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.see(data);
                }
                // Nothing asks for the end of a body that reports its end.
                if self.inner.is_end_stream() {
                    self.end();
                }
            }
            Some(Err(_)) | None => self.end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}
