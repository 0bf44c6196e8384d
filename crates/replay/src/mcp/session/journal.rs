//! What became of each message of a client, for the journal of the account.

use serde_json::{Map, Value, json};

use super::Session;
use crate::{
    account::{JournalEntry, LARGEST_BODY},
    mcp::policy::OnNovel,
};
use recording::canonical::McpCall;

/// Entries since the last message, where they are kept.
#[derive(Debug, Default)]
pub(super) struct Journal(Option<Vec<JournalEntry>>);

impl Session {
    /// The same, which keeps what becomes of each message until that is taken.
    #[must_use]
    pub(in crate::mcp) fn with_journal(self) -> Self {
        Self { journal: Journal(Some(Vec::new())), ..self }
    }

    /// Takes what became of the messages since it was last taken; their sessions and times are not filled in.
    pub(in crate::mcp) fn take_journal(&mut self) -> Vec<JournalEntry> {
        self.journal.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes a request that is answered by its method alone.
    pub(super) fn note_handshake(&mut self, canonical: &Value, recorded: Option<usize>) {
        match recorded {
            Some(at) => self.note_record(canonical, at),
            None => self.note(canonical, "stubbed", Map::new()),
        }
    }

    /// Notes a message that a record answers.
    pub(super) fn note_record(&mut self, canonical: &Value, at: usize) {
        if self.journal.0.is_some() {
            let name = self.index.records().get(at).map(|indexed| indexed.name()).unwrap_or_default();
            self.note(canonical, "replayed", [("record".to_owned(), name.into())].into_iter().collect());
        }
    }

    /// Notes a request that the real server answers.
    pub(super) fn note_forwarded(&mut self, canonical: &Value, miss: Option<&'static str>) {
        let outcome = if self.policy.on_novel == OnNovel::Record { "recorded" } else { "forwarded" };
        self.note(canonical, outcome, reason(miss));
    }

    /// Notes a request that no record answers.
    pub(super) fn note_missed(&mut self, canonical: &Value, why: &'static str) {
        self.note(canonical, "missed", reason(Some(why)));
    }

    /// Notes a request that is answered with something made up.
    pub(super) fn note_stub(&mut self, canonical: &Value) {
        self.note(canonical, "stubbed", Map::new());
    }

    pub(super) fn note(&mut self, canonical: &Value, outcome: &'static str, why: Map<String, Value>) {
        let Some(entries) = &mut self.journal.0 else { return };
        entries.push(journal_entry(&self.server, canonical, outcome, why));
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

fn reason(why: Option<&'static str>) -> Map<String, Value> {
    why.into_iter().map(|why| ("reason".to_owned(), json!(why))).collect()
}
