//! The records of one server, found by method and canonical parameters.

use std::{path::Path, sync::Arc};

use serde_json::{Value, json};

use super::params::{ParamRules, is_by_method};
use crate::{
    account::UnusedRecord,
    matching::{named_later::NamedSecret, requests::CassetteIndex},
    values::{RecordKey, ValuePlans},
};
use recording::{
    canonical::{CanonicalKey, Identity, McpCall},
    cassette::CassetteRecord,
    mcp::McpRecord,
    redaction::{RedactionRules, Redactor, SeenSecrets, json_has_placeholder},
};

/// A record and its place.
#[derive(Debug, Clone)]
pub struct IndexedRecord {
    /// The record.
    pub record: McpRecord,
    /// Its number in its file.
    pub id: u64,
    /// The place of that file among those that are played.
    pub cassette: usize,
    /// Its line there, from 1.
    pub line: usize,
    /// Its file.
    pub file: Arc<str>,
    /// Its group, by the user's own name.
    pub group: Option<Arc<str>>,
}

impl IndexedRecord {
    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        format!("{}#{}", self.file, self.id)
    }

    /// The same without folders, as headers have it.
    pub(super) fn short_name(&self) -> String {
        let file = Path::new(&*self.file).file_name().unwrap_or_default();
        format!("{}#{}", file.to_string_lossy(), self.id)
    }

    pub(super) fn source(&self) -> RecordKey {
        RecordKey { cassette: self.cassette, record: self.id }
    }

    /// Its line in reports.
    pub(crate) fn described(&self) -> String {
        format!("{} ({}:{}) {}", self.name(), self.file, self.line, self.record.summary())
    }

    /// File and name of its group, where it has one.
    pub(crate) fn grouped(&self) -> Option<(&str, &str)> {
        Some((&*self.file, self.group.as_deref()?))
    }

    /// Whether it has to be asked for, and is used up by it: a request that is none of the handshake.
    pub(crate) fn counts(&self) -> bool {
        let is_request = self.record.answer().is_some() || self.record.broken.is_some();
        is_request && !is_by_method(&self.record.method)
    }
}

/// Index of the records of one server.
#[derive(Debug, Default)]
pub struct RecordIndex {
    server: String,
    records: Vec<IndexedRecord>,
    /// What counts of their requests, by the same places.
    pub(crate) requests: CassetteIndex,
    /// Whether any request has secrets that were taken out.
    has_placeholders: bool,
    rules: ParamRules,
    secrets: RedactionRules,
    /// The plans by which values are put back.
    pub(super) plans: Arc<ValuePlans>,
    /// The command that records what is missing, where it is of more than this server.
    pub(super) command: Option<Arc<str>>,
    /// Bytes of what was recorded, about.
    pub(super) bytes: usize,
}

/// A record that cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct McpRecordError {
    file: String,
    line: usize,
    why: String,
}

impl RecordIndex {
    /// An index without records of a server, with these rules.
    #[must_use]
    pub fn new(server: &str, rules: ParamRules, secrets: RedactionRules) -> Self {
        Self { server: server.to_owned(), rules, secrets, ..Self::default() }
    }

    /// The same, with values put in place of placeholders by these plans.
    #[must_use]
    pub fn putting_back(self, plans: Arc<ValuePlans>) -> Self {
        Self { plans, ..self }
    }

    /// The same, whose misses name the command that records what is missing, where there is one.
    pub(crate) fn recorded_by(self, command: Option<Arc<str>>) -> Self {
        Self { command, ..self }
    }

    /// Adds the records of its server in a cassette, which has this place and name; other records are left out.
    ///
    /// # Errors
    /// When one of them is no record of an MCP server, although it looks like one.
    pub fn add(&mut self, (cassette, file): (usize, &str), records: &[CassetteRecord]) -> Result<(), McpRecordError> {
        let file: Arc<str> = file.into();
        for source in records {
            if let Some(record) = read(&file, source)?.filter(|record| record.server == self.server) {
                self.push((cassette, &file), source, record);
            }
        }
        Ok(())
    }

    /// Adds a record of its server in a cassette, which has this place and name.
    pub(super) fn push(&mut self, (cassette, file): (usize, &Arc<str>), source: &CassetteRecord, record: McpRecord) {
        let (identity, _) = self.identify_knowing(&[], &record.method, &record.params);
        self.has_placeholders = self.has_placeholders || json_has_placeholder(&record.params);
        self.requests.push(identity, true);
        let group = source.group.as_deref().map(Into::into);
        let (id, line, file) = (source.id, source.line, Arc::clone(file));
        let indexed = IndexedRecord { record, id, cassette, line, file, group };
        self.bytes += indexed.record.bytes();
        self.records.push(indexed);
    }

    /// The records that have to be asked for and were not served.
    pub(crate) fn unused(&self, was_served: impl Fn(usize) -> bool) -> Vec<UnusedRecord> {
        let left = self.records.iter().enumerate().filter(|(at, indexed)| indexed.counts() && !was_served(*at));
        let left: Vec<&IndexedRecord> = left.map(|(_, indexed)| indexed).collect();
        let requests = self.texts_without_secrets(left.iter().map(|indexed| indexed.record.summary()));
        let unused = left.into_iter().zip(requests).map(|(indexed, request)| UnusedRecord {
            cassette: indexed.file.to_string(),
            record: indexed.id,
            line: indexed.line,
            request,
        });
        unused.collect()
    }

    /// What counts of a request, without its secrets.
    pub(crate) fn identify(&self, method: &str, params: &Value) -> Identity {
        self.identify_with_secrets(method, params).0
    }

    /// What counts of a request, and its secrets: those too that only its record shows.
    pub(super) fn identify_with_secrets(&self, method: &str, params: &Value) -> (Identity, SeenSecrets) {
        let (identity, seen) = self.identify_knowing(&[], method, params);
        if !self.has_placeholders || !self.of_key(identity.key).is_empty() {
            return (identity, seen);
        }
        let named = self.requests.named_later(&identity, &seen).find_map(|secrets| {
            let named = self.identify_knowing(&secrets, method, params);
            (!self.of_key(named.0.key).is_empty()).then_some(named)
        });
        named.unwrap_or((identity, seen))
    }

    fn identify_knowing(&self, known: &[NamedSecret], method: &str, params: &Value) -> (Identity, SeenSecrets) {
        // Secrets are numbered over the whole body of a record, and found by their places in it.
        let mut body = json!({"method": method, "params": params});
        let mut redactor = Redactor::new(&self.secrets);
        known.iter().for_each(|(placeholder, value)| redactor.learn_placed(value, placeholder));
        let shown = if redactor.json(&mut body) {
            body.get_mut("params").map(Value::take).unwrap_or_default()
        } else {
            params.clone()
        };
        (self.rules.identify(&self.server, method, &shown), redactor.seen())
    }

    pub(crate) fn without_secrets(&self, mut value: Value) -> Value {
        Redactor::new(&self.secrets).json(&mut value);
        value
    }

    pub(crate) fn texts_without_secrets(&self, texts: impl Iterator<Item = String>) -> Vec<String> {
        let mut redactor = Redactor::new(&self.secrets);
        let shown = texts.map(|text| {
            redactor.begin_another();
            redactor.text(&text).unwrap_or(text)
        });
        shown.collect()
    }

    /// All records, in order.
    #[must_use]
    pub fn records(&self) -> &[IndexedRecord] {
        &self.records
    }

    /// The records of a key, in order.
    pub(crate) fn of_key(&self, key: CanonicalKey) -> &[usize] {
        self.requests.of_key(key)
    }

    pub(crate) fn first_of(&self, method: &str) -> Option<&IndexedRecord> {
        self.records.iter().find(|indexed| indexed.record.method == method)
    }

    /// The tools of all lists that were recorded, in order.
    pub(super) fn tools(&self) -> impl Iterator<Item = &Value> {
        let lists = self.records.iter().filter(|indexed| indexed.record.method == "tools/list");
        lists.filter_map(|indexed| indexed.record.answer()?.get("result")?.get("tools")?.as_array()).flatten()
    }

    /// How many sessions were recorded, as their `initialize` shows; at least one.
    pub(crate) fn sessions(&self) -> u64 {
        let begun = self.records.iter().filter(|indexed| indexed.record.method == "initialize").count();
        begun.max(1) as u64
    }

    pub(crate) fn has_method(&self, method: &str) -> bool {
        self.requests.has_route(method, &McpCall::path(&self.server))
    }

    /// The capabilities that the recorded methods need, for a server whose handshake is not recorded.
    pub(crate) fn capabilities(&self) -> Value {
        let families = [
            ("tools", "tools/"),
            ("resources", "resources/"),
            ("prompts", "prompts/"),
            ("completions", "completion/"),
            ("logging", "logging/"),
        ];
        let has = |prefix: &str| self.records.iter().any(|indexed| indexed.record.method.starts_with(prefix));
        families.into_iter().filter(|(_, prefix)| has(prefix)).map(|(name, _)| (name.to_owned(), json!({}))).collect()
    }
}

/// Reads a record of MCP; `None` for others, an error for one that only looks like one.
pub(super) fn read(file: &str, source: &CassetteRecord) -> Result<Option<McpRecord>, McpRecordError> {
    let wrong = |why| McpRecordError { file: file.to_owned(), line: source.line, why };
    McpRecord::read(source).transpose().map_err(wrong)
}

/// The servers that records are of, in order of appearance.
#[must_use]
pub fn servers(records: &[CassetteRecord]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for record in records {
        let call = record.mcp_call();
        let Some(server) = call.map(|call| call.server) else { continue };
        if !found.contains(&server) {
            found.push(server);
        }
    }
    found
}
