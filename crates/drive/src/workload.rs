//! The requests of a recording, in the order of their arrival.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use recording::{
    cassette::CassetteError,
    redaction::RedactionRules,
    trace::{Joined, Meta, Outcome, Record, Sources, Trace, TraceError, replay_key},
};
use serde_json::{Map, Value};
use text::prompt::BlockHasher;

use crate::turns::EarlierTurns;

/// Maximum number of tokens of a prompt that is made up: more than any model takes.
const MAX_PROMPT_TOKENS: u32 = 1 << 24;

/// Factor of the tokens that a request asks for from which its response has no end: an event may have less than a token where a gateway splits it.
const FAR_BEYOND: u32 = 10;

/// Tokens of a block of a trace that names no size.
const BLOCK_SIZE: u32 = 16;

/// Requests in the order of their arrival.
#[derive(Debug, Default)]
pub struct Workload {
    /// The files in a few words.
    pub name: String,
    /// Prompt tokens of a hashed block.
    pub block_size: u32,
    /// Records that are not sent, by what they are.
    pub left_out: BTreeMap<&'static str, u64>,
    /// What counts as a secret: values that were put in place of placeholders too.
    pub rules: RedactionRules,
    /// What else a user should know of the files, each with its file and line.
    pub notes: Vec<String>,
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
    /// A cassette cannot be read.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// It holds no request.
    #[error("{0}: no record is a request that can be sent; files of other tools become traces by `inspect convert`")]
    Empty(String),
}

impl Workload {
    /// Reads the traces that paths stand for. What was answered is kept only where it will be compared: most of a record's memory is
    /// the times and the tokens of its answer.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no request.
    pub fn read(paths: &[PathBuf], keeps_answers: bool) -> Result<Self, WorkloadError> {
        let sources = Sources::gather(paths)?;
        let mut workload = Self { name: sources.name(), ..Self::default() };
        let mut joined = Joined::of(&sources);
        while let Some(mut record) = joined.next_sound()? {
            if !keeps_answers {
                forget_answer(&mut record, block_size(joined.block_size()));
            }
            workload.push(record);
        }
        workload.leave_out("lines that are no sound record", joined.bad_lines().count);
        workload.in_order(&joined.meta().cloned().unwrap_or_default(), keeps_answers)
    }

    /// Takes a trace that was read, by its name in messages; answers are kept as by [`Self::read`].
    ///
    /// # Errors
    /// When it holds no request.
    pub fn of_trace(name: &str, trace: Trace, keeps_answers: bool) -> Result<Self, WorkloadError> {
        let mut workload = Self { name: name.to_owned(), ..Self::default() };
        for mut record in trace.records {
            if !keeps_answers {
                forget_answer(&mut record, block_size(trace.meta.block_size));
            }
            workload.push(record);
        }
        workload.in_order(&trace.meta, keeps_answers)
    }

    /// Adds a record, in any order.
    pub(crate) fn push(&mut self, record: Record) {
        let at = record.arrival.unwrap_or_default();
        self.requests.push(WorkloadRequest { at, number: 0, record, session: 0 });
    }

    /// Puts what was added into its order, leaves out what is not sent, and finds the sessions. There is one copy of the records at a time.
    pub(crate) fn in_order(mut self, meta: &Meta, keeps_answers: bool) -> Result<Self, WorkloadError> {
        self.block_size = block_size(meta.block_size);
        self.requests.sort_by_key(|request| replay_key(request.record.arrival));
        (0..).zip(&mut self.requests).for_each(|(number, request)| request.number = number);
        let (mut without_body, mut too_long) = (0, 0);
        self.requests.retain(|WorkloadRequest { record, .. }| {
            if record.prompt_tokens > MAX_PROMPT_TOKENS && record.request.is_none() {
                too_long += 1;
                return false;
            }
            // One request makes all choices of its group.
            if record.group.is_some() && record.choice.is_some_and(|choice| choice > 0) {
                return false;
            }
            let generates = record.endpoint.is_none_or(|endpoint| endpoint.generates());
            let is_sent = record.request.as_ref().map_or(generates, Value::is_object);
            without_body += u64::from(!is_sent);
            is_sent
        });
        self.leave_out("requests that are not recorded, of endpoints that take no prompt", without_body);
        self.leave_out("prompts of more than 16,777,216 tokens that are not recorded", too_long);
        if self.requests.is_empty() {
            return Err(WorkloadError::Empty(self.name));
        }
        self.find_sessions(&BlockHasher::new(meta.block_hash.unwrap_or_default(), self.block_size));
        if !keeps_answers {
            self.requests.iter_mut().for_each(|request| request.record.output_token_ids = None);
        }
        Ok(self)
    }

    pub(crate) fn index_of(&self, number: usize) -> Option<usize> {
        self.requests.binary_search_by_key(&number, |request| request.number).ok()
    }

    /// Counts records that are not sent.
    pub(crate) fn leave_out(&mut self, what: &'static str, count: impl TryInto<u64>) {
        let count = count.try_into().unwrap_or(u64::MAX);
        if count > 0 {
            *self.left_out.entry(what).or_default() += count;
        }
    }

    /// Counts arrivals from the first one, and finds the session of each request: the recorded one, else that of the request whose
    /// prompt and answer its prompt goes on with, else one of its own.
    fn find_sessions(&mut self, hasher: &BlockHasher) {
        let first = self.requests.first().map_or(Duration::ZERO, |request| request.at);
        let mut named: HashMap<String, usize> = HashMap::new();
        let (mut turns, mut sessions) = (EarlierTurns::default(), 0);
        for request in &mut self.requests {
            // Those without an arrival count from the beginning.
            request.at = request.at.saturating_sub(first);
            request.session = match &request.record.session {
                Some(name) => *named.entry(name.clone()).or_insert(sessions),
                None => turns.session(&request.record, hasher).unwrap_or(sessions),
            };
            sessions = sessions.max(request.session + 1);
            if request.record.session.is_none() {
                turns.add(&request.record, request.session, hasher);
            }
        }
    }
}

fn block_size(stated: Option<u32>) -> u32 {
    stated.filter(|size| *size > 0).unwrap_or(BLOCK_SIZE)
}

/// Drops what is not needed to send a request, to find its next turn, and to schedule that.
fn forget_answer(record: &mut Record, block_size: u32) {
    record.e2e = replay::meter::e2e(record);
    (record.chunks, record.itl_summary) = (Vec::new(), None);
    let needed = 2 * usize::try_from(block_size).unwrap_or_default();
    record.output_token_ids = record.output_token_ids.take().map(|ids| ids.into_iter().take(needed).collect());
    (record.text, record.events, record.response, record.error) = (None, None, None, None);
    (record.logprobs, record.prompt_logprobs, record.request_key) = (None, None, None);
    record.mm_hashes = Arc::default();
    if record.request.is_some() {
        record.params = Map::new();
    }
}

impl WorkloadRequest {
    /// Returns the time that it took when it was recorded, as far as that is known.
    pub(crate) fn took(&self) -> Duration {
        replay::meter::e2e(&self.record).unwrap_or_default()
    }

    /// Returns true if its client left when it was recorded.
    pub(crate) fn is_left(&self) -> bool {
        self.record.outcome == Some(Outcome::ClientGone)
    }

    /// Returns the time after which its client left, where that was before the first token.
    pub(crate) fn left_unanswered(&self) -> Option<Duration> {
        self.record.e2e.filter(|_| self.is_left() && self.record.output_tokens == 0)
    }

    /// Returns the number of tokens after which its response is left: where its client left when it was recorded, else far beyond what is asked
    /// for, as of a stream without an end.
    pub(crate) fn leaves_after(&self) -> Option<u32> {
        let Record { output_tokens, request, params, .. } = &self.record;
        if self.is_left() {
            return Some(*output_tokens);
        }
        let asked = match request {
            None => Some(*output_tokens),
            Some(_) => params.get("max_tokens").and_then(Value::as_u64).and_then(|most| most.try_into().ok()),
        };
        asked.map(|most: u32| most.saturating_mul(FAR_BEYOND).saturating_add(1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use text::prompt::BlockHashAlgorithm;

    fn sessions(meta: &Meta, records: impl IntoIterator<Item = Record>) -> Vec<usize> {
        let mut workload = Workload::default();
        for (at, record) in (0..).zip(records) {
            workload.push(Record { arrival: Some(Duration::from_secs(at)), ..record });
        }
        let workload = workload.in_order(meta, true).unwrap();
        workload.requests.iter().map(|request| request.session).collect()
    }

    #[test]
    fn conversations_are_found_by_their_messages() {
        let (one, two) = (json!({"role": "user", "content": "one"}), json!({"role": "user", "content": "two"}));
        let reply = json!({"role": "assistant", "content": "yes"});
        let bodies = [
            json!([one]),
            json!([two]),
            json!([one, reply, two]),
            json!([two, reply, one]),
            json!([one, reply, two, reply, one]),
            json!([one, two]),
            // It has all messages of an earlier one, but what follows is no answer.
            json!([one, two, one, reply]),
        ];
        // The blocks of a recorded conversation prove nothing that its messages do not show.
        for blocks in [vec![], vec![7]] {
            let record = |messages: &Value| Record {
                request: Some(json!({"messages": messages})),
                block_hashes: blocks.clone().into(),
                ..Record::default()
            };
            assert_eq!(sessions(&Meta::default(), bodies.iter().map(record)), [0, 1, 0, 1, 0, 2, 3]);
        }
    }

    /// A record of a prompt and an answer, hashed in blocks of four.
    fn hashed(prompt: &[u32], answer: Option<&[u32]>) -> Record {
        let hashes = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 4).hash(prompt);
        Record {
            prompt_tokens: u32::try_from(prompt.len()).unwrap(),
            output_tokens: answer.map_or(5, |ids| u32::try_from(ids.len()).unwrap()),
            block_hashes: hashes.blocks.into(),
            output_token_ids: answer.map(<[u32]>::to_vec),
            ..Record::default()
        }
    }

    fn hashed_sessions(records: impl IntoIterator<Item = Record>) -> Vec<usize> {
        let meta = Meta { block_size: Some(4), block_hash: Some(BlockHashAlgorithm::Xxh3_64), ..Meta::default() };
        sessions(&meta, records)
    }

    #[test]
    fn chats_that_share_a_system_prompt_are_sessions_of_their_own() {
        let system: Vec<u32> = (0..10).collect();
        // The short ones end within the block after the system prompt's last full one.
        let chat = |number: u32| {
            let length = if number.is_multiple_of(3) { 1 } else { 20 };
            let prompt = [&system[..], &vec![100 + number; length]].concat();
            [hashed(&prompt, Some(&[500 + number; 9])), hashed(&prompt, None)]
        };
        let found = hashed_sessions((0..30).flat_map(chat));
        assert_eq!(found, (0..60).collect::<Vec<_>>());
    }

    #[test]
    fn a_prompt_that_holds_an_earlier_answer_is_its_next_turn() {
        for length in 1..14 {
            let (prompt, answer) = ((0..length).collect::<Vec<u32>>(), [50, 51, 52, 53, 54, 55, 56, 57]);
            let next = [&prompt[..], &answer, &[9; 5]].concat();
            let last = [&next[..], &[60; 8], &[8; 5]].concat();
            let other = [&prompt[..], &[50, 51, 52, 59], &[9; 30]].concat();
            let turns = [
                hashed(&prompt, Some(&answer)),
                hashed(&prompt, Some(&[70; 8])),
                hashed(&next, Some(&[60; 8])),
                hashed(&other, Some(&answer)),
                hashed(&last, None),
            ];
            assert_eq!(hashed_sessions(turns), [0, 1, 0, 2, 0], "{length}");
        }
        // An answer that fills no block proves nothing.
        let (prompt, answer) = ([1, 2, 3, 4, 5], [50, 51, 52]);
        let next = [&prompt[..], &answer, &[9; 5]].concat();
        assert_eq!(hashed_sessions([hashed(&prompt, Some(&answer)), hashed(&next, None)]), [0, 1]);
    }
}
