//! Bytes of a stream that are ready together and leave as one frame.
//!
//! See docs/decisions/0020-events-share-one-buffer.md.

use std::{collections::VecDeque, ops::Range};

use bytes::{Bytes, BytesMut};

/// Bytes that are enough for a frame.
const FULL: usize = 16 << 10;

/// What takes the place of a list.
const NULL: &[u8] = b"null";

/// Bytes that wait to be sent. What comes alone is not copied.
#[derive(Debug, Default)]
pub(super) struct GatheredOutput {
    /// Frames that nothing more goes into.
    frames: VecDeque<Bytes>,
    /// The bytes after them: a part that came alone, or several.
    alone: Bytes,
    several: BytesMut,
    /// Length of the last frame of several parts: the next one may be as long.
    expected: usize,
}

impl GatheredOutput {
    /// Adds bytes. Many of them are a frame of their own.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.len() >= FULL {
            self.close();
            self.frames.push_back(bytes);
        } else if self.alone.is_empty() && self.several.is_empty() {
            self.alone = bytes;
        } else {
            self.buffer(bytes.len()).extend_from_slice(&bytes);
        }
    }

    /// Adds bytes with `null` in place of those of this range. Returns what was added.
    pub(super) fn push_nulled(&mut self, bytes: &[u8], list: Range<usize>) -> &[u8] {
        let (before, after) = (bytes.get(..list.start).unwrap_or_default(), bytes.get(list.end..).unwrap_or_default());
        let buffer = self.buffer(before.len() + NULL.len() + after.len());
        let start = buffer.len();
        for part in [before, NULL, after] {
            buffer.extend_from_slice(part);
        }
        self.several.get(start..).unwrap_or_default()
    }

    /// Returns the buffer of several parts, with room for so many bytes more.
    fn buffer(&mut self, more: usize) -> &mut BytesMut {
        let alone = std::mem::take(&mut self.alone);
        let expected = if self.several.is_empty() { self.expected } else { 0 };
        self.several.reserve((alone.len() + more).max(expected));
        self.several.extend_from_slice(&alone);
        &mut self.several
    }

    /// Ends the frame.
    fn close(&mut self) {
        let alone = std::mem::take(&mut self.alone);
        let last = if self.several.is_empty() {
            alone
        } else {
            self.expected = self.several.len();
            std::mem::take(&mut self.several).freeze()
        };
        self.frames.extend(Some(last).filter(|bytes| !bytes.is_empty()));
    }

    /// Takes the next frame.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        if self.frames.is_empty() {
            self.close();
        }
        self.frames.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.alone.is_empty() && self.several.is_empty()
    }

    /// Returns true if there is enough for a frame.
    pub(super) fn is_full(&self) -> bool {
        !self.frames.is_empty() || self.several.len() >= FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_leave_in_their_order_and_small_ones_together() {
        let mut output = GatheredOutput::default();
        let large = Bytes::from(vec![b'x'; FULL]);
        output.push(Bytes::from_static(b"alone"));
        assert_eq!((output.is_full(), output.take()), (false, Some(Bytes::from_static(b"alone"))));
        output.push(Bytes::from_static(b"a"));
        assert_eq!(output.push_nulled(b"b[1]c", 1..4), b"bnullc");
        output.push(Bytes::from_static(b"d"));
        output.push(large.clone());
        assert_eq!(output.push_nulled(b"[]", 0..2), b"null");
        assert!(output.is_full());
        let frames: Vec<Bytes> = std::iter::from_fn(|| output.take()).collect();
        assert_eq!(frames, [Bytes::from_static(b"abnullcd"), large, Bytes::from_static(b"null")]);
        assert!(output.is_empty());
    }
}
