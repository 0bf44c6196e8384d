//! Frames of a stream that wait to be sent, edited ones in a buffer that they share.

use std::{collections::VecDeque, ops::Range};

use bytes::{Bytes, BytesMut};

/// Bytes of a buffer, at the least.
const SHARED: usize = 2 << 10;

/// Frames that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct OutputFrames {
    frames: VecDeque<Bytes>,
    /// Room for the next edited frames.
    buffer: BytesMut,
}

impl OutputFrames {
    /// Adds a frame, unless it is empty.
    pub(super) fn push(&mut self, frame: Bytes) {
        self.frames.extend(Some(frame).filter(|frame| !frame.is_empty()));
    }

    /// Adds a frame of these bytes with others in place of those of this range. Returns it.
    pub(super) fn push_edited(&mut self, bytes: &[u8], list: Range<usize>, with: &[u8]) -> &[u8] {
        let (before, after) = (bytes.get(..list.start).unwrap_or_default(), bytes.get(list.end..).unwrap_or_default());
        let length = before.len() + with.len() + after.len();
        if self.buffer.capacity() < length {
            self.buffer = BytesMut::with_capacity(length.max(SHARED));
        }
        for part in [before, with, after] {
            self.buffer.extend_from_slice(part);
        }
        self.frames.push_back(self.buffer.split().freeze());
        self.frames.back().map(|frame| &**frame).unwrap_or_default()
    }

    pub(super) fn take(&mut self) -> Option<Bytes> {
        self.frames.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frees the room for further frames: a stream that waits holds none.
    pub(super) fn free(&mut self) {
        self.buffer = BytesMut::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_a_frame_and_edited_ones_share_a_buffer() {
        let mut output = OutputFrames::default();
        output.push(Bytes::from_static(b"a"));
        output.push(Bytes::new());
        assert_eq!(output.push_edited(b"b[1]c", 1..4, b"null"), b"bnullc");
        assert_eq!(output.push_edited(b"[]", 0..2, b"null"), b"null");
        let long = [b'x'; SHARED];
        assert_eq!(output.push_edited(&long, 0..0, b"null").len(), SHARED + 4);
        let lengths: Vec<usize> = std::iter::from_fn(|| output.take()).map(|frame| frame.len()).collect();
        assert_eq!(lengths, [1, 6, 4, SHARED + 4]);
        assert!(output.is_empty());
    }
}
