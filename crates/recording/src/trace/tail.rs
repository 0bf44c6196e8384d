//! The tail of a trace that is to be appended to: whether it was cut, when its last answer ended, what was counted.
//!
//! Only the last megabytes are read, more where they hold no whole line. In a gzip file they begin with the first whole member in them; a member that is
//! whole proves, by its checksum, that it starts where it seemed to.
//!
//! See docs/decisions/0057-append-in-place.md.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    time::Duration,
};

use serde::{Deserialize, de::IgnoredAny};

use super::{
    CaptureEnd,
    closing::LastBytes,
    gunzip::{MemberState, inflate, new_member},
    gzip_members::may_be_header,
    raw::is_incomplete,
    source::{LONGEST_LINE, Packing},
};
use base::units::Millis;

/// Bytes at the end of a file that are read first.
const TAIL: u64 = 4 << 20;
/// Places in a tail where a member seems to start, and of which none is whole.
const TRIES: usize = 64;
const BUFFER: usize = 64 * 1024;
/// Bytes of the shortest gzip header.
const HEADER: usize = 10;

#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Survey {
    /// Latest end of an answer in the tail.
    pub(super) last: Duration,
    pub(super) records: u64,
    /// The tail is the whole file, so that its records are all.
    pub(super) is_whole: bool,
    pub(super) end: Option<CaptureEnd>,
    /// Change that the tail needs before something may follow it.
    pub(super) repair: Option<Repair>,
    pub(super) bad_lines: u64,
}

/// Change of a tail: the file is cut at `at`, and the first `keep` bytes of what was (unpacked) behind it are written again, and a line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Repair {
    pub(super) at: u64,
    pub(super) keep: u64,
    pub(super) needs_line_end: bool,
    pub(super) is_cut: bool,
}

/// Looks at the tail of `file`.
pub(super) fn survey(file: &File, packing: Packing) -> io::Result<Survey> {
    let length = file.metadata()?.len();
    let mut tail = TAIL;
    loop {
        let start = length.saturating_sub(tail);
        let found = match packing {
            Packing::Plain => plain(file, start)?,
            Packing::Gzip => packed(file, start, length)?,
        };
        if let Some(mut survey) = found {
            survey.is_whole = start == 0;
            if packing == Packing::Gzip && survey.end.is_none() {
                survey.end = LastBytes::of_file(file)?.end();
            }
            return Ok(survey);
        }
        tail = if tail >= 16 * TAIL { length } else { tail * 4 };
    }
}

/// `None` where more must be read.
fn plain(mut file: &File, start: u64) -> io::Result<Option<Survey>> {
    file.seek(SeekFrom::Start(start))?;
    let mut input = BufReader::with_capacity(BUFFER, file);
    let mut scan = TailScan { is_within: start > 0, ..TailScan::default() };
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        scan.feed(bytes)?;
        let length = bytes.len();
        input.consume(length);
    }
    scan.finish();
    if scan.lines == 0 && start > 0 {
        return Ok(None);
    }
    let repair = scan.is_ragged().then(|| scan.repair(start + scan.good, 0));
    Ok(Some(Survey { repair, ..scan.survey }))
}

/// `None` where more must be read.
fn packed(mut file: &File, start: u64, length: u64) -> io::Result<Option<Survey>> {
    let root = if start == 0 { Some(0) } else { root(file, start)? };
    let Some(mut at) = root else { return Ok(None) };
    file.seek(SeekFrom::Start(at))?;
    let mut input = BufReader::with_capacity(BUFFER, file);
    let mut scan = TailScan { is_within: start > 0, ..TailScan::default() };
    let mut buffer = vec![0; BUFFER];
    // Where the last member begins that has the last good line's end in it or before it.
    let mut from = (at, 0);
    let mut is_torn = false;
    let mut begun = Vec::new();
    while at < length {
        begun.push((at, scan.position));
        let taken = member(&mut input, &mut buffer, |bytes| scan.feed(bytes))?;
        is_torn = taken.is_none();
        at = taken.map_or(length, |taken| at + taken);
        if let Some(last) = begun.iter().rposition(|(_, position)| *position <= scan.good) {
            begun.drain(..last);
            from = begun.first().copied().unwrap_or(from);
        }
    }
    scan.finish();
    if scan.lines == 0 && start > 0 {
        return Ok(None);
    }
    if let Some(last) = begun.iter().rfind(|(_, position)| *position <= scan.good) {
        from = *last;
    }
    let repair = (is_torn || scan.is_ragged()).then(|| scan.repair(from.0, scan.good - from.1));
    Ok(Some(Survey { repair, ..scan.survey }))
}

/// Start of the first whole member of a tail.
fn root(mut file: &File, start: u64) -> io::Result<Option<u64>> {
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let mut buffer = vec![0; BUFFER];
    let starts = tail.windows(HEADER).enumerate().filter(|(_, bytes)| may_be_header(bytes)).map(|(at, _)| at);
    for at in starts.take(TRIES) {
        let mut input = tail.get(at..).unwrap_or_default();
        if matches!(member(&mut input, &mut buffer, |_| Ok(())), Ok(Some(_))) {
            return Ok(Some(start + at as u64));
        }
    }
    Ok(None)
}

/// Unpacks one member, and returns how many bytes it has; `None` where the data ends inside it.
fn member(
    input: &mut impl BufRead,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Option<u64>> {
    let mut member = new_member();
    loop {
        let (made, state) = inflate(&mut member, input, buffer)?;
        take(buffer.get(..made).unwrap_or_default())?;
        match state? {
            MemberState::Within => {}
            MemberState::Ended => return Ok(Some(member.total_in())),
            MemberState::Cut => return Ok(None),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Glance {
    meta: Option<IgnoredAny>,
    end: Option<CaptureEnd>,
    arrival_ms: Option<f64>,
    e2e_ms: Option<f64>,
}

/// Walk through the lines of a tail, in whatever pieces they come.
#[derive(Default)]
struct TailScan {
    survey: Survey,
    line: Vec<u8>,
    /// The tail begins within a line.
    is_within: bool,
    position: u64,
    /// Bytes so far that may stay.
    good: u64,
    /// Lines that were whole.
    lines: u64,
    needs_line_end: bool,
    is_cut: bool,
}

impl TailScan {
    fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            self.position += piece.len() as u64;
            if self.line.len() as u64 > LONGEST_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is longer than 256 MiB"));
            }
            if piece.ends_with(b"\n") {
                self.take_line();
            }
        }
        Ok(())
    }

    fn take_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_within) {
            self.good = self.position;
            return;
        }
        self.lines += 1;
        let text = line.trim_ascii();
        let glance = if text.is_empty() { Ok(None) } else { serde_json::from_slice::<Glance>(text).map(Some) };
        match glance {
            Ok(Some(Glance { end: Some(end), .. })) => {
                self.survey.end = Some(end);
                return;
            }
            Ok(None | Some(Glance { meta: Some(_), .. })) => {}
            Ok(Some(Glance { arrival_ms, e2e_ms, .. })) => {
                let of = |time: Option<f64>| time.and_then(|time| Millis(time).duration()).unwrap_or_default();
                self.survey.last = self.survey.last.max(of(arrival_ms).saturating_add(of(e2e_ms)));
                self.survey.records += 1;
                self.survey.end = None;
            }
            Err(_) => {
                self.survey.bad_lines += 1;
                self.survey.records += 1;
            }
        }
        self.good = self.position;
    }

    /// Takes the last line in, which has no line end.
    fn finish(&mut self) {
        if self.line.is_empty() || self.is_within {
            return;
        }
        let text = self.line.trim_ascii();
        self.is_cut = is_incomplete(text);
        if !self.is_cut {
            let before = self.good;
            self.take_line();
            self.needs_line_end = self.good > before;
        }
    }

    fn is_ragged(&self) -> bool {
        self.good < self.position || self.needs_line_end
    }

    fn repair(&self, at: u64, keep: u64) -> Repair {
        Repair { at, keep, needs_line_end: self.needs_line_end, is_cut: self.is_cut }
    }
}
