//! The account of a connection: what was served, what was not recorded, what was recorded and not asked for; the journal of its
//! messages; and what the real server answered beside the records (`--mode compare`).

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use super::McpSession;
use crate::{
    account::{
        AnswerComparison, Concern, DEFAULT_SESSION, EnvironmentChange, JournalEntry, KeptMisses, LARGEST_BODY, Report,
        SessionReport,
    },
    mcp::{params::is_by_method, tool_changes::tool_changes},
};
use recording::{canonical::McpCall, mcp::McpRecord};

const MOST_CHANGES: usize = 100;

/// The outcome of messages that a record answers.
pub(super) const REPLAYED: &str = "replayed";

#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Counts of requests and of what they got; what depends on other sessions is not filled in.
    pub(crate) counts: SessionReport,
    pub(crate) novel: KeptMisses,
    /// Replies of the client that are not as they were recorded.
    pub(crate) replies: Vec<EnvironmentChange>,
    /// Outcome of each message since that was last taken, where it is kept.
    pub(super) journal: Option<Vec<JournalEntry>>,
    /// The records that answered messages since then.
    served: Vec<usize>,
}

impl Account {
    pub(super) fn miss(&mut self, reason: &'static str, detail: Value) {
        self.novel.keep(detail);
        *self.counts.misses.entry(reason).or_default() += 1;
    }

    /// Counts an answer that is of another request, or made up, with the explanation.
    pub(super) fn loose(&mut self, way: &'static str, detail: Value) {
        self.novel.keep(detail);
        *self.counts.loose.entry(way).or_default() += 1;
    }

    /// Notes a reply that is not as it was recorded.
    pub(super) fn note_reply(&mut self, record: String, recorded: String, now: String) {
        if self.replies.len() < MOST_CHANGES {
            self.replies.push(EnvironmentChange { cassette: record, what: "the client's reply", recorded, now });
        }
    }

    /// The account of the same client once what it was served is forgotten.
    pub(super) fn rewound(&mut self) -> Self {
        Self { journal: self.journal.take(), ..Self::default() }
    }
}

impl McpSession {
    /// The report so far.
    #[must_use]
    pub fn report(&self) -> Report {
        // The list is at the top of the report.
        let session = SessionReport { novel: Vec::new(), ..self.session_report(&HashSet::new()) };
        Report {
            sessions: [(DEFAULT_SESSION.to_owned(), session)].into_iter().collect(),
            environment: self.account.replies.clone(),
            unused: self.index.unused(|at| self.consumption.times(at) > 0),
            ..Report::default()
        }
    }

    /// The report so far, for programs; requests that were not recorded are `novel`.
    #[must_use]
    pub fn report_json(&self, concerns: &[Concern]) -> Value {
        let mut whole = self.report().json(concerns);
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("server".to_owned(), self.server.as_str().into());
            fields.insert("novel".to_owned(), json!(self.account.novel.list()));
        }
        whole
    }

    /// What was served and what was not, beside sessions that were served these records. A record without a group counts as unconsumed
    /// where none of them was served it either; one of a group, where any of the group was served here.
    pub(crate) fn session_report(&self, others: &HashSet<usize>) -> SessionReport {
        let index = &self.index;
        let countable = || index.records().iter().enumerate().filter(|(_, indexed)| indexed.counts());
        let left: Vec<_> = countable().filter(|(at, _)| self.consumption.times(*at) == 0).collect();
        let begun: HashSet<(&str, &str)> =
            self.consumption.records().filter_map(|at| index.records().get(at)?.grouped()).collect();
        let unconsumed = index.texts_without_secrets(left.iter().map(|(_, indexed)| indexed.described()));
        let counting = left.iter().zip(&unconsumed).filter(|((at, indexed), _)| match indexed.grouped() {
            _ if self.was_listed(*at, &indexed.record.method) => false,
            None => self.account.counts.requests > 0 && !others.contains(at),
            Some(group) => begun.contains(&group),
        });
        SessionReport {
            records: countable().count(),
            served: countable().count() - left.len(),
            begun_unconsumed: counting.map(|(_, line)| line.clone()).collect(),
            unserved: left.iter().filter(|(at, _)| !others.contains(at)).count(),
            unconsumed,
            novel: self.account.novel.list().to_vec(),
            ..self.account.counts.clone()
        }
    }

    /// Whether a record is of a list that was served from another record of it.
    fn was_listed(&self, at: usize, method: &str) -> bool {
        let key = self.index.requests.identity(at).map(|identity| identity.key);
        let equal = key.filter(|_| self.repeats(method)).map(|key| self.index.of_key(key));
        equal.into_iter().flatten().any(|at| self.consumption.times(*at) > 0)
    }

    /// Takes the outcome of the messages since it was last taken, without sessions and times, and the places of the records that
    /// answered.
    pub(crate) fn take_journal(&mut self) -> (Vec<JournalEntry>, Vec<usize>) {
        let journal = self.account.journal.as_mut().map(std::mem::take).unwrap_or_default();
        (journal, std::mem::take(&mut self.account.served))
    }

    /// Notes in the journal the outcome of a message, with the record or the reason by its name.
    pub(super) fn note(&mut self, canonical: &Value, outcome: &'static str, why: Option<(&str, &str)>) {
        let Some(journal) = &mut self.account.journal else { return };
        let why = why.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect();
        journal.push(journal_entry(&self.server, canonical, outcome, why));
    }

    /// Notes a message that this record answers, or is compared with.
    pub(super) fn note_record(&mut self, canonical: &Value, outcome: &'static str, at: usize) {
        if outcome == REPLAYED && self.account.journal.is_some() {
            self.account.served.push(at);
        }
        let name = self.index.records().get(at).map(|indexed| indexed.name()).unwrap_or_default();
        self.note(canonical, outcome, Some(("record", &name)));
    }
}

impl McpSession {
    /// Takes a message with what the real server answered, and compares it with the record of the message by `compare`.
    pub(crate) fn compare(&mut self, now: &McpRecord, compare: impl FnOnce(&str, &McpRecord) -> AnswerComparison) {
        let (method, index) = (now.method.as_str(), Arc::clone(&self.index));
        if method == "ping" {
            return;
        }
        let identity = index.identify(method, &now.params);
        let is_handshake = is_by_method(method);
        let found = if is_handshake {
            index.of_key(identity.key).first().copied()
        } else {
            let fresh = self.fresh(identity.key);
            fresh.or_else(|| index.of_key(identity.key).last().copied().filter(|_| self.repeats(method)))
        };
        let is_request = !method.starts_with("notifications/");
        self.account.counts.requests += u64::from(is_request && !is_handshake);
        let Some((at, indexed)) = found.and_then(|at| Some((at, index.records().get(at)?))) else {
            if is_request && !is_handshake {
                // It is not in the recording, or less often.
                let miss = self.explain(method, &identity, self.why(&identity, true));
                let (reason, detail) = (miss.reason(), miss.detail());
                self.account.miss(reason, detail);
                self.note(&identity.fields, "forwarded", Some(("reason", reason)));
            }
            return;
        };
        self.consumption.add(at, self.account.counts.requests);
        if !is_request {
            return;
        }
        self.note_record(&identity.fields, "compared", at);
        if method == "tools/list" {
            self.note_tools(&indexed.record, now);
        }
        let compared = compare(&format!("{} (line {})", indexed.name(), indexed.line), &indexed.record);
        self.account.counts.compared.get_or_insert_default().add(compared);
    }

    fn note_tools(&mut self, recorded: &McpRecord, now: &McpRecord) {
        let result = |record: &McpRecord| record.answer().and_then(|answer| answer.get("result").cloned());
        let (Some(recorded), Some(now)) = (result(recorded), result(now)) else { return };
        let mut changes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for change in tool_changes(&self.index.without_secrets(recorded), &self.index.without_secrets(now)) {
            changes.entry(change.tool.clone()).or_default().push(change.to_string());
        }
        let kept = &mut self.account.counts.tools;
        changes.into_iter().for_each(|(tool, changes)| kept.note(&tool, changes));
    }
}

/// An entry of a message to a server, without session and time.
#[must_use]
pub fn journal_entry(server: &str, canonical: &Value, outcome: &'static str, why: Map<String, Value>) -> JournalEntry {
    let method = canonical.get("method").and_then(Value::as_str).unwrap_or_default();
    let body = canonical.to_string();
    let boundary = McpCall { server: server.to_owned(), method }.boundary(canonical);
    let (request, body_bytes) = (format!("POST {}", McpCall::path(server)), body.len());
    let body = (body_bytes <= LARGEST_BODY).then_some(body);
    JournalEntry { request, boundary, body, body_bytes, outcome, why, ..JournalEntry::default() }
}
