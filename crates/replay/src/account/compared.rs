//! Comparison of answers with recorded ones, as reports show it.

use serde_json::{Value, json};

use base::one_line::one_line;

/// Comparison of answers with recorded ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compared {
    /// Answers that were compared.
    pub answers: u64,
    /// Those whose structure is another one.
    pub structure: u64,
    /// Those with other texts.
    pub text: u64,
    /// The first of them, each with its record and what differs.
    pub changes: Vec<String>,
}

impl Compared {
    /// For programs.
    pub(super) fn json(&self) -> Value {
        json!({"answers": self.answers, "structure": self.structure, "text": self.text, "changes": self.changes})
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { answers, structure, text, changes } = self;
        let mut lines =
            format!("  compared: {answers} answers, {structure} of another structure, {text} with other texts\n");
        for change in changes.iter().take(20) {
            lines.push_str(&format!("    {}\n", one_line(change)));
        }
        if changes.len() > 20 {
            lines.push_str(&format!("    and {} more\n", changes.len() - 20));
        }
        lines
    }

    /// Adds what was compared elsewhere.
    pub fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.structure += other.structure;
        self.text += other.text;
        self.changes.extend(other.changes);
    }
}
