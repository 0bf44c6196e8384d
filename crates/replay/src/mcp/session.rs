//! A server that answers one connection from a recording.
//!
//! Lines of the client go in, messages to the client come out; nothing else happens here. A request finds its record by method and
//! canonical parameters, in the order in which records of equal requests were made. A record is sent event by event: a recorded
//! request of the server is sent with an id of our own and its reply awaited before what was recorded after it.
//!
//! See docs/decisions/0087-mcp-sessions-without-io.md.

mod account;
mod sending;
mod streams;
mod unmatched;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base::lock::Lock;
use serde_json::{Map, Value, json};

pub use self::account::journal_entry;
use self::{
    account::{Account, REPLAYED},
    unmatched::{FIRST_ASK, UpstreamSession},
};
use super::{
    era::{Era, LEGACY, discovered, initialized, recorded},
    message::{INVALID_REQUEST, Id, METHOD_NOT_FOUND, MOST_BYTES, Malformed, RpcLine, RpcMessage, error, response},
    miss::Why,
    params::{is_by_method, is_known},
    playback::{Playback, Subscriptions},
    record_index::RecordIndex,
};
use crate::{matching::requests::RequestConsumption, values::EarlierValues};
use recording::canonical::CanonicalKey;

const WITH_BATCHES: &str = "2025-03-26";

/// Requests of the server that wait for replies at a time.
const MOST_ASKS: usize = 10_000;

/// Treatment of a request that was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnNovel {
    /// An error with the closest record.
    #[default]
    Error,
    /// A made-up text, of calls of tools; else an error.
    Stub,
    /// A result that is null, of calls of tools; else an error.
    Null,
    /// The answer of a record of the same tool whose arguments have at least half of their names in common; else an error.
    Closest,
    /// The real server's answer.
    Upstream,
    /// The same, and it is recorded.
    Record,
}

impl OnNovel {
    /// Returns whether requests without a record go to the real server.
    #[must_use]
    pub fn forwards(self) -> bool {
        matches!(self, Self::Upstream | Self::Record)
    }
}

/// Treatment of a request whose records are exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUsedUp {
    /// An error.
    #[default]
    Error,
    /// The last one again.
    Last,
}

/// Policy of a session.
#[derive(Debug, Clone, Copy, Default)]
pub struct McpPolicy {
    /// What a request gets that was not recorded.
    pub on_novel: OnNovel,
    /// What a request gets that was recorded less often.
    pub on_used_up: OnUsedUp,
    /// Whether lists, such as that of the tools, are answered however often they are asked for.
    pub repeats_lists: bool,
    /// Longest wait for a reply of the client.
    pub reply_within: Duration,
    /// Whether a request that is forwarded is a miss all the same, as where a cassette is replayed and not added to.
    pub counts_forwarded: bool,
    /// Whether clients are served over HTTP, where a real server can be asked too.
    pub over_http: bool,
}

/// Next step of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionStep {
    /// Sends a message to the client.
    Send(SentMessage),
    /// Nothing more comes because of what this stream brought.
    Done(u64),
    /// The message that this stream brought goes to the real server, which answers it.
    Forward(u64),
    /// Ends, as the recorded server did.
    End,
}

/// A message to the client.
#[derive(Debug, Clone, PartialEq)]
pub struct SentMessage {
    /// Stream that brought the request which it belongs to.
    pub stream: u64,
    /// The message.
    pub message: Value,
    /// Whether it does not belong to a request that is still without its answer.
    pub is_unsolicited: bool,
}

/// Steps because of one message, the stream that brought it, and when.
#[derive(Debug)]
struct MessageSteps {
    stream: u64,
    now: Duration,
    steps: Vec<SessionStep>,
}

impl MessageSteps {
    fn new(stream: u64, now: Duration) -> Self {
        Self { stream, now, steps: Vec::new() }
    }

    /// Sends a message of a request without its answer, or the answer.
    fn send(&mut self, message: Value) {
        self.steps.push(SessionStep::Send(SentMessage { stream: self.stream, message, is_unsolicited: false }));
    }

    fn answer(&mut self, message: Value) {
        self.send(message);
        self.steps.push(SessionStep::Done(self.stream));
    }
}

/// Consumption of connections that go on where the ones before them ended, as the recorded ones did.
pub(super) type Round = Arc<Lock<RequestConsumption>>;

/// One connection.
#[derive(Debug, Default)]
pub struct McpSession {
    index: Arc<RecordIndex>,
    server: String,
    policy: McpPolicy,
    pub(super) consumption: RequestConsumption,
    /// What it consumes together with other connections, where several were recorded.
    round: Option<Round>,
    pub(super) account: Account,
    /// Records that wait for a reply, by the id of the request to the client, with the time at which they go on without.
    waiting: BTreeMap<u64, PendingReply>,
    /// When it ends as the recorded server did, which cut off further calls.
    ends_at: Option<Duration>,
    /// The next of our own ids of requests to the client.
    pub(super) asks: u64,
    /// The negotiated protocol version.
    version: String,
    /// Ids of subscriptions as recorded, and as the client has them.
    subscriptions: Subscriptions,
    /// Streams that stay open without an answer, and the requests that brought them.
    open: BTreeMap<u64, Id>,
    upstream: UpstreamSession,
    /// Values of requests that later answers have.
    earlier: EarlierValues,
}

#[derive(Debug)]
struct PendingReply {
    playback: Playback,
    method: String,
    reply: Map<String, Value>,
    until: Duration,
}

impl McpSession {
    /// A connection to this server, of which nothing was asked yet.
    #[must_use]
    pub fn new(index: Arc<RecordIndex>, server: &str, policy: McpPolicy) -> Self {
        let asks = if policy.on_novel.forwards() { FIRST_ASK } else { 0 };
        Self { index, server: server.to_owned(), policy, asks, ..Self::default() }
    }

    /// The same over HTTP: it consumes records together with others, and keeps the outcome of each message until that is taken.
    pub(super) fn over_http(mut self, round: Option<Round>) -> Self {
        (self.round, self.account.journal) = (round, Some(Vec::new()));
        self
    }

    /// The first record of a key that was not consumed yet.
    fn fresh(&mut self, key: CanonicalKey) -> Option<usize> {
        let requests = &self.index.requests;
        let Some(round) = &self.round else { return self.consumption.first_fresh(requests, key) };
        // Connections at once get different records.
        let mut round = round.lock();
        let at = round.first_fresh(requests, key)?;
        round.add(at, 0);
        Some(at)
    }

    /// Takes a line of the client; `now` is the time since any fixed moment.
    pub fn line(&mut self, line: &[u8], now: Duration) -> Vec<SessionStep> {
        self.take(0, RpcLine::read(line), now)
    }

    /// As [`line`](Self::line), of one of several streams and read before.
    pub(super) fn take(&mut self, stream: u64, line: Result<RpcLine, Malformed>, now: Duration) -> Vec<SessionStep> {
        let mut out = MessageSteps::new(stream, now);
        match line {
            Ok(RpcLine::One(message)) => self.message(message, &mut out),
            Ok(RpcLine::Batch(items)) if self.version == WITH_BATCHES => {
                self.upstream.is_batch = true;
                self.batch(items, &mut out);
                self.upstream.is_batch = false;
            }
            Ok(RpcLine::Batch(_)) => {
                let why = "batches are of protocol version 2025-03-26 only";
                out.answer(error(None, INVALID_REQUEST, why, None));
            }
            Err(malformed) => out.answer(refusal(&malformed)),
        }
        out.steps
    }

    /// Answers a line that was too long to be read.
    pub fn lost(&mut self) -> Vec<SessionStep> {
        let message = format!("a message has at most {} MiB", MOST_BYTES >> 20);
        let mut out = MessageSteps::new(0, Duration::ZERO);
        out.answer(error(None, INVALID_REQUEST, &message, None));
        out.steps
    }

    fn batch(&mut self, items: Vec<Result<RpcMessage, Malformed>>, out: &mut MessageSteps) {
        let (stream, mut answers) = (out.stream, Vec::new());
        for item in items {
            let mut one = MessageSteps::new(stream, out.now);
            match item {
                Ok(message) => self.message(message, &mut one),
                Err(malformed) => one.answer(refusal(&malformed)),
            }
            for step in one.steps {
                match step {
                    SessionStep::Send(sent) if sent.message.get("method").is_none() => answers.push(sent.message),
                    SessionStep::Done(done) if done == stream => {}
                    // Nothing of a list is forwarded.
                    SessionStep::Forward(_) => {}
                    step => out.steps.push(step),
                }
            }
        }
        let is_open = self.waiting.values().any(|waiting| waiting.playback.stream == stream);
        if !answers.is_empty() {
            out.send(answers.into());
        }
        out.steps.extend((!is_open).then_some(SessionStep::Done(stream)));
    }

    fn message(&mut self, message: RpcMessage, out: &mut MessageSteps) {
        match message {
            RpcMessage::Request { id, method, params } => self.request(id, &method, &params, out),
            RpcMessage::Notification { method, params } if method == "notifications/cancelled" => {
                self.cancel(params.get("requestId").and_then(Id::of).as_ref(), out);
                self.forward_further(out);
            }
            RpcMessage::Notification { method, params } => self.notification(&method, &params, out),
            RpcMessage::Response { id, answer } => self.reply(id.as_ref(), &answer, out),
        }
    }

    fn request(&mut self, id: Id, method: &str, params: &Value, out: &mut MessageSteps) {
        if method == "initialize" && self.policy.on_novel.forwards() {
            self.upstream.opening = params.clone();
        }
        let era = match Era::of(&id, params) {
            Ok(era) => era,
            Err(refusal) => return out.answer(refusal),
        };
        if method == "ping" {
            return out.answer(made_up(&id, era, method, json!({})));
        }
        let identity = self.index.identify(method, params);
        let canonical = &identity.fields;
        if is_by_method(method) {
            let has_handshake = ["initialize", "server/discover"].iter().any(|method| self.index.has_method(method));
            if self.forwards() && !has_handshake {
                return self.forward(canonical, None, out);
            }
            let recorded = self.index.of_key(identity.key).first().copied();
            let playback = self.playback(recorded, (out.stream, Some(id)), (method, params), era);
            match recorded {
                Some(at) => self.note_record(canonical, REPLAYED, at),
                None => self.note(canonical, "stubbed", None),
            }
            return self.handshake(playback, method, params, out);
        }
        if !is_known(method) && !self.index.has_method(method) && !self.forwards() {
            return out.answer(error(Some(&id), METHOD_NOT_FOUND, "Method not found", None));
        }
        self.account.counts.requests += 1;
        let chosen = self.choose(method, &identity);
        let refused = chosen.and_then(|at| Some((at, era.refuses(&self.index.records().get(at)?.record)?)));
        match (chosen, refused) {
            (_, Some((at, why))) => {
                self.miss(&id, method, &identity, Why::Era(at, why), out);
            }
            (Some(at), None) => {
                self.consumption.add(at, self.account.counts.requests);
                self.note_record(canonical, REPLAYED, at);
                let playback = self.playback(Some(at), (out.stream, Some(id)), (method, params), era);
                self.go_on(playback, out);
            }
            (None, None) if self.forwards() => self.unmatched(&id, (era, method), &identity, out),
            // A subscription that a recorded client did not need changes nothing.
            (None, None) if matches!(method, "resources/subscribe" | "resources/unsubscribe") => {
                out.answer(made_up(&id, era, method, json!({})));
            }
            (None, None) if method == "subscriptions/listen" && !self.index.has_method(method) => {
                self.listen(id, params, out);
            }
            (None, None) => self.unmatched(&id, (era, method), &identity, out),
        }
    }

    /// A notification is followed by what followed it when it was recorded, once for each record.
    fn notification(&mut self, method: &str, params: &Value, out: &mut MessageSteps) {
        let identity = self.index.identify(method, params);
        match self.fresh(identity.key) {
            Some(at) => {
                self.consumption.add(at, 0);
                self.note_record(&identity.fields, REPLAYED, at);
                let playback = self.playback(Some(at), (out.stream, None), (method, params), Era::Legacy);
                self.go_on(playback, out);
            }
            None => self.forward_further(out),
        }
    }

    /// Answers a request that matches by its method alone, however often.
    fn handshake(&mut self, playback: Playback, method: &str, params: &Value, out: &mut MessageSteps) {
        if method == "initialize" {
            self.version = self.negotiated(params);
        }
        if playback.at.is_some() {
            return self.go_on(playback, out);
        }
        let result = match method {
            "initialize" => Some(initialized(&self.index, &self.version)),
            "logging/setLevel" => Some(json!({})),
            // A client that tries the modern era first goes on at once with what the recording has.
            _ => discovered(&self.index),
        };
        let Some(id) = &playback.caller else { return };
        match result {
            Some(result) => out.answer(made_up(id, playback.era, method, result)),
            None => out.answer(error(Some(id), METHOD_NOT_FOUND, "Method not found", None)),
        }
    }

    /// The protocol version of an answer to `initialize`: the client's, where it is one of the recorded era, else the recording's.
    fn negotiated(&self, params: &Value) -> String {
        let wanted = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
        if LEGACY.contains(&wanted) {
            return wanted.to_owned();
        }
        let recorded = recorded(&self.index, "initialize")("protocolVersion");
        let newest = LEGACY.last().copied().unwrap_or_default();
        recorded.as_ref().and_then(Value::as_str).unwrap_or(newest).to_owned()
    }
}

fn refusal(malformed: &Malformed) -> Value {
    error(malformed.id.as_ref(), malformed.code, malformed.why, None)
}

fn made_up(id: &Id, era: Era, method: &str, result: Value) -> Value {
    let mut answer = [("result".to_owned(), result)].into_iter().collect();
    era.convert(method, &mut answer);
    response(Some(id), answer)
}
