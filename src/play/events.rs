//! Events that are ready, one after the other in one buffer.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Events in order, as an iterator that takes them out. Empty, it holds no memory for them.
#[derive(Debug, Default)]
pub(super) struct Events {
    bytes: BytesMut,
    /// The length of each.
    lengths: VecDeque<usize>,
}

impl Events {
    /// Adds what `write` appends as an event, where that is anything. It takes about `size` bytes.
    pub(super) fn put(&mut self, size: usize, write: impl FnOnce(&mut BytesMut)) {
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

    /// All events as one.
    pub(super) fn into_bytes(self) -> Bytes {
        self.bytes.freeze()
    }

    /// Bytes of all events.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }
}

impl Iterator for Events {
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
        let mut events = Events::default();
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
