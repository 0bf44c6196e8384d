//! Buffer of server-sent events that are ready, one after the other.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;

/// Bytes a named event takes with little content.
const NAMED: usize = 256;

/// Events in order, as an iterator that takes them out. Empty, it holds no memory for them.
#[derive(Debug, Default)]
pub struct EventBuffer {
    bytes: BytesMut,
    /// The length of each.
    lengths: VecDeque<usize>,
}

impl EventBuffer {
    /// Adds what `write` appends as an event, where that is anything. It takes about `size` bytes.
    pub fn put(&mut self, size: usize, write: impl FnOnce(&mut BytesMut)) {
        let before = self.bytes.len();
        if before == 0 {
            self.bytes.reserve(size);
        }
        write(&mut self.bytes);
        let length = self.bytes.len() - before;
        if length > 0 {
            self.lengths.push_back(length);
        }
    }

    /// Adds an event with a name, and data as JSON.
    #[expect(clippy::expect_used, reason = "data with texts as keys is always JSON")]
    pub fn put_named(&mut self, name: &str, data: &impl Serialize) {
        self.put(NAMED, |out| {
            for text in ["event: ", name, "\ndata: "] {
                out.put_slice(text.as_bytes());
            }
            serde_json::to_writer(out.writer(), data).expect("invariant: event data has texts as keys");
            out.put_slice(b"\n\n");
        });
    }

    /// All events as one.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes.freeze()
    }

    /// Bytes of all events.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }
}

impl Iterator for EventBuffer {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let length = self.lengths.pop_front()?;
        let event = if self.lengths.is_empty() { std::mem::take(&mut self.bytes) } else { self.bytes.split_to(length) };
        Some(event.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_as_they_went_in() {
        let mut events = EventBuffer::default();
        for round in 0..3 {
            for text in ["one", "", "two", "three"] {
                events.put(4, |out| out.extend_from_slice(text.as_bytes()));
            }
            assert_eq!(events.size(), 11);
            let taken: Vec<Bytes> = events.by_ref().take(2 + round).collect();
            assert_eq!(taken, ["one", "two", "three"].get(..(2 + round).min(3)).unwrap());
            assert_eq!(events.by_ref().count(), 3 - taken.len());
            assert!(events.is_empty());
            assert_eq!(events.bytes.capacity(), 0);
        }
    }
}
