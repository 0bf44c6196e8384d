//! The differences of two canonical bodies, for people: an inserted message is one difference.

use std::ops::Range;

use serde_json::Value;

use super::align::changed;

/// One place where two bodies differ.
#[derive(Debug, Clone, PartialEq)]
pub struct BodyDifference {
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

base::named! {
    /// Change at a place.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Operation {
        /// It is only in what was received.
        Add = "add",
        /// It is only in what was recorded.
        Remove = "remove",
        /// It has another value.
        Replace = "replace",
    }
}

/// Lists whose items move when one is put in.
const CONVERSATIONS: [&str; 3] = ["$.messages", "$.input", "$.tools"];

/// The differences, those of the conversation first, the others in the order of the recorded body.
#[must_use]
pub fn differences(recorded: &Value, received: &Value) -> Vec<BodyDifference> {
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

fn compare(path: &str, recorded: &Value, received: &Value, found: &mut Vec<BodyDifference>) {
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
        (a, b) => found.push(BodyDifference {
            path: path.to_owned(),
            operation: Operation::Replace,
            at: first_difference(a, b),
            recorded: Some(a.clone()),
            received: Some(b.clone()),
        }),
    }
}

/// Items at equal places are compared; in a conversation those between what both lists have in common.
fn items(path: &str, recorded: &[Value], received: &[Value], found: &mut Vec<BodyDifference>) {
    if CONVERSATIONS.contains(&path) {
        changed(recorded, received).into_iter().for_each(|gap| gap_items(path, (recorded, received), gap, found));
        return;
    }
    for (at, (a, b)) in recorded.iter().zip(received).enumerate() {
        compare(&format!("{path}[{at}]"), a, b, found);
    }
    let both = recorded.len().min(received.len());
    for (at, value) in recorded.iter().enumerate().skip(both) {
        found.push(one_sided(format!("{path}[{at}]"), Operation::Remove, value));
    }
    for (at, value) in received.iter().enumerate().skip(both) {
        found.push(one_sided(format!("{path}[{at}]"), Operation::Add, value));
    }
}

/// Compares the items of two lists in ranges without a common item: one by one where there are as many, else each with the next one
/// of its kind, and what is left over is on one side only. A place is that in the recorded list; that of an added item in the
/// received one.
fn gap_items(
    path: &str,
    (recorded, received): (&[Value], &[Value]),
    (gone, new): (Range<usize>, Range<usize>),
    found: &mut Vec<BodyDifference>,
) {
    let (is_even, mut next) = (gone.len() == new.len(), new.start);
    for at in gone {
        let Some(item) = recorded.get(at) else { continue };
        let left = received.get(next..new.end).unwrap_or_default();
        let partner = left.iter().position(|other| is_even || kind(other) == kind(item)).map(|place| next + place);
        let Some(partner) = partner else {
            found.push(one_sided(format!("{path}[{at}]"), Operation::Remove, item));
            continue;
        };
        added(path, received, next..partner, found);
        received.get(partner).into_iter().for_each(|other| compare(&format!("{path}[{at}]"), item, other, found));
        next = partner + 1;
    }
    added(path, received, next..new.end, found);
}

fn added(path: &str, received: &[Value], places: Range<usize>, found: &mut Vec<BodyDifference>) {
    let items = places.filter_map(|at| Some((at, received.get(at)?)));
    found.extend(items.map(|(at, item)| one_sided(format!("{path}[{at}]"), Operation::Add, item)));
}

/// The kind of an item: role and type of a message, name of a tool.
fn kind(item: &Value) -> [Option<&str>; 3] {
    let function = item.get("function").unwrap_or(item);
    [item.get("role"), item.get("type"), function.get("name")].map(|value| value.and_then(Value::as_str))
}

fn one_sided(path: String, operation: Operation, value: &Value) -> BodyDifference {
    let (recorded, received) = match operation {
        Operation::Add => (None, Some(value.clone())),
        Operation::Remove | Operation::Replace => (Some(value.clone()), None),
    };
    BodyDifference { path, operation, recorded, received, at: None }
}

fn child(path: &str, name: &str) -> String {
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_word { format!("{path}.{name}") } else { format!("{path}[{}]", Value::from(name)) }
}

fn first_difference(a: &Value, b: &Value) -> Option<usize> {
    let (a, b) = (a.as_str()?, b.as_str()?);
    Some(a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count())
}
