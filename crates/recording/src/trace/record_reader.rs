//! Reading a trace line by line: what may come where, whatever the records are made into.

use std::path::Path;

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    BadLines, CaptureEnd, FORMAT, Meta, TraceError,
    closing::LastBytes,
    error::{Defect, Warning},
    raw::{self, RawRecord, is_incomplete},
    read_ahead::ReadAhead,
    shared_prompt::ReadPrompt,
    source::{Fetched, NumberedLines},
};

/// Value that a record's line is parsed into.
pub(super) trait FromLine: Sized + Send + 'static {
    /// Hashes of a prompt, which choices of one request share.
    type Prompt: Send + 'static;

    fn parse(line: &[u8]) -> Result<RawRecord, Vec<Defect>> {
        raw::parse(line)
    }

    fn of_line(raw: RawRecord) -> Result<Self, Vec<Defect>>;

    /// Its group and choice; `None` if it is alone.
    fn key(&self) -> Option<(&str, u32)>;

    /// The hashes of its prompt; `None` if it has none.
    fn prompt(&self) -> Option<Self::Prompt>;

    fn set_prompt(&mut self, prompt: &Self::Prompt);
}

/// An iterator over line numbers (from 1) and records.
///
/// After a line's defect it goes on with the next line; after damage or an I/O error it is over. Warnings and the end line
/// are complete once it is.
pub(super) struct RecordReader<R: FromLine> {
    source: LineSource<R>,
    /// The prompt that the next records may share.
    prompt: ReadPrompt<R::Prompt>,
    number: u64,
    pub(super) meta: Meta,
    pub(super) end: Option<CaptureEnd>,
    pub(super) warnings: Vec<Warning>,
    pub(super) records: u64,
    /// The first line, fetched to look for the meta, when it was something else.
    waiting: Option<ReadStep<R>>,
    over: bool,
    /// State of the capture's end; `None` for a plain file, which has no end marker.
    closing: Option<LastBytes>,
    pub(super) defects: Vec<(u64, Defect)>,
}

enum LineSource<R> {
    Lines(NumberedLines),
    ReadAhead(ReadAhead<R>),
}

impl<R: FromLine> LineSource<R> {
    fn path(&self) -> &Path {
        match self {
            Self::Lines(lines) => lines.path(),
            Self::ReadAhead(ahead) => ahead.path(),
        }
    }

    fn next(&mut self, records: u64) -> Result<ReadStep<R>, TraceError> {
        match self {
            Self::Lines(lines) => {
                let fetched = lines.fetch(records)?;
                Ok(ReadStep::of(lines.number(), fetched, lines.line()))
            }
            Self::ReadAhead(ahead) => ahead.next(records),
        }
    }
}

/// Next step in a file, at the line `number`.
pub(super) struct ReadStep<R> {
    number: u64,
    /// `None` where no line is left.
    parsed: Option<Result<TraceLine<R>, Vec<Defect>>>,
    /// The file ends here, in the middle of this line or of the gzip data.
    is_cut: bool,
}

impl<R: FromLine> ReadStep<R> {
    /// Parses what was fetched; `line` counts only where a line was.
    pub(super) fn of(number: u64, fetched: Fetched, line: &[u8]) -> Self {
        let (parsed, is_cut) = match fetched {
            Fetched::Over => (None, false),
            Fetched::CutHere => (None, true),
            Fetched::Whole => (Some(parse_line(line)), false),
            Fetched::Tail => (Some(parse_line(line)), is_incomplete(line)),
        };
        Self { number, parsed, is_cut }
    }
}

/// Kind of a line, by its first key.
enum TraceLine<R> {
    Meta(Box<Meta>),
    End(CaptureEnd),
    /// With the choice whose hashes it shares.
    Record(Box<R>, Option<u32>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetaLine {
    meta: Meta,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: CaptureEnd,
}

fn parse_line<R: FromLine>(line: &[u8]) -> Result<TraceLine<R>, Vec<Defect>> {
    match first_key(line) {
        Some(b"meta") => typed::<MetaLine>("meta", line).map(|line| TraceLine::Meta(Box::new(line.meta))),
        Some(b"end") => typed::<EndLine>("end", line).map(|line| TraceLine::End(line.end)),
        _ => {
            let raw = R::parse(line)?;
            let prompt_of = raw.prompt_of;
            R::of_line(raw).map(|record| TraceLine::Record(Box::new(record), prompt_of))
        }
    }
}

fn typed<T: DeserializeOwned>(field: &'static str, line: &[u8]) -> Result<T, Vec<Defect>> {
    serde_json::from_slice(line).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => vec![Defect::field(field, error.to_string())],
        _ => vec![raw::not_json(&error)],
    })
}

fn first_key(line: &[u8]) -> Option<&[u8]> {
    let rest = line.trim_ascii_start().strip_prefix(b"{")?.trim_ascii_start().strip_prefix(b"\"")?;
    rest.split(|byte| *byte == b'"').next()
}

impl<R: FromLine> RecordReader<R> {
    /// Reads the meta.
    pub(super) fn start(lines: NumberedLines) -> Result<Self, TraceError> {
        let mut reader = Self::begin(lines)?;
        match reader.defects.first() {
            Some(_) => Err(reader.failure()),
            None => Ok(reader),
        }
    }

    /// Goes on with reading, unpacking and parsing on threads of their own; nothing else changes.
    pub(super) fn ahead(self) -> Result<Self, TraceError> {
        let source = match self.source {
            LineSource::Lines(lines) => LineSource::ReadAhead(ReadAhead::start(lines)?),
            ahead @ LineSource::ReadAhead(_) => ahead,
        };
        Ok(Self { source, ..self })
    }

    /// As [`start`](RecordReader::start), but a defective first line is noted and not an error.
    pub(super) fn begin(mut lines: NumberedLines) -> Result<Self, TraceError> {
        let fetched = lines.fetch(0)?;
        let first = ReadStep::of(lines.number(), fetched, lines.line());
        let has_meta = first_key(lines.line()) == Some(b"meta");
        let closing = lines.closing();
        let mut reader = Self {
            source: LineSource::Lines(lines),
            prompt: ReadPrompt::default(),
            number: 0,
            meta: Meta::default(),
            end: None,
            warnings: Vec::new(),
            records: 0,
            waiting: None,
            over: false,
            closing,
            defects: Vec::new(),
        };
        if !has_meta {
            reader.waiting = Some(first);
            return Ok(reader);
        }
        reader.number = first.number;
        match first.parsed {
            Some(Ok(TraceLine::Meta(meta))) => reader.take_meta(*meta),
            Some(Err(_)) if first.is_cut => reader.cut(),
            Some(Err(defects)) => reader.note(defects),
            Some(Ok(_)) | None => {}
        }
        Ok(reader)
    }

    /// Returns true if nothing is left: no line and no defect.
    pub(super) fn is_settled(&self) -> bool {
        self.over && self.defects.is_empty()
    }

    fn take_meta(&mut self, meta: Meta) {
        if let Some(format) = meta.format.filter(|format| *format > FORMAT) {
            self.warnings.push(Warning::NewerFormat { format });
        }
        if meta.block_size == Some(0) {
            self.note(vec![Defect::field("block_size", "is 0; a block holds at least 1 token")]);
        }
        self.meta = meta;
    }

    fn cut(&mut self) {
        self.over = true;
        self.warnings.push(Warning::Cut { records: self.records, line: self.number });
    }

    fn close(&mut self) {
        self.over = true;
        let Some(closing) = self.closing.take().filter(|_| self.end.is_none()) else { return };
        if let Some(end) = closing.end() {
            self.take_end(end);
        } else if self.meta.format.is_some() {
            self.warnings.push(Warning::NoEnd { records: self.records });
        }
    }

    fn note(&mut self, defects: Vec<Defect>) {
        let number = self.number;
        self.defects.extend(defects.into_iter().map(|defect| (number, defect)));
    }

    fn failure(&mut self) -> TraceError {
        let (line, defect) = self.defects.swap_remove(0);
        TraceError::Line { path: self.source.path().to_owned(), finding: defect.at(line) }
    }

    /// Takes one line in; a record comes back, a defect is noted.
    fn take_line(&mut self, parsed: Result<TraceLine<R>, Vec<Defect>>, is_cut: bool) -> Option<R> {
        if self.end.is_some() {
            self.note(vec![Defect::line("comes after the end line; nothing may follow it")]);
        }
        match parsed {
            Ok(TraceLine::Record(mut record, prompt_of)) => {
                self.records += 1;
                match self.prompt.complete(&mut *record, prompt_of) {
                    Ok(()) => return Some(*record),
                    Err(defect) => self.note(vec![defect]),
                }
            }
            Ok(TraceLine::Meta(_)) => {
                self.note(vec![Defect::field("meta", "must be the first line; move or delete it")])
            }
            Ok(TraceLine::End(end)) => self.take_end(end),
            Err(_) if is_cut => self.cut(),
            Err(defects) => {
                // Counted, so that the end line's count is not reported as a second defect.
                self.records += 1;
                self.note(defects);
            }
        }
        None
    }

    fn take_end(&mut self, end: CaptureEnd) {
        if end.records != self.records {
            let text = format!("records is {}, but {} lines hold records", end.records, self.records);
            self.note(vec![Defect::field("end", text)]);
        }
        self.end = Some(end);
    }

    /// The next record that keeps every rule, with its line; a line that breaks one is noted, and stands as `None` where a
    /// record should be.
    pub(super) fn next_sound(&mut self, bad: &mut BadLines) -> Result<Option<(u64, Option<R>)>, TraceError> {
        loop {
            let before = self.records;
            let advanced = self.advance().inspect_err(|_| self.over = true)?;
            if let Some((line, defect)) = self.defects.drain(..).next() {
                bad.note(defect.at(line));
            }
            match advanced {
                Some((line, record)) => return Ok(Some((line, Some(record)))),
                None if self.records > before => return Ok(Some((self.number, None))),
                None if self.is_settled() => return Ok(None),
                None => {}
            }
        }
    }

    /// The next record with its line, `None` at the end; defects pile up in `defects`.
    pub(super) fn advance(&mut self) -> Result<Option<(u64, R)>, TraceError> {
        while !self.over && self.defects.is_empty() {
            let step = match self.waiting.take() {
                Some(step) => step,
                None => self.source.next(self.records)?,
            };
            self.number = step.number;
            match step.parsed {
                None if step.is_cut => self.cut(),
                None => self.close(),
                Some(parsed) => {
                    if let Some(record) = self.take_line(parsed, step.is_cut) {
                        return Ok(Some((self.number, record)));
                    }
                }
            }
        }
        Ok(None)
    }
}

impl<R: FromLine> Iterator for RecordReader<R> {
    type Item = Result<(u64, R), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let advanced = self.advance();
        match advanced {
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
            Ok(_) if !self.defects.is_empty() => {
                let failure = self.failure();
                self.defects.clear();
                Some(Err(failure))
            }
            Ok(record) => record.map(Ok),
        }
    }
}
