//! Decoder of server-sent events that keeps their bytes, so that a proxy can forward an event that it has only read.
//!
//! An event is everything up to and including the first empty line. Lines end in LF or CRLF; a lone CR does not end a line (no
//! engine sends one, and JSON escapes it) unless the splitter is configured so, nor does U+2028 or U+0085, which vLLM sends raw inside
//! strings.

use std::{borrow::Cow, mem};

use bytes::{Bytes, BytesMut};

/// A splitter of a byte stream into events. The result does not depend on how the stream is cut into buffers.
///
/// An event that lies within one buffer is a slice of it and not copied.
#[derive(Debug, Default)]
pub struct SseSplitter {
    /// The beginning of an event from earlier buffers.
    partial: BytesMut,
    /// Number of bytes of `partial` in which no event ends.
    searched: usize,
    /// The rest of the last buffer, while `partial` is empty.
    buffer: Bytes,
    lone_returns: bool,
}

/// An event as it was on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEvent {
    /// Every byte of the event, its closing empty line included.
    pub raw: Bytes,
}

impl SseSplitter {
    /// A splitter for which a lone CR ends a line too, as the standard has it. A line feed that comes in a later buffer than its CR is an
    /// event without fields.
    #[must_use]
    pub fn with_lone_returns() -> Self {
        Self { lone_returns: true, ..Self::default() }
    }

    /// Adds a buffer; [`next_event`](Self::next_event) then returns the complete events.
    pub fn push(&mut self, buffer: Bytes) {
        if self.pending_len() == 0 {
            self.buffer = buffer;
        } else {
            self.store_rest();
            self.partial.extend_from_slice(&buffer);
        }
    }

    /// Returns the next complete event.
    pub fn next_event(&mut self) -> Option<RawEvent> {
        if !self.buffer.is_empty() {
            if let Some(end) = event_end(&self.buffer, 0, self.lone_returns) {
                return Some(RawEvent { raw: self.buffer.split_to(end) });
            }
            self.store_rest();
            self.searched = self.partial.len();
            return None;
        }
        let Some(end) = event_end(&self.partial, self.searched, self.lone_returns) else {
            self.searched = self.partial.len();
            return None;
        };
        self.searched = 0;
        let raw = self.partial.split_to(end).freeze();
        if self.partial.is_empty() {
            // Frees the allocation while the stream waits.
            self.partial = BytesMut::new();
        }
        Some(RawEvent { raw })
    }

    /// Moves the rest of the last buffer to `partial`.
    fn store_rest(&mut self) {
        self.partial.extend_from_slice(&mem::take(&mut self.buffer));
    }

    /// Returns the number of bytes that belong to no complete event yet.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.partial.len() + self.buffer.len()
    }

    /// Takes the bytes after the last complete event.
    pub fn take_rest(&mut self) -> Bytes {
        self.store_rest();
        self.searched = 0;
        mem::take(&mut self.partial).freeze()
    }
}

/// Finds the end of the first event: the index after the first empty line whose end is at or after `from`. A block that
/// starts with an empty line is an event without fields.
fn event_end(bytes: &[u8], from: usize, lone_returns: bool) -> Option<usize> {
    let other = if lone_returns { b'\r' } else { b'\n' };
    let mut ends = memchr::memchr2_iter(b'\n', other, bytes.get(from..)?).map(|at| from + at);
    let end = ends.find(|end| {
        let before = bytes.get(..*end).unwrap_or_default();
        if lone_returns { ends_standard_line(before, bytes.get(*end)) } else { ends_empty_line(before) }
    })?;
    let is_pair = lone_returns && bytes.get(end..end + 2) == Some(b"\r\n");
    Some(end + if is_pair { 2 } else { 1 })
}

/// Returns whether a line feed after these bytes ends an empty line.
fn ends_empty_line(before: &[u8]) -> bool {
    let line = before.strip_suffix(b"\r").unwrap_or(before);
    line.is_empty() || line.ends_with(b"\n")
}

/// Returns whether this CR or LF after these bytes ends an empty line, where a lone CR ends a line.
fn ends_standard_line(before: &[u8], end: Option<&u8>) -> bool {
    match before.last() {
        None | Some(b'\n') => true,
        // With a line feed it is one end of one line.
        Some(b'\r') => end == Some(&b'\r'),
        Some(_) => false,
    }
}

impl RawEvent {
    /// Returns the payload, as [`event_data`] does.
    #[must_use]
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        event_data(&self.raw)
    }

    /// Returns the event's name.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        event_name(&self.raw)
    }

    /// Returns the names and values of all fields, comments with an empty name; lines end in LF, CR or both.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.raw.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty());
        lines.map(|line| {
            let (name, value) = line.split_at(memchr::memchr(b':', line).unwrap_or(line.len()));
            let value = value.strip_prefix(b":").unwrap_or(value);
            (name, value.strip_prefix(b" ").unwrap_or(value))
        })
    }
}

/// Returns the payload of an event: the `data` lines, joined by line feeds. `None` for comments and events without data.
#[must_use]
pub fn event_data(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut lines = values(raw, b"data");
    let first = lines.next()?;
    let Some(second) = lines.next() else { return Some(Cow::Borrowed(first)) };
    let mut joined = [first, b"\n", second].concat();
    for line in lines {
        joined.push(b'\n');
        joined.extend_from_slice(line);
    }
    Some(Cow::Owned(joined))
}

/// Returns an event's name.
#[must_use]
pub fn event_name(raw: &[u8]) -> Option<&[u8]> {
    values(raw, b"event").last()
}

fn values<'a>(raw: &'a [u8], name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut from = 0;
    let ends = memchr::memchr_iter(b'\n', raw).chain([raw.len()]);
    let lines = ends.filter_map(move |end| raw.get(std::mem::replace(&mut from, end + 1)..end));
    lines.filter_map(move |line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let rest = line.strip_prefix(name)?;
        let value = if rest.is_empty() { rest } else { rest.strip_prefix(b":")? };
        Some(value.strip_prefix(b" ").unwrap_or(value))
    })
}

/// Encodes an event; each line of its data becomes a `data` field.
#[must_use]
pub fn encode_event(name: Option<&str>, data: &str) -> Bytes {
    let mut event = String::with_capacity(data.len() + 64);
    for (field, value) in
        name.map(|name| ("event: ", name)).into_iter().chain(data.split('\n').map(|it| ("data: ", it)))
    {
        event.extend([field, value, "\n"]);
    }
    event.push('\n');
    event.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<u8>) {
        split_by(SseSplitter::default(), pieces)
    }

    fn split_by(mut splitter: SseSplitter, pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut events = Vec::new();
        for piece in pieces {
            splitter.push(Bytes::copy_from_slice(piece));
            while let Some(event) = splitter.next_event() {
                events.push(event.raw.to_vec());
            }
        }
        (events, splitter.take_rest().to_vec())
    }

    const STREAM: &[u8] = "data: {\"a\":\"é\u{2028}\u{85}\"}\n\n: keep-alive\n\r\nevent: x\r\ndata: 1\r\ndata:2\r\n\r\n\n\ndata: [DONE]\n\ndata: cut"
        .as_bytes();

    #[test]
    fn every_cut_in_two_gives_the_same_events() {
        let whole = split(&[STREAM]);
        assert_eq!(whole.0.len(), 6);
        assert_eq!(whole.0.concat().len() + whole.1.len(), STREAM.len());
        assert_eq!(whole.1, b"data: cut");
        for at in 0..=STREAM.len() {
            assert_eq!(split(&[&STREAM[..at], &STREAM[at..]]), whole, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(split(&bytes), whole);
    }

    #[test]
    fn a_lone_return_ends_a_line_where_it_may() {
        let stream: &[u8] = b"data: 1\r\rid: 2\r\ndata: 3\r\n\r\ndata: 4\n\r\ndata: 5\r\n";
        let whole = split_by(SseSplitter::with_lone_returns(), &[stream]);
        let expected: [&[u8]; 3] = [b"data: 1\r\r", b"id: 2\r\ndata: 3\r\n\r\n", b"data: 4\n\r\n"];
        assert_eq!(whole, (expected.map(<[u8]>::to_vec).to_vec(), b"data: 5\r\n".to_vec()));
        for at in 0..=stream.len() {
            let (mut events, rest) = split_by(SseSplitter::with_lone_returns(), &[&stream[..at], &stream[at..]]);
            // The end of an empty line may be cut in two.
            events.retain(|event| event != b"\n");
            assert_eq!(events.len(), 3, "cut at {at}");
            assert_eq!(rest, b"data: 5\r\n");
        }
        let event = RawEvent { raw: Bytes::from_static(expected[1]) };
        assert_eq!(event.fields().collect::<Vec<_>>(), [(&b"id"[..], &b"2"[..]), (&b"data"[..], &b"3"[..])]);
    }

    proptest! {
        #[test]
        fn any_cut_of_any_bytes_gives_the_same_events(
            stream in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let whole = split(&[&stream]);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut start = 0;
            for cut in cuts.into_iter().chain([stream.len()]) {
                pieces.push(&stream[start..cut]);
                start = cut;
            }
            prop_assert_eq!(split(&pieces), whole);
        }
    }

    #[test]
    fn fields_are_read_as_in_the_standard() {
        let event = |raw: &'static [u8]| RawEvent { raw: Bytes::from_static(raw) };
        assert_eq!(event(b"data: {}\n\n").data().as_deref(), Some(&b"{}"[..]));
        assert_eq!(event(b"data:  x\ndata\ndata:y\n\n").data().as_deref(), Some(&b" x\n\ny"[..]));
        assert_eq!(event(b": comment\n\n").data(), None);
        assert_eq!(event(b"database: x\n\n").data(), None);
        assert_eq!(event(b"event: a\r\ndata: 1\r\n\r\n").name(), Some(&b"a"[..]));
        assert_eq!(event(b"data: [DONE]\n\n").data().unwrap().as_ref(), b"[DONE]");
    }

    #[test]
    fn every_line_of_data_has_its_field() {
        assert_eq!(encode_event(Some("x"), "a\nb"), "event: x\ndata: a\ndata: b\n\n");
        assert_eq!(encode_event(None, "[DONE]"), "data: [DONE]\n\n");
    }
}
