//! Writes a cassette while a recording runs.
//!
//! A recording in progress is in `NAME.yaml.partial`, a cassette too; a finished one replaces the old file atomically. So a
//! crash leaves both. Files are readable by their owner only.
//!
//! What is on the disk is let go, but for the last records, which others may continue: at most [`MOST_HELD`] bytes of them. Limits: a
//! request that continues an earlier one shows its whole conversation. Where records keep the places that they have in a file, all of
//! them stay in memory.
//!
//! See docs/decisions/0107-what-is-recorded-is-let-go.md.

mod putting;

use std::{
    collections::{BTreeSet, HashSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Cassette, CassetteError, blob,
    continued::{Inherited, bases},
    header::Header,
    keep::{Keep, TokenIds},
    load,
    load::text_of,
    moments::Sidecar,
    names::ShortNames,
    parse,
    partial::Partial,
    private_file::followed,
    recent::RecentRecords,
    record::{CassetteRecord, Echo, HIGH_ID},
    rerecorded,
    side::{self, RecordTokens},
    spool::Spool,
    threads::{ConversationChain, Threads, share},
    write::{ToolsForm, emit, record_text, tools_text, top},
};
use crate::storage;

/// As many records may have come between a request and another try of it.
const RETRIED_WITHIN: usize = 64;

/// Bytes of written records that stay in memory, about.
const MOST_HELD: usize = 32 << 20;

/// Exchange as it was recorded.
#[derive(Debug, Clone, Default)]
pub struct RecordedExchange {
    /// The exchange, ids as they were on the wire; its number is given here.
    pub record: CassetteRecord,
    /// Times and bytes.
    pub side: Sidecar,
    /// The client marked the request as a retry.
    pub is_retry: bool,
}

/// Treatment of an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// It is replaced.
    Replace,
    /// Records are added; every byte before them stays.
    Append,
}

/// Refuses an object of a store in the place of a file that is written.
///
/// See docs/decisions/0145-objects-in-the-place-of-files.md.
///
/// # Errors
/// [`CassetteError::Object`] where it is one.
pub fn refuse_object(path: &Path) -> Result<(), CassetteError> {
    if storage::is_url(path) { Err(CassetteError::Object { path: storage::shown(path) }) } else { Ok(()) }
}

/// Writes one cassette.
#[derive(Debug)]
pub struct CassetteWriter {
    path: PathBuf,
    mode: WriteMode,
    /// The top of the file, and whether records keep the places that they have in the file that is replaced.
    header: Header,
    keeps_places: bool,
    keeps_by_hand: bool,
    notes_runs: bool,
    keep: Keep,
    /// The partial file, which has no other writer.
    partial: Partial,
    /// A number for the bytes of the file that was there at the start, if there was one.
    found: Option<u64>,
    /// The last records, without the sidecar's part of those that are written.
    records: RecentRecords,
    names: ShortNames,
    threads: Threads,
    /// Text after the records.
    after: String,
    tools: Map<String, Value>,
    /// Definitions of tools can still be added.
    open: bool,
    indent: usize,
    old_sides: Vec<u8>,
    /// The sidecar's part of written records.
    sides: Spool,
    /// Token ids of all new records, a line each.
    tokens: Spool,
    dirty: bool,
    /// The number of the next record, or the smallest one that may be.
    next: u64,
    /// Numbers of the old file's records, where one of them is high.
    taken: BTreeSet<u64>,
    old: usize,
    /// Records whose bodies are on the disk.
    flushed: usize,
    /// Places in memory of the messages whose large texts are there.
    seen: HashSet<usize>,
    /// Records that were changed after they were written.
    mended: BTreeSet<u64>,
    /// Files of bodies that were not there at the start.
    blobs: Vec<PathBuf>,
}

impl CassetteWriter {
    /// The file that is written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins, in a folder that is created where it is not there. `header` is the top of a file that is rewritten.
    ///
    /// # Errors
    /// When the old file cannot be read, or the new one cannot be created; when another program records it, or records of a
    /// recording that was not finished would be lost.
    pub fn create(path: &Path, header: &Header, mode: WriteMode) -> Result<Self, CassetteError> {
        refuse_object(path)?;
        let path = &followed(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|source| CassetteError::Io { path: path.to_owned(), source })?;
        }
        let mut writer = Self {
            path: path.to_owned(),
            mode,
            header: header.clone(),
            keeps_places: false,
            keeps_by_hand: false,
            notes_runs: false,
            keep: Keep::default(),
            partial: Partial::claim(path, top(header) + "records:\n")?,
            found: fs::read(path).ok().map(|bytes| xxh3_64(&bytes)),
            records: RecentRecords::of(MOST_HELD),
            names: ShortNames::default(),
            threads: Threads::default(),
            after: String::new(),
            tools: Map::new(),
            open: true,
            indent: 0,
            old_sides: Vec::new(),
            sides: Spool::beside(path),
            tokens: Spool::beside(path),
            dirty: true,
            next: 0,
            taken: BTreeSet::new(),
            old: 0,
            flushed: 0,
            seen: HashSet::new(),
            mended: BTreeSet::new(),
            blobs: Vec::new(),
        };
        if mode == WriteMode::Append && path.exists() {
            let old = load(path)?;
            if !old.records.is_empty() {
                writer.continue_from(old, text_of(path)?)?;
            }
        }
        writer.flush()?;
        Ok(writer)
    }

    /// Keeps this of times and token ids from now on; without it both are kept in the sidecar.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Has records keep the places, the numbers and the ids that they have in the file that is replaced; without it they stand in
    /// the order of their requests. Hand-written records of that file stay in any case.
    #[must_use]
    pub fn keeping_places(self) -> Self {
        let keeps_by_hand = self.mode == WriteMode::Replace;
        let keeps_places = keeps_by_hand && self.path.exists() && rerecorded::may_move(&self.header);
        Self { keeps_places, keeps_by_hand, ..self }
    }

    /// Holds at most so many bytes of written records.
    #[cfg(test)]
    pub(super) fn holding(self, most: usize) -> Self {
        Self { records: RecentRecords::of(most), ..self }
    }

    /// Has a recording that changes the file noted beside it.
    #[must_use]
    pub fn noting_runs(self) -> Self {
        Self { notes_runs: true, ..self }
    }

    fn continue_from(&mut self, mut old: Cassette, mut text: String) -> Result<(), CassetteError> {
        if !has_block_of_records(&text) {
            tracing::warn!(
                "{}: its records are no list with dashes, to which others can be added: the file is written anew",
                self.path.display()
            );
            text = emit(&old.header, &old.records, &old.tools);
            old = parse(&self.path, &text)?;
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let lines = old.end_of_records.map_or(usize::MAX, |line| line.saturating_sub(1));
        // Behind the end of the document nothing can be added.
        let is_end = |line: &&str| line.trim_end() == "...";
        let before = text.split_inclusive('\n').take(lines).take_while(|line| !is_end(line));
        let end: usize = before.map(str::len).sum();
        self.after = text.split_off(end).split_inclusive('\n').filter(|line| !is_end(line)).collect();
        self.partial.begin(text);
        self.open = old.tools.is_empty();
        self.tools = old.tools;
        self.indent = old.indent;
        self.old_sides = side::read_file(&self.path, &side::timing_of(&self.path)).unwrap_or_default();
        if self.old_sides.last().is_some_and(|last| *last != b'\n') {
            self.old_sides.push(b'\n');
        }
        self.names.learn(&old.records);
        let highest = old.records.iter().map(|record| record.id).max();
        if highest.is_some_and(|id| id >= HIGH_ID) {
            self.taken = old.records.iter().map(|record| record.id).collect();
        } else {
            self.next = highest.map_or(0, |id| id + 1);
        }
        let bases = bases(&old.records);
        let mut chains = Inherited::new(&bases);
        for (at, mut record) in old.records.into_iter().enumerate() {
            let before = chains.of(at).and_then(|(base, chain)| Some((self.records.get(base)?, chain)));
            let chain = before.map_or_else(
                || ConversationChain::of(&record),
                |(base, chain)| ConversationChain::of_next(&record, base, chain),
            );
            self.threads.add(&record, &chain, at);
            chains.keep(at, chain);
            record.side = None;
            self.records.push(record);
        }
        (self.old, self.flushed) = (self.records.count(), self.records.count());
        Ok(())
    }

    /// Takes a record with the token ids of its choices, which are kept where ids are; gives its number.
    pub fn add_with_ids(&mut self, exchange: RecordedExchange, output: Vec<Vec<u32>>) -> u64 {
        let id = self.add(exchange);
        if !output.is_empty() && self.keep.tokens == TokenIds::Sidecar {
            let answer = self.records.list().last().map(|record| record.answer.fingerprint()).unwrap_or_default();
            self.tokens.push(&RecordTokens { id, answer, output, ..RecordTokens::default() }.line());
        }
        id
    }

    /// Takes a record; gives its number.
    pub fn add(&mut self, exchange: RecordedExchange) -> u64 {
        let RecordedExchange { mut record, mut side, is_retry } = exchange;
        while self.taken.contains(&self.next) {
            self.next += 1;
        }
        record.id = self.next;
        self.next += 1;
        side.id = record.id;
        self.keep.strip(&mut record.answer, &mut side);
        // Ids have the same canonical names before and after they are shortened.
        let chain = ConversationChain::of(&record);
        let base = self.threads.base_of(&record, &chain);
        let response = side.head.get("id").and_then(Value::as_str).map(str::to_owned);
        side.ids = self.names.shorten(&mut record, base.map(|(at, _)| at), response.as_deref());
        side.answer = record.answer.fingerprint();
        record.retry_of = is_retry.then(|| self.first_try(&record)).flatten();
        record.side = self.keep.side(side);
        record.echo = base.map_or(Echo::Plain, |(_, how)| how);
        let base = base.and_then(|(at, _)| self.records.get(at));
        record.like = base.map(|base| base.id);
        let tools = if self.open { ToolsForm::Open(&mut self.tools) } else { ToolsForm::Closed(&self.tools) };
        base.into_iter().for_each(|base| share(&mut record, base));
        record_text(self.partial.added(), &record, base, tools, self.indent);
        let id = record.id;
        self.threads.add(&record, &chain, self.records.count());
        self.records.push(record);
        self.dirty = true;
        id
    }

    /// The first try of a request, if it is among the last records; of equal requests, one that failed.
    fn first_try(&self, record: &CassetteRecord) -> Option<u64> {
        let (own, recent) = (record.key(), self.records.list().iter().rev().take(RETRIED_WITHIN));
        let equal: Vec<&CassetteRecord> = recent.into_iter().filter(|earlier| earlier.key() == own).collect();
        let has_failed = |record: &&&CassetteRecord| record.has_failed();
        let found = equal.iter().find(has_failed).or(equal.first())?;
        Some(found.retry_of.unwrap_or(found.id))
    }

    /// The last records, those of the old file first.
    #[must_use]
    pub fn records(&self) -> &[CassetteRecord] {
        self.records.list()
    }

    /// Brings the partial file up to date. It is rewritten where another program emptied, removed or replaced it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> Result<(), CassetteError> {
        self.flush_with(std::iter::empty())
    }

    /// As [`flush`](Self::flush), with exchanges after the records that are added later, when those before them are there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush_with<'e>(&mut self, later: impl Iterator<Item = &'e RecordedExchange>) -> Result<(), CassetteError> {
        if !self.partial.is_intact() {
            self.partial.restart(&self.path)?;
            self.dirty = true;
        }
        let (mut tail, mut tools) = (String::new(), self.tools.clone());
        let mut records: Vec<CassetteRecord> = later.map(|exchange| exchange.record.clone()).collect();
        for (record, id) in records.iter_mut().zip(self.next..) {
            record.id = id;
            self.keep.strip(&mut record.answer, &mut Sidecar::default());
            let tools = if self.open { ToolsForm::Open(&mut tools) } else { ToolsForm::Closed(&self.tools) };
            record_text(&mut tail, record, None, tools, self.indent);
        }
        if !self.dirty && records.is_empty() {
            return Ok(());
        }
        let new = self.records.since(self.flushed).chain(&records);
        let mut seen = std::mem::take(&mut self.seen);
        let written = blob::write_new_blobs(&self.path, new, &mut seen);
        let written = written.map_err(|source| self.io(source))?;
        self.blobs.extend(written);
        self.seen = if records.is_empty() { seen } else { HashSet::new() };
        let mut after = self.after.clone();
        if self.open {
            tools_text(&mut after, &tools);
        }
        let mut brought = self.partial.bring(&tail, &after);
        if brought.as_ref().is_err_and(is_full) {
            brought = self.give_way().and_then(|()| self.partial.bring(&tail, &after));
        }
        brought.map_err(|source| self.io(source))?;
        // What is added later, or not at all, has to go from the file again.
        self.dirty = !records.is_empty();
        self.let_go();
        Ok(())
    }

    /// Leaves what temporary files take of the disk to the cassette.
    fn give_way(&mut self) -> io::Result<()> {
        self.partial.give_way()?;
        self.sides.give_way()?;
        self.tokens.give_way()
    }

    fn let_go(&mut self) {
        let written = std::mem::replace(&mut self.flushed, self.records.count());
        if self.keeps_places {
            return;
        }
        let sides: Vec<Sidecar> = self.records.since_mut(written).filter_map(|record| record.side.take()).collect();
        self.sides.push(&side::text(sides.iter()));
        if let Some(first) = self.records.let_go() {
            self.threads.forget(first);
            self.names.forget(first);
            // Other messages may have the places in memory of those that are gone.
            self.seen = HashSet::new();
        }
    }

    /// Whether nothing but this writer has changed the partial file.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.partial.is_intact()
    }

    fn io(&self, source: io::Error) -> CassetteError {
        CassetteError::Io { path: self.path.clone(), source }
    }
}

/// Whether the records of a cassette are the items of a block, each with a dash, so that others can stand behind them.
fn has_block_of_records(text: &str) -> bool {
    let is_key = |line: &str| line.split_once(" #").map_or(line, |(key, _)| key).trim_end() == "records:";
    let behind = text.lines().skip_while(|line| !is_key(line)).skip(1).map(str::trim_start);
    let mut items = behind.filter(|line| !line.is_empty() && !line.starts_with('#'));
    items.next().is_some_and(|line| line.starts_with('-'))
}

/// Returns true where the disk is full, or what its user may have of it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
