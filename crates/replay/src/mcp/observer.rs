//! From the lines of both sides to records, in the order of the client's messages.
//!
//! A message of the server belongs to the client's message that it followed from, as far as that can be seen: an answer to its
//! request, progress to the request with its token, anything else to the last message of the client that is still at work, and
//! where nothing is, to the last one that has ended. Over HTTP a message belongs to the request in whose exchange it came
//! ([`http_exchanges`]). What announces a change, such as an update of a resource, belongs to the last one that has ended where that began
//! after all that are at work: they are answered at once when they are played, and the announcement would come before its cause.
//! Limits: where several requests run at once over stdio, which of them a log message belongs to cannot be seen.

mod http_exchanges;

use std::{
    collections::{HashMap, VecDeque},
    ops::AddAssign,
};

use serde_json::{Map, Value};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

pub use self::http_exchanges::{FinishedExchange, MessageOrigin};
use super::{
    message::{Id, Malformed, RpcLine, RpcMessage},
    playback::is_announced,
};
use base::units::Millis;
use recording::{
    cassette::{AnswerContent, Moment, RecordedExchange, Sidecar},
    mcp::{Broken, McpEvent, McpRecord},
};

/// Bytes of exchanges that may wait for earlier ones; beyond them, those that ended are given out of order.
const MOST_WAITING: usize = 64 << 20;

/// Method of the request whose answer is the end of a stream of notifications.
const SUBSCRIPTION: &str = "subscriptions/listen";

/// Which side sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// Counts of what could not be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unrecorded {
    /// Lines that hold no message.
    pub unreadable: u64,
    /// Responses to requests that were not seen.
    pub unmatched: u64,
    /// Messages of the server before the first one of the client.
    pub early: u64,
}

impl AddAssign for Unrecorded {
    fn add_assign(&mut self, other: Self) {
        self.unreadable += other.unreadable;
        self.unmatched += other.unmatched;
        self.early += other.early;
    }
}

base::with_defaults! {
    /// Puts the messages of one connection together.
    #[derive(Debug)]
    pub struct Observer {
        server: String,
        began: OffsetDateTime = OffsetDateTime::UNIX_EPOCH,
        /// In the order of the client's messages.
        exchanges: VecDeque<McpExchange>,
        next: u64,
        /// Requests without an answer and the HTTP exchanges that they came in, by their ids. Clients use ids twice at a time.
        open: HashMap<Id, VecDeque<(u64, Option<u64>)>>,
        /// Requests of the server without a reply: the exchange, and the event there.
        asks: HashMap<Id, (u64, usize)>,
        /// The last message of the client that has ended, in their order.
        last: Option<u64>,
        waiting: usize,
        unrecorded: Unrecorded,
        /// Exchanges are given in the order of their requests, and not as soon as each has ended.
        pub(crate) is_ordered: bool = true,
    }
}

#[derive(Debug, Clone, Default)]
struct McpExchange {
    number: u64,
    http_exchange: Option<u64>,
    record: McpRecord,
    token: Option<Value>,
    /// Milliseconds from the beginning of the connection.
    begun: f64,
    /// Of each event, from `begun`.
    times: Vec<f64>,
    wants_answer: bool,
    is_cancelled: bool,
    open_asks: usize,
    weight: usize,
}

impl McpExchange {
    fn is_open(&self) -> bool {
        self.wants_answer && !self.is_cancelled
    }
}

impl Observer {
    /// An observer of a connection to this server that began now.
    pub(crate) fn new(server: &str, began: OffsetDateTime) -> Self {
        Self { server: server.to_owned(), began, ..Self::default() }
    }

    /// Takes a line; returns how many messages of a client with records of their own it held.
    pub fn line(&mut self, origin: MessageOrigin, line: &[u8]) -> u64 {
        let before = self.next;
        match RpcLine::read(line) {
            Ok(RpcLine::One(message)) => self.message(origin, message, line.len()),
            Ok(RpcLine::Batch(items)) => {
                let each = line.len() / items.len().max(1);
                for item in items {
                    match item {
                        Ok(message) => self.message(origin, message, each),
                        Err(Malformed { .. }) => self.lost(),
                    }
                }
            }
            Err(Malformed { .. }) => self.lost(),
        }
        self.next - before
    }

    /// Counts a line that could not be read.
    pub fn lost(&mut self) {
        self.unrecorded.unreadable += 1;
    }

    /// What could not be recorded so far.
    pub(crate) fn unrecorded(&self) -> Unrecorded {
        self.unrecorded
    }

    /// Bytes of exchanges that were not given yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Gives the exchanges that have ended, and to which nothing can be added. They are in the order of their requests; only a
    /// subscription, which stays open, is not waited for.
    pub fn take(&mut self) -> Vec<FinishedExchange> {
        let mut done = Vec::new();
        while let Some(at) = self.next_done() {
            let Some(exchange) = self.exchanges.remove(at) else { break };
            self.waiting = self.waiting.saturating_sub(exchange.weight);
            done.push(self.made(exchange));
        }
        done
    }

    fn next_done(&self) -> Option<usize> {
        if !self.is_ordered {
            return self.exchanges.iter().position(|exchange| self.is_done(exchange));
        }
        let is_waited_for = |exchange: &McpExchange| exchange.record.method != SUBSCRIPTION || !exchange.is_open();
        let first = self.exchanges.iter().position(is_waited_for)?;
        if self.exchanges.get(first).is_some_and(|exchange| self.is_done(exchange)) {
            return Some(first);
        }
        let is_full = self.waiting > MOST_WAITING;
        self.exchanges.iter().position(|exchange| self.is_done(exchange)).filter(|_| is_full)
    }

    /// Gives all others at the end of the connection; `left` is the side that ended it.
    pub fn finish(&mut self, left: Sender) -> Vec<FinishedExchange> {
        let rest = std::mem::take(&mut self.exchanges);
        rest.into_iter().map(|exchange| self.broken(exchange, left)).collect()
    }

    /// What [`finish`](Self::finish) would give if the client left now.
    pub(crate) fn unfinished(&self) -> Vec<FinishedExchange> {
        self.exchanges.iter().map(|exchange| self.broken(exchange.clone(), Sender::Client)).collect()
    }

    fn broken(&self, mut exchange: McpExchange, left: Sender) -> FinishedExchange {
        if exchange.is_open() {
            exchange.record.broken = Some(broken_by(left));
        }
        self.made(exchange)
    }

    fn is_done(&self, exchange: &McpExchange) -> bool {
        !exchange.is_open() && exchange.open_asks == 0 && self.last != Some(exchange.number)
    }

    fn message(&mut self, origin: MessageOrigin, message: RpcMessage, weight: usize) {
        match (origin.sender, message) {
            (Sender::Client, RpcMessage::Request { id, method, params }) => {
                let token = params.get("_meta").and_then(|meta| meta.get("progressToken")).cloned();
                let is_subscription = method == SUBSCRIPTION;
                let number = self.begin(method, params, origin, weight);
                self.open.entry(id).or_default().push_back((number, origin.http_exchange));
                if is_subscription {
                    // It stays open, and what comes later follows from what the client sends later.
                    self.last = Some(number);
                }
                if let Some(exchange) = self.exchanges.back_mut() {
                    (exchange.wants_answer, exchange.token) = (true, token);
                }
            }
            (Sender::Client, RpcMessage::Notification { method, params }) if method == "notifications/cancelled" => {
                self.cancel(&params);
            }
            (Sender::Client, RpcMessage::Notification { method, params }) => {
                self.last = Some(self.begin(method, params, origin, weight));
            }
            (Sender::Client, RpcMessage::Response { id, answer }) => self.reply(id, answer, weight),
            (Sender::Server, RpcMessage::Response { id, answer }) => self.answer(id, answer, origin, weight),
            (Sender::Server, RpcMessage::Request { id, method, params }) => {
                let owner = self.owner(origin.http_exchange, &method, &params);
                let event = McpEvent::Ask { method, params, reply: None };
                if let Some(place) = self.add(owner, event, origin.at, weight) {
                    self.asks.insert(id, place);
                    self.exchange(place.0).into_iter().for_each(|exchange| exchange.open_asks += 1);
                }
            }
            (Sender::Server, RpcMessage::Notification { method, params }) if method == "notifications/cancelled" => {
                let ask = params.get("requestId").and_then(Id::of).and_then(|id| self.asks.remove(&id));
                self.close_ask(ask.map(|(number, _)| number));
            }
            (Sender::Server, RpcMessage::Notification { method, params }) => {
                let owner = self.owner(origin.http_exchange, &method, &params);
                self.add(owner, McpEvent::Notify { method, params }, origin.at, weight);
            }
        }
    }

    fn begin(&mut self, method: String, params: Value, origin: MessageOrigin, weight: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting += weight;
        let server = self.server.clone();
        self.exchanges.push_back(McpExchange {
            number,
            http_exchange: origin.http_exchange,
            record: McpRecord { server, method, params, ..McpRecord::default() },
            begun: origin.at,
            weight,
            ..McpExchange::default()
        });
        number
    }

    fn answer(&mut self, id: Option<Id>, answer: Map<String, Value>, origin: MessageOrigin, weight: usize) {
        let Some(number) = id.and_then(|id| self.close(&id, origin.http_exchange)) else {
            self.unrecorded.unmatched += 1;
            return;
        };
        self.add(Some(number), McpEvent::Answer(answer), origin.at, weight);
        if let Some(exchange) = self.exchange(number) {
            exchange.wants_answer = false;
            self.last = self.last.max(Some(number));
        }
    }

    fn reply(&mut self, id: Option<Id>, answer: Map<String, Value>, weight: usize) {
        let Some((number, event)) = id.and_then(|id| self.asks.remove(&id)) else {
            self.unrecorded.unmatched += 1;
            return;
        };
        self.waiting += weight;
        if let Some(exchange) = self.exchange(number) {
            exchange.weight += weight;
            if let Some(McpEvent::Ask { reply, .. }) = exchange.record.events.get_mut(event) {
                *reply = Some(answer);
            }
        }
        self.close_ask(Some(number));
    }

    fn close_ask(&mut self, number: Option<u64>) {
        if let Some(exchange) = number.and_then(|number| self.exchange(number)) {
            exchange.open_asks = exchange.open_asks.saturating_sub(1);
        }
    }

    /// The request that an id stands for: that of this HTTP exchange, without one the first of several.
    fn close(&mut self, id: &Id, http_exchange: Option<u64>) -> Option<u64> {
        let open = self.open.get_mut(id)?;
        let at = open.iter().position(|(_, of)| http_exchange.is_none() || *of == http_exchange)?;
        let closed = open.remove(at);
        if open.is_empty() {
            self.open.remove(id);
        }
        closed.map(|(number, _)| number)
    }

    fn cancel(&mut self, params: &Value) {
        let id = params.get("requestId").and_then(Id::of);
        let number = id.and_then(|id| self.open.get(&id)?.front().map(|(number, _)| *number));
        if let Some(exchange) = number.and_then(|number| self.exchange(number)) {
            exchange.is_cancelled = true;
            exchange.record.broken = Some(Broken::Cancelled);
        }
    }

    /// Adds an event to its exchange, or to the one that it seems to belong to; returns its place.
    fn add(&mut self, owner: Option<u64>, event: McpEvent, at: f64, weight: usize) -> Option<(u64, usize)> {
        let Some(number) = owner.or_else(|| self.at_work(&event)) else {
            self.unrecorded.early += 1;
            return None;
        };
        let exchange = self.exchange(number)?;
        if matches!(event, McpEvent::Answer(_)) {
            // It was answered all the same.
            exchange.record.broken = None;
        }
        exchange.record.events.push(event);
        exchange.times.push(at - exchange.begun);
        exchange.weight += weight;
        let place = (number, exchange.record.events.len() - 1);
        self.waiting += weight;
        Some(place)
    }

    /// The last message of the client that is at work, else the last that has ended.
    fn at_work(&self, event: &McpEvent) -> Option<u64> {
        let is_running = |exchange: &&McpExchange| exchange.is_open() && exchange.record.method != SUBSCRIPTION;
        let running = self.exchanges.iter().rev().find(is_running).map(|exchange| exchange.number);
        let Some(last) = self.last else { return running };
        let is_notification = |number: u64| {
            let found = self.exchanges.iter().find(|exchange| exchange.number == number);
            found.is_some_and(|exchange| exchange.record.answer().is_none())
        };
        let is_change = matches!(event, McpEvent::Notify { method, .. } if announces_change(method));
        match running {
            Some(running) if last > running && (is_change || is_notification(last)) => Some(last),
            Some(running) => Some(running),
            None => Some(last),
        }
    }

    fn exchange(&mut self, number: u64) -> Option<&mut McpExchange> {
        let at = self.exchanges.binary_search_by_key(&number, |exchange| exchange.number).ok()?;
        self.exchanges.get_mut(at)
    }

    fn made(&self, exchange: McpExchange) -> FinishedExchange {
        let McpExchange { record, begun, times, http_exchange, weight, .. } = exchange;
        let recorded_at = (self.began + Duration::seconds_f64(begun / 1e3)).format(&Rfc3339).ok();
        let answered = record.events.iter().position(|event| matches!(event, McpEvent::Answer(_)));
        let ms = answered.and_then(|at| times.get(at)).or(times.last()).copied().unwrap_or_default();
        let record = record.record();
        let has_events = matches!(record.answer.content, AnswerContent::Events(_));
        let events = times.iter().filter(|_| has_events).map(|ms| Moment(Millis(*ms).rounded(), None, None)).collect();
        let side = Sidecar { recorded_at, ms: Millis(ms).rounded(), events, ..Sidecar::default() };
        FinishedExchange { http_exchange, weight, exchange: RecordedExchange { record, side, is_retry: false } }
    }
}

/// Returns whether a notification is about the server's state, and not about a request that runs.
fn announces_change(method: &str) -> bool {
    is_announced(method) || method == "notifications/tasks/status"
}

/// The reason for which a request has no answer where this side ended.
fn broken_by(left: Sender) -> Broken {
    if left == Sender::Server { Broken::ServerEnded } else { Broken::Cancelled }
}

#[cfg(test)]
mod tests;
