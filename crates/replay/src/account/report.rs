//! What was served, what was not, and whether that is a failure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::{Value, json};

use super::{Concern, ToolDrift};
use crate::account::tool_drift::AnswerComparison;
use base::one_line::{counted, one_line};

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
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl UnusedRecord {
    fn json(&self) -> Value {
        json!({"cassette": self.cassette, "record": self.record, "line": self.line, "request": self.request})
    }
}

/// Report of one session.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SessionReport {
    /// Records that could have been served.
    pub records: usize,
    /// Requests that looked for one, and those that went upstream by choice where others are played.
    pub requests: u64,
    /// Records that were served.
    pub served: usize,
    /// Those that were not, as `file#id (file:line) what`.
    pub unconsumed: Vec<String>,
    /// Those of them that count: of groups that have begun.
    pub begun_unconsumed: Vec<String>,
    /// How many of them no other session was served either.
    pub unserved: usize,
    /// Requests without a record, by reason.
    pub misses: BTreeMap<&'static str, u64>,
    /// Records that answered another request than their own, by the way that found them.
    pub loose: BTreeMap<&'static str, u64>,
    /// Records that were served again, by reason.
    pub again: BTreeMap<&'static str, u64>,
    /// Answers of hand-written records.
    pub by_hand: usize,
    /// Requests that went upstream.
    pub forwarded: u64,
    /// Answers that were served with placeholders in place of values.
    pub placeholders: u64,
    /// Tools that are not as they were recorded.
    pub tools: ToolDrift,
    /// How prompts found their records, where records are those of a trace.
    pub matching: Option<Matching>,
    /// Answers that were compared with recorded ones, where that is the mode.
    pub compared: Option<AnswerComparison>,
    /// Requests that were not recorded, each with the closest record and the differences.
    pub novel: Vec<Value>,
    /// Whether another session of the same client had a miss, as that of its model beside those of its tools.
    pub is_beside_miss: bool,
}

/// Counts of the ways by which prompts found their records in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matching {
    /// Prompts by the way that found their record: `index`, `whole`, `prefix`, `next`.
    pub found: BTreeMap<&'static str, u64>,
    /// Those of `prefix` by the share of their blocks that matched.
    pub shares: BTreeMap<&'static str, u64>,
    /// Blocks of those that matched.
    pub matched_blocks: u64,
    /// All blocks of those.
    pub total_blocks: u64,
}

/// Something that is not as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl EnvironmentChange {
    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({"cassette": self.cassette, "what": self.what, "recorded": self.recorded, "now": self.now})
    }
}

impl fmt::Display for EnvironmentChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (recorded, now) = (one_line(&self.recorded), one_line(&self.now));
        write!(f, "{}: recorded with {} {recorded}, now {now}", self.cassette, self.what)
    }
}

impl SessionReport {
    /// Returns which of these are so. Records without a request are no failure beside a miss, which is why they have none.
    pub(crate) fn failing(&self, concerns: &[Concern]) -> Vec<Concern> {
        let is_so = |concern: &Concern| match concern {
            Concern::Miss => !self.misses.is_empty(),
            Concern::NoCassette => self.misses.contains_key(Concern::NoCassette.name()),
            Concern::Unconsumed => !self.begun_unconsumed.is_empty() && !self.is_cut_short(),
            Concern::UnconsumedAll => self.unserved > 0 && !self.is_cut_short(),
            Concern::Exhausted => self.again.contains_key("exhausted"),
            Concern::Loose => !self.loose.is_empty(),
            Concern::Drift => !self.tools.is_empty() || self.compared.as_ref().is_some_and(|it| it.structure > 0),
            Concern::Text => self.compared.as_ref().is_some_and(|compared| compared.text > 0),
            Concern::Blocked => false,
            Concern::Placeholder => self.placeholders > 0,
        };
        concerns.iter().copied().filter(is_so).collect()
    }

    /// Returns whether its client had a miss: what comes after one is not asked for any more.
    fn is_cut_short(&self) -> bool {
        !self.misses.is_empty() || self.is_beside_miss
    }

    /// Returns whether anything in it may be a failure by itself, whatever other sessions were served.
    pub(super) fn has_failures(&self) -> bool {
        !self.failing(&Concern::ALL).is_empty()
    }

    /// Returns whether it was asked, or records of it count.
    fn has_begun(&self) -> bool {
        self.requests > 0 || !self.begun_unconsumed.is_empty()
    }

    /// Adds what failed in another one.
    pub(super) fn add(&mut self, other: Self) {
        let add = |to: &mut BTreeMap<&'static str, u64>, from: BTreeMap<&'static str, u64>| {
            from.into_iter().for_each(|(name, count)| *to.entry(name).or_default() += count);
        };
        self.records = self.records.max(other.records);
        self.served += other.served;
        self.requests += other.requests;
        self.forwarded += other.forwarded;
        self.placeholders += other.placeholders;
        self.unserved += other.unserved;
        self.unconsumed.extend(other.unconsumed);
        self.begun_unconsumed.extend(other.begun_unconsumed);
        add(&mut self.misses, other.misses);
        add(&mut self.loose, other.loose);
        add(&mut self.again, other.again);
        self.by_hand += other.by_hand;
        other.compared.into_iter().for_each(|compared| self.compared.get_or_insert_default().add(compared));
        self.tools.add(other.tools);
        self.novel.extend(other.novel);
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let report = json!({"records": self.records, "requests": self.requests, "served": self.served,
            "unconsumed": self.unconsumed, "begun_unconsumed": self.begun_unconsumed, "misses": self.misses, "loose": self.loose, "again": self.again,
            "forwarded": self.forwarded, "tools": self.tools.json()});
        let further = [
            ("compared", self.compared.as_ref().map(AnswerComparison::json)),
            ("by_hand", (self.by_hand > 0).then(|| self.by_hand.into())),
            ("placeholders", (self.placeholders > 0).then(|| self.placeholders.into())),
            ("matches", self.matching.as_ref().map(Matching::json)),
            ("novel", (!self.novel.is_empty()).then(|| self.novel.clone().into())),
        ];
        extended(report, further)
    }

    /// For people.
    fn text(&self, title: &str) -> String {
        let mut text = format!(
            "{title}: {}, {} of {} served\n",
            counted(self.requests, "request"),
            self.served,
            counted(self.records, "record")
        );
        if let Some(matching) = self.matching.as_ref().filter(|matching| !matching.found.is_empty()) {
            text.push_str(&format!("  found by: {}\n", matching.text()));
        }
        let lines = [("misses", &self.misses), ("loose matches", &self.loose), ("served again", &self.again)];
        for (what, of) in lines.into_iter().filter(|(_, of)| !of.is_empty()) {
            text.push_str(&format!("  {what}: {}\n", counts(of)));
        }
        self.compared.iter().for_each(|compared| text.push_str(&compared.text()));
        let numbers = [
            ("answered by hand-written records", self.by_hand as u64),
            ("forwarded", self.forwarded),
            ("answers with placeholders", self.placeholders),
        ];
        for (what, count) in numbers.into_iter().filter(|(_, count)| *count > 0) {
            text.push_str(&format!("  {what}: {count}\n"));
        }
        text.push_str(&self.tools.text());
        let shown = if self.is_cut_short() { 0 } else { 20 };
        for record in self.begun_unconsumed.iter().take(shown) {
            text.push_str(&format!("  unconsumed: {}\n", one_line(record)));
        }
        match (self.begun_unconsumed.len().saturating_sub(shown), shown) {
            (0, _) => {}
            (left, 0) => text.push_str(&format!("  unconsumed beside the misses: {left}, listed by --report\n")),
            (more, _) => text.push_str(&format!("  unconsumed: {more} more\n")),
        }
        match self.unconsumed.len().saturating_sub(self.begun_unconsumed.len()) {
            0 => {}
            rest => text.push_str(&format!("  not begun here: {}\n", counted(rest, "record"))),
        }
        text
    }
}

impl Matching {
    fn json(&self) -> Value {
        json!({"found": self.found, "prefix_shares": self.shares,
            "prefix_blocks": {"matched": self.matched_blocks, "total": self.total_blocks}})
    }

    /// For people, in one line.
    fn text(&self) -> String {
        let mut text = counts(&self.found);
        if !self.shares.is_empty() {
            let (matched, total) = (self.matched_blocks, self.total_blocks);
            text.push_str(&format!("; prefix shared {matched} of {total} blocks ({})", counts(&self.shares)));
        }
        text
    }
}

/// Adds the fields that have a value.
fn extended(mut report: Value, further: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    if let Some(fields) = report.as_object_mut() {
        fields.extend(further.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    report
}

fn counts(counts: &BTreeMap<&'static str, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
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
        let report = json!({"sessions": of(&self.sessions), "edited": self.edited,
            "unused": self.unused.iter().map(UnusedRecord::json).collect::<Vec<_>>(), "passed": self.passed, "failing": failing,
            "environment": self.environment.iter().map(EnvironmentChange::json).collect::<Vec<_>>()});
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
        if !report.has_failures() {
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
