//! The requests of a recording, in the order of their arrival.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use recording::trace::{BadLines, Joined, Outcome, Record, Sources, TraceError, replay_key};

/// Tokens of a block of a trace that names no size.
const BLOCK_SIZE: u32 = 16;

/// Requests in the order of their arrival.
#[derive(Debug, Default)]
pub struct Workload {
    /// The files in a few words.
    pub name: String,
    /// Prompt tokens of a hashed block.
    pub block_size: u32,
    /// Records that are no requests of their own to send: further choices of one, or of other endpoints without a body.
    pub left_out: u64,
    /// The requests.
    pub requests: Vec<WorkloadRequest>,
}

/// A request of a recording.
#[derive(Debug)]
pub struct WorkloadRequest {
    /// The record of its first choice.
    pub record: Record,
    /// Its place among all records in the order of their arrival, by which `play` finds it.
    pub number: usize,
    /// Arrival from the first one of the recording; zero for all where none is recorded.
    pub at: Duration,
    /// Number of its session, counted in the order of their first requests.
    pub session: usize,
}

/// A recording that cannot be driven.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// It cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It holds no request.
    #[error("{path}: no record is a request that can be sent")]
    Empty {
        /// The files.
        path: String,
    },
}

impl Workload {
    /// Reads the traces that paths stand for.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no request.
    pub fn read(paths: &[PathBuf]) -> Result<Self, WorkloadError> {
        let sources = Sources::gather(paths)?;
        let mut workload = Self { name: sources.name(), ..Self::default() };
        let mut records = Vec::new();
        let (mut joined, mut block_size) = (Joined::of(&sources), None);
        while let Some((_, mut reader)) = joined.next_file()? {
            block_size = block_size.or(reader.meta().block_size);
            let mut bad_lines = BadLines::default();
            while let Some((_, mut record)) = reader.next_sound(&mut bad_lines)? {
                joined.place(&mut record);
                records.push(record);
            }
            workload.left_out += bad_lines.count;
        }
        workload.block_size = block_size.filter(|size| *size > 0).unwrap_or(BLOCK_SIZE);
        records.sort_by_key(|record| replay_key(record.arrival));
        (0..).zip(records).for_each(|(number, record)| workload.add(number, record));
        if workload.requests.is_empty() {
            return Err(WorkloadError::Empty { path: workload.name });
        }
        workload.find_sessions();
        Ok(workload)
    }

    /// Returns the index of the request with this number.
    #[must_use]
    pub fn index_of(&self, number: usize) -> Option<usize> {
        self.requests.binary_search_by_key(&number, |request| request.number).ok()
    }

    fn add(&mut self, number: usize, record: Record) {
        let is_further_choice = record.group.is_some() && record.choice.is_some_and(|choice| choice > 0);
        let can_be_made = record.request.is_some() || record.endpoint.is_none_or(|endpoint| endpoint.generates());
        if is_further_choice || !can_be_made {
            self.left_out += 1;
            return;
        }
        let at = record.arrival.unwrap_or_default();
        self.requests.push(WorkloadRequest { at, number, record, session: 0 });
    }

    /// Counts arrivals from the first one, and finds the session of each request: the recorded one, else that of the request whose
    /// prompt and answer its prompt goes on with, else one of its own.
    fn find_sessions(&mut self) {
        let first = self.requests.first().map_or(Duration::ZERO, |request| request.at);
        let mut named: HashMap<String, usize> = HashMap::new();
        // The last full block of a prompt names all that is before it.
        let mut by_last_block: HashMap<u64, Ended> = HashMap::new();
        let mut sessions = 0;
        for request in &mut self.requests {
            request.at -= first;
            let blocks = &request.record.block_hashes;
            let known = match &request.record.session {
                Some(name) => named.get(name).copied(),
                None => {
                    let before = blocks.iter().rev().skip(1).find_map(|block| by_last_block.get(block));
                    before.filter(|before| before.tokens <= request.record.prompt_tokens).map(|before| before.session)
                }
            };
            request.session = known.unwrap_or(sessions);
            sessions = sessions.max(request.session + 1);
            if let Some(name) = &request.record.session {
                named.entry(name.clone()).or_insert(request.session);
            } else if let Some(last) = blocks.last() {
                let tokens = request.record.prompt_tokens.saturating_add(request.record.output_tokens);
                by_last_block.insert(*last, Ended { session: request.session, tokens });
            }
        }
    }
}

/// A request that later ones may go on with.
struct Ended {
    session: usize,
    /// Tokens of its prompt and its answer.
    tokens: u32,
}

impl WorkloadRequest {
    /// Returns the time that it took when it was recorded, as far as that is known.
    #[must_use]
    pub fn took(&self) -> Duration {
        replay::meter::e2e(&self.record).unwrap_or_default()
    }

    /// Returns the number of tokens after which its client left when it was recorded.
    #[must_use]
    pub fn leaves_after(&self) -> Option<u32> {
        (self.record.outcome == Some(Outcome::ClientGone)).then_some(self.record.output_tokens)
    }
}
