//! The recorder of MCP over HTTP: puts the messages of each session together to records, and hands these to the cassette's recorder.
//!
//! A session is what the server's header names. Messages without one, of stateless servers and of revisions without sessions,
//! are put together for each server; their ids are unique in their HTTP exchange only. A record has the place of its
//! request among all that is recorded; one that waits for what may follow gives it up after half an hour, so that others need not
//! wait for ever.
//!
//! See docs/decisions/0094-mcp-over-http-through-the-tap.md.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use http::StatusCode;
use serde::Deserialize;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::{
    ClientRequest, End, Form, JournalNotes, McpRecorded, Observed, ProcessLine, Step,
    http_exchange::{Fate, HttpExchange, Key},
};
use crate::{
    mcp::{Made, Observer, Passed, ReadLine, Sender, Unrecorded},
    player::{CassettePlayer, RecordPlace},
};
use recording::recorder::Sink;

/// Bytes that a step holds besides its own.
const EACH: usize = 256;

/// Sessions that are open at a time; beyond them the one that was used longest ago is taken for ended.
const MOST_SESSIONS: usize = 1000;

/// Milliseconds after which a record that may still get messages gives its place up. A model may take minutes for a turn.
const PATIENCE_MS: f64 = 1800e3;

/// Messages that are put together.
#[derive(Debug)]
struct Session {
    observer: Observer,
    used_at: f64,
}

/// The place of a request whose record was not made yet.
#[derive(Debug)]
struct Reserved {
    place: RecordPlace,
    /// When its exchange ended.
    ended_at: Option<f64>,
}

/// Recorder of several servers.
#[derive(Debug)]
pub(super) struct TrafficSink {
    servers: Vec<String>,
    player: Arc<CassettePlayer>,
    notes: JournalNotes,
    began: (OffsetDateTime, Instant),
    sessions: HashMap<Key, Session>,
    http_exchanges: HashMap<u64, HttpExchange>,
    places: BTreeMap<u64, Reserved>,
    recorded: McpRecorded,
}

impl TrafficSink {
    pub(super) fn new(
        servers: Vec<String>,
        player: Arc<CassettePlayer>,
        notes: JournalNotes,
        began: (OffsetDateTime, Instant),
    ) -> Self {
        Self {
            servers,
            player,
            notes,
            began,
            sessions: HashMap::new(),
            http_exchanges: HashMap::new(),
            places: BTreeMap::new(),
            recorded: McpRecorded::default(),
        }
    }

    fn take(&mut self, Observed { http_exchange, at, step }: Observed) {
        match step {
            Step::Request(request) => self.request(http_exchange, at, *request),
            Step::Answered { status, session, form } => self.answered(http_exchange, status, session, form),
            Step::Bytes(bytes) => {
                let read_lines = self
                    .http_exchanges
                    .get_mut(&http_exchange)
                    .map(|http_exchange| http_exchange.push(&bytes))
                    .unwrap_or_default();
                self.messages(http_exchange, at, read_lines);
            }
            Step::Lost => self.http_exchanges.get_mut(&http_exchange).into_iter().for_each(HttpExchange::lose),
            Step::Ended(end) => self.ended(http_exchange, at, end),
            Step::Line(line) => self.process_line(http_exchange, at, *line),
            Step::Closed { process, by } => self.close(&Key::Process(process), by),
        }
    }

    fn request(&mut self, number: u64, at: f64, request: ClientRequest) {
        let ClientRequest { server, method, session, body, place } = request;
        let key = match session {
            Some(session) => Key::Session(server, session),
            None if body.as_deref().is_some_and(is_initialize) => Key::Opening(number),
            None => Key::Shared(server),
        };
        let mut http_exchange = HttpExchange::new(number, key.clone(), server, method);
        match body.filter(|_| http_exchange.is_posted()) {
            Some(body) => {
                let observer = &mut self.session(key.clone(), server, at).observer;
                let begun = observer.line(Passed { sender: Sender::Client, http_exchange: Some(number), at }, &body);
                // A subscription ends with its session: what came after it does not wait for it.
                let has_place = begun > 0 && !observer.is_subscription(number);
                if let Some(place) = place.filter(|_| has_place) {
                    self.places.insert(number, Reserved { place, ended_at: None });
                }
            }
            None if http_exchange.is_posted() => {
                http_exchange.lose();
                self.recorded.gaps += 1;
            }
            None => {}
        }
        self.http_exchanges.insert(number, http_exchange);
        self.deliver(&key);
    }

    fn answered(&mut self, number: u64, status: StatusCode, session: Option<Box<str>>, form: Form) {
        let Some(http_exchange) = self.http_exchanges.get_mut(&number) else { return };
        http_exchange.answered(status, form);
        if let (Key::Opening(_), Some(name)) = (&http_exchange.key, session)
            && let Some(opened) = self.sessions.remove(&http_exchange.key)
        {
            http_exchange.key = Key::Session(http_exchange.server, name);
            self.sessions.insert(http_exchange.key.clone(), opened);
        }
    }

    /// Takes messages of a server.
    fn messages(&mut self, number: u64, at: f64, read_lines: Vec<ReadLine>) {
        let Some(http_exchange) = self.http_exchanges.get(&number).filter(|_| !read_lines.is_empty()) else { return };
        let (key, server) = (http_exchange.key.clone(), http_exchange.server);
        let passed = Passed { sender: Sender::Server, http_exchange: http_exchange.of_messages(), at };
        let observer = &mut self.session(key.clone(), server, at).observer;
        for read_line in read_lines {
            match read_line {
                ReadLine::Line(line) => {
                    observer.line(passed, &line);
                }
                ReadLine::Lost => observer.lost(),
            }
        }
        self.deliver(&key);
    }

    fn ended(&mut self, number: u64, at: f64, end: End) {
        let read_lines =
            self.http_exchanges.get_mut(&number).map(|http_exchange| http_exchange.finish(end)).unwrap_or_default();
        self.messages(number, at, read_lines);
        let Some(http_exchange) = self.http_exchanges.remove(&number) else { return };
        if let Some(Session { observer, .. }) =
            self.sessions.get_mut(&http_exchange.key).filter(|_| http_exchange.is_posted())
        {
            match http_exchange.fate(end, observer.has_open(number)) {
                Fate::Kept => {}
                Fate::Cut(by) => observer.cut(number, by),
                Fate::LeftOut => {
                    let left_out = observer.forget(number);
                    self.recorded.refused += if http_exchange.is_lost { 0 } else { left_out };
                    if left_out > 0 {
                        self.places.remove(&number);
                    }
                }
            }
        }
        if let Some(reserved) = self.places.get_mut(&number) {
            reserved.ended_at = Some(at);
        }
        if http_exchange.ends_session(end) {
            self.close(&http_exchange.key, Sender::Client);
        } else {
            self.deliver(&http_exchange.key);
        }
    }

    fn process_line(&mut self, number: u64, at: f64, passed: ProcessLine) {
        let ProcessLine { server, process, sender, line, place } = passed;
        let key = Key::Process(process);
        let http_exchange = (sender == Sender::Client).then_some(number);
        let begun = self.session(key.clone(), server, at).observer.line(Passed { sender, http_exchange, at }, &line);
        if let Some(place) = place.filter(|_| begun > 0) {
            self.places.insert(number, Reserved { place, ended_at: Some(at) });
        }
        self.deliver(&key);
    }

    fn session(&mut self, key: Key, server: usize, at: f64) -> &mut Session {
        if self.sessions.len() >= MOST_SESSIONS && !self.sessions.contains_key(&key) {
            let oldest = self.sessions.iter().min_by(|one, other| one.1.used_at.total_cmp(&other.1.used_at));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.close(&oldest, Sender::Client);
            }
        }
        let name = self.servers.get(server).map(String::as_str).unwrap_or_default();
        let new = || Session { observer: Observer::new(name, self.began.0).unordered(), used_at: at };
        let session = self.sessions.entry(key).or_insert_with(new);
        session.used_at = at;
        session
    }

    /// Hands over what nothing can be added to.
    fn deliver(&mut self, key: &Key) {
        let made = self.sessions.get_mut(key).map(|session| session.observer.take()).unwrap_or_default();
        made.into_iter().for_each(|made| self.fill(key, made));
    }

    /// Ends a session; `left` is the side that ended it.
    fn close(&mut self, key: &Key, left: Sender) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        session.observer.finish(left).into_iter().for_each(|made| self.fill(key, made));
        let Unrecorded { unreadable, unmatched, early } = session.observer.unrecorded();
        let all = &mut self.recorded.unrecorded;
        all.unreadable += unreadable;
        all.unmatched += unmatched;
        all.early += early;
    }

    fn fill(&mut self, key: &Key, Made { http_exchange, weight, exchange }: Made) {
        if self.player.is_comparing() {
            http_exchange.and_then(|http_exchange| self.places.remove(&http_exchange));
            return self.player.compare_mcp(&key.name(), exchange);
        }
        if self.notes == JournalNotes::Here {
            self.player.note_recorded_mcp(&exchange);
        }
        let reserved =
            http_exchange.and_then(|http_exchange| self.places.remove(&http_exchange)).map(|reserved| reserved.place);
        if let Some(place) = reserved.or_else(|| self.player.place()) {
            place.fill(exchange, weight);
            self.recorded.records += 1;
        }
    }
}

impl Sink for TrafficSink {
    type Item = Observed;
    type Ending = McpRecorded;

    fn weight(observed: &Observed) -> usize {
        EACH + match &observed.step {
            Step::Request(request) => request.body.as_ref().map_or(0, bytes::Bytes::len),
            Step::Bytes(bytes) => bytes.len(),
            Step::Line(line) => line.line.len(),
            Step::Answered { .. } | Step::Lost | Step::Ended(_) | Step::Closed { .. } => 0,
        }
    }

    fn record(&mut self, observed: Observed) {
        if catch_unwind(AssertUnwindSafe(|| self.take(observed))).is_err() {
            tracing::error!("a message could not be recorded; please report this");
            self.recorded.gaps += 1;
        }
    }

    fn flush(&mut self) {
        let now = self.began.1.elapsed().as_secs_f64() * 1e3;
        self.places.retain(|_, reserved| reserved.ended_at.is_none_or(|ended_at| now - ended_at < PATIENCE_MS));
    }

    fn finish(mut self) -> McpRecorded {
        let keys: Vec<Key> = self.sessions.keys().cloned().collect();
        keys.iter().for_each(|key| self.close(key, Sender::Client));
        self.recorded
    }
}

/// Whether a body is the request that opens a session.
fn is_initialize(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Method<'a> {
        #[serde(borrow)]
        method: Option<Cow<'a, str>>,
    }
    serde_json::from_slice::<Method<'_>>(body).is_ok_and(|message| message.method.as_deref() == Some("initialize"))
}
