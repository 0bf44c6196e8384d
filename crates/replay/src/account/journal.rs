//! The latest requests and their outcomes, for `/vcr/requests`.
//!
//! Limits: bodies and everything else take so many bytes together; the oldest requests are dropped first, and the body of a large request
//! is left out.
//!
//! See docs/decisions/0084-the-journal-has-bytes.md.

use std::collections::BTreeMap;

use base::lock::Lock;
use serde_json::{Map, Value};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Bytes of all entries together.
const BYTES: usize = 8 << 20;

/// Largest body that is kept, in bytes.
pub const LARGEST_BODY: usize = 64 << 10;

/// Bytes of an entry beside its texts.
const ENTRY: usize = 256;

/// A request and its outcome, without its secrets.
#[derive(Debug, Clone, Default)]
pub struct JournalEntry {
    /// When it came.
    pub at: Option<OffsetDateTime>,
    /// Its session.
    pub session: String,
    /// Method and path.
    pub request: String,
    /// What it talks to, as `llm:m`.
    pub boundary: String,
    /// Its body as JSON; `None` where there is none, or a large one.
    pub body: Option<String>,
    /// Bytes of its body.
    pub body_bytes: usize,
    /// `replayed`, `missed`, `forwarded`, `recorded`, `compared`, `stubbed`, `passed` or `refused`.
    pub outcome: &'static str,
    /// Why: the record, the way that found it, the reason of a miss, the status.
    pub why: Map<String, Value>,
}

impl JournalEntry {
    fn bytes(&self) -> usize {
        let texts = [&self.session, &self.request, &self.boundary].iter().map(|text| text.len()).sum::<usize>();
        let of_value = |value: &Value| value.as_str().map_or(8, str::len);
        let why = self.why.iter().map(|(name, value)| name.len() + of_value(value)).sum::<usize>();
        ENTRY + texts + why + self.body.as_ref().map_or(0, String::len)
    }

    fn json(&self, number: u64) -> Value {
        let mut shown = Map::new();
        let mut put = |name: &str, value: Value| drop(shown.insert(name.to_owned(), value));
        put("number", number.into());
        if let Some(Ok(at)) = self.at.map(|at| at.format(&Rfc3339)) {
            put("time", at.into());
        }
        put("session", self.session.clone().into());
        put("request", self.request.clone().into());
        put("at", self.boundary.clone().into());
        put("outcome", self.outcome.into());
        self.why.iter().for_each(|(name, value)| put(name, value.clone()));
        put("body_bytes", self.body_bytes.into());
        if let Some(body) = &self.body {
            put("body", serde_json::from_str(body).unwrap_or_default());
        }
        shown.into()
    }
}

/// The latest requests.
#[derive(Debug, Default)]
pub struct Journal(Lock<JournalState>);

#[derive(Debug, Default)]
struct JournalState {
    entries: BTreeMap<u64, JournalEntry>,
    bytes: usize,
    next: u64,
}

impl Journal {
    /// Returns the number of a request that came now, from 1.
    pub fn begin(&self) -> u64 {
        let mut state = self.0.lock();
        state.next += 1;
        state.next
    }

    /// Keeps a request whose outcome is known.
    pub fn keep(&self, number: u64, entry: JournalEntry) {
        let mut state = self.0.lock();
        state.bytes += entry.bytes();
        state.entries.insert(number, entry);
        while state.bytes > BYTES {
            let Some((_, oldest)) = state.entries.pop_first() else { break };
            state.bytes -= oldest.bytes();
        }
    }

    /// The requests of all sessions, or of one, in the order in which they came.
    pub(crate) fn list(&self, session: Option<&str>) -> Vec<Value> {
        let entries: Vec<(u64, JournalEntry)> = {
            let state = self.0.lock();
            let wanted = state.entries.iter().filter(|(_, it)| session.is_none_or(|session| session == it.session));
            wanted.map(|(number, entry)| (*number, entry.clone())).collect()
        };
        // JSON is read without the lock.
        entries.iter().map(|(number, entry)| entry.json(*number)).collect()
    }

    /// Forgets the requests of all sessions, or of one.
    pub fn forget(&self, session: Option<&str>) {
        let mut state = self.0.lock();
        let JournalState { entries, bytes, .. } = &mut *state;
        entries.retain(|_, entry| {
            let is_kept = session.is_some_and(|session| session != entry.session);
            if !is_kept {
                *bytes -= entry.bytes();
            }
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_requests_are_dropped_where_bytes_run_out() {
        let journal = Journal::default();
        let body = Value::from("x".repeat(LARGEST_BODY)).to_string();
        for at in 0..400 {
            let session = if at % 2 == 0 { "a" } else { "b" };
            let number = journal.begin();
            journal.keep(
                number,
                JournalEntry { session: session.to_owned(), body: Some(body.clone()), ..JournalEntry::default() },
            );
        }
        let state = journal.0.lock();
        assert!(state.bytes <= BYTES && state.bytes > BYTES / 2, "{}", state.bytes);
        drop(state);
        let all = journal.list(None);
        assert_eq!(all.last().map(|it| it["number"].clone()), Some(400.into()));
        assert!(all.len() < 200 && journal.list(Some("a")).len() < 100);
        journal.forget(Some("a"));
        assert!(journal.list(Some("a")).is_empty() && !journal.list(Some("b")).is_empty());
        journal.forget(None);
        assert!(journal.list(None).is_empty());
        assert_eq!(journal.0.lock().bytes, 0);
    }
}
