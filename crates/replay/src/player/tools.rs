//! The tools of requests, as they were recorded and as they are sent now. Matching does not look at the prose in their schemas;
//! a report describes it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{CassettePlayer, request::IncomingRequest, secrets};
use crate::{
    recording::canonical::{Difference, Operation, differences},
    recording::redaction::Redactor,
};

/// Tools of which changes are kept, and changes of each.
const MOST_TOOLS: usize = 100;
const MOST_CHANGES: usize = 8;

/// The longest excerpt of a value.
const LONGEST: usize = 80;

/// Changes by tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ToolDrift(BTreeMap<String, ToolChange>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ToolChange {
    /// Requests in which it was so.
    requests: u64,
    /// What was first seen.
    changes: Vec<String>,
}

impl ToolDrift {
    /// Notes what two lists of tools do not have in common.
    pub(super) fn note(&mut self, recorded: Option<&Value>, sent: Option<&Value>) {
        if recorded == sent {
            return;
        }
        let (recorded, sent) = (by_name(recorded), by_name(sent));
        let names: Vec<&String> =
            recorded.keys().chain(sent.keys().filter(|name| !recorded.contains_key(*name))).collect();
        for name in names {
            let changes = match (recorded.get(name), sent.get(name)) {
                (Some(recorded), Some(sent)) if recorded == sent => continue,
                (Some(recorded), Some(sent)) => {
                    differences(recorded, sent).iter().take(MOST_CHANGES).map(describe).collect()
                }
                (Some(_), None) => vec!["is no longer sent".to_owned()],
                (None, _) => vec!["was not recorded".to_owned()],
            };
            if self.0.len() < MOST_TOOLS || self.0.contains_key(name) {
                let kept = self.0.entry(name.clone()).or_insert_with(|| ToolChange { requests: 0, changes });
                kept.requests += 1;
            }
        }
    }

    /// By the tool: in how many requests, and what.
    pub(super) fn shown(&self) -> BTreeMap<String, (u64, Vec<String>)> {
        self.0.iter().map(|(name, change)| (name.clone(), (change.requests, change.changes.clone()))).collect()
    }
}

impl CassettePlayer {
    /// Notes what became of a record's tools.
    pub(super) fn note_tools(&self, asked: &IncomingRequest, record: usize) {
        let Some((_, record)) = self.records.get(record) else { return };
        if record.body.get("tools") == asked.shown.get("tools") {
            return;
        }
        let mut tools = Map::new();
        tools.extend(record.body.get("tools").map(|recorded| ("tools".to_owned(), recorded.clone())));
        let recorded =
            secrets::shown_body(&mut Redactor::new(&self.config.secrets), &Value::from(tools).into(), None).0;
        let mut sessions = self.lock();
        let state = sessions.entry(asked.session.clone()).or_default();
        state.tools.note(recorded.get("tools"), asked.shown.get("tools"));
    }
}

/// Tools by their names; those of one name by their order too.
fn by_name(tools: Option<&Value>) -> Map<String, Value> {
    let mut named = Map::new();
    for (at, tool) in tools.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let plain = tool.get("function").unwrap_or(tool);
        let name = plain.get("name").and_then(Value::as_str).map_or_else(|| format!("tools[{at}]"), str::to_owned);
        let name = if named.contains_key(&name) { format!("{name} ({at})") } else { name };
        named.insert(name, plain.clone());
    }
    named
}

fn describe(difference: &Difference) -> String {
    let value = |value: &Option<Value>| {
        let text = value.as_ref().map(Value::to_string).unwrap_or_default();
        let short: String = text.chars().take(LONGEST).collect();
        if short.len() < text.len() { short + "…" } else { short }
    };
    let (recorded, received) = (value(&difference.recorded), value(&difference.received));
    match difference.operation {
        Operation::Add => format!("{}: {received} is new", difference.path),
        Operation::Remove => format!("{}: {recorded} is gone", difference.path),
        Operation::Replace => format!("{}: {recorded} -> {received}", difference.path),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_listed_by_tool() {
        let tool =
            |name: &str, text: &str| json!({"type": "function", "function": {"name": name, "description": text}});
        let mut drift = ToolDrift::default();
        let recorded = json!([tool("a", "one"), tool("b", "two")]);
        drift.note(Some(&recorded), Some(&recorded));
        drift.note(None, None);
        assert!(drift.shown().is_empty());
        drift.note(Some(&recorded), Some(&json!([tool("b", "two"), tool("a", "1"), tool("c", "x")])));
        drift.note(Some(&recorded), None);
        let shown = drift.shown();
        assert_eq!(shown["a"], (2, vec![r#"$.description: "one" -> "1""#.to_owned()]));
        assert_eq!(shown["b"], (1, vec!["is no longer sent".to_owned()]));
        assert_eq!(shown["c"], (1, vec!["was not recorded".to_owned()]));
    }
}
