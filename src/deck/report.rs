//! What was served, what was not, and whether that is a failure.

use std::{collections::BTreeMap, str::FromStr, sync::atomic::Ordering::Relaxed};

use serde_json::{Value, json};

use super::{Change, Deck, Room};

/// Something that can be asked to be a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Concern {
    /// A request without a record.
    Miss,
    /// A record without a request.
    Unconsumed,
    /// A record that was served again because no other was left.
    Exhausted,
    /// A record that answered another request than it was recorded for.
    Loose,
    /// An engine, a tokenizer or a tool that is not as it was recorded.
    Drift,
}

impl Concern {
    /// Its name in flags and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::Unconsumed => "unconsumed",
            Self::Exhausted => "exhausted",
            Self::Loose => "loose",
            Self::Drift => "drift",
        }
    }
}

/// A text that names no concern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of miss, unconsumed, exhausted, loose, drift")]
pub struct UnknownConcern(String);

impl FromStr for Concern {
    type Err = UnknownConcern;

    fn from_str(text: &str) -> Result<Self, UnknownConcern> {
        let all = [Self::Miss, Self::Unconsumed, Self::Exhausted, Self::Loose, Self::Drift];
        all.into_iter().find(|concern| concern.name() == text.trim()).ok_or_else(|| UnknownConcern(text.to_owned()))
    }
}

/// What became of all sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Each session by its name; the default one where none asked.
    pub sessions: BTreeMap<String, SessionReport>,
    /// What is not as it was recorded of the server that is asked.
    pub environment: Vec<Change>,
    /// Records whose answers were edited since, as `file#id`.
    pub edited: Vec<String>,
    /// Requests that were neither played nor recorded, as those that ask how the server does.
    pub passed: u64,
}

/// What became of one session.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionReport {
    /// Records that could have been served.
    pub records: usize,
    /// Requests that looked for one.
    pub requests: u64,
    /// Records that were served.
    pub served: usize,
    /// Those that were not, as `file#id (file:line) what`.
    pub unconsumed: Vec<String>,
    /// Requests without a record, by reason.
    pub misses: BTreeMap<&'static str, u64>,
    /// Records that answered another request than their own, by the way that found them.
    pub loose: BTreeMap<&'static str, u64>,
    /// Records that were served again, by reason.
    pub again: BTreeMap<&'static str, u64>,
    /// Requests that went upstream.
    pub forwarded: u64,
    /// Tools that are not as they were recorded: in how many requests, and what changed.
    pub tools: BTreeMap<String, (u64, Vec<String>)>,
}

impl Deck {
    /// The report of all sessions, or of one.
    #[must_use]
    pub fn report(&self, session: Option<&str>) -> Report {
        let sessions = self.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        let of_room = |(name, room): (&String, &Room)| match &room.own {
            Some(own) => (name.clone(), own.own_report(name)),
            None => (name.clone(), self.session_report(room)),
        };
        let mut found: BTreeMap<String, SessionReport> = wanted.map(of_room).collect();
        drop(sessions);
        if found.is_empty() {
            let name = session.unwrap_or(super::request::DEFAULT_SESSION);
            found.insert(name.to_owned(), self.session_report(&Room::default()));
        }
        let passed = self.passed.load(Relaxed);
        Report { sessions: found, environment: self.changes().to_vec(), edited: self.edited.clone(), passed }
    }

    /// The report of a session whose cassette this is.
    fn own_report(&self, name: &str) -> SessionReport {
        self.session_report(self.lock().get(name).unwrap_or(&Room::default()))
    }

    fn session_report(&self, room: &Room) -> SessionReport {
        let servable = || (0..self.tape.len()).filter(|at| self.tape.is_servable(*at));
        let unconsumed = servable().filter(|at| room.session.times(*at) == 0);
        SessionReport {
            records: servable().count(),
            requests: room.session.requests(),
            served: room.session.consumed(),
            unconsumed: unconsumed.map(|at| self.line_of(at)).collect(),
            misses: room.missed.clone(),
            loose: room.session.loose().clone(),
            again: room.session.again().clone(),
            forwarded: room.forwarded,
            tools: room.tools.shown(),
        }
    }

    /// A record in one line.
    pub(super) fn line_of(&self, at: usize) -> String {
        let Some((cassette, record)) = self.records.get(at) else { return String::new() };
        let file = self.config.cassettes.get(*cassette).map(|it| it.path.display().to_string()).unwrap_or_default();
        format!("{} ({file}:{}) {}", self.name_of(at), record.line, record.summary())
    }
}

impl SessionReport {
    /// Which of these are so. Records without a request are no failure beside a miss, which is why they have none.
    #[must_use]
    pub fn failing(&self, concerns: &[Concern]) -> Vec<Concern> {
        let is_so = |concern: &Concern| match concern {
            Concern::Miss => !self.misses.is_empty(),
            Concern::Unconsumed => !self.unconsumed.is_empty() && self.misses.is_empty(),
            Concern::Exhausted => self.again.contains_key("exhausted"),
            Concern::Loose => !self.loose.is_empty(),
            Concern::Drift => !self.tools.is_empty(),
        };
        concerns.iter().copied().filter(is_so).collect()
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let tool = |(name, (requests, changes)): (&String, &(u64, Vec<String>))| {
            (name.clone(), json!({"requests": requests, "changes": changes}))
        };
        let tools: serde_json::Map<String, Value> = self.tools.iter().map(tool).collect();
        json!({"records": self.records, "requests": self.requests, "served": self.served, "unconsumed": self.unconsumed,
            "misses": self.misses, "loose": self.loose, "again": self.again, "forwarded": self.forwarded,
            "tools": tools})
    }
}

impl Report {
    /// Which of these are so in any session.
    #[must_use]
    pub fn failing(&self, concerns: &[Concern]) -> Vec<Concern> {
        let mut failing: Vec<Concern> = self.sessions.values().flat_map(|session| session.failing(concerns)).collect();
        failing.extend(concerns.iter().filter(|it| **it == Concern::Drift && !self.environment.is_empty()));
        failing.sort_unstable();
        failing.dedup();
        failing
    }

    /// For programs.
    #[must_use]
    pub fn json(&self, concerns: &[Concern]) -> Value {
        let sessions: serde_json::Map<String, Value> =
            self.sessions.iter().map(|(name, session)| (name.clone(), session.json())).collect();
        let failing: Vec<&str> = self.failing(concerns).into_iter().map(Concern::name).collect();
        json!({"sessions": sessions, "environment": self.environment.iter().map(Change::json).collect::<Vec<_>>(),
            "edited": self.edited, "passed": self.passed, "failing": failing})
    }

    /// What is said of [`passed`](Self::passed) requests.
    #[must_use]
    pub fn passed_text(&self) -> String {
        format!("{} other requests were neither played nor recorded\n", self.passed)
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text: String = self.environment.iter().map(|change| format!("drift: {change}\n")).collect();
        if !self.edited.is_empty() {
            text.push_str(&format!("{} records were edited since they were recorded\n", self.edited.len()));
        }
        if self.passed > 0 {
            text.push_str(&self.passed_text());
        }
        for (name, session) in &self.sessions {
            let counts = |counts: &BTreeMap<&'static str, u64>| {
                counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
            };
            text.push_str(&format!(
                "session {name}: {} requests, {} of {} records served\n",
                session.requests, session.served, session.records
            ));
            let lines =
                [("misses", &session.misses), ("loose matches", &session.loose), ("served again", &session.again)];
            for (what, of) in lines.into_iter().filter(|(_, of)| !of.is_empty()) {
                text.push_str(&format!("  {what}: {}\n", counts(of)));
            }
            if session.forwarded > 0 {
                text.push_str(&format!("  forwarded: {}\n", session.forwarded));
            }
            for (tool, (requests, changes)) in &session.tools {
                let more = if changes.len() > 1 { format!(" and {} more", changes.len() - 1) } else { String::new() };
                let first = changes.first().map(String::as_str).unwrap_or_default();
                text.push_str(&format!("  drift: tool {tool} in {requests} requests: {first}{more}\n"));
            }
            for record in session.unconsumed.iter().take(20) {
                text.push_str(&format!("  unconsumed: {record}\n"));
            }
            if session.unconsumed.len() > 20 {
                text.push_str(&format!("  unconsumed: {} more\n", session.unconsumed.len() - 20));
            }
        }
        text
    }
}
