//! Files of answers (`--answers`): rules before everything else that is served, through the running program.

mod checks;
mod conditions;
mod reload;
mod replies;
mod semantic;
mod sources;
mod verdicts;

use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) use crate::support::{
    CHAT,
    cassettes::{chat, said, streamed},
    client::Answer,
    running::{Running, vcr},
};

/// A folder with a file of answers.
struct Rules {
    folder: TempDir,
    file: String,
}

impl Rules {
    /// A file of these records.
    fn new(records: &str) -> Self {
        Self::with(&format!("records:\n{records}"))
    }

    fn with(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answers.yaml").to_str().unwrap().to_owned();
        std::fs::write(&file, text).unwrap();
        Self { folder, file }
    }

    fn play(&self, flags: &[&str]) -> Running {
        Running::start(&[&["play", "--port", "0", "--answers", &self.file], flags].concat())
    }
}

/// A chat of one message of the user, with more fields.
fn asked(words: &str, more: &Value) -> Value {
    let mut body = chat(&[words]);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A tool that is offered.
fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}})
}

/// The data of a stream's events that are JSON.
fn data(answer: &Answer) -> Vec<Value> {
    let lines = answer.events().into_iter().flat_map(|event| event.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}
