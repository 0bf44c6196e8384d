//! The account of a connection: what was served, what was not recorded, what was recorded and not asked for.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{consumption::Consumption, tape::Tape};
use crate::replay::account::{Change, Concern, DEFAULT_SESSION, KeptMisses, Report, SessionReport, UnusedRecord};

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
    /// Each miss with its explanation.
    pub(super) novel: KeptMisses,
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

    /// The report, in the form of all reports.
    #[must_use]
    pub(super) fn report(&self, tape: &Tape, consumption: &Consumption) -> Report {
        let countable = || tape.records().iter().enumerate().filter(|(_, taped)| taped.counts());
        let left: Vec<_> = countable().filter(|(at, _)| !consumption.has_served(*at)).map(|(_, taped)| taped).collect();
        let unconsumed: Vec<String> = left.iter().map(|taped| tape.text_without_secrets(&taped.described())).collect();
        let has_begun = self.requests > 0;
        let session = SessionReport {
            records: countable().count(),
            requests: self.requests,
            served: countable().count() - left.len(),
            begun_unconsumed: if has_begun { unconsumed.clone() } else { Vec::new() },
            unserved: left.len(),
            unconsumed,
            misses: self.misses.clone(),
            loose: self.loose.clone(),
            again: self.again.clone(),
            ..SessionReport::default()
        };
        let unused = left.iter().map(|taped| UnusedRecord {
            cassette: taped.file.clone(),
            record: taped.id,
            line: taped.line,
            request: tape.text_without_secrets(&taped.record.summary()),
        });
        Report {
            sessions: [(DEFAULT_SESSION.to_owned(), session)].into_iter().collect(),
            earlier: BTreeMap::new(),
            ended: 0,
            environment: self.replies.clone(),
            edited: Vec::new(),
            unused: unused.collect(),
            passed: 0,
            not_recorded: None,
            blocked: BTreeMap::new(),
            behind: None,
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
