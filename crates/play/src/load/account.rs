//! Sessions of a trace: consumed records, and counts of matches and misses.
//!
//! A session is independent consumption for one client; requests that name none share the default one.
//!
//! Limits: sessions take memory for every record, so there are no more of them than [`SESSION_BYTES`] hold. The first
//! misses of a session are kept ([`KeptMisses`]), the others only counted.

mod view;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use serde_json::Value;

use crate::load::{
    recordings::ServedResponses,
    samples::{self, Samples},
};
use base::lock::Lock;
use replay::{
    account::{DEFAULT_SESSION, EarlierReports, KeptMisses, Matching, SessionReport},
    matching::{Consumption, MatchBy, Matcher, PromptMiss, RecordSelection},
};

/// Memory that all named sessions may take together.
const SESSION_BYTES: usize = 1 << 30;

/// Named sessions, however little each of them takes.
const MOST_SESSIONS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct TraceLedger {
    default: Arc<TraceSession>,
    named: Lock<BTreeMap<String, Arc<TraceSession>>>,
    most: usize,
    /// Counts of sessions that were reset or ended.
    past: Lock<SessionTotals>,
    /// What failed in them.
    earlier: Lock<EarlierReports>,
}

/// One session, which can be reset.
#[derive(Debug)]
pub(crate) struct TraceSession {
    name: Option<String>,
    session: RwLock<SessionConsumption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {0} sessions, which is the most; end one with DELETE /vcr/sessions/NAME")]
pub(crate) struct TooManySessions(usize);

#[derive(Debug)]
pub(crate) struct SessionConsumption {
    pub(crate) consumption: Consumption,
    pub(crate) responses: ServedResponses,
    /// Which answers were made up for prompts without a record.
    pub(crate) samples: Samples,
    totals: Lock<SessionTotals>,
    misses: Lock<KeptMisses>,
}

/// Counts of one session or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SessionTotals {
    /// Prompts that looked for a record.
    pub(crate) prompts: u64,
    /// Ways in which those that found one did.
    pub(crate) matching: Matching,
    /// Records that were served again: `exhausted` where no other was left, `index` where they were requested by their index.
    pub(crate) again: BTreeMap<&'static str, u64>,
    /// Prompts that found none, by reason.
    pub(crate) missed: BTreeMap<&'static str, u64>,
}

impl SessionTotals {
    fn add(&mut self, other: &Self) {
        let add = |to: &mut BTreeMap<&'static str, u64>, from: &BTreeMap<&'static str, u64>| {
            from.iter().for_each(|(name, count)| *to.entry(name).or_default() += count);
        };
        self.prompts += other.prompts;
        add(&mut self.again, &other.again);
        add(&mut self.missed, &other.missed);
        add(&mut self.matching.found, &other.matching.found);
        add(&mut self.matching.shares, &other.matching.shares);
        self.matching.matched_blocks += other.matching.matched_blocks;
        self.matching.total_blocks += other.matching.total_blocks;
    }

    fn found(&mut self, selection: &RecordSelection) {
        let RecordSelection { by, whole, matched_blocks, total_blocks, again, .. } = selection;
        let matching = &mut self.matching;
        let way = match by {
            MatchBy::Index | MatchBy::Auto => "index",
            MatchBy::Next => "next",
            MatchBy::Prefix if *whole => "whole",
            MatchBy::Prefix => {
                let (matched, total) = (*matched_blocks as u64, (*total_blocks as u64).max(1));
                matching.matched_blocks += matched;
                matching.total_blocks += total;
                let share = match matched * 100 / total {
                    ..25 => "under 25%",
                    25..50 => "25% to 50%",
                    50..75 => "50% to 75%",
                    _ => "75% and more",
                };
                *matching.shares.entry(share).or_default() += 1;
                "prefix"
            }
        };
        *matching.found.entry(way).or_default() += 1;
        if *again {
            let way = if *by == MatchBy::Index { "index" } else { "exhausted" };
            *self.again.entry(way).or_default() += 1;
        }
    }
}

impl TraceLedger {
    pub(crate) fn new(matcher: &Matcher) -> Self {
        let bytes = matcher.session_bytes() + samples::SESSION_BYTES;
        let most = (SESSION_BYTES / bytes).clamp(1, MOST_SESSIONS);
        Self {
            default: Arc::new(TraceSession::new(None, matcher)),
            named: Lock::default(),
            most,
            past: Lock::default(),
            earlier: Lock::default(),
        }
    }

    /// The session of requests that name none.
    pub(crate) fn default_session(&self) -> &Arc<TraceSession> {
        &self.default
    }

    /// All sessions by their names.
    fn all(&self) -> Vec<(String, Arc<TraceSession>)> {
        let named = self.named.lock();
        let named = named.iter().map(|(name, slot)| (name.clone(), Arc::clone(slot)));
        std::iter::once((DEFAULT_SESSION.to_owned(), Arc::clone(&self.default))).chain(named).collect()
    }

    fn some(&self, session: Option<&str>) -> Vec<(String, Arc<TraceSession>)> {
        self.all().into_iter().filter(|(name, _)| session.is_none_or(|session| session == name)).collect()
    }

    fn reset(&self, slot: &TraceSession, matcher: &Matcher) {
        let fresh = SessionConsumption::new(slot.name(), matcher);
        let before = std::mem::replace(&mut *slot.session.write().unwrap_or_else(PoisonError::into_inner), fresh);
        let totals = before.totals();
        self.past.lock().add(&totals);
        let SessionTotals { prompts: requests, again, missed: misses, .. } = totals;
        let report = SessionReport { requests, again, misses, ..SessionReport::default() };
        let name = slot.name().unwrap_or(DEFAULT_SESSION);
        self.earlier.lock().keep(name, report);
    }

    /// The counts of everything that was asked so far.
    pub(crate) fn totals(&self) -> SessionTotals {
        let mut totals = self.past.lock().clone();
        self.all().iter().for_each(|(_, slot)| slot.with(|session| totals.add(&session.totals())));
        totals
    }

    /// Counts the records that the default session consumed, and the sessions.
    pub(crate) fn now(&self) -> (usize, usize) {
        let sessions = 1 + self.named.lock().len();
        (self.default.with(|session| session.consumed()), sessions)
    }

    /// The session of a name, which begins where there is none.
    /// Errors: when there are too many.
    pub(crate) fn named(&self, name: &str, matcher: &Matcher) -> Result<Arc<TraceSession>, TooManySessions> {
        let mut named = self.named.lock();
        if let Some(known) = named.get(name) {
            return Ok(Arc::clone(known));
        }
        if named.len() >= self.most {
            return Err(TooManySessions(self.most));
        }
        let session = Arc::new(TraceSession::new(Some(name), matcher));
        named.insert(name.to_owned(), Arc::clone(&session));
        Ok(session)
    }
}

impl TraceSession {
    fn new(name: Option<&str>, matcher: &Matcher) -> Self {
        Self { name: name.map(str::to_owned), session: RwLock::new(SessionConsumption::new(name, matcher)) }
    }

    /// Its name; `None` for the default session.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Reads the session; a reset waits for it.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&SessionConsumption) -> T) -> T {
        read(&self.session.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SessionConsumption {
    fn new(name: Option<&str>, matcher: &Matcher) -> Self {
        Self {
            consumption: matcher.session(),
            responses: ServedResponses::default(),
            samples: name.map_or_else(Samples::default, |_| Samples::within(samples::SESSION_BYTES)),
            totals: Lock::default(),
            misses: Lock::default(),
        }
    }

    fn totals(&self) -> SessionTotals {
        self.totals.lock().clone()
    }

    /// Counts the records that were served at least once.
    pub(crate) fn consumed(&self) -> usize {
        self.consumption.consumed() + self.responses.consumed()
    }

    /// Counts the times that a record was served.
    fn times(&self, record: usize) -> u64 {
        self.consumption.times(record) + self.responses.times(record)
    }

    pub(crate) fn count(&self, outcome: &Result<RecordSelection, PromptMiss>) {
        let mut totals = self.totals.lock();
        totals.prompts += 1;
        match outcome {
            Ok(selection) => totals.found(selection),
            Err(miss) => *totals.missed.entry(miss.reason.name()).or_default() += 1,
        }
    }

    /// Keeps a miss, unless enough are kept.
    pub(crate) fn keep_miss(&self, explain: impl FnOnce() -> Value) {
        let has_room = || self.misses.lock().has_room();
        if has_room() {
            let miss = explain();
            self.misses.lock().keep(miss);
        }
    }
}
