//! Cuts a byte stream into server-sent events, however the transport split it.
//!
//! An event is everything up to and including the first empty line. Its raw bytes are kept, so that a proxy can forward
//! what it only looked at. Lines end in LF or CRLF; a lone CR does not end a line (no engine sends one, and JSON escapes
//! it), nor does U+2028 or U+0085, which vLLM sends raw inside strings.

use std::{borrow::Cow, mem};

use bytes::{Bytes, BytesMut};

/// Cuts events out of a byte stream. The same bytes give the same events for every way of cutting them into pieces.
///
/// Events that are whole in their piece are parts of it and not copied.
#[derive(Debug, Default)]
pub struct SseSplitter {
    /// The beginning of an event that came in earlier pieces.
    begun: BytesMut,
    /// Bytes of `begun` that are known to hold no event's last line feed.
    searched: usize,
    /// What is left of the last piece, where nothing is begun.
    piece: Bytes,
}

/// One event as it was on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Every byte of the event, its closing empty line included.
    pub raw: Bytes,
}

impl SseSplitter {
    /// Takes the next piece of the stream; [`next_event`](Self::next_event) then gives the events that are complete.
    pub fn push(&mut self, piece: Bytes) {
        if self.pending_len() == 0 {
            self.piece = piece;
        } else {
            self.begin();
            self.begun.extend_from_slice(&piece);
        }
    }

    /// The next complete event, if one is there.
    pub fn next_event(&mut self) -> Option<Event> {
        if !self.piece.is_empty() {
            if let Some(end) = event_end(&self.piece, 0) {
                return Some(Event { raw: self.piece.split_to(end) });
            }
            self.begin();
            self.searched = self.begun.len();
            return None;
        }
        let Some(end) = event_end(&self.begun, self.searched) else {
            self.searched = self.begun.len();
            return None;
        };
        self.searched = 0;
        let raw = self.begun.split_to(end).freeze();
        if self.begun.is_empty() {
            // A stream that waits between events holds no buffer.
            self.begun = BytesMut::new();
        }
        Some(Event { raw })
    }

    /// What is left of the last piece begins an event, or goes on with one.
    fn begin(&mut self) {
        self.begun.extend_from_slice(&mem::take(&mut self.piece));
    }

    /// Bytes of an event that has not ended yet.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.begun.len() + self.piece.len()
    }

    /// What is left when the stream ends in the middle of an event, byte for byte.
    pub fn take_rest(&mut self) -> Bytes {
        self.begin();
        self.searched = 0;
        mem::take(&mut self.begun).freeze()
    }
}

/// Where the first event ends: just after the first empty line whose line feed is at or after `from`. A block that starts
/// with an empty line is an event of its own without fields.
fn event_end(bytes: &[u8], from: usize) -> Option<usize> {
    let unsearched = bytes.get(from..)?.iter().enumerate();
    let mut feeds = unsearched.filter(|(_, byte)| **byte == b'\n').map(|(at, _)| from + at);
    feeds.find(|feed| ends_empty_line(bytes.get(..*feed).unwrap_or_default())).map(|feed| feed + 1)
}

/// Whether a line feed after these bytes ends an empty line.
fn ends_empty_line(before: &[u8]) -> bool {
    let line = before.strip_suffix(b"\r").unwrap_or(before);
    line.is_empty() || line.ends_with(b"\n")
}

impl Event {
    /// The event's payload: its `data` lines, joined by line feeds. `None` for comments and events without data.
    #[must_use]
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        let mut lines = self.fields(b"data");
        let first = lines.next()?;
        let Some(second) = lines.next() else { return Some(Cow::Borrowed(first)) };
        let mut joined = [first, b"\n", second].concat();
        for line in lines {
            joined.push(b'\n');
            joined.extend_from_slice(line);
        }
        Some(Cow::Owned(joined))
    }

    /// The event's name, where it has one.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        self.fields(b"event").last()
    }

    /// Whether the payload is the `[DONE]` that ends OpenAI streams.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.data().is_some_and(|data| data.as_ref() == b"[DONE]")
    }

    fn fields<'a>(&'a self, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.raw.split(|byte| *byte == b'\n').filter_map(move |line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let rest = line.strip_prefix(name)?;
            let value = if rest.is_empty() { rest } else { rest.strip_prefix(b":")? };
            Some(value.strip_prefix(b" ").unwrap_or(value))
        })
    }
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
        let mut splitter = SseSplitter::default();
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
    fn fields_are_read_as_the_standard_says() {
        let event = |raw: &'static [u8]| Event { raw: Bytes::from_static(raw) };
        assert_eq!(event(b"data: {}\n\n").data().as_deref(), Some(&b"{}"[..]));
        assert_eq!(event(b"data:  x\ndata\ndata:y\n\n").data().as_deref(), Some(&b" x\n\ny"[..]));
        assert_eq!(event(b": comment\n\n").data(), None);
        assert_eq!(event(b"database: x\n\n").data(), None);
        assert_eq!(event(b"event: a\r\ndata: 1\r\n\r\n").name(), Some(&b"a"[..]));
        assert!(event(b"data: [DONE]\n\n").is_done());
    }

    #[test]
    fn every_line_of_data_has_its_field() {
        assert_eq!(encode_event(Some("x"), "a\nb"), "event: x\ndata: a\ndata: b\n\n");
        assert_eq!(encode_event(None, "[DONE]"), "data: [DONE]\n\n");
    }
}
