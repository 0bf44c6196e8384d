//! The servers of some cassettes, each at its path.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{McpEndpoint, McpPolicy, McpRecordError, OnNovel, RecordIndex, record_index::read};
use crate::account::{DEFAULT_SESSION, Report, SessionReport};
use recording::cassette::{Cassette, CassetteRecord};

/// The servers of some cassettes.
#[derive(Debug, Default)]
pub struct Servers(BTreeMap<String, Arc<McpEndpoint>>);

impl Servers {
    /// Makes the servers of which cassettes have records, and those of these names, which answer what was not recorded themselves; from
    /// indexes that are new. The error is a record that only looks like one of MCP.
    pub(crate) fn new(
        (cassettes, names): (&[Cassette], &[String]),
        new: impl Fn(&str) -> RecordIndex,
        policy: McpPolicy,
    ) -> Result<Self, McpRecordError> {
        let mut indexes: BTreeMap<String, RecordIndex> = names.iter().map(|name| (name.clone(), new(name))).collect();
        for (at, cassette) in cassettes.iter().enumerate() {
            let file: Arc<str> = cassette.path.display().to_string().into();
            for source in &cassette.records {
                let Some(record) = read(&file, source)? else { continue };
                let index = indexes.entry(record.server.clone()).or_insert_with_key(|name| new(name));
                index.push((at, &file), source, record);
            }
        }
        let endpoint = |(server, index): (String, RecordIndex)| {
            let forwards = policy.on_novel.forwards() && names.contains(&server);
            let on_novel = if policy.on_novel.forwards() && !forwards { OnNovel::Error } else { policy.on_novel };
            let endpoint = McpEndpoint::new(index, &server, McpPolicy { on_novel, ..policy });
            (server, Arc::new(endpoint))
        };
        Ok(Self(indexes.into_iter().map(endpoint).collect()))
    }

    /// The server of a name.
    #[must_use]
    pub fn get(&self, server: &str) -> Option<&Arc<McpEndpoint>> {
        self.0.get(server)
    }

    /// The names of all of them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The names of all of them, each with its number of records.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, usize)> {
        self.0.iter().map(|(name, endpoint)| (name.clone(), endpoint.records())).collect()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what was served to a report: of all sessions of the account, or of one.
    pub(crate) fn add_to(&self, report: &mut Report, session: Option<&str>) {
        if self.is_empty() {
            return;
        }
        self.0.values().for_each(|endpoint| endpoint.sessions.lock().add_to(report, session));
        // A session that has nothing but tools.
        let is_idle = report.sessions.get(DEFAULT_SESSION).is_some_and(|it| it.records == 0 && it.requests == 0);
        if is_idle && report.sessions.len() > 1 {
            report.sessions.remove(DEFAULT_SESSION);
        }
    }

    /// The records, each with how often it was served in a session of the account; the first has this number.
    pub(crate) fn shown(&self, first: usize, session: &str) -> Vec<Value> {
        let mut shown = Vec::new();
        for endpoint in self.0.values() {
            shown.extend(endpoint.shown(first + shown.len(), session));
        }
        shown
    }

    /// The record of this number, if the first has the number 0, with its body.
    pub(crate) fn shown_record(&self, at: usize, first: usize, session: &str) -> Option<Value> {
        let mut before = 0;
        for endpoint in self.0.values() {
            if at < before + endpoint.records() {
                return endpoint.shown_record(at - before, first + before, session);
            }
            before += endpoint.records();
        }
        None
    }

    /// Requests that were not recorded, of all sessions of the account or of one.
    pub(crate) fn misses(&self, session: Option<&str>) -> Vec<Value> {
        self.0.values().flat_map(|endpoint| endpoint.sessions.lock().misses(session)).collect()
    }

    /// Forgets what all sessions of the account consumed, or one.
    pub fn reset(&self, session: Option<&str>) {
        self.0.values().for_each(|endpoint| endpoint.sessions.lock().reset(session));
    }

    /// Ends the MCP sessions of a session of the account.
    pub(crate) fn end_session(&self, session: &str) {
        self.0.values().for_each(|endpoint| endpoint.sessions.lock().end_session(session));
    }

    /// Ends them, and gives what failed in sessions that have ended.
    pub(crate) fn ended(&self, session: &str) -> Vec<(String, SessionReport)> {
        self.end_session(session);
        self.0.values().flat_map(|endpoint| endpoint.sessions.lock().earlier()).collect()
    }
}

/// Returns whether a record is one of MCP.
#[must_use]
pub fn is_of_mcp(record: &CassetteRecord) -> bool {
    record.mcp_call().is_some()
}
