//! Secrets in what is recorded, compared and shown.

use serde_json::Value;

use crate::{
    cassette::{Cassette, Content, Moment, Record, Side},
    redaction::{Redactor, Rules},
};

/// Takes the secrets out of a record. Where there were any, what else could spell them goes too: bytes as they came, and the data of
/// events, of which the times stay. True where anything was found.
pub(super) fn redact(rules: &Rules, record: &mut Record, side: &mut Side) -> bool {
    let mut redactor = Redactor::new(rules);
    redactor.json(&mut record.body);
    redact_path(&mut redactor, rules, &mut record.path);
    redact_answer(&mut redactor, record);
    let mut head = Value::Object(std::mem::take(&mut side.head));
    redactor.json(&mut head);
    if let Value::Object(head) = head {
        side.head = head;
    }
    // What the parts say together was searched above; a copy may say more.
    let copies = side.body.iter().chain(side.events.iter().filter_map(|Moment(_, data, _)| data.as_ref()));
    let found = copies.fold(redactor.found_any(), |found, copy| redactor.json_text(copy).is_some() || found);
    if found {
        side.body = None;
        side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
    }
    found
}

fn redact_answer(redactor: &mut Redactor<'_>, record: &mut Record) {
    for (name, value) in &mut record.answer.headers {
        if let Some(redacted) = redactor.header(name, value) {
            *value = redacted;
        }
    }
    match &mut record.answer.content {
        Content::Said { choices, .. } => {
            for choice in choices {
                let mut whole = Value::Object(std::mem::take(choice));
                redactor.json(&mut whole);
                if let Value::Object(whole) = whole {
                    *choice = whole;
                }
            }
        }
        Content::Json(value) => drop(redactor.json(value)),
        Content::Text(text) => *text = redactor.text(text).unwrap_or_else(|| std::mem::take(text)),
        Content::Events(events) => redact_events(redactor, events),
        Content::Bytes(_) | Content::Empty => {}
    }
}

/// Events of a kind that nobody knows: each is searched, and so are their texts as one.
fn redact_events(redactor: &mut Redactor<'_>, events: &mut [crate::cassette::SseEvent]) {
    for event in events.iter_mut() {
        redactor.json(&mut event.data);
    }
    let mut texts: Vec<String> = Vec::new();
    events.iter_mut().for_each(|event| texts_of(&mut event.data, &mut |text| texts.push(text.clone())));
    if redactor.pieces(&mut texts) {
        let mut redacted = texts.into_iter();
        let mut put = |text: &mut String| text.clone_from(&redacted.next().unwrap_or_default());
        events.iter_mut().for_each(|event| texts_of(&mut event.data, &mut put));
    }
}

fn texts_of(value: &mut Value, show: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => show(text),
        Value::Array(items) => items.iter_mut().for_each(|item| texts_of(item, show)),
        Value::Object(map) => map.values_mut().for_each(|value| texts_of(value, show)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A path with its query.
fn redact_path(redactor: &mut Redactor<'_>, rules: &Rules, path: &mut String) {
    if let Some((route, query)) = path.split_once('?') {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if rules.is_secret_key(name) => format!("{name}=REDACTED"),
            _ => pair.to_owned(),
        });
        *path = format!("{route}?{}", pairs.collect::<Vec<_>>().join("&"));
    }
    if let Some(redacted) = redactor.text(path) {
        *path = redacted;
    }
}

/// A request's path and body as they are compared and shown.
pub(super) fn shown(rules: &Rules, path: &str, body: &Value) -> (String, Value) {
    let (mut path, mut body) = (path.to_owned(), body.clone());
    let mut redactor = Redactor::new(rules);
    redactor.json(&mut body);
    redact_path(&mut redactor, rules, &mut path);
    (path, body)
}

/// The secrets that a cassette holds, each as `file:line: what`.
#[must_use]
pub fn secrets(rules: &Rules, cassette: &Cassette) -> Vec<String> {
    let mut found = Vec::new();
    for record in &cassette.records {
        let mut redactor = Redactor::new(rules);
        let mut copy = record.clone();
        redactor.json(&mut copy.body);
        redact_path(&mut redactor, rules, &mut copy.path);
        redact_answer(&mut redactor, &mut copy);
        let name = |place: String| if place.is_empty() { String::new() } else { format!(" at {place}") };
        let line = |find: crate::redaction::Find| {
            format!("{}:{}: {} ({}){}", cassette.path.display(), record.line, find.kind, find.example, name(find.place))
        };
        found.extend(redactor.take_finds().into_iter().map(line));
    }
    found
}

/// The cassette without its secrets: what `cassette redact` writes.
pub fn redact_cassette(rules: &Rules, cassette: &mut Cassette) -> usize {
    let mut changed = 0;
    for record in &mut cassette.records {
        let mut side = record.side.take().unwrap_or_default();
        let had = side != Side::default();
        let was_recorded = side.answer == record.answer.fingerprint();
        if redact(rules, record, &mut side) {
            changed += 1;
            if was_recorded {
                side.answer = record.answer.fingerprint();
            }
        }
        record.side = had.then_some(side);
    }
    changed
}
