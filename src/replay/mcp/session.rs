//! A server that answers one connection from a tape.
//!
//! Lines of the client go in, messages to the client come out; nothing else happens here. A request finds its record by method and
//! canonical parameters, in the order in which records of equal requests were made. A record is sent event by event: a recorded
//! request of the server is sent with an id of our own and its reply awaited before what was recorded after it.
//!
//! See docs/decisions/0087-mcp-sessions-without-io.md.

mod handshake;
mod replies;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Map, Value, json};

use super::{
    account::Account,
    consumption::Consumption,
    era::Era,
    message::{INVALID_REQUEST, Id, Line, METHOD_NOT_FOUND, MOST_BYTES, Malformed, Message, error, response},
    miss::{Miss, Why},
    nearest::{Asked, alike, name_of, nearest},
    params::{ParamKey, is_by_method, is_known},
    policy::{OnNovel, OnUsedUp, Policy},
    tape::Tape,
    turn::{Next, Subscriptions, Turn},
};
use crate::replay::account::{Concern, Report};

/// The revision that has batches.
const WITH_BATCHES: &str = "2025-03-26";

/// Requests of the server that wait for replies at a time.
const MOST_ASKS: usize = 10_000;

/// What a session does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Sends a message to the client.
    Send(Sent),
    /// Nothing more comes because of what this stream brought.
    Done(u64),
    /// Ends, as the recorded server did.
    End,
}

/// A message to the client.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Stream that brought the request which it belongs to.
    pub stream: u64,
    /// The message.
    pub message: Value,
    /// Whether it does not belong to a request that is still without its answer.
    pub is_unsolicited: bool,
}

/// Steps because of one message, and the stream that brought it.
#[derive(Debug)]
struct Out {
    stream: u64,
    steps: Vec<Step>,
}

impl Out {
    fn new(stream: u64) -> Self {
        Self { stream, steps: Vec::new() }
    }

    /// Sends all that a message brings about.
    fn answer(&mut self, message: Value) {
        self.steps.push(Step::Send(Sent { stream: self.stream, message, is_unsolicited: false }));
        self.steps.push(Step::Done(self.stream));
    }
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    tape: Arc<Tape>,
    server: String,
    policy: Policy,
    consumption: Consumption,
    account: Account,
    /// Records that wait for a reply, by the id of the request to the client, with the time at which they go on without.
    waiting: BTreeMap<u64, Waiting>,
    /// The next of our own ids.
    asks: u64,
    /// The negotiated protocol version.
    version: String,
    /// Ids of subscriptions as recorded, and as the client has them.
    subscriptions: Subscriptions,
}

#[derive(Debug)]
struct Waiting {
    turn: Turn,
    method: String,
    reply: Map<String, Value>,
    until: Duration,
}

impl Session {
    /// A connection to this server, of which nothing was asked yet.
    #[must_use]
    pub fn new(tape: Arc<Tape>, server: &str, policy: Policy) -> Self {
        let (consumption, account) = (Consumption::default(), Account::default());
        let (server, waiting) = (server.to_owned(), BTreeMap::new());
        Self {
            tape,
            server,
            policy,
            consumption,
            account,
            waiting,
            asks: 0,
            version: String::new(),
            subscriptions: Subscriptions::default(),
        }
    }

    /// Takes a line of the client; `now` is the time since any fixed moment.
    pub fn line(&mut self, line: &[u8], now: Duration) -> Vec<Step> {
        self.line_of(0, line, now)
    }

    /// As [`line`](Self::line), of one of several streams.
    pub fn line_of(&mut self, stream: u64, line: &[u8], now: Duration) -> Vec<Step> {
        let mut out = Out::new(stream);
        match Line::read(line) {
            Ok(Line::One(message)) => self.message(message, now, &mut out),
            Ok(Line::Batch(items)) if self.version == WITH_BATCHES => self.batch(items, now, &mut out),
            Ok(Line::Batch(_)) => {
                let why = "batches are of protocol version 2025-03-26 only";
                out.answer(error(None, INVALID_REQUEST, why, None));
            }
            Err(malformed) => out.answer(refusal(&malformed)),
        }
        out.steps
    }

    /// Answers a line that was too long to be read.
    pub fn lost(&mut self) -> Vec<Step> {
        let message = format!("a message has at most {} MiB", MOST_BYTES >> 20);
        let mut out = Out::new(0);
        out.answer(error(None, INVALID_REQUEST, &message, None));
        out.steps
    }

    /// The report so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.account.report(&self.tape, &self.consumption)
    }

    /// The report so far, for programs.
    #[must_use]
    pub fn report_json(&self, concerns: &[Concern]) -> Value {
        self.account.json(&self.report(), &self.server, concerns)
    }

    fn batch(&mut self, items: Vec<Result<Message, Malformed>>, now: Duration, out: &mut Out) {
        let (stream, mut answers) = (out.stream, Vec::new());
        for item in items {
            let mut one = Out::new(stream);
            match item {
                Ok(message) => self.message(message, now, &mut one),
                Err(malformed) => one.answer(refusal(&malformed)),
            }
            for step in one.steps {
                match step {
                    Step::Send(sent) if sent.message.get("method").is_none() => answers.push(sent.message),
                    Step::Done(_) => {}
                    step => out.steps.push(step),
                }
            }
        }
        if answers.is_empty() {
            out.steps.push(Step::Done(stream));
        } else {
            out.answer(answers.into());
        }
    }

    fn message(&mut self, message: Message, now: Duration, out: &mut Out) {
        match message {
            Message::Request { id, method, params } => self.request(id, &method, &params, now, out),
            Message::Notification { method, params } if method == "notifications/cancelled" => {
                let id = params.get("requestId").and_then(Id::of);
                self.waiting.retain(|_, waiting| id.is_none() || waiting.turn.caller != id);
            }
            Message::Notification { method, params } => self.notification(&method, &params, now, out),
            Message::Response { id, answer } => self.reply(id.as_ref(), &answer, now, out),
        }
    }

    fn request(&mut self, id: Id, method: &str, params: &Value, now: Duration, out: &mut Out) {
        let era = match Era::of(&id, params) {
            Ok(era) => era,
            Err(refusal) => return out.answer(refusal),
        };
        if method == "ping" {
            return out.answer(made_up(&id, era, method, json!({})));
        }
        let (canonical, key) = self.tape.identify(method, params);
        if is_by_method(method) {
            let recorded = self.tape.of_key(key).first().copied();
            let turn = Turn::new(recorded, (out.stream, Some(id)), params, era);
            return self.handshake(turn, method, params, (now, out));
        }
        if !is_known(method) && !self.tape.has_method(method) {
            return out.answer(error(Some(&id), METHOD_NOT_FOUND, "Method not found", None));
        }
        self.account.requests += 1;
        let request = self.account.requests;
        let chosen = self.choose(method, &canonical, key);
        let refused = chosen.and_then(|at| Some((at, era.refuses(&self.tape.records().get(at)?.record)?)));
        match (chosen, refused) {
            (_, Some((at, why))) => {
                let why = Why::Era(at, why);
                let answer = self.missed(&id, method, &canonical, (key, why));
                out.answer(answer);
            }
            (Some(at), None) => {
                self.consumption.serve(at, request);
                self.go_on(Turn::new(Some(at), (out.stream, Some(id)), params, era), now, out);
            }
            // A subscription that a recorded client did not need changes nothing.
            (None, None) if matches!(method, "resources/subscribe" | "resources/unsubscribe") => {
                out.answer(made_up(&id, era, method, json!({})));
            }
            (None, None) => self.unmatched(&id, (era, method), &canonical, key, out),
        }
    }

    /// Chooses the record that answers a request.
    fn choose(&mut self, method: &str, canonical: &Value, key: ParamKey) -> Option<usize> {
        if let Some(at) = self.consumption.next(&self.tape, key) {
            return Some(at);
        }
        // A task is asked after until it is done, however often that was.
        let repeats = self.policy.on_used_up == OnUsedUp::Last || method == "tasks/get";
        if let Some(last) = self.tape.of_key(key).last() {
            if repeats {
                *self.account.again.entry("exhausted").or_default() += 1;
            }
            return repeats.then_some(*last);
        }
        if self.policy.on_novel != OnNovel::Closest {
            return None;
        }
        let found = alike(&self.tape, Asked { method, canonical }, |at| self.consumption.has_served(at))?;
        *self.account.loose.entry("closest").or_default() += 1;
        let miss = self.explain(&self.tape, method, canonical, (key, Why::NoMatch(Some(found))));
        let (detail, at) = (miss.detail(), place_of(&miss));
        self.account.novel.keep(detail);
        at
    }

    /// Answers a request for which there is no record, or none left.
    fn unmatched(&mut self, id: &Id, (era, method): (Era, &str), canonical: &Value, key: ParamKey, out: &mut Out) {
        let tape = Arc::clone(&self.tape);
        let known = tape.of_key(key);
        let is_novel = known.is_empty();
        if let Some(stub) = stub(method, canonical, key).filter(|_| is_novel && self.policy.on_novel == OnNovel::Stub) {
            let found = nearest(&tape, Asked { method, canonical }, |at| self.consumption.has_served(at));
            let detail = self.explain(&tape, method, canonical, (key, Why::NoMatch(found))).detail();
            self.account.novel.keep(detail);
            *self.account.loose.entry("stub").or_default() += 1;
            return out.answer(made_up(id, era, method, stub));
        }
        let why = if is_novel {
            Why::NoMatch(nearest(&tape, Asked { method, canonical }, |at| self.consumption.has_served(at)))
        } else {
            Why::Exhausted(known.iter().map(|at| (*at, self.consumption.served_to(*at).to_vec())).collect())
        };
        let answer = self.missed(id, method, canonical, (key, why));
        out.answer(answer);
    }

    /// Counts a miss and answers it.
    fn missed(&mut self, id: &Id, method: &str, canonical: &Value, (key, why): (ParamKey, Why<'_>)) -> Value {
        let tape = Arc::clone(&self.tape);
        let miss = self.explain(&tape, method, canonical, (key, why));
        let (answer, detail, reason, message) = (miss.response(id), miss.detail(), miss.reason(), miss.message());
        tracing::warn!("{message}");
        self.account.novel.keep(detail);
        *self.account.misses.entry(reason).or_default() += 1;
        answer
    }

    fn explain<'a>(
        &'a self,
        tape: &'a Tape,
        method: &'a str,
        canonical: &'a Value,
        (key, why): (ParamKey, Why<'a>),
    ) -> Miss<'a> {
        Miss { tape, request: self.account.requests, server: &self.server, method, canonical, key, why }
    }

    /// A notification is followed by what followed it when it was recorded, once for each record.
    fn notification(&mut self, method: &str, params: &Value, now: Duration, out: &mut Out) {
        let (_, key) = self.tape.identify(method, params);
        if let Some(at) = self.consumption.next(&self.tape, key) {
            self.consumption.serve(at, 0);
            self.go_on(Turn::new(Some(at), (out.stream, None), params, Era::Legacy), now, out);
        }
    }

    /// Sends what is next of a record, up to a reply that is waited for.
    fn go_on(&mut self, mut turn: Turn, now: Duration, out: &mut Out) {
        let tape = Arc::clone(&self.tape);
        let Some(taped) = turn.at.and_then(|at| tape.records().get(at)) else { return };
        let method = taped.record.method.as_str();
        let version = (method == "initialize").then(|| self.version.clone());
        let (era, stream) = (turn.era, turn.stream);
        loop {
            let is_unsolicited = turn.is_unsolicited();
            let mut send = |message| out.steps.push(Step::Send(Sent { stream, message, is_unsolicited }));
            let ask = Id::from(self.asks);
            let change = |answer: &mut Map<String, Value>| {
                era.convert(method, answer);
                set_version(answer, version.as_deref());
            };
            match turn.next(&taped.record, &ask, &mut self.subscriptions, change) {
                Next::Send(message) => send(message),
                Next::Ended => return out.steps.push(Step::End),
                Next::Nothing => return out.steps.push(Step::Done(stream)),
                Next::Ask { message, reply, method } => {
                    let id = self.asks;
                    self.asks += 1;
                    send(message);
                    let Some(reply) = reply.filter(|_| self.waiting.len() < MOST_ASKS) else { continue };
                    let until = now.saturating_add(self.policy.reply_within);
                    self.waiting.insert(id, Waiting { turn, method, reply, until });
                    return;
                }
            }
        }
    }
}

fn place_of(miss: &Miss<'_>) -> Option<usize> {
    match &miss.why {
        Why::NoMatch(Some(nearest)) => Some(nearest.at),
        Why::NoMatch(None) | Why::Exhausted(_) | Why::Era(..) => None,
    }
}

fn refusal(malformed: &Malformed) -> Value {
    error(malformed.id.as_ref(), malformed.code, malformed.why, None)
}

/// A result that was not recorded.
fn made_up(id: &Id, era: Era, method: &str, result: Value) -> Value {
    let mut answer = [("result".to_owned(), result)].into_iter().collect();
    era.convert(method, &mut answer);
    response(Some(id), answer)
}

fn set_version(answer: &mut Map<String, Value>, version: Option<&str>) {
    let result = answer.get_mut("result").and_then(Value::as_object_mut);
    if let (Some(version), Some(result)) = (version, result) {
        result.insert("protocolVersion".to_owned(), version.into());
    }
}

/// The result of a tool that was not recorded; `None` for other methods.
fn stub(method: &str, canonical: &Value, key: ParamKey) -> Option<Value> {
    let tool = name_of(canonical).filter(|_| method == "tools/call")?;
    let key = key.to_string();
    let short: String = key.chars().rev().take(6).collect();
    Some(json!({"content": [{"type": "text", "text": format!("<novel: {tool}#{short}>")}], "isError": false}))
}
