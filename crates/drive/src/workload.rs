//! The requests of a recording, in the order of their arrival.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use recording::{
    cassette::CassetteError,
    redaction::RedactionRules,
    trace::{Joined, Outcome, Record, Sources, Trace, TraceError, replay_key},
};
use serde_json::{Map, Value};

/// Maximum number of tokens of a prompt that is made up: more than any model takes.
const MAX_PROMPT_TOKENS: u32 = 1 << 24;

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
    #[error("{path}: no record is a request that can be sent; files of other tools become traces by `inspect convert`")]
    Empty {
        /// The files.
        path: String,
    },
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
                forget_answer(&mut record);
            }
            workload.push(record);
        }
        workload.leave_out("lines that are no sound record", joined.bad_lines().count);
        workload.in_order(joined.block_size())
    }

    /// Takes a trace that was read, by its name in messages; answers are kept as by [`Self::read`].
    ///
    /// # Errors
    /// When it holds no request.
    pub fn of_trace(name: &str, trace: Trace, keeps_answers: bool) -> Result<Self, WorkloadError> {
        let mut workload = Self { name: name.to_owned(), ..Self::default() };
        for mut record in trace.records {
            if !keeps_answers {
                forget_answer(&mut record);
            }
            workload.push(record);
        }
        workload.in_order(trace.meta.block_size)
    }

    /// Adds a record, in any order.
    pub(crate) fn push(&mut self, record: Record) {
        let at = record.arrival.unwrap_or_default();
        self.requests.push(WorkloadRequest { at, number: 0, record, session: 0 });
    }

    /// Puts what was added into its order, leaves out what is not sent, and finds the sessions. There is one copy of the records at a time.
    pub(crate) fn in_order(mut self, block_size: Option<u32>) -> Result<Self, WorkloadError> {
        self.block_size = block_size.filter(|size| *size > 0).unwrap_or(BLOCK_SIZE);
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
            return Err(WorkloadError::Empty { path: self.name });
        }
        self.find_sessions();
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
    fn find_sessions(&mut self) {
        let first = self.requests.first().map_or(Duration::ZERO, |request| request.at);
        let mut named: HashMap<String, usize> = HashMap::new();
        // The last full block of a prompt names all that is before it.
        let mut by_last_block: HashMap<u64, EndedRequest> = HashMap::new();
        let mut by_messages: HashMap<u64, usize> = HashMap::new();
        let mut sessions = 0;
        for request in &mut self.requests {
            // Those without an arrival count from the beginning.
            request.at = request.at.saturating_sub(first);
            let blocks = &request.record.block_hashes;
            let known = match &request.record.session {
                Some(name) => named.get(name).copied(),
                None if blocks.is_empty() => {
                    let conversation = conversation(&request.record);
                    // Its last messages are an answer and the reply to it.
                    let before = conversation.iter().rev().skip(2);
                    let known = before.filter_map(|messages| by_messages.get(messages).copied()).next();
                    by_messages.extend(conversation.last().map(|all| (*all, known.unwrap_or(sessions))));
                    known
                }
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
                by_last_block.insert(*last, EndedRequest { session: request.session, tokens });
            }
        }
    }
}

/// Hashes of the messages of a recorded request: of the first one, of the first two, and so on.
fn conversation(record: &Record) -> Vec<u64> {
    let list = record.request.as_ref().and_then(|body| body.get("messages").or_else(|| body.get("input")));
    let mut hasher = DefaultHasher::new();
    let hashed = list.and_then(Value::as_array).into_iter().flatten().map(|message| {
        message.to_string().hash(&mut hasher);
        hasher.finish()
    });
    hashed.collect()
}

/// Drops what is not needed to send a request and to schedule the next one.
fn forget_answer(record: &mut Record) {
    record.e2e = replay::meter::e2e(record);
    (record.chunks, record.itl_summary, record.output_token_ids) = (Vec::new(), None, None);
    (record.text, record.events, record.response, record.error) = (None, None, None, None);
    (record.logprobs, record.prompt_logprobs, record.request_key) = (None, None, None);
    record.mm_hashes = Arc::default();
    if record.request.is_some() {
        record.params = Map::new();
    }
}

/// A request that later ones may go on with.
struct EndedRequest {
    session: usize,
    /// Tokens of its prompt and its answer.
    tokens: u32,
}

impl WorkloadRequest {
    /// Returns the time that it took when it was recorded, as far as that is known.
    pub(crate) fn took(&self) -> Duration {
        replay::meter::e2e(&self.record).unwrap_or_default()
    }

    /// Returns the number of tokens after which its client left when it was recorded.
    pub(crate) fn leaves_after(&self) -> Option<u32> {
        (self.record.outcome == Some(Outcome::ClientGone)).then_some(self.record.output_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conversations_are_found_by_their_messages_where_no_blocks_are_hashed() {
        let mut workload = Workload::default();
        let (one, two) = (json!({"role": "user", "content": "one"}), json!({"role": "user", "content": "two"}));
        let reply = json!({"role": "assistant", "content": "yes"});
        for (at, messages) in [
            (0, json!([one])),
            (1, json!([two])),
            (2, json!([one, reply, two])),
            (3, json!([two, reply, one])),
            (4, json!([one, reply, two, reply, one])),
            (5, json!([one, two])),
        ] {
            let request = Some(json!({"messages": messages}));
            workload.push(Record { arrival: Some(Duration::from_secs(at)), request, ..Record::default() });
        }
        let workload = workload.in_order(None).unwrap();
        let sessions: Vec<usize> = workload.requests.iter().map(|request| request.session).collect();
        assert_eq!(sessions, [0, 1, 0, 1, 0, 2]);
    }
}
