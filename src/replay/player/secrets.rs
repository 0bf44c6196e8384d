//! Secrets in what is recorded, compared and shown.

mod lint;
mod response;
mod whole;

use std::collections::HashMap;

use serde_json::Value;

pub(super) use self::lint::{Leak, around, found_in};
pub use self::{lint::secrets, response::redact_response, whole::redact_cassette};
use crate::{
    net::wire::percent_decoded,
    recording::canonical::{SharedBody, SharedList},
    recording::cassette::{Content, Moment, Record, Side, SseEvent, named_bytes},
    recording::redaction::{Redactor, Rules, Seen},
};

/// Takes the secrets out of a record. Where there were any, what else could spell them goes too: bytes as they came, and the data of
/// events, of which the times stay. True where anything was found.
pub(super) fn redact(rules: &Rules, record: &mut Record, side: &mut Side) -> bool {
    let mut redactor = Redactor::new(rules);
    record.body = shown_body(&mut redactor, &record.body, None).0;
    redact_rest(&mut redactor, record, side, false)
}

/// Takes the secrets out of all of a record but the body of its request, which may have held some.
fn redact_rest(redactor: &mut Redactor<'_>, record: &mut Record, side: &mut Side, held: bool) -> bool {
    record.raw.iter_mut().for_each(|raw| redact_bytes(redactor, raw));
    redact_path(redactor, &mut record.path);
    record.headers = headers_by(redactor, std::mem::take(&mut record.headers));
    redact_answer(redactor, record);
    redact_texts(redactor, &mut record.tags);
    redactor.fields(&mut side.head);
    // What the parts say together was searched above; a copy may say more.
    let copies = side.body.iter().chain(side.events.iter().filter_map(|Moment(_, data, _)| data.as_ref()));
    let found = copies.fold(held || redactor.found_any(), |found, copy| redactor.json_text(copy).is_some() || found);
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
        Content::Choices { choices, .. } => {
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

/// A path as it is compared and shown.
pub(super) fn shown_path(redactor: &mut Redactor<'_>, path: &str) -> String {
    let mut path = path.to_owned();
    redact_path(redactor, &mut path);
    path
}

/// How far a conversation was searched for secrets; requests that continue it go on from there.
#[derive(Debug, Clone, Default)]
pub(super) struct Searched {
    /// Its messages as they are shown.
    messages: SharedList<Value>,
    seen: Seen,
    /// Whether there are any secrets in it.
    pub(super) has_any: bool,
}

/// A request's body as it is compared and shown, and what a request can go on with that continues it. Only what comes after the
/// start is searched: the messages of an earlier request and what was found in them.
pub(super) fn shown_body(
    redactor: &mut Redactor<'_>,
    body: &SharedBody,
    start: Option<(&SharedList<Value>, Searched)>,
) -> (SharedBody, Searched) {
    let Some(messages) = body.messages() else {
        let mut whole = body.fields().clone();
        let has_any = redactor.json(&mut whole);
        return (if has_any { whole.into() } else { body.clone() }, Searched { has_any, ..Searched::default() });
    };
    let (mut before, mut after) = body.around_messages();
    let found_before = redactor.fields(&mut before);
    let known = SharedList::default();
    // What is found before the messages counts in them, and they were searched without it.
    let start = start.filter(|(earlier, _)| !found_before && messages.since(earlier).is_some());
    let (earlier, mut searched) = start.unwrap_or((&known, Searched::default()));
    if !found_before {
        redactor.go_on(std::mem::take(&mut searched.seen));
    }
    let found = search_messages(redactor, messages, earlier, &mut searched);
    searched.seen = redactor.seen();
    let found_after = redactor.fields(&mut after);
    searched.has_any |= found || found_before;
    if !(found_before || found_after) {
        return (body.clone().with_messages(searched.messages.clone()), searched);
    }
    before.insert("messages".to_owned(), Value::Null);
    before.extend(after);
    let shown = SharedBody::from(Value::Object(before)).with_messages(searched.messages.clone());
    (shown, searched)
}

/// Searches the messages after the earlier ones and adds them to those that are shown. True where anything was found in them.
fn search_messages(
    redactor: &mut Redactor<'_>,
    messages: &SharedList<Value>,
    earlier: &SharedList<Value>,
    searched: &mut Searched,
) -> bool {
    let was_clean = searched.messages.is_same(earlier);
    let mut found = false;
    for (at, message) in messages.after(earlier.len()).into_iter().enumerate() {
        let mut message = message.clone();
        found |= redactor.item("messages", earlier.len() + at, &mut message);
        searched.messages.push(message);
    }
    if was_clean && !found {
        searched.messages = messages.clone();
    }
    found
}

/// Bytes as they are compared and shown: the name of what is left of them without their secrets.
pub(super) fn shown_bytes(redactor: &mut Redactor<'_>, bytes: &[u8]) -> Value {
    named_bytes(redactor.bytes(bytes).as_deref().unwrap_or(bytes))
}

/// A record's request as it is shown.
pub(super) fn shown_record(rules: &Rules, record: &Record) -> Value {
    match &record.raw {
        Some(raw) => shown_bytes(&mut Redactor::new(rules), raw),
        None => shown_body(&mut Redactor::new(rules), &record.body, None).0.value(),
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
