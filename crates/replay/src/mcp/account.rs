//! The account of a connection: what was served, what was not recorded, what was recorded and not asked for.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::{
    consumption::Consumption,
    record_index::{IndexedRecord, RecordIndex},
    session::Comparison,
};
use crate::account::{Change, Concern, DEFAULT_SESSION, KeptMisses, Report, SessionReport};

/// Changes of replies that are kept.
const MOST_CHANGES: usize = 100;

/// Counts of one connection.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Requests that looked for a record.
    pub(super) requests: u64,
    /// By reason.
    pub(super) misses: BTreeMap<&'static str, u64>,
    /// By the way that found the record.
    pub(super) loose: BTreeMap<&'static str, u64>,
    /// By reason.
    pub(super) again: BTreeMap<&'static str, u64>,
    /// Requests that went to the real server.
    pub(super) forwarded: u64,
    /// Answers that were served with placeholders.
    pub(super) placeholders: u64,
    /// Each miss with its explanation.
    pub(super) novel: KeptMisses,
    /// Answers of the real server beside recorded ones.
    pub(super) comparison: Comparison,
    /// Replies of the client that are not as they were recorded.
    pub(super) replies: Vec<Change>,
}

impl Account {
    /// Notes a reply that is not as it was recorded.
    pub(super) fn note_reply(&mut self, record: &str, recorded: String, now: String) {
        if self.replies.len() < MOST_CHANGES {
            self.replies.push(Change { cassette: record.to_owned(), what: "the client's reply", recorded, now });
        }
    }

    /// What was served and what was not, beside sessions that were served these records. A record without a group counts as unconsumed
    /// where none of them was served it either; one of a group, where any of the group was served here.
    #[must_use]
    pub(super) fn session_report(
        &self,
        index: &RecordIndex,
        consumption: &Consumption,
        others: &HashSet<usize>,
    ) -> SessionReport {
        let countable = || index.records().iter().enumerate().filter(|(_, indexed)| indexed.counts());
        let left: Vec<_> = countable().filter(|(at, _)| !consumption.has_served(*at)).collect();
        let begun: HashSet<(&str, &str)> =
            consumption.served().filter_map(|at| index.records().get(at)?.grouped()).collect();
        let has_begun = |at: &usize, indexed: &IndexedRecord| match indexed.grouped() {
            None => self.requests > 0 && !others.contains(at),
            Some(group) => begun.contains(&group),
        };
        let unconsumed = index.texts_without_secrets(left.iter().map(|(_, indexed)| indexed.described()));
        let counting = left.iter().zip(&unconsumed).filter(|((at, indexed), _)| has_begun(at, indexed));
        SessionReport {
            records: countable().count(),
            requests: self.requests,
            served: countable().count() - left.len(),
            begun_unconsumed: counting.map(|(_, line)| line.clone()).collect(),
            unserved: left.iter().filter(|(at, _)| !others.contains(at)).count(),
            unconsumed,
            misses: self.misses.clone(),
            loose: self.loose.clone(),
            again: self.again.clone(),
            forwarded: self.forwarded,
            placeholders: self.placeholders,
            tools: self.comparison.tools.clone(),
            compared: self.comparison.answers.clone(),
            novel: self.novel.list().to_vec(),
            ..SessionReport::default()
        }
    }

    /// The report, in the form of all reports.
    #[must_use]
    pub(super) fn report(&self, index: &RecordIndex, consumption: &Consumption) -> Report {
        let session = self.session_report(index, consumption, &HashSet::new());
        // The list is at the top of the report.
        let session = SessionReport { novel: Vec::new(), ..session };
        let unused = index.unused(|at| consumption.has_served(at));
        Report {
            sessions: [(DEFAULT_SESSION.to_owned(), session)].into_iter().collect(),
            environment: self.replies.clone(),
            unused,
            ..Report::default()
        }
    }

    /// The report for programs; requests that were not recorded are `novel`.
    #[must_use]
    pub(super) fn json(&self, report: &Report, server: &str, concerns: &[Concern]) -> Value {
        let mut whole = report.json(concerns);
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("server".to_owned(), server.into());
            fields.insert("novel".to_owned(), json!(self.novel.list()));
        }
        whole
    }
}
