//! Requests of a trace as a simulated engine needs them: when each arrives, how long it is, and which blocks it shares.
//!
//! Sources are traces of this program, and files of requests of other tools ([`formats`]). Both name
//! whole prefixes: two prompts share a block where they have the same number at the same place.

use std::{
    collections::hash_map::{Entry, HashMap},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{
    SimulateError,
    answers::{Answers, AnswersInPrompts, greatest_common_divisor},
};
use crate::{
    engine::kv_cache::BlockHash,
    inspect::sharing::{self, PromptBlocks},
    recording::{
        formats::{self, ReadOptions, TraceFormat},
        trace::{Joined, Record, Sources},
    },
};

/// Maximum number of blocks of a simulated cache that is to have no limit.
const MOST_BLOCKS: u32 = 1 << 22;

/// Tokens of a block of a trace that names no size.
const BLOCK_SIZE: u32 = 16;

/// Requests in the order of their arrival.
#[derive(Debug, Clone, Default)]
pub struct ArrivalSchedule {
    /// The files in a few words.
    pub name: String,
    /// Tokens of a block of the trace.
    pub block_size: u32,
    /// Records that are no requests of an engine: without an arrival, or without tokens.
    pub left_out: u64,
    /// Answers that later prompts go on with.
    pub answers: AnswersInPrompts,
    pub(super) requests: Vec<Arriving>,
    /// Numbers of the requests' blocks, one after the other.
    blocks: Vec<u64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Arriving {
    /// From the first arrival.
    pub(super) at: Duration,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    /// Tokens of its prompt that the recorded engine had in its cache, where they are known.
    pub(super) cached_tokens: Option<u32>,
    pub(super) session: Option<u64>,
    /// The blocks of its prompt, the last one perhaps not full.
    pub(super) blocks: Range<usize>,
    /// Where the blocks of a later prompt are that goes on with it: those of the end of its own prompt and of its output.
    pub(super) goes_on: Range<usize>,
    /// Whether the later prompt has its output as it was sampled.
    pub(super) is_verbatim: bool,
}

impl ArrivalSchedule {
    /// Reads what paths stand for: traces, or files of requests with `hash_ids` of so many tokens each. Answers are assumed to come back so
    /// in later prompts where a trace does not show it.
    pub(crate) fn read(paths: &[PathBuf], hash_block_size: u32, answers: Answers) -> Result<Self, SimulateError> {
        let schedule = match paths {
            [path] => match formats::kind_of(path).unwrap_or(TraceFormat::Trace) {
                TraceFormat::Trace => Self::of_traces(paths)?,
                kind => Self::of_requests(path, kind, hash_block_size)?,
            },
            paths => Self::of_traces(paths)?,
        };
        schedule.completed(answers)
    }

    /// Takes requests of records in memory, each at an arrival of its own.
    pub(crate) fn of_records<'a>(
        name: String,
        block_size: u32,
        records: impl IntoIterator<Item = (Duration, &'a Record)>,
    ) -> Result<Self, SimulateError> {
        let mut schedule = Self { name, block_size: block_size.max(1), ..Self::default() };
        records.into_iter().for_each(|(at, record)| schedule.add_record(Some(at), record, &record.block_hashes));
        schedule.completed(Answers::Verbatim)
    }

    /// Sorts the requests, and finds which prompts go on with which answers.
    fn completed(mut self, answers: Answers) -> Result<Self, SimulateError> {
        if self.requests.is_empty() {
            return Err(SimulateError::NoArrivals { path: self.name });
        }
        self.requests.sort_by_key(|request| request.at);
        let first = self.requests.first().map_or(Duration::ZERO, |request| request.at);
        self.requests.iter_mut().for_each(|request| request.at -= first);
        self.find_continuations(answers);
        Ok(self)
    }

    /// Returns the number of blocks of this size that hold all prompts and outputs at once; `None` where that is more than can be simulated.
    pub(crate) fn blocks_of(&self, block_size: usize) -> Option<u32> {
        let size = u64::try_from(block_size).ok().filter(|size| *size > 0)?;
        let tokens = |request: &Arriving| u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        let blocks: u64 = self.requests.iter().map(|request| tokens(request) / size + 2).sum();
        u32::try_from(blocks).ok().filter(|blocks| *blocks <= MOST_BLOCKS)
    }

    /// Returns the share of the prompt tokens that a cache without a limit would have had: whole blocks that an earlier prompt had too.
    #[must_use]
    pub(crate) fn ideal_hit_rate(&self) -> f64 {
        let prompt = |request: &Arriving| PromptBlocks {
            blocks: Arc::new(self.full_blocks(request).to_vec()),
            tokens: request.prompt_tokens,
            whole: None,
        };
        let prompts: Vec<PromptBlocks> = self.requests.iter().map(prompt).collect();
        let shared = sharing::measure(prompts.iter()).shared_blocks * u64::from(self.block_size);
        let tokens: u64 = self.requests.iter().map(|request| u64::from(request.prompt_tokens)).sum();
        shared as f64 / (tokens as f64).max(1.0)
    }

    /// Reads a file of another tool, whose rows have blocks of so many tokens.
    fn of_requests(path: &Path, kind: TraceFormat, hash_block_size: u32) -> Result<Self, SimulateError> {
        let block_size = (kind == TraceFormat::Mooncake).then_some(hash_block_size);
        let options = ReadOptions { kind: Some(kind), block_size, ..ReadOptions::default() };
        let mut schedule = Self { name: path.display().to_string(), ..Self::default() };
        let mut blocks = Vec::new();
        formats::read(path, &options, &mut |head, record| {
            schedule.block_size = head.block_size();
            blocks.clear();
            blocks.extend_from_slice(&record.block_hashes);
            blocks.extend(head.tail_of(&record));
            schedule.add_record(record.arrival, &record, &blocks);
            Ok(())
        })?;
        Ok(schedule)
    }

    fn of_traces(paths: &[PathBuf]) -> Result<Self, SimulateError> {
        let sources = Sources::gather(paths)?;
        let mut schedule = Self { name: sources.name(), ..Self::default() };
        let mut joined = Joined::of(&sources);
        while let Some(record) = joined.next_sound()? {
            schedule.add_record(record.arrival, &record, &record.block_hashes);
        }
        schedule.left_out += joined.bad_lines().count;
        schedule.block_size = joined.block_size().filter(|size| *size > 0).unwrap_or(BLOCK_SIZE);
        Ok(schedule)
    }

    fn add_record(&mut self, arrival: Option<Duration>, record: &Record, blocks: &[u64]) {
        match arrival {
            Some(at) => {
                let (prompt_tokens, output_tokens) = (record.prompt_tokens, record.output_tokens);
                let session = record.session.as_ref().map(|session| xxh3_64(session.as_bytes()));
                let cached_tokens = record.cached_tokens;
                let request =
                    Arriving { at, prompt_tokens, output_tokens, cached_tokens, session, ..Arriving::default() };
                self.add(request, blocks);
            }
            None => self.left_out += 1,
        }
    }

    /// Adds a request with the numbers of its prompt's blocks.
    pub(super) fn add(&mut self, request: Arriving, blocks: &[u64]) {
        if request.prompt_tokens == 0 || request.output_tokens == 0 {
            self.left_out += 1;
            return;
        }
        let first = self.blocks.len();
        self.blocks.extend_from_slice(blocks);
        self.requests.push(Arriving { blocks: first..self.blocks.len(), ..request });
    }

    /// Number of requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if any two prompts can share blocks, as far as the trace shows.
    pub(crate) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// What a router by consistent hash goes by: the session of the request with this number, else its prompt's first block.
    pub(super) fn key(&self, number: usize) -> u64 {
        let of_request = |request: &Arriving| request.session.or_else(|| self.prompt_blocks(request).first().copied());
        self.requests.get(number).and_then(of_request).unwrap_or_else(|| mixed(number, 0))
    }

    /// The blocks of a request's prompt, the last one perhaps not full.
    pub(super) fn prompt_blocks(&self, request: &Arriving) -> &[u64] {
        self.blocks.get(request.blocks.clone()).unwrap_or_default()
    }

    fn full_blocks<'a>(&'a self, request: &Arriving) -> &'a [u64] {
        let blocks = self.prompt_blocks(request);
        let full = ((request.prompt_tokens / self.block_size.max(1)) as usize).min(blocks.len());
        blocks.get(..full).unwrap_or_default()
    }

    /// Hashes for an engine with blocks of another size, of all full blocks of the request with this number: of its prompt as the trace
    /// has them, of its output as the prompt that goes on with it has them verbatim, and else its own.
    pub(super) fn hashes(&self, number: usize, block_size: usize) -> Vec<BlockHash> {
        let Some(request) = self.requests.get(number) else { return Vec::new() };
        let prompt = self.prompt_blocks(request);
        let (of_prompt, goes_on) = (self.full_blocks(request).len(), self.blocks.get(request.goes_on.clone()));
        let goes_on = goes_on.unwrap_or_default();
        let (theirs, tokens) = (self.block_size as usize, request.prompt_tokens as usize);
        let known = |block: usize, end: usize| match block.checked_sub(of_prompt) {
            None => prompt.get(block),
            Some(at) if !goes_on.is_empty() && (request.is_verbatim || end <= tokens) => goes_on.get(at),
            // The last block of the prompt stands for its tokens, not for those that are sampled after them.
            Some(_) => prompt.get(block).filter(|_| end <= tokens),
        };
        let total = tokens.saturating_add(request.output_tokens as usize) / block_size;
        // A number for a part of a block; the block's own is spread evenly too.
        let part = |block: u64, inside: usize| xxh3_64_with_seed(&block.to_le_bytes(), !(inside as u64));
        let hash = |at: usize| {
            let end = (at + 1) * block_size;
            let block = if block_size > theirs { end / theirs - 1 } else { at * block_size / theirs };
            let inside = if block_size < theirs { at % (theirs / block_size) } else { 0 };
            known(block, end).map_or_else(|| mixed(number, at + 1), |known| part(*known, inside))
        };
        (0..total).map(|at| BlockHash::of_external(hash(at))).collect()
    }

    /// Finds for each request the later prompt that goes on with its answer: the only way in which any prompt goes on after its own full
    /// blocks, in a prompt that is long enough for its tokens and output.
    fn find_continuations(&mut self, assumed: Answers) {
        let last = |request: &Arriving| self.full_blocks(request).last().copied();
        let mut after: HashMap<u64, Option<After>> =
            self.requests.iter().filter_map(last).map(|block| (block, None)).collect();
        for (request, number) in self.requests.iter().zip(0..) {
            let blocks = self.full_blocks(request);
            for (at, pair) in blocks.windows(2).enumerate() {
                let &[block, next] = pair else { continue };
                if let Entry::Occupied(mut entry) = after.entry(block) {
                    let found = entry.get_mut();
                    let is_other = found.as_ref().is_some_and(|after| after.block != next);
                    let first = found.get_or_insert(After { block: next, request: number, at: at + 1, is_one: true });
                    first.is_one &= !is_other;
                }
            }
        }
        let unit = self.requests.iter().filter_map(|request| request.cached_tokens).fold(0, greatest_common_divisor);
        let mut answers = AnswersInPrompts { assumed, ..AnswersInPrompts::default() };
        for number in 0..self.requests.len() {
            let Some((later, goes_on)) = self.continuation(number, &after) else { continue };
            let Some(request) = self.requests.get_mut(number) else { continue };
            let shown = later.and_then(|cached| request.shown(cached, unit));
            *match shown {
                Some(Answers::Verbatim) => &mut answers.verbatim,
                Some(Answers::Changed) => &mut answers.changed,
                None => &mut answers.unknown,
            } += 1;
            request.goes_on = goes_on;
            request.is_verbatim = shown.unwrap_or(assumed) == Answers::Verbatim;
        }
        self.answers = answers;
    }

    /// The blocks of the prompt that goes on with a request, and how much of it was cached.
    fn continuation(&self, number: usize, after: &HashMap<u64, Option<After>>) -> Option<(Option<u32>, Range<usize>)> {
        let request = self.requests.get(number)?;
        let after = after.get(self.full_blocks(request).last()?)?.as_ref().filter(|after| after.is_one)?;
        let tokens = request.prompt_tokens.checked_add(request.output_tokens)?;
        let later = self.requests.get(after.request).filter(|later| later.prompt_tokens >= tokens)?;
        let filled = (tokens / self.block_size.max(1)) as usize;
        let goes_on = later.blocks.start + after.at..(later.blocks.start + filled).min(later.blocks.end);
        (after.request > number && filled > after.at).then_some((later.cached_tokens, goes_on))
    }
}

/// The block that comes after another one, where it was first seen, and whether no other one comes there.
struct After {
    block: u64,
    request: usize,
    at: usize,
    is_one: bool,
}

/// A number that no other block of any request has.
fn mixed(request: usize, block: usize) -> u64 {
    xxh3_64_with_seed(&(request as u64).to_le_bytes(), block as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at: usize, prompt_tokens: u32, output_tokens: u32, cached_tokens: Option<u32>) -> Arriving {
        let at = Duration::from_secs(at as u64);
        Arriving { at, prompt_tokens, output_tokens, cached_tokens, ..Arriving::default() }
    }

    fn schedule(block_size: u32, requests: &[(u32, u32, &[u64])]) -> ArrivalSchedule {
        let mut schedule = ArrivalSchedule { block_size, ..ArrivalSchedule::default() };
        for (at, (prompt, output, blocks)) in requests.iter().enumerate() {
            schedule.add(request(at, *prompt, *output, None), blocks);
        }
        schedule.find_continuations(Answers::Verbatim);
        schedule
    }

    #[test]
    fn shared_blocks_have_the_same_hashes_and_outputs_their_own() {
        let schedule = schedule(16, &[(40, 30, &[1, 2]), (40, 30, &[1, 3]), (40, 30, &[1, 2])]);
        let hashes: Vec<_> = (0..3).map(|number| schedule.hashes(number, 16)).collect();
        assert_eq!(hashes.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4]);
        assert_eq!(hashes[0][..2], hashes[2][..2]);
        assert_eq!(hashes[0][0], hashes[1][0]);
        assert_ne!(hashes[0][1], hashes[1][1]);
        assert_ne!(hashes[0][2], hashes[2][2]);
        assert_ne!(hashes[0][2], hashes[0][3]);
    }

    #[test]
    fn blocks_of_another_size_are_shared_as_far_as_the_prompts_are() {
        let schedule = schedule(16, &[(48, 1, &[1, 2, 3]), (48, 1, &[1, 2, 4])]);
        let shared = |block_size| {
            let (one, other) = (schedule.hashes(0, block_size), schedule.hashes(1, block_size));
            (one.len(), one.iter().zip(&other).filter(|(one, other)| one == other).count())
        };
        assert_eq!([shared(16), shared(4), shared(32), shared(48)], [(3, 2), (12, 8), (1, 1), (1, 0)]);
    }

    #[test]
    fn the_last_block_of_a_prompt_stands_for_its_tokens_only() {
        let schedule = schedule(16, &[(24, 20, &[1, 2]), (24, 20, &[1, 2])]);
        let (one, other) = (schedule.hashes(0, 4), schedule.hashes(1, 4));
        assert_eq!((one.len(), one.iter().zip(&other).filter(|(one, other)| one == other).count()), (11, 6));
    }

    #[test]
    fn an_answer_fills_the_blocks_of_the_prompt_that_goes_on_with_it() {
        let turn = schedule(16, &[(40, 30, &[1, 2]), (100, 5, &[1, 2, 3, 4, 5, 6])]);
        assert_eq!(turn.hashes(0, 16)[..], turn.hashes(1, 16)[..4]);
        // Two prompts that go on in different ways, one that comes before, and one that is too short for the answer.
        for others in [
            schedule(16, &[(40, 30, &[1, 2]), (100, 5, &[1, 2, 3, 4]), (100, 5, &[1, 2, 7, 8])]),
            schedule(16, &[(100, 5, &[1, 2, 3, 4]), (40, 30, &[1, 2])]),
            schedule(16, &[(40, 30, &[1, 2]), (69, 5, &[1, 2, 3, 4])]),
        ] {
            let longest = others.requests.iter().position(|request| request.prompt_tokens > 40).unwrap();
            let short = others.requests.iter().position(|request| request.prompt_tokens == 40).unwrap();
            assert_ne!(others.hashes(short, 16)[2], others.hashes(longest, 16)[2]);
        }
    }
    #[test]
    fn cached_tokens_of_the_next_prompt_show_whether_an_answer_came_back() {
        // A prompt of 40 tokens and an answer of 30, of which 29 were computed: blocks of 16 end at 32, 48 and 64.
        let turns = |cached, assumed| {
            let mut schedule = ArrivalSchedule { block_size: 16, ..ArrivalSchedule::default() };
            schedule.add(request(0, 40, 30, Some(0)), &[1, 2]);
            schedule.add(request(1, 100, 5, cached), &[1, 2, 3, 4, 5, 6]);
            // Another request has a hit of one block, so that 16 is the size of the engine's blocks.
            schedule.add(request(2, 20, 5, Some(16)), &[9]);
            schedule.find_continuations(assumed);
            let AnswersInPrompts { verbatim, changed, unknown, .. } = schedule.answers;
            let (one, next) = (schedule.hashes(0, 16), schedule.hashes(1, 16));
            ([verbatim, changed, unknown], one.iter().zip(&next).take_while(|(one, next)| one == next).count())
        };
        for (cached, counts, shared) in [
            (Some(64), [1, 0, 0], 4),
            (Some(48), [1, 0, 0], 4),
            (Some(32), [0, 1, 0], 2),
            // A block of the prompt itself was gone: the answer may have been, too.
            (Some(16), [0, 0, 1], 4),
            (None, [0, 0, 1], 4),
        ] {
            assert_eq!(turns(cached, Answers::Verbatim), (counts, shared), "{cached:?}");
            let assumed = if counts == [0, 0, 1] { 2 } else { shared };
            assert_eq!(turns(cached, Answers::Changed), (counts, assumed), "{cached:?}");
        }
    }

    #[test]
    fn the_end_of_a_prompt_is_shared_whatever_became_of_its_answer() {
        let mut schedule = ArrivalSchedule { block_size: 16, ..ArrivalSchedule::default() };
        schedule.add(request(0, 40, 30, None), &[1, 2, 8]);
        schedule.add(request(1, 100, 5, None), &[1, 2, 3, 4, 5, 6, 7]);
        schedule.find_continuations(Answers::Changed);
        let (one, next) = (schedule.hashes(0, 4), schedule.hashes(1, 4));
        assert_eq!(one.iter().zip(&next).filter(|(one, next)| one == next).count(), 10);
    }
}
