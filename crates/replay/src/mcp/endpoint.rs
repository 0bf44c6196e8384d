//! Streamable HTTP without its connections: the session of a request, what is wrong with it, and what goes to which stream.
//!
//! Sessions of the legacy era begin with `initialize` and are named in `Mcp-Session-Id`. Requests of the modern era name none; those of
//! one session of the [account](crate::account) share what is consumed. A request is answered by JSON where there is nothing but
//! the answer, or where the client takes no events, and else by a stream. What belongs to no request goes to the stream of a GET, which
//! is answered where the recording has any such message.
//!
//! See docs/decisions/0091-mcp-over-http.md.

mod checks;
mod parameters;
mod reply;
mod sessions;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use base::lock::Lock;
use serde_json::{Value, json};

pub(crate) use self::sessions::account_session;
use self::{
    checks::check_modern,
    parameters::Parameters,
    reply::{refused, whole},
    sessions::{McpConnection, Sessions},
};
pub use self::{
    checks::{McpHeaders, named_in_headers},
    parameters::PREFIX as PARAMETER,
    reply::{EndpointReply, McpForward, StreamMessage},
    sessions::SessionKey,
};
use super::{
    era::LEGACY,
    message::{INVALID_REQUEST, RpcLine, RpcMessage},
    record_index::{IndexedRecord, RecordIndex},
    session::{McpPolicy, OnNovel},
};
use crate::account::{AnswerComparison, DEFAULT_SESSION, JournalEntry};
use recording::{canonical::McpCall, cassette::CassetteRecord, mcp::McpRecord};

/// Recorded bytes from which on a request is too much work for a thread that serves connections.
const HEAVY: usize = 1 << 20;

/// A request besides its head and its body.
#[derive(Debug, Clone)]
pub struct HttpSender<'a> {
    /// The session of the account.
    pub session: &'a str,
    /// Name of an MCP session, should one begin.
    pub fresh: &'a str,
    /// Number of the stream that the response would be.
    pub stream: u64,
    /// Time since any fixed moment.
    pub now: Duration,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct EndpointAnswer {
    /// Its response.
    pub reply: EndpointReply,
    /// Messages for other streams, in order.
    pub deliveries: Vec<StreamMessage>,
    /// Its MCP session, where it has one.
    pub place: Option<SessionKey>,
    /// When what waits for the client since this request goes on without.
    pub deadline: Option<Duration>,
    /// Outcome of its messages, without session and time.
    pub journal: Vec<JournalEntry>,
    /// The records that answered its messages, by their places in the index.
    pub served: Vec<usize>,
}

impl From<EndpointReply> for EndpointAnswer {
    fn from(reply: EndpointReply) -> Self {
        Self { reply, deliveries: Vec::new(), place: None, deadline: None, journal: Vec::new(), served: Vec::new() }
    }
}

/// One server and its sessions.
#[derive(Debug)]
pub struct McpEndpoint {
    index: Arc<RecordIndex>,
    policy: McpPolicy,
    has_unsolicited: bool,
    parameters: Parameters,
    pub(super) sessions: Lock<Sessions>,
}

impl McpEndpoint {
    /// A server without sessions.
    pub(crate) fn new(index: RecordIndex, server: &str, policy: McpPolicy) -> Self {
        let has_unsolicited = index.records().iter().any(|indexed| indexed.record.has_unsolicited());
        let parameters = Parameters::of(&index);
        let index = Arc::new(index);
        let sessions = Lock::new(Sessions::new(Arc::clone(&index), server, policy));
        Self { index, policy, has_unsolicited, parameters, sessions }
    }

    /// Records that may be served.
    pub(crate) fn records(&self) -> usize {
        self.index.records().len()
    }

    /// A record as cassettes have it, by its place.
    #[must_use]
    pub fn record(&self, at: usize) -> Option<CassetteRecord> {
        self.index.records().get(at).map(|indexed| indexed.record.clone().record())
    }

    /// Its name, as headers have it.
    #[must_use]
    pub fn record_name(&self, at: usize) -> Option<String> {
        self.index.records().get(at).map(IndexedRecord::short_name)
    }

    /// Whether finding and writing its records may be much work, whatever the request.
    #[must_use]
    pub fn is_heavy(&self) -> bool {
        // What is made up may be drawn by a schema.
        self.index.bytes > HEAVY || self.policy.on_novel == OnNovel::Stub
    }

    /// Answers a POST.
    pub fn post(&self, head: &McpHeaders, body: &[u8], sender: &HttpSender<'_>) -> EndpointAnswer {
        let line = match RpcLine::read(body) {
            Ok(line) => line,
            Err(malformed) => return refused(None, 400, malformed.code, malformed.why).into(),
        };
        let (is_request, id) = (has_request(&line), id_of(&line));
        let (key, begun) = match self.place(head, &line, sender) {
            Ok(placed) => placed,
            Err(reply) => return reply.into(),
        };
        let Some(connection) = self.sessions.lock().connection(&key) else { return no_session().into() };
        let mut connection = connection.lock();
        let requested = connection.session.asks;
        let steps = connection.session.take(sender.stream, Ok(line), sender.now);
        let (own, deliveries) = connection.sort(steps, sender.stream);
        let has_asked = connection.session.asks > requested;
        let deadline = has_asked.then(|| sender.now.saturating_add(self.policy.reply_within));
        let opening = own.is_forwarded.then(|| connection.session.opening().clone());
        let (bytes, (journal, served)) = (connection.bytes(), connection.session.take_journal());
        drop(connection);
        let is_modern = key.is_modern();
        self.sessions.lock().weigh(&key, bytes);
        let session = begun.then(|| sender.fresh.to_owned());
        let reply = match opening {
            Some(opening) => {
                let opening = (!is_modern && !begun).then_some(opening);
                let is_recorded = self.policy.on_novel == OnNovel::Record;
                EndpointReply::Forward(Box::new(McpForward { id, opening, session, is_recorded }))
            }
            None => own.reply(head, (is_request, is_modern), session),
        };
        EndpointAnswer { reply, deliveries, place: Some(key), deadline, journal, served }
    }

    /// Opens the stream of a GET: its MCP session, the messages that wait for it, and the end of the one before.
    ///
    /// # Errors
    /// With the response, where there is no such stream.
    pub fn listen(
        &self,
        head: &McpHeaders,
        session: &str,
        stream: u64,
    ) -> Result<(SessionKey, Vec<Value>, Vec<StreamMessage>), EndpointReply> {
        if head.is_modern() || !self.has_unsolicited {
            return Err(whole(405, None));
        }
        let (key, connection) = self.named(head, session)?;
        let mut connection = connection.lock();
        let (messages, before) = connection.listen(stream);
        Ok((key, messages, before))
    }

    /// Methods that are allowed, as a header has them.
    #[must_use]
    pub fn allowed(&self, head: &McpHeaders) -> &'static str {
        match (head.is_modern(), self.has_unsolicited) {
            (true, _) => "POST",
            (false, true) => "GET, POST, DELETE",
            (false, false) => "POST, DELETE",
        }
    }

    /// Answers a DELETE, which ends the session and its streams.
    pub fn end(&self, head: &McpHeaders, session: &str) -> (EndpointReply, Vec<StreamMessage>, Option<SessionKey>) {
        if head.is_modern() {
            return (whole(405, None), Vec::new(), None);
        }
        match self.named(head, session) {
            Ok((key, connection)) => {
                self.sessions.lock().close(&key);
                let mut connection = connection.lock();
                (whole(200, None), connection.end(), Some(key))
            }
            Err(reply) => (reply, Vec::new(), None),
        }
    }

    /// Goes on without the replies of a session that are due by now.
    pub fn expire(&self, key: &SessionKey, now: Duration) -> Vec<StreamMessage> {
        let Some(connection) = self.sessions.lock().connection(key) else { return Vec::new() };
        let mut connection = connection.lock();
        let steps = connection.session.expire(now);
        connection.sort(steps, u64::MAX).1
    }

    /// Notes that a client has closed a stream.
    pub fn closed(&self, key: &SessionKey, stream: u64) {
        let Some(connection) = self.sessions.lock().connection(key) else { return };
        connection.lock().closed(stream, key.is_modern());
    }

    /// The records without their bodies, each with how often it was served in a session of the account; the first has this number.
    pub(super) fn shown(&self, first: usize, session: &str) -> Vec<Value> {
        let times = self.sessions.lock().times(session);
        let records = self.index.records().iter().enumerate();
        records
            .map(|(at, indexed)| {
                shown((&self.index, at), indexed, first + at, times.get(&at).copied().unwrap_or_default())
            })
            .collect()
    }

    pub(super) fn shown_record(&self, at: usize, first: usize, session: &str) -> Option<Value> {
        let indexed = self.index.records().get(at)?;
        let times = self.sessions.lock().times(session).get(&at).copied().unwrap_or_default();
        let mut found = shown((&self.index, at), indexed, first + at, times);
        let record = indexed.record.clone().record();
        let fields = found.as_object_mut()?;
        fields.insert("body".to_owned(), self.index.without_secrets(record.body.value()));
        fields.insert("answer".to_owned(), self.index.without_secrets(record.answer.shown()));
        fields.insert("status".to_owned(), record.answer.status.into());
        Some(found)
    }

    /// Takes a message that another server answered, of a session of its own, and compares the answer with the recorded one.
    pub fn compare(
        &self,
        session: &str,
        record: &McpRecord,
        compare: impl FnOnce(&str, &McpRecord) -> AnswerComparison,
    ) -> Vec<JournalEntry> {
        let key = SessionKey::Legacy(session.to_owned());
        let connection = {
            let mut sessions = self.sessions.lock();
            if sessions.connection(&key).is_none() {
                sessions.open(key.clone(), DEFAULT_SESSION);
            }
            sessions.connection(&key)
        };
        let Some(connection) = connection else { return Vec::new() };
        let mut connection = connection.lock();
        connection.session.compare(record, compare);
        connection.session.take_journal().0
    }

    /// The MCP session of a message, and whether it begins with it.
    fn place(
        &self,
        head: &McpHeaders,
        line: &RpcLine,
        sender: &HttpSender<'_>,
    ) -> Result<(SessionKey, bool), EndpointReply> {
        let first = match line {
            RpcLine::One(message) => Some(message),
            RpcLine::Batch(items) => items.iter().find_map(|item| item.as_ref().ok()),
        };
        if check_modern(head, first, &self.parameters)? {
            let key = SessionKey::Modern(sender.session.to_owned());
            self.sessions.lock().open(key.clone(), sender.session);
            return Ok((key, false));
        }
        let version = head.version.as_deref();
        if version.is_some_and(|version| !LEGACY.contains(&version)) {
            return Err(refused(None, 400, INVALID_REQUEST, "MCP-Protocol-Version is not supported"));
        }
        if matches!(line, RpcLine::One(RpcMessage::Request { method, .. }) if method == "initialize") {
            let key = SessionKey::Legacy(sender.fresh.to_owned());
            self.sessions.lock().open(key.clone(), sender.session);
            return Ok((key, true));
        }
        self.named(head, sender.session).map(|(key, _)| (key, false))
    }

    fn named(&self, head: &McpHeaders, session: &str) -> Result<(SessionKey, Arc<Lock<McpConnection>>), EndpointReply> {
        let Some(name) = head.session.clone() else {
            return Err(refused(None, 400, INVALID_REQUEST, "Mcp-Session-Id is missing: begin with initialize"));
        };
        let key = SessionKey::Legacy(name);
        let found = self.sessions.lock().connection_of(&key, session);
        found.map(|connection| (key, connection)).ok_or_else(no_session)
    }
}

fn shown((records, at): (&RecordIndex, usize), indexed: &IndexedRecord, index: usize, served: usize) -> Value {
    let route = format!("POST {}", McpCall::path(&indexed.record.server));
    let method = indexed.record.method.as_str();
    let boundary = records.requests.identity(at).map(|identity| &*identity.boundary);
    json!({"index": index, "record": indexed.name(), "line": indexed.line, "at": boundary, "route": route, "method": method,
        "served": served})
}

fn no_session() -> EndpointReply {
    refused(None, 404, INVALID_REQUEST, "there is no such session: start again with initialize")
}

fn id_of(line: &RpcLine) -> Option<Value> {
    match line {
        RpcLine::One(RpcMessage::Request { id, .. }) => Some(id.value()),
        RpcLine::One(RpcMessage::Notification { .. } | RpcMessage::Response { .. }) | RpcLine::Batch(_) => None,
    }
}

/// Whether anything of a line wants an answer.
fn has_request(line: &RpcLine) -> bool {
    match line {
        RpcLine::One(message) => matches!(message, RpcMessage::Request { .. }),
        RpcLine::Batch(items) => {
            items.iter().any(|item| !matches!(item, Ok(RpcMessage::Notification { .. } | RpcMessage::Response { .. })))
        }
    }
}
