//! Messages in the bytes of a connection that pass by in any pieces, for programs that stand between two sockets and wait for nothing.
//!
//! A message is as many frames as have [`MORE`] and one without; commands stand between messages.
//!
//! See docs/decisions/0142-the-engine-core-tap-relays-bytes.md.

use crate::zmtp::{COMMAND, FRAME_COST, GREETING, LONG, MORE};
use base::held_bytes::{HeldBytes, HeldShare};

/// Something that a connection's bytes contain.
#[derive(Debug, PartialEq, Eq)]
pub enum ZmtpUnit {
    /// The greeting.
    Greeting([u8; GREETING]),
    /// The body of a command.
    Command(Vec<u8>),
    /// The frames of a message; those over the number that is kept are empty.
    Message(Vec<Vec<u8>>),
    /// A message or command that is longer than the limit, when its last byte came.
    TooLong,
}

/// Reader of one direction of a connection. It never fails: whatever bytes come are frames of some length.
#[derive(Debug)]
pub struct ZmtpReader {
    place: FramePlace,
    frames: Vec<Vec<u8>>,
    /// Bytes of the message so far, [`FRAME_COST`] of each frame included; those of frames that are not kept are left out.
    held: u64,
    limit: u64,
    kept_frames: usize,
    is_over: bool,
    /// The bytes that it holds, of those that several connections may.
    share: HeldShare,
}

#[derive(Debug)]
enum FramePlace {
    Greeting(Vec<u8>),
    /// Before a frame, with what came of its flags and length.
    Head(Vec<u8>),
    Body {
        flags: u8,
        left: u64,
        bytes: Vec<u8>,
    },
}

impl ZmtpReader {
    /// Creates a reader that holds at most `limit` bytes of a message, and the first `kept_frames` frames of each.
    #[must_use]
    pub fn new(limit: u64, kept_frames: usize) -> Self {
        Self {
            place: FramePlace::Greeting(Vec::with_capacity(GREETING)),
            frames: Vec::new(),
            held: 0,
            limit,
            kept_frames,
            is_over: false,
            share: HeldBytes::new(u64::MAX).share(),
        }
    }

    /// Shares a limit with other connections: a message that does not fit into it is too long.
    #[must_use]
    pub fn within(mut self, held: &HeldBytes) -> Self {
        self.share = held.share();
        self
    }

    /// Reads the next bytes and hands over what ends in them.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(ZmtpUnit)) {
        while !bytes.is_empty() {
            let (used, unit) = self.step(bytes);
            bytes = bytes.get(used..).unwrap_or_default();
            unit.into_iter().for_each(&mut each);
        }
    }

    /// Reads some bytes, at least one; returns their number and what ends with them.
    fn step(&mut self, bytes: &[u8]) -> (usize, Option<ZmtpUnit>) {
        match &mut self.place {
            FramePlace::Greeting(greeting) => {
                let used = fill(greeting, bytes, GREETING);
                let unit = <[u8; GREETING]>::try_from(greeting.as_slice()).ok().map(ZmtpUnit::Greeting);
                if unit.is_some() {
                    self.place = FramePlace::Head(Vec::new());
                }
                (used, unit)
            }
            FramePlace::Head(head) => {
                let is_long = head.first().or(bytes.first()).is_some_and(|flags| flags & LONG != 0);
                let used = fill(head, bytes, if is_long { 9 } else { 2 });
                let begun = begun(head);
                match begun {
                    Some((flags, length)) => (used, self.begin(flags, length)),
                    None => (used, None),
                }
            }
            FramePlace::Body { left, bytes: body, flags } => {
                let used = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= used as u64;
                let is_kept = !self.is_over && (self.frames.len() < self.kept_frames || *flags & COMMAND != 0);
                if is_kept && self.share.add(used as u64) {
                    body.extend_from_slice(bytes.get(..used).unwrap_or_default());
                } else if is_kept {
                    *body = Vec::new();
                    self.is_over = true;
                    self.frames = Vec::new();
                    self.share.clear();
                }
                let (is_whole, flags) = (*left == 0, *flags);
                let body = if is_whole { std::mem::take(body) } else { Vec::new() };
                (used, if is_whole { self.end(flags, body) } else { None })
            }
        }
    }

    /// Begins a frame; one without bytes ends at once.
    fn begin(&mut self, flags: u8, length: u64) -> Option<ZmtpUnit> {
        let is_kept = self.frames.len() < self.kept_frames || flags & COMMAND != 0;
        let cost = if is_kept { length.saturating_add(FRAME_COST) } else { FRAME_COST };
        self.held = self.held.saturating_add(cost);
        if self.held > self.limit || !self.is_over && !self.share.add(FRAME_COST) {
            self.is_over = true;
            self.frames = Vec::new();
            self.share.clear();
        }
        if length == 0 {
            return self.end(flags, Vec::new());
        }
        self.place = FramePlace::Body { flags, left: length, bytes: Vec::new() };
        None
    }

    fn end(&mut self, flags: u8, body: Vec<u8>) -> Option<ZmtpUnit> {
        self.place = FramePlace::Head(Vec::new());
        if flags & COMMAND != 0 && self.frames.is_empty() {
            self.held = 0;
            self.share.clear();
            return Some(if std::mem::take(&mut self.is_over) { ZmtpUnit::TooLong } else { ZmtpUnit::Command(body) });
        }
        if !self.is_over {
            self.frames.push(body);
        }
        if flags & MORE != 0 {
            return None;
        }
        self.held = 0;
        self.share.clear();
        let frames = std::mem::take(&mut self.frames);
        Some(if std::mem::take(&mut self.is_over) { ZmtpUnit::TooLong } else { ZmtpUnit::Message(frames) })
    }
}

/// Fills up to a length and returns the number of bytes that it took.
fn fill(buffer: &mut Vec<u8>, bytes: &[u8], length: usize) -> usize {
    let used = length.saturating_sub(buffer.len()).min(bytes.len());
    buffer.extend_from_slice(bytes.get(..used).unwrap_or_default());
    used
}

/// Reads the flags and the length of a frame; `None` before all of it came.
fn begun(head: &[u8]) -> Option<(u8, u64)> {
    match head {
        [flags, length] if flags & LONG == 0 => Some((*flags, (*length).into())),
        [flags, length @ ..] => Some((*flags, u64::from_be_bytes(length.try_into().ok()?))),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zmtp::{put_frame, put_message};

    fn read(reader: &mut ZmtpReader, bytes: &[u8], cut: usize) -> Vec<ZmtpUnit> {
        let mut units = Vec::new();
        bytes.chunks(cut).for_each(|piece| reader.push(piece, |unit| units.push(unit)));
        units
    }

    fn sample() -> Vec<u8> {
        let mut bytes = vec![0xff; GREETING];
        put_frame(&mut bytes, COMMAND, 5);
        bytes.extend(*b"READY");
        put_message(&mut bytes, &[b"\0".to_vec(), vec![7; 300], Vec::new()]);
        put_message(&mut bytes, &[Vec::new()]);
        bytes
    }

    #[test]
    fn any_pieces_are_the_same_messages() {
        let expected = [
            ZmtpUnit::Greeting([0xff; GREETING]),
            ZmtpUnit::Command(b"READY".to_vec()),
            ZmtpUnit::Message(vec![b"\0".to_vec(), vec![7; 300], Vec::new()]),
            ZmtpUnit::Message(vec![Vec::new()]),
        ];
        for cut in 1..sample().len() {
            assert_eq!(read(&mut ZmtpReader::new(1 << 20, 9), &sample(), cut), expected, "{cut}");
        }
    }

    #[test]
    fn frames_over_the_kept_ones_are_empty_and_cost_nothing() {
        let mut bytes = vec![0xff; GREETING];
        put_message(&mut bytes, &[b"a".to_vec(), vec![7; 5000], vec![8; 5000]]);
        let units = read(&mut ZmtpReader::new(200, 1), &bytes, 11);
        assert_eq!(units[1..], [ZmtpUnit::Message(vec![b"a".to_vec(), Vec::new(), Vec::new()])]);
    }

    #[test]
    fn messages_without_an_end_share_a_limit() {
        let held = HeldBytes::new(5000);
        let mut begun = vec![0xff; GREETING];
        put_frame(&mut begun, MORE, 3000);
        begun.extend([7; 3000]);
        let mut readers = [(); 2].map(|()| ZmtpReader::new(1 << 20, 9).within(&held));
        readers.iter_mut().for_each(|reader| drop(read(reader, &begun, 100)));
        let [mut first, mut second] = readers;
        let end = [0, 1, b'x'];
        assert_eq!(read(&mut second, &end, 9), [ZmtpUnit::TooLong]);
        assert_eq!(read(&mut first, &end, 9), [ZmtpUnit::Message(vec![vec![7; 3000], b"x".to_vec()])]);
        assert_eq!(read(&mut second, &[&begun[GREETING..], &end].concat(), 9).len(), 1, "it is given back");
        // Frames without bytes are held too.
        let empty = [MORE, 0].repeat(100);
        assert!(read(&mut first, &empty, 9).is_empty() && read(&mut second, &empty, 9).is_empty());
        assert_eq!(read(&mut second, &end, 9), [ZmtpUnit::TooLong]);
        assert!(matches!(read(&mut first, &end, 9).as_slice(), [ZmtpUnit::Message(frames)] if frames.len() == 101));
    }

    #[test]
    fn too_long_messages_are_held_no_longer_and_the_next_one_is_read() {
        let mut bytes = vec![0xff; GREETING];
        put_message(&mut bytes, &[b"a".to_vec(), vec![7; 5000]]);
        put_frame(&mut bytes, COMMAND, 5000);
        bytes.extend([9; 5000]);
        put_message(&mut bytes, &[b"b".to_vec()]);
        let units = read(&mut ZmtpReader::new(1000, 9), &bytes, 100);
        assert_eq!(units[1..], [ZmtpUnit::TooLong, ZmtpUnit::TooLong, ZmtpUnit::Message(vec![b"b".to_vec()])]);
        // A length that no machine has takes no memory.
        let mut reader = ZmtpReader::new(1000, 9);
        let endless = [&[0xff; GREETING][..], &[LONG], &u64::MAX.to_be_bytes(), &[1; 100]].concat();
        assert_eq!(read(&mut reader, &endless, 7).len(), 1);
        assert!(reader.is_over);
    }
}
