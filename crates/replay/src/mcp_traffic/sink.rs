//! The sink of MCP: puts the messages of each session together to records, and hands these to the cassette's recorder, or writes them.
//!
//! A session is what the server's header names. Messages without one, of stateless servers and of revisions without sessions,
//! are put together for each server; their ids are unique in their HTTP exchange only. A record has the place of its
//! request among all that is recorded; one that waits for what may follow gives it up after half an hour, so that others need not
//! wait for ever. A connection over stdio is one session, with a cassette of its own.
//!
//! See docs/decisions/0094-mcp-over-http-through-the-tap.md.

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use http::StatusCode;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::{
    ClientRequest, ExchangeEnd, ExchangeStep, McpRecorded, OpenedCassette, ProcessLine, TrafficStep,
    source::{BodyForm, Fate, MessageSource, Of, StreamKey},
};
use crate::{
    mcp::{FinishedExchange, MessageOrigin, Observer, ReadLine, Sender, method_of},
    player::{CassettePlayer, RecordPlace},
};
use recording::{cassette::CassetteError, recorder::Sink};

/// Bytes that a step holds besides its own.
const EACH: usize = 256;

/// Sessions that are open at a time; beyond them the one that was used longest ago is taken for ended.
const MOST_SESSIONS: usize = 1000;

/// Milliseconds after which a record that may still get messages gives its place up. A model may take minutes for a turn.
const PATIENCE_MS: f64 = 1800e3;

/// Bytes of exchanges that have not ended, up to which they are written all the same: much is not searched for secrets again and again.
const MOST_UNFINISHED: usize = 1 << 20;

#[derive(Debug)]
pub(super) enum RecordSink {
    /// The recorder or the comparison of a player.
    Player {
        player: Arc<CassettePlayer>,
        /// Whether recorded messages are noted in its journal.
        notes: bool,
    },
    File(Box<OpenedCassette>),
}

#[derive(Debug)]
struct ObservedSession {
    observer: Observer,
    used_at: f64,
    /// The side that ended first.
    left: Option<Sender>,
}

/// The place of a request whose record was not made yet.
#[derive(Debug)]
struct ReservedPlace {
    place: RecordPlace,
    ended_at: Option<f64>,
}

/// Recorder of several servers, or of one connection.
#[derive(Debug)]
pub(super) struct McpSink {
    servers: Vec<String>,
    records: RecordSink,
    began: (OffsetDateTime, Instant),
    sessions: HashMap<StreamKey, ObservedSession>,
    sources: HashMap<u64, MessageSource>,
    places: BTreeMap<u64, ReservedPlace>,
    recorded: McpRecorded,
}

impl McpSink {
    pub(super) fn new(servers: Vec<String>, records: RecordSink, began: (OffsetDateTime, Instant)) -> Self {
        Self {
            servers,
            records,
            began,
            sessions: HashMap::new(),
            sources: HashMap::new(),
            places: BTreeMap::new(),
            recorded: McpRecorded::default(),
        }
    }

    fn take(&mut self, ExchangeStep { number, at, step }: ExchangeStep) {
        match step {
            TrafficStep::Request(request) => self.request(number, at, *request),
            TrafficStep::Answered { status, session, form } => self.answered(number, status, session, form),
            TrafficStep::Side(sender) => drop(self.sources.insert(number, MessageSource::side(number, sender))),
            TrafficStep::Bytes(bytes) => {
                let read_lines = self.sources.get_mut(&number).map(|source| source.push(bytes));
                self.messages(number, at, read_lines.into_iter().flatten());
            }
            TrafficStep::Lost => self.sources.get_mut(&number).into_iter().for_each(MessageSource::lose),
            TrafficStep::Unanswered(line) => {
                let key = StreamKey::connection();
                self.recorded.refused += self.session(key.clone(), 0, at).observer.forget_answered_by(&line);
                self.deliver(&key);
            }
            TrafficStep::Ended(end) => self.ended(number, at, end),
            TrafficStep::Line(line) => self.process_line(number, at, *line),
            TrafficStep::Closed { key, by: Some(by) } => self.close(&key, by),
            TrafficStep::Closed { key, by: None } => self.abandon(&key),
            TrafficStep::AccountEnded(account, _done) => {
                let keys: Vec<StreamKey> = self.sessions.keys().filter(|key| key.account == account).cloned().collect();
                keys.iter().for_each(|key| self.close(key, Sender::Client));
            }
        }
    }

    fn request(&mut self, number: u64, at: f64, request: ClientRequest) {
        let ClientRequest { account, server, method, session, body, place } = request;
        let of = match session {
            Some(session) => Of::Session(server, session),
            None if body.as_deref().and_then(method_of).as_deref() == Some("initialize") => Of::Opening(number),
            None => Of::Shared(server),
        };
        let key = StreamKey { account, of };
        let mut source = MessageSource::exchange(number, key.clone(), server, method);
        match body.filter(|_| source.is_posted()) {
            Some(body) => {
                let observer = &mut self.session(key.clone(), server, at).observer;
                let begun =
                    observer.line(MessageOrigin { sender: Sender::Client, http_exchange: Some(number), at }, &body);
                // A subscription ends with its session: what came after it does not wait for it.
                let has_place = begun > 0 && !observer.is_subscription(number);
                if let Some(place) = place.filter(|_| has_place) {
                    self.places.insert(number, ReservedPlace { place, ended_at: None });
                }
            }
            None if source.is_posted() => {
                source.lose();
                self.recorded.gaps += 1;
            }
            None => {}
        }
        self.sources.insert(number, source);
        self.deliver(&key);
    }

    fn answered(&mut self, number: u64, status: StatusCode, session: Option<Box<str>>, form: BodyForm) {
        let Some(source) = self.sources.get_mut(&number) else { return };
        source.answered(status, form);
        if let (Of::Opening(_), Some(name)) = (&source.key.of, session)
            && let Some(opened) = self.sessions.remove(&source.key)
        {
            source.key.of = Of::Session(source.server, name);
            self.sessions.insert(source.key.clone(), opened);
        }
    }

    fn messages(&mut self, number: u64, at: f64, read_lines: impl IntoIterator<Item = ReadLine>) {
        let Some(source) = self.sources.get(&number) else { return };
        let (key, server) = (source.key.clone(), source.server);
        let passed = MessageOrigin { sender: source.sender, http_exchange: source.of_messages(), at };
        for read_line in read_lines {
            let observer = &mut self.session(key.clone(), server, at).observer;
            match read_line {
                ReadLine::Line(line) => {
                    observer.line(passed, &line);
                }
                ReadLine::Lost => observer.lost(),
            }
            self.deliver(&key);
        }
    }

    fn ended(&mut self, number: u64, at: f64, end: ExchangeEnd) {
        let last = self.sources.get_mut(&number).and_then(|source| source.finish(end));
        self.messages(number, at, last);
        let Some(source) = self.sources.remove(&number) else { return };
        if source.key.of == Of::Connection && end == ExchangeEnd::Whole {
            self.session(source.key.clone(), source.server, at).left.get_or_insert(source.sender);
        }
        if let Some(ObservedSession { observer, .. }) =
            self.sessions.get_mut(&source.key).filter(|_| source.is_posted())
        {
            match source.fate(end, observer.has_open(number)) {
                Fate::Kept => {}
                Fate::Cut(by) => observer.cut(number, by),
                Fate::LeftOut => {
                    let left_out = observer.forget(number);
                    self.recorded.refused += if source.is_lost { 0 } else { left_out };
                    if left_out > 0 {
                        self.places.remove(&number);
                    }
                }
            }
        }
        if let Some(reserved) = self.places.get_mut(&number) {
            reserved.ended_at = Some(at);
        }
        if source.ends_session(end) {
            self.close(&source.key, Sender::Client);
        } else {
            self.deliver(&source.key);
        }
    }

    fn process_line(&mut self, number: u64, at: f64, passed: ProcessLine) {
        let ProcessLine { key, server, sender, line, place } = passed;
        let http_exchange = (sender == Sender::Client).then_some(number);
        let begun =
            self.session(key.clone(), server, at).observer.line(MessageOrigin { sender, http_exchange, at }, &line);
        if let Some(place) = place.filter(|_| begun > 0) {
            self.places.insert(number, ReservedPlace { place, ended_at: Some(at) });
        }
        self.deliver(&key);
    }

    fn session(&mut self, key: StreamKey, server: usize, at: f64) -> &mut ObservedSession {
        if self.sessions.len() >= MOST_SESSIONS && !self.sessions.contains_key(&key) {
            let oldest = self.sessions.iter().min_by(|one, other| one.1.used_at.total_cmp(&other.1.used_at));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.close(&oldest, Sender::Client);
            }
        }
        let name = self.servers.get(server).map(String::as_str).unwrap_or_default();
        let new = || {
            let mut observer = Observer::new(name, self.began.0);
            // The player's recorder puts records in order, by their places.
            observer.is_ordered = matches!(self.records, RecordSink::File(_));
            ObservedSession { observer, used_at: at, left: None }
        };
        let session = self.sessions.entry(key).or_insert_with(new);
        session.used_at = at;
        session
    }

    /// Hands over what nothing can be added to.
    fn deliver(&mut self, key: &StreamKey) {
        let made = self.sessions.get_mut(key).map(|session| session.observer.take()).unwrap_or_default();
        made.into_iter().for_each(|made| self.fill(key, made));
    }

    /// Ends a session; `left` is the side that ended it.
    fn close(&mut self, key: &StreamKey, left: Sender) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        session.observer.finish(left).into_iter().for_each(|made| self.fill(key, made));
        self.recorded.unrecorded += session.observer.unrecorded();
    }

    /// Ends a session of which nothing is recorded.
    fn abandon(&mut self, key: &StreamKey) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        for left_out in session.observer.finish(Sender::Server) {
            left_out.http_exchange.and_then(|number| self.places.remove(&number));
            self.recorded.refused += 1;
        }
    }

    fn fill(&mut self, key: &StreamKey, FinishedExchange { http_exchange, weight, exchange }: FinishedExchange) {
        let reserved = http_exchange.and_then(|number| self.places.remove(&number)).map(|reserved| reserved.place);
        let is_recorded = match &mut self.records {
            RecordSink::Player { player, .. } if reserved.is_none() && player.is_comparing() => {
                return player.compare_mcp(&key.name(), exchange);
            }
            RecordSink::Player { player, notes } => {
                if *notes {
                    player.note_recorded_mcp(&exchange);
                }
                let place = reserved.or_else(|| player.place_in(&key.account));
                place.map(|place| place.fill(exchange, weight)).is_some()
            }
            RecordSink::File(file) => {
                let is_added = file.add(exchange);
                self.recorded.unsearched += u64::from(is_added.is_none());
                is_added.unwrap_or_default()
            }
        };
        self.recorded.records += u64::from(is_recorded);
    }
}

impl Sink for McpSink {
    type Item = ExchangeStep;
    type Ending = Result<McpRecorded, CassetteError>;

    fn weight(observed: &ExchangeStep) -> usize {
        EACH + match &observed.step {
            TrafficStep::Request(request) => request.body.as_ref().map_or(0, bytes::Bytes::len),
            TrafficStep::Bytes(bytes) | TrafficStep::Unanswered(bytes) => bytes.len(),
            TrafficStep::Line(line) => line.line.len(),
            TrafficStep::Answered { .. } | TrafficStep::Side(_) | TrafficStep::Lost => 0,
            TrafficStep::Ended(_) | TrafficStep::Closed { .. } | TrafficStep::AccountEnded(..) => 0,
        }
    }

    fn record(&mut self, observed: ExchangeStep) {
        if let RecordSink::File(file) = &mut self.records {
            file.has_news = true;
        }
        if catch_unwind(AssertUnwindSafe(|| self.take(observed))).is_err() {
            tracing::error!("a message could not be recorded; please report this");
            self.recorded.gaps += 1;
        }
    }

    fn flush(&mut self) {
        let now = self.began.1.elapsed().as_secs_f64() * 1e3;
        self.places.retain(|_, reserved| reserved.ended_at.is_none_or(|ended_at| now - ended_at < PATIENCE_MS));
        if let RecordSink::File(file) = &mut self.records {
            let observers = self.sessions.values().map(|session| &session.observer);
            let little = observers.filter(|observer| observer.waiting() <= MOST_UNFINISHED);
            file.flush(|| little.flat_map(Observer::unfinished).collect());
        }
    }

    fn finish(mut self) -> Result<McpRecorded, CassetteError> {
        let left: Vec<_> = self.sessions.iter().map(|(key, session)| (key.clone(), session.left)).collect();
        left.into_iter().for_each(|(key, left)| self.close(&key, left.unwrap_or(Sender::Client)));
        if let RecordSink::File(file) = self.records {
            self.recorded.redacted = file.finish()?;
        }
        Ok(self.recorded)
    }
}
