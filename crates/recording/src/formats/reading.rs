//! Reads any of the formats, request by request.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use text::prompt::Tokenizer;

use super::{FormatError, Losses, TraceFormat, chats, dynamo, fields::Fields, rows, weka};
use crate::trace::{FORMAT, Joined, JsonValues, Meta, Record, Sources, is_standard};

/// Options of reading a file.
#[derive(Debug, Default)]
pub struct ReadOptions {
    /// Its format; `None` for what its first object shows.
    pub kind: Option<TraceFormat>,
    /// Tokens of a block of its hashes, where the file lacks it; `None` for the format's usual size.
    pub block_size: Option<u32>,
    /// Counts and hashes texts.
    pub tokenizer: Option<Tokenizer>,
}

/// Facts about all requests of a file.
#[derive(Debug, Clone)]
pub struct Head {
    /// The format.
    pub kind: TraceFormat,
    /// The first line of a trace of them.
    pub meta: Meta,
}

impl Head {
    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.meta.block_size.filter(|size| *size > 0).unwrap_or_else(|| self.kind.usual_block_size())
    }

    /// The hash of a prompt's last block where that is not full and the file has one of it.
    #[must_use]
    pub fn tail_of(&self, record: &Record) -> Option<u64> {
        let is_full = record.prompt_tokens.is_multiple_of(self.block_size());
        record.prompt_hash.filter(|_| self.kind.has_tails() && !is_full)
    }
}

pub(super) type RequestCallback<'a> = &'a mut dyn FnMut(&Head, Record) -> Result<(), FormatError>;

/// Reads a file and hands each request to `each`, in the order of the file; returns what was left out.
///
/// # Errors
/// When the file cannot be read, its format is not clear, an object is no request of it, or there is none; or what `each` returned.
pub fn read(
    path: &Path,
    options: &ReadOptions,
    each: &mut dyn FnMut(&Head, Record) -> Result<(), FormatError>,
) -> Result<(TraceFormat, Losses), FormatError> {
    let kind = match options.kind {
        Some(kind) => kind,
        None => kind_of(path)?,
    };
    let mut reading = Reading::new(path, kind, options, each);
    match kind {
        TraceFormat::Trace => reading.trace(path)?,
        TraceFormat::Mooncake => reading.objects(path, &mut rows::RowReader::of(1.0))?,
        TraceFormat::VllmTimedTrace => reading.objects(path, &mut rows::RowReader::of(1000.0))?,
        TraceFormat::Weka => reading.objects(path, &mut weka::WekaConversations::default())?,
        TraceFormat::Dynamo => reading.objects(path, &mut dynamo::Events::default())?,
        TraceFormat::AiperfSingleTurn => reading.objects(path, &mut chats::SingleTurns)?,
        TraceFormat::AiperfMultiTurn => reading.objects(path, &mut chats::MultiTurns)?,
        TraceFormat::ShareGpt => reading.objects(path, &mut chats::ChatConversations)?,
    }
    if reading.requests == 0 {
        return Err(FormatError::Empty { path: reading.name });
    }
    Ok((kind, reading.losses))
}

/// Finds out a file's format by its first object.
///
/// # Errors
/// When it cannot be read, or could be of several formats or none.
pub fn kind_of(path: &Path) -> Result<TraceFormat, FormatError> {
    let name = path.display().to_string();
    if is_standard(path) {
        return Err(FormatError::Unclear { path: "<stdin>".to_owned(), line: 1, fields: "any fields".to_owned() });
    }
    if path.is_dir() {
        return Ok(TraceFormat::Trace);
    }
    let mut values = JsonValues::open(path)?;
    let Some((line, text)) = values.next_value()? else { return Err(FormatError::Empty { path: name }) };
    let fields = Fields::parse(text).map_err(|reason| FormatError::Line { path: name.clone(), line, reason })?;
    TraceFormat::of_object(&fields).ok_or_else(|| FormatError::Unclear { path: name, line, fields: fields.names() })
}

/// A format of one object after the other.
pub(super) trait Objects {
    /// Takes an object.
    /// Errors: the reason why it cannot be read.
    fn object(&mut self, fields: Fields, reading: &mut Reading) -> Result<(), ObjectRefusal>;

    /// Takes the end of the file.
    fn end(&mut self, _reading: &mut Reading) -> Result<(), ObjectRefusal> {
        Ok(())
    }
}

/// Reason for which an object was not taken.
#[derive(Debug)]
pub(super) enum ObjectRefusal {
    /// What is wrong with it.
    Object(String),
    /// The error of the callback that gets the requests.
    Callback(FormatError),
}

impl From<String> for ObjectRefusal {
    fn from(reason: String) -> Self {
        Self::Object(reason)
    }
}

pub(super) struct Reading<'a> {
    name: String,
    options: &'a ReadOptions,
    head: Head,
    each: RequestCallback<'a>,
    requests: u64,
    /// Number of the object, from 1.
    pub(super) objects: u64,
    pub(super) losses: Losses,
}

impl<'a> Reading<'a> {
    fn new(path: &Path, kind: TraceFormat, options: &'a ReadOptions, each: RequestCallback<'a>) -> Self {
        let mut extra = Map::new();
        extra.insert("source".to_owned(), json!(kind.name()));
        // Dynamo's times count from the Unix epoch.
        let started_at = (kind == TraceFormat::Dynamo).then(|| "1970-01-01T00:00:00Z".to_owned());
        let meta = Meta { format: Some(FORMAT), started_at, extra, ..Meta::default() };
        let name = path.display().to_string();
        Self { name, options, head: Head { kind, meta }, each, requests: 0, objects: 0, losses: Losses::default() }
    }

    pub(super) fn tokenizer(&self) -> Option<&'a Tokenizer> {
        self.options.tokenizer.as_ref()
    }

    pub(super) fn meta(&mut self) -> &mut Meta {
        &mut self.head.meta
    }

    /// The size of the file's blocks; an object with another size than the ones before is refused.
    pub(super) fn block_size(&mut self, size: Option<u32>, field: &str) -> Result<u32, String> {
        let given = size.or(self.options.block_size);
        match (self.head.meta.block_size, given) {
            (Some(known), Some(given)) if known != given => Err(format!(
                "`{field}` is {given}, but {known} before; a trace has blocks of one size: convert the rest apart"
            )),
            (Some(known), _) => Ok(known),
            (None, Some(0)) => Err(format!("`{field}` is 0; a block has tokens")),
            (None, given) => {
                let size = given.unwrap_or_else(|| self.head.kind.usual_block_size());
                self.head.meta.block_size = Some(size);
                Ok(size)
            }
        }
    }

    pub(super) fn emit(&mut self, record: Record) -> Result<(), ObjectRefusal> {
        self.requests += 1;
        (self.each)(&self.head, record).map_err(ObjectRefusal::Callback)
    }

    fn objects(&mut self, path: &Path, format: &mut dyn Objects) -> Result<(), FormatError> {
        let mut values = JsonValues::open(path)?;
        let mut last = 1;
        while let Some((line, text)) = values.next_value()? {
            last = line;
            self.objects += 1;
            let fields = Fields::parse(text).map_err(ObjectRefusal::Object);
            let taken = fields.and_then(|fields| format.object(fields, self));
            taken.map_err(|wrong| self.failure(wrong, line))?;
        }
        format.end(self).map_err(|wrong| self.failure(wrong, last))
    }

    fn failure(&self, wrong: ObjectRefusal, line: u64) -> FormatError {
        match wrong {
            ObjectRefusal::Object(reason) => FormatError::Line { path: self.name.clone(), line, reason },
            ObjectRefusal::Callback(error) => error,
        }
    }

    fn trace(&mut self, path: &Path) -> Result<(), FormatError> {
        let sources = Sources::gather(&[PathBuf::from(path)])?;
        let mut joined = Joined::of(&sources);
        let mut next = joined.next_sound()?;
        self.head.meta = joined.meta().cloned().unwrap_or_default();
        while let Some(record) = next {
            self.requests += 1;
            (self.each)(&self.head, record)?;
            next = joined.next_sound()?;
        }
        self.losses.add("lines that break a rule of the format", joined.bad_lines().count);
        Ok(())
    }
}

/// A record's parameters that shape an answer, as a body has them.
pub(super) fn limits(body: &mut Map<String, Value>, output_tokens: Option<u32>) {
    body.insert("stream".to_owned(), json!(true));
    if let Some(tokens) = output_tokens.filter(|tokens| *tokens > 0) {
        body.insert("max_tokens".to_owned(), json!(tokens));
        body.insert("ignore_eos".to_owned(), json!(true));
    }
}
