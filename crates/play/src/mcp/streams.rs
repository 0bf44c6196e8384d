//! Streams of events that are open, by number: what is sent to them comes out of the requests that opened them.
//!
//! Limits: a stream whose client does not read holds so many bytes, and is closed where more would be sent.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::Instant,
};

use base::lock::Lock;
use replay::mcp::StreamMessage;

/// Bytes that wait on one stream, beside a message that is larger than that.
const MOST_WAITING: usize = 8 << 20;

base::with_defaults! {
    #[derive(Debug)]
    pub(super) struct Streams {
        began: Instant = Instant::now(),
        next: AtomicU64,
        /// `None` once the server ends.
        open: Lock<Option<HashMap<u64, Open>>> = Lock::new(Some(HashMap::new())),
    }
}

#[derive(Debug)]
struct Open {
    send: UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
}

/// The end of a stream at which its messages come out. Dropping it closes the stream.
#[derive(Debug)]
pub(super) struct Incoming {
    number: u64,
    receive: UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
    streams: Arc<Streams>,
}

impl Incoming {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let frame = self.receive.recv().await?;
        self.waiting.fetch_sub(frame.len(), Relaxed);
        Some(frame)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.streams.close(self.number);
    }
}

impl Streams {
    /// Opens a stream. Once the server ends it is at its end at once.
    pub(super) fn open(self: &Arc<Self>) -> Incoming {
        let number = self.next.fetch_add(1, Relaxed);
        let (send, receive) = unbounded_channel();
        let waiting: Arc<AtomicUsize> = Arc::default();
        if let Some(open) = self.open.lock().as_mut() {
            open.insert(number, Open { send, waiting: Arc::clone(&waiting) });
        }
        Incoming { number, receive, waiting, streams: Arc::clone(self) }
    }

    /// Time since the beginning.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The moment at which so much time has passed since the beginning.
    pub(super) fn at(&self, time: Duration) -> Instant {
        self.began + time
    }

    /// Sends messages to streams and ends streams; what is for a stream that is closed is gone.
    pub(super) fn deliver(&self, deliveries: Vec<StreamMessage>) {
        for delivery in deliveries {
            match delivery {
                StreamMessage::Message(stream, message) => self.send(stream, event(&message)),
                StreamMessage::End(stream) => self.close(stream),
            }
        }
    }

    /// Ends all streams, and those that are opened later.
    pub(super) fn end(&self) {
        drop(self.open.lock().take());
    }

    fn send(&self, stream: u64, frame: Bytes) {
        let mut open = self.open.lock();
        let Some(to) = open.as_ref().and_then(|open| open.get(&stream)) else { return };
        let waiting = to.waiting.fetch_add(frame.len(), Relaxed);
        let is_full = waiting > 0 && waiting + frame.len() > MOST_WAITING;
        if is_full || to.send.send(frame).is_err() {
            open.as_mut().map(|open| open.remove(&stream));
        }
    }

    fn close(&self, stream: u64) {
        self.open.lock().as_mut().map(|open| open.remove(&stream));
    }
}

pub(super) fn event(message: &Value) -> Bytes {
    format!("event: message\ndata: {message}\n\n").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_is_not_read_is_closed_before_it_holds_too_much() {
        let streams: Arc<Streams> = Arc::default();
        let mut unread = streams.open();
        let message = json!("x".repeat(1 << 20));
        for _ in 0..1000 {
            streams.deliver(vec![StreamMessage::Message(unread.number(), message.clone())]);
        }
        let mut bytes = 0;
        while let Some(frame) = unread.next().await {
            bytes += frame.len();
        }
        assert!((1 << 20..MOST_WAITING).contains(&bytes), "{bytes}");
    }

    #[tokio::test]
    async fn a_message_of_any_size_passes_and_an_end_comes_after_it() {
        let streams: Arc<Streams> = Arc::default();
        let mut stream = streams.open();
        let message = json!("x".repeat(MOST_WAITING));
        let number = stream.number();
        streams.deliver(vec![
            StreamMessage::Message(number, message),
            StreamMessage::End(number),
            StreamMessage::End(number),
        ]);
        assert!(stream.next().await.is_some_and(|frame| frame.len() > MOST_WAITING));
        assert_eq!(stream.next().await, None);
        let mut other = streams.open();
        streams.end();
        assert_eq!((other.next().await, streams.open().next().await), (None, None));
    }
}
