//! The records of one server, found by method and canonical parameters.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::params::{ParamKey, ParamRules, is_by_method};
use crate::{
    recording::cassette::Record,
    recording::mcp::McpRecord,
    recording::redaction::{Redactor, Rules},
};

/// A record and its place.
#[derive(Debug, Clone)]
pub struct Taped {
    /// The record.
    pub record: McpRecord,
    /// Its number in its file.
    pub id: u64,
    /// Its line there, from 1.
    pub line: usize,
    /// Its file.
    pub file: String,
    /// What counts of its request.
    pub canonical: Value,
    /// The hash of that.
    pub key: ParamKey,
}

impl Taped {
    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}#{}", self.file, self.id)
    }

    /// Its line in reports.
    #[must_use]
    pub fn described(&self) -> String {
        format!("{} ({}:{}) {}", self.name(), self.file, self.line, self.record.summary())
    }

    /// Whether it has to be asked for, and is used up by it: a request that is none of the handshake.
    #[must_use]
    pub fn counts(&self) -> bool {
        let is_request = self.record.answer().is_some() || self.record.broken.is_some();
        is_request && !is_by_method(&self.record.method)
    }
}

/// Index of the records of one server.
#[derive(Debug, Default)]
pub struct Tape {
    records: Vec<Taped>,
    by_key: HashMap<ParamKey, Vec<usize>>,
    methods: HashSet<String>,
    rules: ParamRules,
    secrets: Rules,
}

/// A record that cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct TapeError {
    file: String,
    line: usize,
    why: String,
}

impl Tape {
    /// An index without records, with these rules.
    #[must_use]
    pub fn new(rules: ParamRules, secrets: Rules) -> Self {
        Self { rules, secrets, ..Self::default() }
    }

    /// Adds the records of a server; other records are left out.
    ///
    /// # Errors
    /// When one of them is no record of an MCP server, although it looks like one.
    pub fn add(&mut self, file: &str, server: &str, records: &[Record]) -> Result<(), TapeError> {
        for record in records {
            let Some(read) = McpRecord::read(record) else { continue };
            let (id, line) = (record.id, record.line);
            let read = read.map_err(|why| TapeError { file: file.to_owned(), line, why })?;
            if read.server == server {
                self.push(read, id, line, file);
            }
        }
        Ok(())
    }

    fn push(&mut self, record: McpRecord, id: u64, line: usize, file: &str) {
        let (canonical, key) = self.identify(&record.method, &record.params);
        self.by_key.entry(key).or_default().push(self.records.len());
        self.methods.insert(record.method.clone());
        self.records.push(Taped { record, id, line, file: file.to_owned(), canonical, key });
    }

    /// What counts of a request, without its secrets, and the hash of that.
    #[must_use]
    pub fn identify(&self, method: &str, params: &Value) -> (Value, ParamKey) {
        let shown = self.shown(method, params);
        let canonical = self.rules.canonical(method, &shown);
        let key = ParamRules::key(&canonical);
        (canonical, key)
    }

    /// Parameters without their secrets: as a record of them would have them.
    fn shown(&self, method: &str, params: &Value) -> Value {
        // Secrets are numbered over the whole body of a record, and found by their places in it.
        let mut body = json!({"method": method, "params": params});
        if Redactor::new(&self.secrets).json(&mut body) {
            body.get_mut("params").map(Value::take).unwrap_or_default()
        } else {
            params.clone()
        }
    }

    /// A value without its secrets.
    #[must_use]
    pub fn without_secrets(&self, mut value: Value) -> Value {
        Redactor::new(&self.secrets).json(&mut value);
        value
    }

    /// A text without its secrets.
    #[must_use]
    pub fn text_without_secrets(&self, text: &str) -> String {
        Redactor::new(&self.secrets).text(text).unwrap_or_else(|| text.to_owned())
    }

    /// All records, in order.
    #[must_use]
    pub fn records(&self) -> &[Taped] {
        &self.records
    }

    /// The records of a key, in order.
    #[must_use]
    pub fn of_key(&self, key: ParamKey) -> &[usize] {
        self.by_key.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The first record of a method.
    #[must_use]
    pub fn first_of(&self, method: &str) -> Option<&Taped> {
        self.records.iter().find(|taped| taped.record.method == method)
    }

    /// Whether any record has this method.
    #[must_use]
    pub fn has_method(&self, method: &str) -> bool {
        self.methods.contains(method)
    }

    /// The capabilities that the recorded methods need, for a server whose handshake is not recorded.
    #[must_use]
    pub fn capabilities(&self) -> Value {
        let families = [
            ("tools", "tools/"),
            ("resources", "resources/"),
            ("prompts", "prompts/"),
            ("completions", "completion/"),
            ("logging", "logging/"),
        ];
        let has = |prefix: &str| self.methods.iter().any(|method| method.starts_with(prefix));
        families.into_iter().filter(|(_, prefix)| has(prefix)).map(|(name, _)| (name.to_owned(), json!({}))).collect()
    }
}

/// The servers that records are of, in order of appearance.
#[must_use]
pub fn servers(records: &[Record]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for record in records {
        let call = crate::recording::canonical::McpCall::of(&record.method, &record.path, record.body.fields());
        let Some(server) = call.map(|call| call.server) else { continue };
        if !found.contains(&server) {
            found.push(server);
        }
    }
    found
}
