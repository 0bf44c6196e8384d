//! Report of one session.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::extended;
use crate::account::{Concern, ToolDrift, tool_drift::AnswerComparison};
use base::one_line::{counted, one_line};

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
    pub(super) fn is_cut_short(&self) -> bool {
        !self.misses.is_empty() || self.is_beside_miss
    }

    /// Returns whether it was asked, or records of it count.
    pub(super) fn has_begun(&self) -> bool {
        self.requests > 0 || !self.begun_unconsumed.is_empty()
    }

    /// The same of a session that goes on: what it was not served yet is no failure.
    pub(crate) fn without_unconsumed(self) -> Self {
        Self { unconsumed: Vec::new(), begun_unconsumed: Vec::new(), unserved: 0, ..self }
    }

    /// Adds what failed in another one.
    pub(crate) fn add(&mut self, other: Self) {
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
            ("compared", self.compared.as_ref().map(|compared| json!(compared))),
            ("by_hand", (self.by_hand > 0).then(|| self.by_hand.into())),
            ("placeholders", (self.placeholders > 0).then(|| self.placeholders.into())),
            ("matches", self.matching.as_ref().map(Matching::json)),
            ("novel", (!self.novel.is_empty()).then(|| self.novel.clone().into())),
        ];
        extended(report, further)
    }

    /// For people.
    pub(super) fn text(&self, title: &str) -> String {
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

fn counts(counts: &BTreeMap<&'static str, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}
