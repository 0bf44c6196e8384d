//! Tools that are not as they were recorded.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use base::one_line::{counted, one_line};

/// Tools of which changes are kept, and different changes of each.
const MOST_TOOLS: usize = 100;
const MOST_CHANGES: usize = 50;

/// Different changes of one tool that people are shown.
const SHOWN: usize = 20;

/// Changes of tools, by the tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolDrift(BTreeMap<String, ToolChanges>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ToolChanges {
    /// Requests in which it had any.
    requests: u64,
    /// Each different change, and in how many requests it was.
    changes: Vec<(String, u64)>,
    /// Different changes that are not kept.
    more: u64,
}

impl ToolDrift {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the changes of a tool in one request.
    pub fn note(&mut self, tool: &str, changes: impl IntoIterator<Item = String>) {
        let kept = ToolChanges { requests: 1, changes: changes.into_iter().map(|it| (it, 1)).collect(), more: 0 };
        self.add_tool(tool, kept);
    }

    /// Adds what was noted elsewhere.
    pub fn add(&mut self, other: Self) {
        other.0.into_iter().for_each(|(tool, changes)| self.add_tool(&tool, changes));
    }

    fn add_tool(&mut self, tool: &str, other: ToolChanges) {
        if self.0.len() >= MOST_TOOLS && !self.0.contains_key(tool) {
            return;
        }
        let own = self.0.entry(tool.to_owned()).or_default();
        own.requests += other.requests;
        own.more += other.more;
        for (change, requests) in other.changes {
            let has_room = own.changes.len() < MOST_CHANGES;
            match own.changes.iter_mut().find(|(known, _)| *known == change) {
                Some((_, known)) => *known += requests,
                None if has_room => own.changes.push((change, requests)),
                None => own.more += 1,
            }
        }
    }

    /// For programs: by the tool in how many requests, and what.
    pub(crate) fn json(&self) -> Value {
        let of_tool = |(tool, it): (&String, &ToolChanges)| {
            let changes: Vec<&str> = it.changes.iter().map(|(change, _)| change.as_str()).collect();
            (tool.clone(), json!({"requests": it.requests, "changes": changes}))
        };
        Value::Object(self.0.iter().map(of_tool).collect())
    }

    /// For people: a line for each change.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (tool, it) in &self.0 {
            let tool = one_line(tool);
            for (change, requests) in it.changes.iter().take(SHOWN) {
                text.push_str(&format!(
                    "  drift: tool {tool} in {}: {}\n",
                    counted(*requests, "request"),
                    one_line(change)
                ));
            }
            match it.changes.len().saturating_sub(SHOWN) as u64 + it.more {
                0 => {}
                more => text.push_str(&format!("  drift: tool {tool}: {more} more\n")),
            }
        }
        text
    }
}

/// Answers whose differences are kept.
const MOST_ANSWERS: usize = 100;

/// Comparison of answers with recorded ones.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct AnswerComparison {
    /// Answers that were compared.
    pub answers: u64,
    /// Those whose structure is another one.
    pub structure: u64,
    /// Those with other texts.
    pub text: u64,
    /// The first of them, each with its record and what differs.
    pub changes: Vec<String>,
}

impl AnswerComparison {
    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { answers, structure, text, changes } = self;
        let mut lines = format!(
            "  compared: {}, {structure} of another structure, {text} with other texts\n",
            counted(*answers, "answer")
        );
        for change in changes.iter().take(20) {
            lines.push_str(&format!("    {}\n", one_line(change)));
        }
        if changes.len() > 20 {
            lines.push_str(&format!("    and {} more\n", changes.len() - 20));
        }
        lines
    }

    /// Adds what was compared elsewhere; of answers that changed the first ones are kept.
    pub(crate) fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.structure += other.structure;
        self.text += other.text;
        let room = MOST_ANSWERS.saturating_sub(self.changes.len());
        self.changes.extend(other.changes.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_a_tool_is_a_line() {
        let mut drift = ToolDrift::default();
        for change in ["added: u0", "added: u1", "added: u1"] {
            drift.note("search", [change.to_owned()]);
        }
        let lines = "  drift: tool search in 1 request: added: u0\n  drift: tool search in 2 requests: added: u1\n";
        assert_eq!(drift.text(), lines);
        assert_eq!(drift.json(), json!({"search": {"requests": 3, "changes": ["added: u0", "added: u1"]}}));
        (0..100).for_each(|number| drift.note("search", [format!("removed: {number}")]));
        let mut both = ToolDrift::default();
        both.add(drift.clone());
        assert_eq!(both, drift);
        assert!(drift.text().ends_with("  drift: tool search: 82 more\n"), "{}", drift.text());
    }
}
