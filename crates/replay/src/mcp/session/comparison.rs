//! Messages that the real server answered, beside their records (`--mode compare`).

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Map;

use super::Session;
use crate::{
    account::{Compared, ToolDrift},
    mcp::{params::is_by_method, tool_changes::tool_changes},
};
use recording::{canonical::Identity, mcp::McpRecord};

/// Answers whose differences are kept.
const MOST_CHANGED: usize = 100;

/// What was compared.
#[derive(Debug, Default)]
pub(in crate::mcp) struct Comparison {
    pub(in crate::mcp) answers: Option<Compared>,
    /// Tools that are not as they were recorded, of each list.
    pub(in crate::mcp) tools: ToolDrift,
}

impl Session {
    /// Takes a message with what the real server answered, and compares it with the record of the message by `compare`.
    pub(in crate::mcp) fn compare(&mut self, now: &McpRecord, compare: impl FnOnce(&str, &McpRecord) -> Compared) {
        let (method, index) = (now.method.as_str(), Arc::clone(&self.index));
        if method == "ping" {
            return;
        }
        let identity = index.identify(method, &now.params);
        let key = identity.key;
        let is_handshake = is_by_method(method);
        let found = if is_handshake { index.of_key(key).first().copied() } else { self.consumption.next(&index, key) };
        let is_request = !method.starts_with("notifications/");
        self.account.requests += u64::from(is_request && !is_handshake);
        let Some((at, recorded)) = found.and_then(|at| Some((at, &index.records().get(at)?.record))) else {
            if is_request && !is_handshake {
                self.note_new(method, &identity);
            }
            return;
        };
        self.consumption.serve(at, self.account.requests);
        if !is_request {
            return;
        }
        let indexed = index.records().get(at);
        let name = indexed.map(|indexed| indexed.name()).unwrap_or_default();
        let described =
            indexed.map(|indexed| format!("{} (line {})", indexed.name(), indexed.line)).unwrap_or_default();
        self.note(&identity.fields, "compared", [("record".to_owned(), name.into())].into_iter().collect());
        if method == "tools/list" {
            self.note_tools(recorded, now);
        }
        let mut compared = compare(&described, recorded);
        let answers = self.account.comparison.answers.get_or_insert_default();
        if answers.changes.len() >= MOST_CHANGED {
            compared.changes.clear();
        }
        answers.add(compared);
    }

    /// Counts a request that is not in the recording, or less often.
    fn note_new(&mut self, method: &str, identity: &Identity) {
        let index = Arc::clone(&self.index);
        let miss = self.explain(&index, method, identity, self.why(identity, true));
        let (reason, detail) = (miss.reason(), miss.detail());
        self.account.novel.keep(detail);
        *self.account.misses.entry(reason).or_default() += 1;
        self.note(
            &identity.fields,
            "forwarded",
            [("reason".to_owned(), reason.into())].into_iter().collect::<Map<_, _>>(),
        );
    }

    fn note_tools(&mut self, recorded: &McpRecord, now: &McpRecord) {
        let result = |record: &McpRecord| record.answer().and_then(|answer| answer.get("result").cloned());
        let (Some(recorded), Some(now)) = (result(recorded), result(now)) else { return };
        let mut changes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for change in tool_changes(&self.index.without_secrets(recorded), &self.index.without_secrets(now)) {
            changes.entry(change.tool.clone()).or_default().push(change.to_string());
        }
        let kept = &mut self.account.comparison.tools;
        changes.into_iter().for_each(|(tool, changes)| kept.note(&tool, changes));
    }
}
