//! Messages that the real server answered, beside their records (`--mode compare`).

use std::{collections::BTreeMap, sync::Arc};

use super::McpSession;
use crate::{
    account::AnswerComparison,
    mcp::{params::is_by_method, tool_changes::tool_changes},
};
use recording::mcp::McpRecord;

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
