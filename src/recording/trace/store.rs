//! What a replay needs of a trace, packed: numbers in flat arenas instead of some vectors per record.
//!
//! A gap is kept in nanoseconds, which is all that a record's [`Duration`] holds, in four bytes; a longer one than they
//! hold is kept aside. Equal chains of block hashes are kept once; those of prompts with media begin with a hash of these.
//!
//! Responses that no ids stand for are kept as they are.
//!
//! Limits: hashes of media, engine steps, request bodies, texts, parameters and unknown keys are not kept. A writer or an
//! inspection reads [`Record`]s.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use super::{
    Chunk, End, LoadedFile, Logprobs, Meta, Outcome, PromptLogprobs, Record, Trace,
    exchange::Exchange,
    packed::{Example, Facts, LONG, Packed},
    record::is_error,
    replay_key,
};

/// A packed trace, in file order until [`sort`](Store::sort).
#[derive(Debug, Default)]
pub struct Store {
    /// The first line; all defaults where the file has none. Of several files, what they share.
    pub meta: Meta,
    /// What the capture counted when it was closed; `None` in public files and in captures that were cut.
    pub end: Option<End>,
    /// The files, in the order in which they were read.
    pub files: Vec<LoadedFile>,
    /// The first recorded request that people can try, where requests were recorded.
    pub example: Option<Example>,
    entries: Vec<Entry>,
    ids: Vec<u32>,
    /// Nanoseconds, the TTFT first.
    gaps: Vec<u32>,
    /// The gaps that are [`LONG`], in order of their place.
    long_gaps: Vec<(usize, Duration)>,
    /// Tokens per chunk, of the records where it is not always 1.
    tokens: Vec<u32>,
    hashes: Vec<u64>,
    seen: Seen,
    /// The first file with block hashes, and how they were made.
    pub(super) hashed: Option<(PathBuf, String)>,
    /// Start and part number of the capture of the last file.
    pub(super) last_part: Option<(String, u64)>,
    /// Whether several files are read.
    pub(super) of_several: bool,
}

/// What is needed while the store grows only.
#[derive(Debug, Default)]
struct Seen {
    /// Where each chain starts, by its last hash and length.
    chains: HashMap<(u64, usize), usize>,
    models: HashSet<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    chunks: Range<usize>,
    tokens: Option<usize>,
    ids: Option<Range<usize>>,
    chain: Range<usize>,
    model: Option<Arc<str>>,
    logprobs: Option<Box<str>>,
    prompt_logprobs: Option<Box<str>>,
    facts: Facts,
}

impl From<&Trace> for Store {
    fn from(trace: &Trace) -> Self {
        let mut store = Self { meta: trace.meta.clone(), end: trace.end.clone(), ..Self::default() };
        let mut file = LoadedFile { warnings: trace.warnings.clone(), ..LoadedFile::default() };
        for record in &trace.records {
            let packed = Packed::from(record);
            file.saw(&packed);
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

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One record.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Kept<'_>> {
        self.entries.get(index).map(|entry| Kept { store: self, entry })
    }

    /// Every record in order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Kept<'_>> + Clone {
        self.entries.iter().map(|entry| Kept { store: self, entry })
    }

    pub(super) fn push(&mut self, record: Packed) {
        self.example = self.example.take().or_else(|| record.example.map(|example| *example));
        let start = self.gaps.len();
        self.long_gaps.extend(record.long_gaps.iter().map(|(at, gap)| (start + at, *gap)));
        let entry = Entry {
            chunks: append(&mut self.gaps, &record.gaps),
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

    fn push_chain(&mut self, chain: &[u64]) -> Range<usize> {
        let Some(last) = chain.last() else { return 0..0 };
        let known = self.seen.chains.get(&(*last, chain.len())).map(|start| *start..*start + chain.len());
        // A hash should name all before it, but that is the file's word.
        if let Some(known) = known
            && self.hashes.get(known.clone()) == Some(chain)
        {
            return known;
        }
        let added = append(&mut self.hashes, chain);
        self.seen.chains.insert((*last, chain.len()), added.start);
        added
    }

    fn long_gap(&self, at: usize) -> Duration {
        let found = self.long_gaps.binary_search_by_key(&at, |(place, _)| *place).ok();
        found.and_then(|found| self.long_gaps.get(found)).map(|(_, gap)| *gap).unwrap_or_default()
    }

    /// Gives back what was set aside for more records.
    pub(super) fn shrink(&mut self) {
        self.seen = Seen::default();
        self.entries.shrink_to_fit();
        self.ids.shrink_to_fit();
        self.gaps.shrink_to_fit();
        self.long_gaps.shrink_to_fit();
        self.tokens.shrink_to_fit();
        self.hashes.shrink_to_fit();
    }
}

impl Seen {
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

/// One record of a [`Store`].
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    store: &'a Store,
    entry: &'a Entry,
}

impl<'a> Kept<'a> {
    /// Tokens that came out.
    #[must_use]
    pub fn output_tokens(&self) -> u32 {
        self.entry.facts.output_tokens
    }

    /// Prompt length in tokens.
    #[must_use]
    pub fn prompt_tokens(&self) -> u32 {
        self.entry.facts.prompt_tokens
    }

    /// Prompt tokens that the engine found in its prefix cache.
    #[must_use]
    pub fn cached_tokens(&self) -> Option<u32> {
        self.entry.facts.cached_tokens
    }

    /// How many chunks they came in.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.entry.chunks.len()
    }

    /// The ids that came out; `None` when they were not recorded.
    #[must_use]
    pub fn ids(&self) -> Option<&'a [u32]> {
        self.entry.ids.clone().map(|ids| self.store.ids.get(ids).unwrap_or_default())
    }

    /// Whether its prompt held images, audio or video.
    #[must_use]
    pub fn has_media(&self) -> bool {
        self.entry.facts.has_media
    }

    /// Chained hashes of the prompt's full blocks, after one of its media where it has any whose hashes were made here;
    /// empty once [forgotten](Store::forget_chains).
    #[must_use]
    pub fn chain(&self) -> &'a [u64] {
        self.store.hashes.get(self.entry.chain.clone()).unwrap_or_default()
    }

    /// Chained hash of the whole prompt.
    #[must_use]
    pub fn prompt_hash(&self) -> Option<u64> {
        self.entry.facts.prompt_hash
    }

    /// Shared by the choices of one request.
    #[must_use]
    pub fn group(&self) -> Option<&'a str> {
        self.entry.facts.group.as_deref()
    }

    /// The choice's index in its request.
    #[must_use]
    pub fn choice(&self) -> Option<u32> {
        self.entry.facts.choice
    }

    /// The model name that the request asked for.
    #[must_use]
    pub fn model(&self) -> Option<&'a str> {
        self.entry.model.as_deref()
    }

    /// HTTP status of the answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.entry.facts.status
    }

    /// Whether the client asked for a stream.
    #[must_use]
    pub fn stream(&self) -> Option<bool> {
        self.entry.facts.stream
    }

    /// Whether it is of an endpoint that generates tokens, and not of embeddings and the like.
    #[must_use]
    pub fn generates(&self) -> bool {
        self.entry.facts.generates
    }

    /// How its exchange ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.entry.facts.outcome
    }

    /// Whether its line broke a rule: it holds nothing, and keeps the place of the record.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.entry.facts.is_lost
    }

    /// Whether its answer was an error, or its stream ended in one.
    #[must_use]
    pub fn is_error(&self) -> bool {
        is_error(self.status(), self.entry.facts.outcome)
    }

    /// Log probabilities of the output.
    #[must_use]
    pub fn logprobs(&self) -> Option<Logprobs> {
        serde_json::from_str(self.entry.logprobs.as_deref()?).ok()
    }

    /// Log probabilities of the prompt.
    #[must_use]
    pub fn prompt_logprobs(&self) -> Option<PromptLogprobs> {
        serde_json::from_str(self.entry.prompt_logprobs.as_deref()?).ok()
    }

    /// The record unpacked, without what the store does not keep.
    #[must_use]
    pub fn record(&self) -> Record {
        let facts = &self.entry.facts;
        Record {
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: facts.cached_tokens,
            output_tokens: facts.output_tokens,
            chunks: self.chunks(),
            itl_summary: facts.itl_summary,
            ttft_without_tokens: facts.ttft_without_tokens,
            arrival: facts.arrival,
            block_hashes: self.chain().to_vec(),
            prompt_hash: facts.prompt_hash,
            output_token_ids: self.ids().map(<[u32]>::to_vec),
            finish_reason: facts.finish_reason,
            stop_token: facts.stop_token,
            group: self.group().map(str::to_owned),
            choice: facts.choice,
            model: self.model().map(str::to_owned),
            stream: facts.stream,
            status: facts.status,
            outcome: facts.outcome,
            error: facts.error.as_deref().cloned(),
            e2e: facts.e2e,
            first_event: facts.first_event,
            logprobs: self.logprobs(),
            prompt_logprobs: self.prompt_logprobs(),
            ..self.of_exchange()
        }
    }

    /// The response, where it was recorded, and what it is found by.
    pub(super) fn exchange(&self) -> Option<&'a Exchange> {
        self.entry.facts.exchange.as_deref()
    }

    fn chunks(&self) -> Vec<Chunk> {
        let chunks = self.entry.chunks.clone();
        let gaps = self.store.gaps.get(chunks.clone()).unwrap_or_default();
        let counts = self.entry.tokens.and_then(|start| self.store.tokens.get(start..)).unwrap_or_default();
        let counts = counts.iter().copied().chain(std::iter::repeat(1));
        let gap = |(at, nanos): (usize, &u32)| match *nanos {
            LONG => self.store.long_gap(at),
            nanos => Duration::from_nanos(nanos.into()),
        };
        chunks.zip(gaps).map(gap).zip(counts).map(|(gap, tokens)| Chunk { gap, tokens, step: None }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::trace::{TraceError, load, read};

    const RECORD: &str = r#"{"prompt_tokens":5,"output_tokens":4,"ttft_ms":5000.5,"itl_ms":[1.25,9000],"itl_tokens":[2,1],"block_hashes":[7,8],"output_token_ids":[1,2,3,4],"arrival_ms":2,"group":"g","model":"m"}"#;
    const EARLIER: &str = r#"{"prompt_tokens":5,"output_tokens":1,"ttft_ms":1,"block_hashes":[7,8],"arrival_ms":1}"#;

    /// The file is written, read whole and loaded ahead, plainly.
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
