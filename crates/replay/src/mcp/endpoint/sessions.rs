//! The sessions of a server: which there are, what they take, and what was served in them.
//!
//! Limits: all of them take [`BYTES`] together. The ones that were used longest ago are forgotten first; their clients are
//! answered as if they had ended, and what failed in them stays in the report.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::Arc,
};

use base::lock::Lock;
use serde_json::Value;

use super::{StreamMessage, reply::Own};
use crate::{
    account::{DEFAULT_SESSION, EarlierReports, Report, SessionReport},
    mcp::{
        record_index::RecordIndex,
        session::{McpPolicy, McpSession, Round, SessionStep},
    },
};

/// Bytes of all sessions of a server, about.
const BYTES: usize = 64 << 20;

/// Bytes of messages that wait for the stream of a GET.
const MOST_UNSOLICITED: usize = 1 << 20;

/// Bytes of a message beside its text.
const MESSAGE: usize = 64;

/// A session and its stream for what belongs to no request.
#[derive(Debug)]
pub(super) struct McpConnection {
    pub(super) session: McpSession,
    listening: Option<u64>,
    unsolicited: VecDeque<Value>,
    unsolicited_bytes: usize,
    is_modern: bool,
}

impl McpConnection {
    fn new(session: McpSession, is_modern: bool) -> Self {
        Self { session, listening: None, unsolicited: VecDeque::new(), unsolicited_bytes: 0, is_modern }
    }

    pub(super) fn bytes(&self) -> usize {
        self.session.bytes() + self.unsolicited_bytes
    }

    /// Makes a stream the one for what belongs to no request: the messages that wait for it, and the end of the one before.
    pub(super) fn listen(&mut self, stream: u64) -> (Vec<Value>, Vec<StreamMessage>) {
        let before = self.listening.replace(stream).map(StreamMessage::End);
        self.unsolicited_bytes = 0;
        (self.unsolicited.drain(..).collect(), before.into_iter().collect())
    }

    pub(super) fn end(&mut self) -> Vec<StreamMessage> {
        self.listening.take().into_iter().chain(self.session.end_streams()).map(StreamMessage::End).collect()
    }

    pub(super) fn closed(&mut self, stream: u64, is_modern: bool) {
        self.listening.take_if(|listening| *listening == stream);
        self.session.closed(stream, is_modern);
    }

    /// Sorts steps into those of the own stream and those of others.
    pub(super) fn sort(&mut self, steps: Vec<SessionStep>, stream: u64) -> (Own, Vec<StreamMessage>) {
        let (mut own, mut deliveries) = (Own::default(), Vec::new());
        for step in steps {
            match step {
                SessionStep::End => own.has_ended = true,
                SessionStep::Forward(_) => own.is_forwarded = true,
                SessionStep::Done(done) if done == stream => own.is_done = true,
                SessionStep::Done(done) => deliveries.push(StreamMessage::End(done)),
                SessionStep::Send(sent) if sent.is_unsolicited => match self.listening {
                    Some(listening) => deliveries.push(StreamMessage::Message(listening, sent.message)),
                    None => self.keep(sent.message),
                },
                SessionStep::Send(sent) if sent.stream == stream => own.messages.push(sent.message),
                SessionStep::Send(sent) => deliveries.push(StreamMessage::Message(sent.stream, sent.message)),
            }
        }
        (own, deliveries)
    }

    /// Keeps a message for the stream of a GET, which modern clients do not have.
    fn keep(&mut self, message: Value) {
        let bytes = MESSAGE + message.to_string().len();
        if !self.is_modern && self.unsolicited_bytes + bytes <= MOST_UNSOLICITED {
            self.unsolicited_bytes += bytes;
            self.unsolicited.push_back(message);
        }
    }
}

/// The MCP session of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionKey {
    /// By its `Mcp-McpSession-Id`.
    Legacy(String),
    /// By the session of the account.
    Modern(String),
}

impl SessionKey {
    pub(super) fn is_modern(&self) -> bool {
        matches!(self, Self::Modern(_))
    }
}

#[derive(Debug)]
struct SessionEntry {
    connection: Arc<Lock<McpConnection>>,
    session: String,
    /// Its number there, from 1.
    number: u64,
    used: u64,
    bytes: usize,
    /// Whether the client has ended it; it stays for the report.
    is_closed: bool,
}

impl SessionEntry {
    fn name(&self, server: &str) -> String {
        name(&self.session, server, self.number)
    }
}

/// Name of an MCP session in reports: `mcp:time`, `mcp:time/2`, and `NAME/mcp:time` in a session of the account.
fn name(session: &str, server: &str, number: u64) -> String {
    let before = if session == DEFAULT_SESSION { String::new() } else { format!("{session}/") };
    let after = if number == 1 { String::new() } else { format!("/{number}") };
    format!("{before}mcp:{server}{after}")
}

/// The session of the account that a session in reports belongs to, by its [name].
pub(crate) fn account_session(name: &str) -> &str {
    if name.starts_with("mcp:") { DEFAULT_SESSION } else { name.split('/').next().unwrap_or(name) }
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    index: Arc<RecordIndex>,
    server: String,
    policy: McpPolicy,
    /// Bytes that they may take.
    pub(super) most: usize,
    entries: BTreeMap<SessionKey, SessionEntry>,
    /// How many began in each session of the account.
    begun: BTreeMap<String, u64>,
    /// How many were recorded: so many of a session of the account consume records together, one after the other or at once.
    recorded: u64,
    /// Those that do so now, and how many they are.
    rounds: BTreeMap<String, (u64, Round)>,
    tick: u64,
    bytes: usize,
    earlier: EarlierReports,
    /// Records that sessions were served which are no longer here.
    served: HashSet<usize>,
}

impl Sessions {
    pub(super) fn new(index: Arc<RecordIndex>, server: &str, policy: McpPolicy) -> Self {
        let (recorded, server) = (index.sessions(), server.to_owned());
        Self { index, server, policy, most: BYTES, recorded, ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Begins a session, unless it is there.
    pub(super) fn open(&mut self, key: SessionKey, session: &str) {
        if self.entries.contains_key(&key) {
            return;
        }
        let count = self.begun.entry(session.to_owned()).or_default();
        *count += 1;
        let number = *count;
        let round = (self.recorded > 1 && !key.is_modern()).then(|| self.round(session));
        let new = McpSession::new(Arc::clone(&self.index), &self.server, self.policy).over_http(round);
        let connection = McpConnection::new(new, key.is_modern());
        let bytes = connection.bytes();
        let used = self.tick;
        let connection = Arc::new(Lock::new(connection));
        let entry = SessionEntry { connection, session: session.to_owned(), number, used, bytes, is_closed: false };
        self.entries.insert(key, entry);
        self.bytes += bytes;
    }

    /// The round of the next session: the one that runs, until it has as many sessions as were recorded.
    fn round(&mut self, session: &str) -> Round {
        let (count, round) = self.rounds.entry(session.to_owned()).or_default();
        if *count == self.recorded {
            (*count, *round) = (0, Round::default());
        }
        *count += 1;
        Arc::clone(round)
    }

    pub(super) fn connection(&self, key: &SessionKey) -> Option<Arc<Lock<McpConnection>>> {
        self.entries.get(key).filter(|entry| !entry.is_closed).map(|entry| Arc::clone(&entry.connection))
    }

    /// The same, if it is one of this session of the account.
    pub(super) fn connection_of(&self, key: &SessionKey, session: &str) -> Option<Arc<Lock<McpConnection>>> {
        self.entries.get(key).filter(|entry| entry.session == session)?;
        self.connection(key)
    }

    /// Notes what a session takes now, and forgets others where all of them take too much.
    pub(super) fn weigh(&mut self, key: &SessionKey, bytes: usize) {
        self.tick += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.used = self.tick;
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
        if self.bytes <= self.most {
            return;
        }
        let mut oldest: Vec<(u64, SessionKey)> =
            self.entries.iter().map(|(key, entry)| (entry.used, key.clone())).collect();
        oldest.sort_unstable();
        // Not one at a time: each time all of them are sorted.
        let mut left = self.bytes;
        let mut forgotten = Vec::new();
        for (_, oldest) in oldest.into_iter().filter(|(_, oldest)| oldest != key) {
            if left <= self.most / 4 * 3 {
                break;
            }
            left -= self.entries.get(&oldest).map_or(0, |entry| entry.bytes);
            forgotten.push(oldest);
        }
        self.forget(&forgotten);
    }

    /// Ends a session whose client is done with it.
    pub(super) fn close(&mut self, key: &SessionKey) {
        self.entries.get_mut(key).into_iter().for_each(|entry| entry.is_closed = true);
    }

    /// Keeps what failed in sessions and what they were served, and drops the rest.
    fn forget(&mut self, keys: &[SessionKey]) {
        let served = self.times_served(&self.entries.values().collect::<Vec<_>>());
        for key in keys {
            let Some(entry) = self.entries.remove(key) else { continue };
            self.bytes -= entry.bytes;
            let connection = entry.connection.lock();
            let others = served_to_others(&served, &connection.session);
            self.earlier.keep(&entry.name(&self.server), connection.session.session_report(&others));
            self.served.extend(connection.session.consumption.records());
        }
    }

    /// Forgets what sessions consumed; what failed stays.
    pub(crate) fn reset(&mut self, session: Option<&str>) {
        for entry in self.entries.values().filter(|entry| session.is_none_or(|session| session == entry.session)) {
            let mut connection = entry.connection.lock();
            let report = connection.session.session_report(&HashSet::new());
            self.earlier.keep(&entry.name(&self.server), report.without_unconsumed());
            connection.session.rewind();
        }
        self.entries.retain(|_, entry| !entry.is_closed);
        // Sessions that are open go on together; what begins now starts again.
        self.rounds.retain(|name, _| session.is_some_and(|session| session != name));
        self.bytes = self.entries.values().map(|entry| entry.bytes).sum();
        if session.is_none() {
            self.served.clear();
        }
    }

    pub(crate) fn end_session(&mut self, session: &str) {
        let ended = self.entries.iter().filter(|(_, entry)| entry.session == session).map(|(key, _)| key.clone());
        let ended: Vec<SessionKey> = ended.collect();
        self.forget(&ended);
        self.begun.remove(session);
        self.rounds.remove(session);
    }

    /// Those of all sessions of the account, or of one.
    fn wanted(&self, session: Option<&str>) -> impl Iterator<Item = &SessionEntry> {
        self.entries.values().filter(move |entry| session.is_none_or(|session| session == entry.session))
    }

    /// How often each record was served in a session of the account.
    pub(super) fn times(&self, session: &str) -> BTreeMap<usize, usize> {
        let mut times = BTreeMap::new();
        for entry in self.wanted(Some(session)) {
            let consumption = &entry.connection.lock().session.consumption;
            consumption.records().for_each(|at| *times.entry(at).or_default() += consumption.times(at));
        }
        times
    }

    /// What failed in sessions that are no longer here.
    pub(crate) fn earlier(&self) -> BTreeMap<String, SessionReport> {
        self.earlier.reports()
    }

    pub(crate) fn misses(&self, session: Option<&str>) -> Vec<Value> {
        self.wanted(session).flat_map(|entry| entry.connection.lock().session.account.novel.list().to_vec()).collect()
    }

    /// Adds what was served to a report: of all sessions of the account, or of one.
    pub(crate) fn add_to(&self, report: &mut Report, session: Option<&str>) {
        let wanted: Vec<&SessionEntry> = self.wanted(session).collect();
        let served = self.times_served(&wanted);
        let mut was_used = false;
        for entry in &wanted {
            let connection = entry.connection.lock();
            report.environment.extend(connection.session.account.replies.iter().cloned());
            if connection.session.was_used() {
                was_used = true;
                report.sessions.insert(
                    entry.name(&self.server),
                    connection.session.session_report(&served_to_others(&served, &connection.session)),
                );
            }
        }
        if !was_used && session.is_none() {
            let unused = McpSession::new(Arc::clone(&self.index), &self.server, Default::default());
            let name = name(DEFAULT_SESSION, &self.server, 1);
            report.sessions.insert(name, unused.session_report(&self.served));
        }
        if session.is_none() {
            report.earlier.extend(self.earlier.reports());
        }
        report.unused.extend(self.index.unused(|at| served.contains_key(&at)));
    }

    /// Records and the number of these sessions that were served each; those that are no longer here count as one.
    fn times_served(&self, entries: &[&SessionEntry]) -> BTreeMap<usize, usize> {
        let mut times: BTreeMap<usize, usize> = self.served.iter().map(|at| (*at, 1)).collect();
        for entry in entries {
            entry.connection.lock().session.consumption.records().for_each(|at| *times.entry(at).or_default() += 1);
        }
        times
    }
}

/// The records that other sessions were served: more often than this one was.
fn served_to_others(served: &BTreeMap<usize, usize>, session: &McpSession) -> HashSet<usize> {
    let own: HashSet<usize> = session.consumption.records().collect();
    served.iter().filter(|(at, times)| **times > usize::from(own.contains(at))).map(|(at, _)| *at).collect()
}
