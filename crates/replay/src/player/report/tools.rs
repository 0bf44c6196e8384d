//! The tools of requests, as they were recorded and as they are sent now. Matching does not look at the prose in their schemas;
//! a report describes it.

use serde_json::{Map, Value};

use crate::{
    account::ToolDrift,
    player::{CassettePlayer, incoming::IncomingRequest, secrets},
};
use base::one_line::clipped;
use recording::{
    canonical::{BodyDifference, Operation, differences},
    redaction::Redactor,
};

/// Changes of a tool that are noted of one request.
const MOST_CHANGES: usize = 8;

/// The longest excerpt of a value.
const LONGEST: usize = 80;

/// Notes what two lists of tools do not have in common.
fn note(drift: &mut ToolDrift, recorded: Option<&Value>, sent: Option<&Value>) {
    if recorded == sent {
        return;
    }
    let (recorded, sent) = (by_name(recorded), by_name(sent));
    for name in recorded.keys().chain(sent.keys().filter(|name| !recorded.contains_key(*name))) {
        let changes = match (recorded.get(name), sent.get(name)) {
            (Some(recorded), Some(sent)) if recorded == sent => continue,
            (Some(recorded), Some(sent)) => {
                differences(recorded, sent).iter().take(MOST_CHANGES).map(describe).collect()
            }
            (Some(_), None) => vec!["is no longer sent".to_owned()],
            (None, _) => vec!["was not recorded".to_owned()],
        };
        drift.note(name, changes);
    }
}

impl CassettePlayer {
    pub(crate) fn note_tools(&self, request: &IncomingRequest, record: usize) {
        let Some((_, record)) = self.records.get(record) else { return };
        if record.body.get("tools") == request.shown.get("tools") {
            return;
        }
        let mut tools = Map::new();
        tools.extend(record.body.get("tools").map(|recorded| ("tools".to_owned(), recorded.clone())));
        let recorded =
            secrets::shown_body(&mut Redactor::new(&self.config.secrets), &Value::from(tools).into(), None).0;
        let (recorded, sent) = (recorded.get("tools"), request.shown.get("tools"));
        self.in_session(&request.session, |state| note(&mut state.counts.tools, recorded, sent));
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

fn describe(difference: &BodyDifference) -> String {
    let value = |value: &Option<Value>| clipped(&value.as_ref().map(Value::to_string).unwrap_or_default(), LONGEST);
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
        note(&mut drift, Some(&recorded), Some(&recorded));
        note(&mut drift, None, None);
        assert!(drift.is_empty());
        note(&mut drift, Some(&recorded), Some(&json!([tool("b", "two"), tool("a", "1"), tool("c", "x")])));
        note(&mut drift, Some(&recorded), None);
        let shown = drift.json();
        let changes = json!([r#"$.description: "one" -> "1""#, "is no longer sent"]);
        assert_eq!(shown["a"], json!({"requests": 2, "changes": changes}));
        assert_eq!(shown["b"], json!({"requests": 1, "changes": ["is no longer sent"]}));
        assert_eq!(shown["c"], json!({"requests": 1, "changes": ["was not recorded"]}));
    }
}
