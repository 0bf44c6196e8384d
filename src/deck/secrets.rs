//! Secrets in what is recorded, compared and shown.

use std::{collections::HashMap, path::Path};

use serde_json::Value;

use crate::{
    cassette::{Cassette, Content, Moment, Record, Side, SseEvent, named_bytes},
    redaction::{Find, Redactor, Rules},
    wire::percent_decoded,
};

/// Takes the secrets out of a record. Where there were any, what else could spell them goes too: bytes as they came, and the data of
/// events, of which the times stay. True where anything was found.
pub(super) fn redact(rules: &Rules, record: &mut Record, side: &mut Side) -> bool {
    let mut redactor = Redactor::new(rules);
    redactor.json(&mut record.body);
    record.raw.iter_mut().for_each(|raw| redact_bytes(&mut redactor, raw));
    redact_path(&mut redactor, &mut record.path);
    record.headers = headers_by(&mut redactor, std::mem::take(&mut record.headers));
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
    record.answer.headers = headers_by(redactor, std::mem::take(&mut record.answer.headers));
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
        Content::Bytes(bytes) => redact_bytes(redactor, bytes),
        Content::Empty => {}
    }
}

fn redact_bytes(redactor: &mut Redactor<'_>, bytes: &mut Vec<u8>) {
    redactor.bytes(bytes).into_iter().for_each(|redacted| *bytes = redacted);
}

/// Events of a kind that nobody knows: the texts at each place of them are searched as one, since a secret may be cut over several,
/// and then each for itself.
fn redact_events(redactor: &mut Redactor<'_>, events: &mut [SseEvent]) {
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    let mut place_of: HashMap<String, usize> = HashMap::new();
    for event in events.iter_mut() {
        texts_of(&mut event.data, "$", &mut |place, text| {
            let at = *place_of.entry(place.to_owned()).or_insert(places.len());
            if at == places.len() {
                places.push((place.to_owned(), Vec::new()));
            }
            places.get_mut(at).into_iter().for_each(|(_, texts)| texts.push(text.clone()));
        });
    }
    for (place, texts) in &mut places {
        if place.ends_with("arguments") || place.ends_with("partial_json") || place.ends_with("delta") {
            redactor.json_pieces(texts);
        }
        redactor.pieces(texts);
    }
    let mut redacted: Vec<_> = places.into_iter().map(|(_, texts)| texts.into_iter()).collect();
    for event in events.iter_mut() {
        texts_of(&mut event.data, "$", &mut |place, text| {
            let next = place_of.get(place).and_then(|at| redacted.get_mut(*at)?.next());
            next.into_iter().for_each(|next| *text = next);
        });
        // Not before: the start of a key over several events would be taken for all of it.
        redactor.json(&mut event.data);
    }
}

/// Shows every text with its place. What has an index of its own (choices, calls, blocks) is a place of its own.
fn texts_of(value: &mut Value, place: &str, show: &mut dyn FnMut(&str, &mut String)) {
    match value {
        Value::String(text) => show(place, text),
        Value::Array(items) => items.iter_mut().for_each(|item| texts_of(item, &format!("{place}[]"), show)),
        Value::Object(map) => {
            let indices = ["index", "output_index", "content_index"].iter().filter_map(|name| map.get(*name)?.as_u64());
            let place: String = indices.fold(place.to_owned(), |place, index| format!("{place}#{index}"));
            map.iter_mut().for_each(|(name, value)| texts_of(value, &format!("{place}.{name}"), show));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A path with its query.
fn redact_path(redactor: &mut Redactor<'_>, path: &mut String) {
    if let Some((route, query)) = path.split_once('?') {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) => match redactor.header(&percent_decoded(name), &percent_decoded(value)) {
                Some(redacted) => format!("{name}={redacted}"),
                None => pair.to_owned(),
            },
            _ => pair.to_owned(),
        });
        *path = format!("{route}?{}", pairs.collect::<Vec<_>>().join("&"));
    }
    let redacted = redactor.text(&percent_decoded(path));
    redacted.into_iter().for_each(|redacted| *path = redacted);
}

/// A request's path and body as they are compared and shown.
pub(super) fn shown(rules: &Rules, path: &str, body: &Value) -> (String, Value) {
    shown_by(&mut Redactor::new(rules), path, body)
}

/// As [`shown`], by a redactor that can be asked what it found.
pub(super) fn shown_by(redactor: &mut Redactor<'_>, path: &str, body: &Value) -> (String, Value) {
    let (mut path, mut body) = (path.to_owned(), body.clone());
    redactor.json(&mut body);
    redact_path(redactor, &mut path);
    (path, body)
}

/// Bytes as they are compared and shown: the name of what is left of them without their secrets.
pub(super) fn shown_bytes(redactor: &mut Redactor<'_>, bytes: &[u8]) -> Value {
    named_bytes(redactor.bytes(bytes).as_deref().unwrap_or(bytes))
}

/// A record's request as it is shown.
pub(super) fn shown_record(rules: &Rules, record: &Record) -> Value {
    match &record.raw {
        Some(raw) => shown_bytes(&mut Redactor::new(rules), raw),
        None => shown(rules, "", &record.body).1,
    }
}

/// Headers without their secrets.
pub(super) fn headers_by(redactor: &mut Redactor<'_>, mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
    for (name, value) in &mut headers {
        if let Some(redacted) = redactor.header(name, value) {
            *value = redacted;
        }
    }
    headers
}

/// The secrets that a cassette holds, each as `file:line: what`.
#[must_use]
pub fn secrets(rules: &Rules, cassette: &Cassette) -> Vec<String> {
    let mut redactor = Redactor::new(rules);
    let of_record = |record: &Record| {
        redactor.begin_another();
        shown_by(&mut redactor, &record.path, &record.body);
        record.raw.iter().for_each(|raw| drop(redactor.bytes(raw)));
        headers_by(&mut redactor, record.headers.clone());
        found_in(&mut redactor, record, &cassette.path)
    };
    cassette.records.iter().flat_map(of_record).collect()
}

/// What a redactor that saw a record's request found in it and finds in its answer, each as `file:line: what`.
pub(super) fn found_in(redactor: &mut Redactor<'_>, record: &Record, file: &Path) -> Vec<String> {
    let mut copy = Record { answer: record.answer.clone(), ..Record::default() };
    redact_answer(redactor, &mut copy);
    let name = |place: String| if place.is_empty() { String::new() } else { format!(" at {place}") };
    let line = |find: Find| {
        format!("{}:{}: {} ({}){}", file.display(), record.line, find.kind, find.example, name(find.place))
    };
    redactor.take_finds().into_iter().map(line).collect()
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

#[cfg(test)]
mod tests;
