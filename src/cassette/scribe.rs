//! Writes a cassette while a recording runs.
//!
//! What is there so far is in `NAME.yaml.partial`, a cassette too; a finished recording takes the place of the old file at once. So a
//! crash leaves both. Files are readable by their owner only.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    Cassette, CassetteError, blob,
    header::Header,
    load,
    message::echo,
    parse,
    record::{Answer, Content, Echo, Record},
    side::{self, Side, sidecar_of},
    write::{Tools, emit, record_text, tools_text, top},
};
use crate::identity::{Call, Rules, renamed, visit_ids};

/// As many records may have come between a request and another try of it.
const RETRIED_WITHIN: usize = 64;

/// What a recorder saw.
#[derive(Debug, Clone, Default)]
pub struct Episode {
    /// The exchange, ids as they were on the wire; its number is given here.
    pub record: Record,
    /// Times and bytes.
    pub side: Side,
    /// Whether the client said that it is another try.
    pub is_retry: bool,
}

/// What becomes of a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// It is replaced.
    Replace,
    /// Records are added; every byte before them stays.
    Append,
}

/// Writes one cassette.
#[derive(Debug)]
pub struct Scribe {
    path: PathBuf,
    mode: WriteMode,
    /// The partial file, which nobody else writes meanwhile.
    _claim: File,
    records: Vec<Record>,
    names: Names,
    threads: Threads,
    /// The file before the new records, they, and what follows.
    before: String,
    added: String,
    after: String,
    tools: Map<String, Value>,
    /// Whether definitions of tools can still be added.
    open: bool,
    indent: usize,
    old_sides: String,
    sides: Vec<Side>,
    dirty: bool,
    /// The number of the next record.
    next: u64,
    /// Records whose bodies are on the disk.
    flushed: usize,
}

impl Scribe {
    /// Begins. `header` is the top of a file that is written anew.
    ///
    /// # Errors
    /// When the old file cannot be read, or the new one cannot be created; when another program records it, or records of a
    /// recording that was not finished would be lost.
    pub fn create(path: &Path, header: &Header, mode: WriteMode) -> Result<Self, CassetteError> {
        let mut scribe = Self {
            path: path.to_owned(),
            mode,
            _claim: claim(path)?,
            records: Vec::new(),
            names: Names::default(),
            threads: Threads::default(),
            before: top(header) + "records:\n",
            added: String::new(),
            after: String::new(),
            tools: Map::new(),
            open: true,
            indent: 0,
            old_sides: String::new(),
            sides: Vec::new(),
            dirty: true,
            next: 0,
            flushed: 0,
        };
        if mode == WriteMode::Append && path.exists() {
            let old = load(path)?;
            if !old.records.is_empty() {
                scribe.continue_from(old).map_err(|source| scribe.io(source))?;
            }
        }
        scribe.flush()?;
        Ok(scribe)
    }

    fn continue_from(&mut self, old: Cassette) -> io::Result<()> {
        let mut text = fs::read_to_string(&self.path)?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let lines = old.end_of_records.map_or(usize::MAX, |line| line.saturating_sub(1));
        let end: usize = text.split_inclusive('\n').take(lines).map(str::len).sum();
        self.after = text.split_off(end);
        self.before = text;
        self.open = old.tools.is_empty();
        self.tools = old.tools;
        self.indent = old.indent;
        self.old_sides = fs::read_to_string(sidecar_of(&self.path).join("timing.jsonl")).unwrap_or_default();
        self.names.learn(&old.records);
        for record in old.records {
            self.threads.add(&record, self.records.len());
            self.next = self.next.max(record.id.saturating_add(1));
            self.records.push(record);
        }
        Ok(())
    }

    /// Takes a record; gives its number.
    pub fn add(&mut self, episode: Episode) -> u64 {
        let Episode { mut record, mut side, is_retry } = episode;
        record.id = self.next;
        self.next += 1;
        side.id = record.id;
        side.ids = self.names.shorten(&mut record);
        side.answer = record.answer.fingerprint();
        record.retry_of = is_retry.then(|| self.first_try(&record)).flatten();
        let base = self.threads.base_of(&record);
        record.echo = base.map_or(Echo::Plain, |(_, how)| how);
        let base = base.and_then(|(at, _)| self.records.get(at));
        record.like = base.map(|base| base.id);
        let tools = if self.open { Tools::Open(&mut self.tools) } else { Tools::Closed(&self.tools) };
        record_text(&mut self.added, &record, base, tools, self.indent);
        self.sides.push(side.clone());
        record.side = Some(side);
        let id = record.id;
        self.threads.add(&record, self.records.len());
        self.records.push(record);
        self.dirty = true;
        id
    }

    /// The first try of a request, if it is among the last records.
    fn first_try(&self, record: &Record) -> Option<u64> {
        let key = |record: &Record| {
            let Record { method, path, headers, .. } = record;
            Rules::default().identify(&Call { method, path, headers, body: &record.compared() }).key
        };
        let (own, recent) = (key(record), self.records.iter().rev().take(RETRIED_WITHIN));
        recent.into_iter().find(|earlier| key(earlier) == own).map(|found| found.retry_of.unwrap_or(found.id))
    }

    /// The records so far, those of the old file first.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Brings the partial file up to date.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> Result<(), CassetteError> {
        if std::mem::take(&mut self.dirty) {
            let new = self.records.iter().skip(self.flushed);
            blob::write_blobs(&self.path, new).map_err(|source| self.io(source))?;
            self.flushed = self.records.len();
            write(&partial(&self.path), self.text().as_bytes()).map_err(|source| self.io(source))?;
        }
        Ok(())
    }

    /// Puts the file and its sidecar in place. An old file is not replaced by nothing.
    ///
    /// # Errors
    /// When they cannot be written; the partial file stays then.
    pub fn finish(mut self) -> Result<Vec<Record>, CassetteError> {
        if self.mode == WriteMode::Replace && self.records.is_empty() && self.path.exists() {
            fs::remove_file(partial(&self.path)).map_err(|source| self.io(source))?;
            tracing::warn!("nothing was recorded: {} stays as it was", self.path.display());
            return Ok(self.records);
        }
        self.flush()?;
        let folder = sidecar_of(&self.path);
        let sides = format!("{}{}", self.old_sides, side::text(self.sides.iter()));
        let put = || -> io::Result<()> {
            if !sides.is_empty() {
                fs::create_dir_all(&folder)?;
                let timing = folder.join("timing.jsonl");
                write(&partial(&timing), sides.as_bytes())?;
                fs::rename(partial(&timing), timing)?;
            }
            fs::rename(partial(&self.path), &self.path)
        };
        put().map_err(|source| self.io(source))?;
        Ok(self.records)
    }

    fn text(&self) -> String {
        let mut text = String::with_capacity(self.before.len() + self.added.len() + self.after.len());
        let before = if self.records.is_empty() {
            self.before.replace("\nrecords:\n", "\nrecords: []\n")
        } else {
            self.before.clone()
        };
        text.push_str(&before);
        text.push_str(&self.added);
        text.push_str(&self.after);
        if self.open {
            tools_text(&mut text, &self.tools);
        }
        text
    }

    fn io(&self, source: io::Error) -> CassetteError {
        CassetteError::Io { path: self.path.clone(), source }
    }
}

/// Writes a cassette and its sidecar in place of what is there.
///
/// # Errors
/// When they cannot be written.
pub fn rewrite(cassette: &Cassette) -> Result<(), CassetteError> {
    let Cassette { path, header, records, tools, .. } = cassette;
    let sides: String = side::text(records.iter().filter_map(|record| record.side.as_ref()));
    let put = || -> io::Result<()> {
        blob::write_blobs(path, records.iter())?;
        if !sides.is_empty() {
            fs::create_dir_all(sidecar_of(path))?;
            let timing = sidecar_of(path).join("timing.jsonl");
            write(&partial(&timing), sides.as_bytes())?;
            fs::rename(partial(&timing), timing)?;
        }
        write(&partial(path), emit(header, records, tools).as_bytes())?;
        fs::rename(partial(path), path)
    };
    put().map_err(|source| CassetteError::Io { path: path.clone(), source })
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Takes the partial file of a cassette for one's own.
///
/// # Errors
/// When it cannot be had, is somebody else's, or holds records.
fn claim(path: &Path) -> Result<File, CassetteError> {
    let (path, partial) = (path.to_owned(), partial(path));
    let io = |source| CassetteError::Io { path: path.clone(), source };
    let mut options = OpenOptions::new();
    options.create(true).read(true).write(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&partial).map_err(io)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(CassetteError::Busy { path }),
        // Not every file system knows locks.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let mut left = String::new();
    let readable = file.read_to_string(&mut left).is_ok();
    let records = if readable { parse(&partial, &left).map_or(0, |left| left.records.len()) } else { 0 };
    if records > 0 { Err(CassetteError::Unfinished { path, partial, records }) } else { Ok(file) }
}

/// Writes a file that only its owner can read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(bytes)
}

/// Ids of the wire and the names that the file gives them.
#[derive(Debug, Default)]
struct Names {
    short: HashMap<String, String>,
    given: HashSet<String>,
}

impl Names {
    fn learn(&mut self, records: &[Record]) {
        for record in records {
            let ids = record.side.iter().flat_map(|side| &side.ids);
            self.short.extend(ids.map(|(short, original)| (original.clone(), short.clone())));
            let mut shown = record.clone();
            visit(&mut shown, &mut |id| {
                self.given.insert(id.clone());
            });
        }
    }

    /// Gives the ids of a record their short names; tells those that were not known.
    fn shorten(&mut self, record: &mut Record) -> std::collections::BTreeMap<String, String> {
        let mut fresh = std::collections::BTreeMap::new();
        visit(record, &mut |id| {
            if self.given.contains(id) && !self.short.contains_key(id) {
                return;
            }
            if !self.short.contains_key(id) {
                let next = (self.given.len() + 1..).map(|number| format!("call_{number}"));
                let name = next.into_iter().find(|name| !self.given.contains(name)).unwrap_or_default();
                self.given.insert(name.clone());
                fresh.insert(name.clone(), id.clone());
                self.short.insert(id.clone(), name);
            }
        });
        record.body = renamed(std::mem::take(&mut record.body), &self.short);
        for_answer(&mut record.answer, &mut |part| *part = renamed(std::mem::take(part), &self.short));
        fresh
    }
}

/// Shows every id of a record, the request's first.
fn visit(record: &mut Record, show: &mut dyn FnMut(&mut String)) {
    visit_ids(&mut record.body, show);
    for_answer(&mut record.answer, &mut |part| visit_ids(part, show));
}

/// Shows the parts of an answer that look like a body of messages.
fn for_answer(answer: &mut Answer, show: &mut dyn FnMut(&mut Value)) {
    match &mut answer.content {
        Content::Said { choices, .. } => {
            for message in choices.iter_mut().filter_map(|choice| choice.get_mut("message")) {
                let mut body = json!({"messages": [std::mem::take(message)]});
                show(&mut body);
                *message =
                    body.get_mut("messages").and_then(|list| list.get_mut(0)).map(Value::take).unwrap_or_default();
            }
        }
        Content::Json(value) => show(value),
        Content::Empty | Content::Events(_) | Content::Text(_) | Content::Bytes(_) => {}
    }
}

/// Finds the record that a request continues.
#[derive(Debug, Default)]
struct Threads {
    /// By the conversation after the answer, however it is repeated.
    after: HashMap<u64, (usize, Echo)>,
    /// By the conversation that was asked.
    asked: HashMap<u64, usize>,
}

impl Threads {
    fn add(&mut self, record: &Record, at: usize) {
        let chain = chain(record, &record.body);
        self.asked.extend(chain.last().map(|last| (*last, at)));
        for how in [Echo::Whole, Echo::Plain] {
            let Some(answer) = echo(&record.answer, how) else { return };
            let mut body = record.body.clone();
            let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else { return };
            messages.push(answer);
            self.after.extend(self::chain(record, &body).last().map(|last| (*last, (at, how))));
        }
    }

    /// The record with the longest part of the conversation.
    fn base_of(&self, record: &Record) -> Option<(usize, Echo)> {
        record.body.get("messages")?.as_array()?;
        let chain = chain(record, &record.body);
        let asked = || chain.last().and_then(|last| self.asked.get(last)).map(|at| (*at, Echo::Plain));
        chain.iter().rev().find_map(|hash| self.after.get(hash)).copied().or_else(asked)
    }
}

/// The conversation's hashes, on the record's own route.
fn chain(record: &Record, body: &Value) -> Vec<u64> {
    let call = Call { method: &record.method, path: &record.path, headers: &[], body };
    let route = xxhash_rust::xxh3::xxh3_64(record.path.as_bytes());
    Rules::default().identify(&call).chain.into_iter().map(|hash| hash ^ route).collect()
}
