//! Packed trace for a replay: numbers in flat arenas instead of some vectors per record.
//!
//! A gap is kept in nanoseconds, which is all that a record's [`Duration`] holds, in four bytes; a longer one than they
//! hold is kept aside. Equal chains of block hashes are kept once; those of prompts with media begin with a hash of these.
//!
//! Responses that token ids do not stand for are kept unpacked.
//!
//! Limits: hashes of media, engine steps, request bodies, texts, parameters and unknown keys are not kept. A writer or an
//! inspection reads [`Record`]s.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use super::{
    CaptureEnd, LoadedFile, Meta, Trace,
    agreement::Agreement,
    packed::{Example, Packed, RecordFacts},
    record_ref::RecordRef,
    replay_key,
};

/// A packed trace, in file order until [`sort`](Store::sort).
#[derive(Debug, Default)]
pub struct Store {
    /// The first line; all defaults where the file has none. Of several files, what they share.
    pub meta: Meta,
    /// Counts from the end of the capture; `None` in public files and in captures that were cut.
    pub end: Option<CaptureEnd>,
    /// The files, in the order in which they were read.
    pub files: Vec<LoadedFile>,
    /// The first recorded request that people can try, where requests were recorded.
    pub example: Option<Example>,
    entries: Vec<StoredRecord>,
    pub(super) ids: Vec<u32>,
    /// Nanoseconds, the TTFT first.
    pub(super) gaps: Vec<u32>,
    /// Gaps longer than [`LONG`](super::packed::LONG), in order of their place.
    long_gaps: Vec<(usize, Duration)>,
    /// Tokens per chunk, of the records where it is not always 1.
    pub(super) tokens: Vec<u32>,
    pub(super) hashes: Vec<u64>,
    seen: GrowthTables,
    pub(super) agreement: Agreement,
}

/// Lookup tables that only a growing store needs.
#[derive(Debug, Default)]
struct GrowthTables {
    /// Start of each chain, by its last hash and length.
    chains: HashMap<(u64, usize), usize>,
    /// The last chain, which the next choices of its request share.
    last: Option<(Arc<[u64]>, Range<usize>)>,
    models: HashSet<Arc<str>>,
}

/// Spans of one record in the arenas, and its facts.
#[derive(Debug)]
pub(super) struct StoredRecord {
    pub(super) chunks: Range<usize>,
    pub(super) tokens: Option<usize>,
    pub(super) ids: Option<Range<usize>>,
    pub(super) chain: Range<usize>,
    pub(super) model: Option<Arc<str>>,
    pub(super) logprobs: Option<Box<str>>,
    pub(super) prompt_logprobs: Option<Box<str>>,
    pub(super) facts: RecordFacts,
}

impl From<&Trace> for Store {
    fn from(trace: &Trace) -> Self {
        let mut store = Self { meta: trace.meta.clone(), end: trace.end.clone(), ..Self::default() };
        let mut file = LoadedFile { warnings: trace.warnings.clone(), ..LoadedFile::default() };
        for record in &trace.records {
            let packed = Packed::from(record.clone());
            file.count(&packed);
            store.push(packed);
        }
        store.files.push(file);
        store.shrink();
        store
    }
}

impl Store {
    /// Puts the records in the order of their replay, see [`replay_order`](super::replay_order).
    pub fn sort(&mut self) {
        self.entries.sort_by_key(|entry| replay_key(entry.facts.arrival));
    }

    /// Drops the block hashes, which are not needed once they are indexed.
    pub fn forget_chains(&mut self) {
        self.hashes = Vec::new();
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns one record.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<RecordRef<'_>> {
        self.entries.get(index).map(|entry| RecordRef { store: self, entry })
    }

    /// Iterates over the records in order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = RecordRef<'_>> + Clone {
        self.entries.iter().map(|entry| RecordRef { store: self, entry })
    }

    pub(super) fn push(&mut self, record: Packed) {
        self.example = self.example.take().or_else(|| record.example.map(|example| *example));
        let start = self.gaps.len();
        self.long_gaps.extend(record.gaps.long.iter().map(|(at, gap)| (start + at, *gap)));
        let entry = StoredRecord {
            chunks: append(&mut self.gaps, &record.gaps.short),
            tokens: record.tokens.map(|counts| append(&mut self.tokens, &counts).start),
            ids: record.ids.map(|ids| append(&mut self.ids, &ids)),
            chain: self.push_chain(&record.chain),
            model: record.model.map(|model| self.seen.model(&model)),
            logprobs: record.logprobs,
            prompt_logprobs: record.prompt_logprobs,
            facts: record.facts,
        };
        self.entries.push(entry);
    }

    fn push_chain(&mut self, chain: &Arc<[u64]>) -> Range<usize> {
        if let Some((last, range)) = &self.seen.last
            && Arc::ptr_eq(last, chain)
        {
            return range.clone();
        }
        let range = self.push_other_chain(chain);
        self.seen.last = Some((Arc::clone(chain), range.clone()));
        range
    }

    fn push_other_chain(&mut self, chain: &[u64]) -> Range<usize> {
        let Some(last) = chain.last() else { return 0..0 };
        let known = self.seen.chains.get(&(*last, chain.len())).map(|start| *start..*start + chain.len());
        // Equal last hashes should mean equal chains, but the file may be wrong.
        if let Some(known) = known
            && self.hashes.get(known.clone()) == Some(chain)
        {
            return known;
        }
        let added = append(&mut self.hashes, chain);
        self.seen.chains.insert((*last, chain.len()), added.start);
        added
    }

    pub(super) fn long_gap(&self, at: usize) -> Duration {
        let found = self.long_gaps.binary_search_by_key(&at, |(place, _)| *place).ok();
        found.and_then(|found| self.long_gaps.get(found)).map(|(_, gap)| *gap).unwrap_or_default()
    }

    /// Releases the memory reserved for more records.
    pub(super) fn shrink(&mut self) {
        self.seen = GrowthTables::default();
        self.entries.shrink_to_fit();
        self.ids.shrink_to_fit();
        self.gaps.shrink_to_fit();
        self.long_gaps.shrink_to_fit();
        self.tokens.shrink_to_fit();
        self.hashes.shrink_to_fit();
    }
}

impl GrowthTables {
    fn model(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.models.get(name) {
            return Arc::clone(known);
        }
        let added: Arc<str> = name.into();
        self.models.insert(Arc::clone(&added));
        added
    }
}

fn append<T: Copy>(arena: &mut Vec<T>, values: &[T]) -> Range<usize> {
    let start = arena.len();
    arena.extend_from_slice(values);
    start..arena.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Record, TraceError, load, read};

    const RECORD: &str = r#"{"prompt_tokens":5,"output_tokens":4,"ttft_ms":5000.5,"itl_ms":[1.25,9000],"itl_tokens":[2,1],"block_hashes":[7,8],"output_token_ids":[1,2,3,4],"arrival_ms":2,"group":"g","model":"m"}"#;
    const EARLIER: &str = r#"{"prompt_tokens":5,"output_tokens":1,"ttft_ms":1,"block_hashes":[7,8],"arrival_ms":1}"#;

    /// Writes a file, reads it whole and loads it ahead.
    fn both(lines: &[&str]) -> (Result<Trace, TraceError>, Result<Store, TraceError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        (read(&path), load(&path, &Arc::default()))
    }

    #[test]
    fn what_is_packed_comes_back() {
        let (trace, store) =
            both(&[r#"{"meta":{"format":1}}"#, RECORD, EARLIER, RECORD, r#"{"end":{"records":3}}"#, ""]);
        let (trace, mut store) = (trace.unwrap(), store.unwrap());
        let unpacked: Vec<Record> = store.iter().map(|kept| kept.record()).collect();
        assert_eq!(unpacked, trace.records);
        assert_eq!((&store.meta, &store.end, &store.files[0].warnings), (&trace.meta, &trace.end, &trace.warnings));
        assert_eq!(store.hashes, [7, 8], "an equal chain is kept once");
        store.sort();
        store.forget_chains();
        let first = store.get(0).unwrap();
        assert_eq!((first.output_tokens(), first.chain()), (1, &[][..]));
        assert!(store.get(3).is_none());
    }

    #[test]
    fn reading_ahead_finds_the_same_faults() {
        let many = vec![RECORD; 5000];
        for last in
            ["{\"prompt_tokens\":", "{\"end\":{\"records\":1}}", "[]\n", "{\"a\":}\n", "{\"output_token_ids\":[-1]}\n"]
        {
            let lines = [many.as_slice(), &[last]].concat();
            let (trace, store) = both(&lines);
            match (trace, store) {
                (Ok(trace), Ok(store)) => {
                    assert_eq!((trace.records.len(), trace.warnings), (store.len(), store.files[0].warnings.clone()))
                }
                (Err(first), Ok(store)) => {
                    assert_eq!((store.files[0].records, store.files[0].bad_lines.count), (5000, 1));
                    assert!(
                        first.to_string().ends_with(&format!("t.jsonl:{}", store.files[0].bad_lines.first[0])),
                        "{first}"
                    );
                }
                (one, other) => panic!("{last}: {:?}, {:?}", one.err(), other.err()),
            }
        }
    }
}
