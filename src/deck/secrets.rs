//! Secrets in what is recorded, compared and shown.

mod lint;
mod whole;

use std::collections::HashMap;

use serde_json::Value;

pub(super) use self::lint::{Leak, around, found_in};
pub use self::{lint::secrets, whole::redact_cassette};
use crate::{
    cassette::{Content, Moment, Record, Side, SseEvent, named_bytes},
    redaction::{Redactor, Rules},
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
    redact_texts(&mut redactor, &mut record.tags);
    redactor.fields(&mut side.head);
    // What the parts say together was searched above; a copy may say more.
    let copies = side.body.iter().chain(side.events.iter().filter_map(|Moment(_, data, _)| data.as_ref()));
    let found = copies.fold(redactor.found_any(), |found, copy| redactor.json_text(copy).is_some() || found);
    if found {
        side.body = None;
        side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
    }
    found
}

/// Texts, each for itself.
fn redact_texts<'t>(redactor: &mut Redactor<'_>, texts: impl IntoIterator<Item = &'t mut String>) {
    for text in texts {
        redactor.text(text).into_iter().for_each(|redacted| *text = redacted);
    }
}

fn redact_answer(redactor: &mut Redactor<'_>, record: &mut Record) {
    record.answer.headers = headers_by(redactor, std::mem::take(&mut record.answer.headers));
    match &mut record.answer.content {
        Content::Said { choices, .. } => {
            for choice in choices {
                redactor.fields(choice);
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
    redact_texts(redactor, events.iter_mut().filter_map(|event| event.name.as_mut()));
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

#[cfg(test)]
mod tests;
