//! What was served, what was not, and whether that is a failure.

mod session;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::session::{Matching, SessionReport};
use base::one_line::{counted, one_line};

base::named! {
    /// Something that can be asked to be a failure.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Concern {
        /// A request without a record.
        Miss = "miss",
        /// A request to a session whose cassette does not exist.
        NoCassette = "no_cassette",
        /// A record without a request, of a session or a group that has begun.
        Unconsumed = "unconsumed",
        /// A record that no session was served.
        UnconsumedAll = "unconsumed=all",
        /// A record that was served again because no other was left.
        Exhausted = "exhausted",
        /// A record that answered another request than it was recorded for.
        Loose = "loose",
        /// An engine, a tokenizer, a tool or the structure of an answer that is not as it was recorded.
        Drift = "drift",
        /// A text of an answer that is not as it was recorded, where answers are compared.
        Text = "text",
        /// A call of the wrapped command to another server, which was refused.
        Blocked = "blocked",
        /// An answer with a placeholder, since no value was known for it.
        Placeholder = "placeholder",
    }
}

/// A text that names no concern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of {names}", names = Concern::ALL.map(Concern::name).join(", "))]
pub struct UnknownConcern(String);

impl FromStr for Concern {
    type Err = UnknownConcern;

    fn from_str(text: &str) -> Result<Self, UnknownConcern> {
        Self::named(text.trim()).ok_or_else(|| UnknownConcern(text.to_owned()))
    }
}

/// Report of all sessions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Each session by its name; the default one where none asked.
    pub sessions: BTreeMap<String, SessionReport>,
    /// Sessions that were ended, reopened or reset and in which something failed, by their names.
    pub earlier: BTreeMap<String, SessionReport>,
    /// Sessions of cassettes that were ended or reopened, with failures or without.
    pub ended: u64,
    /// What is not as it was recorded of the server that is asked.
    pub environment: Vec<EnvironmentChange>,
    /// Records whose answers were edited since, as `file#id`.
    pub edited: Vec<String>,
    /// Records of cassettes that were served in no session, also of those that ended.
    pub unused: Vec<UnusedRecord>,
    /// Requests that were neither played nor recorded, as those that ask how the server does.
    pub passed: u64,
    /// Exchanges that are missing in what is recorded; `None` where nothing is.
    pub not_recorded: Option<u64>,
    /// Calls of the wrapped command to other servers, which were refused, by host.
    pub blocked: BTreeMap<String, u64>,
    /// That of the trace which answers what cassettes do not, where there is one.
    pub behind: Option<Box<Report>>,
}

/// A record that was served in no session, as `cassette prune` takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedRecord {
    /// The cassette's path.
    pub cassette: String,
    /// Its number there.
    pub record: u64,
    /// Its line, from 1.
    pub line: usize,
    /// Its request in a few words.
    pub request: String,
}

/// Something that is not as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnvironmentChange {
    /// The cassette that differs.
    pub cassette: String,
    /// What: `engine`, `models` or `tokenizer`.
    pub what: &'static str,
    /// As it was recorded.
    pub recorded: String,
    /// As it is.
    pub now: String,
}

impl fmt::Display for EnvironmentChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (recorded, now) = (one_line(&self.recorded), one_line(&self.now));
        write!(f, "{}: recorded with {} {recorded}, now {now}", self.cassette, self.what)
    }
}

/// Adds the fields that have a value.
fn extended(mut report: Value, further: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    if let Some(fields) = report.as_object_mut() {
        fields.extend(further.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    report
}

impl Report {
    /// Notes which sessions are beside one of the same client that had a miss; `client` gives the client of a session's name.
    pub(crate) fn note_misses_beside(&mut self, client: impl Fn(&str) -> &str) {
        for sessions in [&mut self.sessions, &mut self.earlier] {
            let missed = sessions.iter().filter(|(_, session)| !session.misses.is_empty());
            let missed: BTreeSet<String> = missed.map(|(name, _)| client(name).to_owned()).collect();
            for (name, session) in sessions.iter_mut() {
                session.is_beside_miss = missed.contains(client(name));
            }
        }
    }

    /// The report without sessions that were ended, reopened or reset.
    pub(crate) fn of_now(self) -> Self {
        let behind = self.behind.map(|behind| Box::new(behind.of_now()));
        Self { earlier: BTreeMap::new(), behind, ..self }
    }

    /// The records that no request of any session matched.
    pub(crate) fn unconsumed(&self) -> Vec<String> {
        let own = self.sessions.values().flat_map(|session| session.unconsumed.iter().cloned());
        own.chain(self.behind.iter().flat_map(|behind| behind.unconsumed())).collect()
    }

    /// Returns whether anything was asked.
    #[must_use]
    pub fn was_used(&self) -> bool {
        self.sessions.values().any(|session| session.requests > 0)
            || self.behind.as_ref().is_some_and(|behind| behind.was_used())
    }

    /// Returns which of these are so in any session.
    #[must_use]
    pub fn failing(&self, concerns: &[Concern]) -> Vec<Concern> {
        let sessions = self.sessions.values().chain(self.earlier.values());
        let mut failing: Vec<Concern> = sessions.flat_map(|session| session.failing(concerns)).collect();
        failing.extend(concerns.iter().filter(|it| **it == Concern::Drift && !self.environment.is_empty()));
        failing.extend(concerns.iter().filter(|it| **it == Concern::Blocked && !self.blocked.is_empty()));
        failing.extend(self.behind.iter().flat_map(|behind| behind.failing(concerns)));
        failing.sort_unstable();
        failing.dedup();
        failing
    }

    /// For programs.
    #[must_use]
    pub fn json(&self, concerns: &[Concern]) -> Value {
        let of = |sessions: &BTreeMap<String, SessionReport>| -> serde_json::Map<String, Value> {
            sessions.iter().map(|(name, session)| (name.clone(), session.json())).collect()
        };
        let failing: Vec<&str> = self.failing(concerns).into_iter().map(Concern::name).collect();
        let report = json!({"sessions": of(&self.sessions), "edited": self.edited, "unused": self.unused,
            "passed": self.passed, "failing": failing, "environment": self.environment});
        let further = [
            ("earlier", (!self.earlier.is_empty()).then(|| of(&self.earlier).into())),
            ("ended", (self.ended > 0).then(|| self.ended.into())),
            ("not_recorded", self.not_recorded.map(Value::from)),
            ("blocked", (!self.blocked.is_empty()).then(|| json!(self.blocked))),
            ("trace", self.behind.as_ref().map(|behind| behind.json(concerns))),
        ];
        extended(report, further)
    }

    /// Describes [`passed`](Self::passed) requests.
    #[must_use]
    pub fn passed_text(&self) -> String {
        format!("{} neither played nor recorded\n", counted(self.passed, "other request"))
    }

    /// Describes [`blocked`](Self::blocked) calls.
    #[must_use]
    pub fn blocked_text(&self) -> String {
        let line =
            |(host, count): (&String, &u64)| format!("blocked: {} to {}\n", counted(*count, "call"), one_line(host));
        self.blocked.iter().map(line).collect()
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text: String = self.environment.iter().map(|change| format!("drift: {change}\n")).collect();
        if !self.edited.is_empty() {
            text.push_str(&format!("{} edited since recording\n", counted(self.edited.len(), "record")));
        }
        if self.passed > 0 {
            text.push_str(&self.passed_text());
        }
        if self.ended > 0 {
            text.push_str(&format!("{} ended\n", counted(self.ended, "session")));
        }
        for (name, session) in self.sessions.iter().filter(|(_, session)| self.ended == 0 || session.has_begun()) {
            text.push_str(&session.text(&format!("session {name}")));
        }
        for (name, session) in &self.earlier {
            text.push_str(&session.text(&format!("earlier session {name}, ended or reset")));
        }
        if let Some(behind) = &self.behind {
            text.push_str("of the trace:\n");
            text.push_str(&behind.text());
        }
        text.push_str(&self.blocked_text());
        text
    }
}

/// Maximum number of names.
const MOST: usize = 1000;

/// Maximum number of unconsumed records of each.
const MOST_LINES: usize = 100;

/// Bytes of the requests without a record of all of them, as JSON.
const NOVEL_BYTES: usize = 4 << 20;

/// The name of what comes after them, which no session can have.
const OTHERS: &str = "other sessions";

/// Reports of sessions that were ended, reopened or reset, by their names: what failed in them stays a failure. The first names have
/// one each, what comes after them is one report; of each the first unconsumed records are kept.
#[derive(Debug, Default)]
pub struct EarlierReports {
    kept: BTreeMap<String, SessionReport>,
    novel_bytes: usize,
}

impl EarlierReports {
    /// Keeps what failed in a session. One in which nothing did leaves nothing.
    pub fn keep(&mut self, name: &str, mut report: SessionReport) {
        if report.failing(&Concern::ALL).is_empty() {
            return;
        }
        report.unconsumed.clone_from(&report.begun_unconsumed);
        report.novel.truncate(MOST_LINES);
        report.novel.retain(|novel| {
            let bytes = novel.to_string().len();
            let has_room = self.novel_bytes + bytes <= NOVEL_BYTES;
            self.novel_bytes += if has_room { bytes } else { 0 };
            has_room
        });
        let has_room = self.kept.len() < MOST || self.kept.contains_key(name);
        let kept = self.kept.entry(if has_room { name } else { OTHERS }.to_owned()).or_default();
        kept.add(report);
        kept.unconsumed.truncate(MOST_LINES);
        kept.begun_unconsumed.truncate(MOST_LINES);
    }

    /// The reports so far.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<String, SessionReport> {
        self.kept.clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::account::report::*;

    fn missed() -> SessionReport {
        SessionReport { misses: BTreeMap::from([("no_match", 1)]), ..SessionReport::default() }
    }

    #[test]
    fn reports_are_added_up_and_bounded() {
        let mut earlier = EarlierReports::default();
        earlier.keep("fine", SessionReport { requests: 7, ..SessionReport::default() });
        assert!(earlier.reports().is_empty());
        (0..MOST).for_each(|number| earlier.keep(&number.to_string(), missed()));
        let many = vec!["record".to_owned(); 2 * MOST_LINES];
        for name in ["7", "7", "beyond", "further"] {
            earlier.keep(name, SessionReport { begun_unconsumed: many.clone(), ..missed() });
        }
        let reports = earlier.reports();
        assert_eq!(
            (reports.len(), reports["7"].misses["no_match"], reports[OTHERS].misses["no_match"]),
            (MOST + 1, 3, 2)
        );
        assert_eq!(reports["7"].begun_unconsumed.len(), MOST_LINES);
    }
}
