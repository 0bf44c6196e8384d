//! Messages in a stream of server-sent events, however its lines end: LF, CR or both.
//!
//! Limits: an event of another name than `message` is no message; an event that is too long is lost.

use std::{mem::take, time::Duration};

use crate::mcp::ReadLine;

/// Takes the bytes of a stream and gives the data of its events.
#[derive(Debug)]
pub struct EventData {
    line: Vec<u8>,
    data: Vec<u8>,
    /// Bytes that an event may have.
    most: usize,
    has_data: bool,
    /// The event has another name.
    is_other: bool,
    is_lost: bool,
    /// The last byte was a carriage return; a line feed after it ends no further line.
    was_return: bool,
    is_begun: bool,
    /// Id of the last event that had one.
    last_id: Option<Vec<u8>>,
    retry: Option<Duration>,
    count: u64,
}

impl EventData {
    /// Events of so many bytes at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            most,
            has_data: false,
            is_other: false,
            is_lost: false,
            was_return: false,
            is_begun: false,
            last_id: None,
            retry: None,
            count: 0,
        }
    }

    /// Whether any event had an id, so that the rest of the stream can be had by another one.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
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
        let (last_id, retry, count) = (self.last_id.take(), self.retry, self.count);
        *self = Self { last_id, retry, count, ..Self::new(self.most) };
    }

    /// Takes bytes and gives the messages that end in them.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ReadLine> {
        let (mut read_lines, mut rest) = (Vec::new(), bytes);
        if self.was_return && rest.first().is_some_and(|byte| *byte == b'\n') {
            rest = rest.get(1..).unwrap_or_default();
        }
        self.was_return &= bytes.is_empty();
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, after) = rest.split_at(end);
            self.add(line);
            read_lines.extend(self.end_line());
            let length = if after.starts_with(b"\r\n") { 2 } else { 1 };
            self.was_return = after == b"\r";
            rest = after.get(length..).unwrap_or_default();
        }
        self.add(rest);
        read_lines
    }

    fn add(&mut self, bytes: &[u8]) {
        if !self.is_lost && self.line.len() + self.data.len() + bytes.len() <= self.most {
            return self.line.extend_from_slice(bytes);
        }
        // Whether a line is empty is known all the same.
        let first = self.line.first().or(bytes.first()).copied();
        (self.is_lost, self.line, self.data) = (true, Vec::from_iter(first), Vec::new());
    }

    fn end_line(&mut self) -> Option<ReadLine> {
        let mut line = take(&mut self.line);
        if !std::mem::replace(&mut self.is_begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            return self.end_event();
        }
        let (name, value) = match memchr::memchr(b':', &line) {
            Some(colon) => line.split_at(colon),
            None => (line.as_slice(), &[][..]),
        };
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            _ if self.is_lost => {}
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"event" => self.is_other = value != b"message",
            b"id" => self.last_id = Some(value.to_vec()),
            b"retry" => {
                let ms = std::str::from_utf8(value).ok().and_then(|ms| ms.parse().ok());
                self.retry = ms.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<ReadLine> {
        let (data, is_other) = (take(&mut self.data), take(&mut self.is_other));
        self.has_data = false;
        if take(&mut self.is_lost) {
            return Some(ReadLine::Lost);
        }
        let is_message = !is_other && !data.trim_ascii().is_empty();
        self.count += u64::from(is_message);
        is_message.then_some(ReadLine::Line(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(stream: &[u8], size: usize) -> (Vec<ReadLine>, bool) {
        let mut events = EventData::new(24);
        let read_lines = stream.chunks(size).flat_map(|bytes| events.push(bytes)).collect();
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
}
