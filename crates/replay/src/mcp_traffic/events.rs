//! Messages in a stream of server-sent events, however its lines end: LF, CR or both.
//!
//! Limits: an event of another name than `message` is no message; an event that is too long is lost.

use std::{mem::take, time::Duration};

use bytes::Bytes;

use crate::mcp::ReadLine;
use net::wire::{RawEvent, SseSplitter};

/// Bytes of an event beside its data.
const BESIDE_DATA: usize = 1024;

/// Takes the bytes of a stream and gives the data of its events.
#[derive(Debug)]
pub struct EventData {
    splitter: SseSplitter,
    /// Bytes that the data of an event may have.
    most: usize,
    /// The beginning of the event that comes next was too long and is gone.
    is_lost: bool,
    is_begun: bool,
    last_id: Option<Vec<u8>>,
    retry: Option<Duration>,
    count: u64,
}

impl EventData {
    /// Events of so many bytes at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let splitter = SseSplitter::with_lone_returns();
        Self { splitter, most, is_lost: false, is_begun: false, last_id: None, retry: None, count: 0 }
    }

    /// Whether any event had an id, so that the rest of the stream can be had by another one.
    pub(crate) fn is_resumable(&self) -> bool {
        self.last_id.is_some()
    }

    /// Id of the last event that had one.
    #[must_use]
    pub fn last_id(&self) -> Option<&[u8]> {
        self.last_id.as_deref()
    }

    /// Pause before the stream may be opened again, where the server names one.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Messages so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Begins with the bytes of another stream, which goes on where this one ended.
    pub fn restart(&mut self) {
        *self = Self { last_id: self.last_id.take(), retry: self.retry, count: self.count, ..Self::new(self.most) };
    }

    /// Takes bytes and gives the messages that end in them.
    pub fn push(&mut self, bytes: Bytes) -> Vec<ReadLine> {
        self.splitter.push(bytes);
        let mut read_lines = Vec::new();
        while let Some(event) = self.splitter.next_event() {
            read_lines.extend(self.event(event));
        }
        if self.splitter.pending_len() > self.most + BESIDE_DATA {
            self.is_lost = true;
            // By its last byte it is known whether the next line is empty; the one before is of no empty line.
            let last = self.splitter.take_rest().last().copied();
            self.splitter.push([b':'].into_iter().chain(last).collect());
        }
        read_lines
    }

    fn event(&mut self, mut event: RawEvent) -> Option<ReadLine> {
        if !std::mem::replace(&mut self.is_begun, true) && event.raw.starts_with(b"\xef\xbb\xbf") {
            event.raw = event.raw.slice(3..);
        }
        if take(&mut self.is_lost) {
            return Some(ReadLine::Lost);
        }
        let (mut data, mut is_other) = (None::<Vec<u8>>, false);
        for (name, value) in event.fields() {
            match (name, &mut data) {
                (b"data", None) => data = Some(value.to_vec()),
                (b"data", Some(data)) => data.extend([b"\n", value].concat()),
                (b"event", _) => is_other = value != b"message",
                (b"id", _) => self.last_id = Some(value.to_vec()),
                (b"retry", _) => {
                    let ms = std::str::from_utf8(value).ok().and_then(|ms| ms.parse().ok());
                    self.retry = ms.map(Duration::from_millis).or(self.retry);
                }
                _ => {}
            }
        }
        let data = data.filter(|data| !is_other && !data.trim_ascii().is_empty())?;
        if data.len() > self.most {
            return Some(ReadLine::Lost);
        }
        self.count += 1;
        Some(ReadLine::Line(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(stream: &[u8], size: usize) -> (Vec<ReadLine>, bool) {
        let mut events = EventData::new(24);
        let read_lines = stream.chunks(size).flat_map(|bytes| events.push(Bytes::copy_from_slice(bytes))).collect();
        (read_lines, events.is_resumable())
    }

    #[test]
    fn messages_are_the_same_however_the_bytes_are_cut() {
        let stream = "\u{feff}data: {}\n\n: keep-alive\n\nid: 1\ndata:\n\nevent: message\r\ndata: [1,\r\ndata: \u{e9}]\r\n\r\n\
                      event: endpoint\ndata: /x\n\ndata:7\r\rdata: 123456789012345678901234567890\n\nretry: 3\ndata: 8\n\ndata: half"
            .as_bytes();
        let line = |text: &str| ReadLine::Line(text.as_bytes().to_vec());
        let expected = [line("{}"), line("[1,\n\u{e9}]"), line("7"), ReadLine::Lost, line("8")];
        for size in 1..=stream.len() {
            assert_eq!(cut(stream, size), (expected.to_vec(), true), "{size}");
        }
        assert_eq!(cut(b"data: 1\n\n", 3), (vec![line("1")], false));
    }
    #[test]
    fn an_event_that_is_too_long_is_not_kept() {
        let long = "x".repeat(3000);
        let stream = format!("data: 1\n\ndata: {long}\ndata: {long}\r\n\r\ndata: 2\n\n");
        let line = |text: &str| ReadLine::Line(text.as_bytes().to_vec());
        for size in [1, 7, 1000, 3016, 10_000] {
            let mut events = EventData::new(24);
            let mut read_lines = Vec::new();
            for bytes in stream.as_bytes().chunks(size) {
                read_lines.extend(events.push(Bytes::copy_from_slice(bytes)));
                assert!(events.splitter.pending_len() <= 24 + BESIDE_DATA);
            }
            assert_eq!(read_lines, [line("1"), ReadLine::Lost, line("2")], "{size}");
        }
    }
}
