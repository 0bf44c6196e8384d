//! The differences of two canonical bodies, for people: an inserted message is one difference.

use serde_json::Value;

/// One place where two bodies differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The place, such as `$.messages[3].content`.
    pub path: String,
    /// Change, seen from the recorded body.
    pub operation: Operation,
    /// Recorded value.
    pub recorded: Option<Value>,
    /// Received value.
    pub received: Option<Value>,
    /// The first character in which two texts differ.
    pub at: Option<usize>,
}

/// Change at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is only in what was received.
    Add,
    /// It is only in what was recorded.
    Remove,
    /// It has another value.
    Replace,
}

impl Operation {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Replace => "replace",
        }
    }
}

/// Lists whose items move when one is put in.
const CONVERSATIONS: [&str; 3] = ["$.messages", "$.input", "$.tools"];

/// The differences, those of the conversation first, the others in the order of the recorded body.
#[must_use]
pub fn differences(recorded: &Value, received: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("$", recorded, received, &mut found);
    found.sort_by_key(|difference| !CONVERSATIONS.iter().take(2).any(|list| difference.path.starts_with(list)));
    found
}

/// Counts the places that differ, up to `most`.
#[must_use]
pub fn leaves(recorded: &Value, received: &Value, most: usize) -> usize {
    if recorded == received { 0 } else { differences(recorded, received).len().min(most) }
}

fn compare(path: &str, recorded: &Value, received: &Value, found: &mut Vec<Difference>) {
    match (recorded, received) {
        (a, b) if a == b => {}
        (Value::Object(a), Value::Object(b)) => {
            for (name, value) in a {
                match b.get(name) {
                    Some(other) => compare(&child(path, name), value, other, found),
                    None => found.push(one_sided(child(path, name), Operation::Remove, value)),
                }
            }
            for (name, value) in b.iter().filter(|(name, _)| !a.contains_key(*name)) {
                found.push(one_sided(child(path, name), Operation::Add, value));
            }
        }
        (Value::Array(a), Value::Array(b)) => items(path, a, b, found),
        (a, b) => found.push(Difference {
            path: path.to_owned(),
            operation: Operation::Replace,
            at: first_difference(a, b),
            recorded: Some(a.clone()),
            received: Some(b.clone()),
        }),
    }
}

/// Items at equal places are compared, after what both lists begin with and, in a conversation, before what both end with.
fn items(path: &str, recorded: &[Value], received: &[Value], found: &mut Vec<Difference>) {
    let before = recorded.iter().zip(received).take_while(|(a, b)| a == b).count();
    let (a, b) = (recorded.get(before..).unwrap_or_default(), received.get(before..).unwrap_or_default());
    let after = if CONVERSATIONS.contains(&path) && a.len() != b.len() {
        a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
    } else {
        0
    };
    let a = a.get(..a.len() - after).unwrap_or_default();
    let b = b.get(..b.len() - after).unwrap_or_default();
    let place = |at: usize| format!("{path}[{}]", before + at);
    for (at, (a, b)) in a.iter().zip(b).enumerate() {
        compare(&place(at), a, b, found);
    }
    let both = a.len().min(b.len());
    for (at, value) in a.iter().enumerate().skip(both) {
        found.push(one_sided(place(at), Operation::Remove, value));
    }
    for (at, value) in b.iter().enumerate().skip(both) {
        found.push(one_sided(place(at), Operation::Add, value));
    }
}

fn one_sided(path: String, operation: Operation, value: &Value) -> Difference {
    let (recorded, received) = match operation {
        Operation::Add => (None, Some(value.clone())),
        Operation::Remove | Operation::Replace => (Some(value.clone()), None),
    };
    Difference { path, operation, recorded, received, at: None }
}

fn child(path: &str, name: &str) -> String {
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_word { format!("{path}.{name}") } else { format!("{path}[{}]", Value::from(name)) }
}

fn first_difference(a: &Value, b: &Value) -> Option<usize> {
    let (a, b) = (a.as_str()?, b.as_str()?);
    Some(a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count())
}
