//! Events of a stream: what each of them is for, and their order.

use serde_json::{Value, json};

use super::shape::{ShapeDifferences, compare};
use crate::net::wire::SseSplitter;
use bytes::Bytes;

/// An event: what it is for, and its JSON where it has any.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StreamedEvent {
    pub(super) role: String,
    pub(super) data: Value,
}

const DELTA: &str = "/choices/0/delta";

impl StreamedEvent {
    /// Returns true for an event of a token that is a part of a character, or ends the answer.
    fn is_without_text(&self) -> bool {
        self.data.pointer(DELTA).is_some_and(|delta| *delta == json!({}))
    }
}

pub(super) fn events(body: &Bytes) -> Vec<StreamedEvent> {
    let mut splitter = SseSplitter::default();
    splitter.push(body.clone());
    let mut found = Vec::new();
    while let Some(event) = splitter.next_event() {
        let Some(data) = event.data() else { continue };
        let name = event.name().map(|name| String::from_utf8_lossy(name).into_owned());
        let is_done = &*data == b"[DONE]";
        let data: Value = serde_json::from_slice(&data).unwrap_or_default();
        let role = match name {
            Some(name) => name,
            None if is_done => "[DONE]".to_owned(),
            None => role(&data).to_owned(),
        };
        found.push(StreamedEvent { role, data });
    }
    found
}

/// What an event without a name is for.
fn role(data: &Value) -> &'static str {
    let has = |pointer: &str| data.pointer(pointer).is_some_and(|value| !value.is_null());
    match data.get("choices").and_then(Value::as_array) {
        Some(choices) if choices.is_empty() && has("/usage") => "usage",
        Some(_) if has("/choices/0/finish_reason") => "finish",
        Some(_) if has("/choices/0/delta/role") => "role",
        Some(_) => "text",
        None if has("/error") => "error",
        None => "other",
    }
}

/// Compares the order of events, and of each kind the first one, with text where one has it.
pub(super) fn compare_events(recorded: &[StreamedEvent], received: &[StreamedEvent], found: &mut ShapeDifferences) {
    let (expected, order) = (order(recorded), order(received));
    if expected != order {
        found.add("events", format!("come as {}; {} was recorded", order.join(", "), expected.join(", ")));
    }
    let mut seen: Vec<&str> = Vec::new();
    for event in recorded {
        if seen.contains(&event.role.as_str()) {
            continue;
        }
        seen.push(&event.role);
        let mut others: Vec<&StreamedEvent> = received.iter().filter(|other| other.role == event.role).collect();
        others.sort_by_key(|other| other.is_without_text());
        let Some(mut other) = others.first().copied().cloned() else { continue };
        if event.role == "finish"
            && other.is_without_text()
            && let (Some(delta), Some(recorded)) = (other.data.pointer_mut(DELTA), event.data.pointer(DELTA))
        {
            delta.clone_from(recorded);
        }
        compare(&format!("{}: $", event.role), &event.data, &other.data, found);
    }
}

/// The kinds of events in their order; those that follow each other count once.
fn order(events: &[StreamedEvent]) -> Vec<&str> {
    let mut order: Vec<&str> = events.iter().map(|event| event.role.as_str()).collect();
    order.dedup();
    order
}
