//! Secrets in what is recorded, compared and shown.

mod alike;
mod events;
mod lint;
mod response;
mod restore;
mod spelled;
mod whole;

use std::{collections::HashMap, fmt};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use self::{
    events::{finds_across, redact_events, redact_lines, redact_moments},
    spelled::redact_body,
};
pub use self::{
    lint::secrets,
    response::redact_response,
    whole::{redact_cassette, redact_named},
};
pub(super) use self::{
    lint::{Leak, around, found_in, leaks_of},
    restore::{note, note_all, placeholders_of, put_into, put_into_moments},
};
use net::wire::percent_decoded;
use recording::{
    canonical::{SharedBody, SharedList},
    cassette::{
        AnswerContent, CassetteRecord, MadeAnswer, Moment, RecordedAnswer, RecordedExchange, Sidecar, ValueSource,
        named_bytes,
    },
    children::as_value,
    redaction::{Placeholder, RedactionRules, Redactor, SeenSecrets},
};

#[derive(Debug)]
pub(super) struct RedactionResult {
    /// Whether anything was found.
    pub(super) had_any: bool,
    /// Whether the record took more work than it may, so that some of it was not searched.
    pub(super) is_unsearched: bool,
    pub(super) requested: SeenSecrets,
    /// The values of the answer that the request does not have.
    pub(super) answered: AnsweredValues,
    /// All values.
    pub(super) all: SeenSecrets,
    /// How far the messages of its request were searched.
    pub(super) searched: SearchedConversation,
}

/// Values that an answer has and its request does not, with their placeholders. They are secrets: none is shown by `{:?}`.
#[derive(Default)]
pub(super) struct AnsweredValues(pub(super) Vec<(Placeholder, Box<str>)>);

impl fmt::Debug for AnsweredValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnsweredValues({})", self.0.len())
    }
}

/// Takes the secrets out of a record. Where there were any, what else could spell them goes too: bytes as they came, and the data of
/// events, of which the times stay. What any part of it names as a secret is found in all of them.
pub(super) fn redact(rules: &RedactionRules, record: &mut CassetteRecord, side: &mut Sidecar) -> RedactionResult {
    redact_after(&mut Redactor::new(rules), (record, side), None)
}

/// As [`redact`], of a record that goes on from messages which were searched before.
pub(super) fn redact_after(
    redactor: &mut Redactor<'_>,
    (record, side): (&mut CassetteRecord, &mut Sidecar),
    earlier: Option<(&SharedList<Value>, SearchedConversation)>,
) -> RedactionResult {
    let searched = redact_request(redactor, record, earlier);
    let requested = redactor.seen();
    // What earlier messages held may be spelled by the events of this record too.
    let had_any = redact_rest(redactor, record, side, searched.has_any);
    let all = redactor.seen();
    let answered = name_sources(record, &requested, &all);
    RedactionResult { had_any, is_unsearched: redactor.is_exhausted(), requested, answered, all, searched }
}

/// Notes in a record which placeholders of its answer stand for a value that its request has under another one: a key that is
/// described there is an argument of a call here. The values that its request has nowhere.
fn name_sources(record: &mut CassetteRecord, requested: &SeenSecrets, all: &SeenSecrets) -> AnsweredValues {
    let in_answer = placeholders_of(&record.answer);
    if in_answer.is_empty() {
        return AnsweredValues::default();
    }
    let mut places: HashMap<&str, Placeholder> = HashMap::new();
    for (placeholder, value) in requested.values() {
        let first = places.entry(value).or_insert_with(|| placeholder.clone());
        if placeholder < *first {
            *first = placeholder;
        }
    }
    let is_asked = |placeholder: &Placeholder, value: &str| requested.number(&placeholder.kind, value).is_some();
    let new = all.values().filter(|(it, value)| in_answer.contains(it) && !is_asked(it, value));
    let mut new: Vec<(Placeholder, &str)> = new.collect();
    new.sort_unstable();
    let mut left = Vec::new();
    for (placeholder, value) in new {
        match places.get(value) {
            Some(source) => {
                let source = ValueSource { placeholder: source.clone(), record: None };
                record.put_back.push((placeholder, source));
            }
            None => left.push((placeholder, value.into())),
        }
    }
    AnsweredValues(left)
}

/// Learns what a record names, and takes the secrets out of its request.
fn redact_request(
    redactor: &mut Redactor<'_>,
    record: &mut CassetteRecord,
    earlier: Option<(&SharedList<Value>, SearchedConversation)>,
) -> SearchedConversation {
    redactor.of_answer(false);
    learn_rest(redactor, record);
    let (body, searched) = shown_body(redactor, &record.body, earlier);
    record.body = body;
    record.raw.iter_mut().for_each(|raw| redact_bytes(redactor, raw));
    record.path = shown_path(redactor, &record.path);
    record.headers = headers_by(redactor, std::mem::take(&mut record.headers));
    searched
}

/// Takes the secrets out of an exchange, and returns them; `None` where it took too much work to search all of it, so that it must not
/// be kept.
#[must_use]
pub fn redact_exchange(rules: &RedactionRules, exchange: &mut RecordedExchange) -> Option<SeenSecrets> {
    let redacted = redact(rules, &mut exchange.record, &mut exchange.side);
    (!redacted.is_unsearched).then_some(redacted.all)
}

/// Notes the secrets that a record names outside of its request's body.
pub(super) fn learn_rest(redactor: &mut Redactor<'_>, record: &CassetteRecord) {
    learn_request(redactor, &record.path, &record.headers);
    learn_request(redactor, "", &record.answer.headers);
    match &record.answer.content {
        AnswerContent::Choices { choices, .. } => choices.iter().for_each(|choice| redactor.learn_fields(choice)),
        AnswerContent::Json(value) => redactor.learn(value),
        AnswerContent::Text(text) => redactor.learn_text(text),
        AnswerContent::Events(events) => events.iter().for_each(|event| redactor.learn(&event.data)),
        AnswerContent::Bytes(_) | AnswerContent::Empty => {}
    }
}

/// Notes the secrets that a query and headers name.
pub(super) fn learn_request(redactor: &mut Redactor<'_>, path: &str, headers: &[(String, String)]) {
    for (name, value) in headers {
        redactor.learn_named(name, value);
    }
    let query = path.split_once('?').map(|(_, query)| query);
    for (name, value) in query.into_iter().flat_map(|query| query.split('&')).filter_map(|pair| pair.split_once('=')) {
        redactor.learn_named(&percent_decoded(name), &percent_decoded(value));
    }
}

/// Takes the secrets out of all of a record but its request, which may have held some.
fn redact_rest(redactor: &mut Redactor<'_>, record: &mut CassetteRecord, side: &mut Sidecar, held: bool) -> bool {
    redact_answer(redactor, &mut record.answer);
    redactor.of_answer(false);
    redact_texts(redactor, &mut record.tags);
    redactor.fields(&mut side.head);
    redactor.of_answer(true);
    // The joined parts were searched above; a copy may have more.
    let copies = side.body.iter().chain(side.events.iter().filter_map(|Moment(_, data, _)| data.as_ref()));
    let found = copies.fold(held || redactor.found_any(), |found, copy| finds_in_copy(redactor, copy) || found);
    let is_across = finds_across(redactor, side.events.iter().filter_map(|Moment(_, data, _)| data.as_deref()));
    if is_across {
        leave_out_lists(&mut record.answer.content);
    }
    let found = found || is_across;
    let in_names = redact_texts(redactor, side.events.iter_mut().filter_map(|Moment(_, _, name)| name.as_mut()));
    if found || in_names {
        side.body = None;
        // The events of a client that left are played as far as they came.
        if record.aborted.is_some() {
            redact_moments(redactor, &mut side.events);
        } else {
            side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
        }
    }
    found || in_names
}

/// Whether there are secrets in a body or the data of an event as it came, JSON or not.
fn finds_in_copy(redactor: &mut Redactor<'_>, copy: &str) -> bool {
    let in_values = redactor.json_text(copy).is_some();
    in_values || (serde_json::from_str::<IgnoredAny>(copy).is_err() && redactor.text(copy).is_some())
}

/// Takes the secrets out of texts, each for itself. True where anything was found.
fn redact_texts<'t>(redactor: &mut Redactor<'_>, texts: impl IntoIterator<Item = &'t mut String>) -> bool {
    let clean = |found, text: &'t mut String| redactor.text(text).map(|clean| *text = clean).is_some() || found;
    texts.into_iter().fold(false, clean)
}

fn redact_answer(redactor: &mut Redactor<'_>, answer: &mut RecordedAnswer) {
    redactor.of_answer(true);
    answer.headers = headers_by(redactor, std::mem::take(&mut answer.headers));
    redact_texts(redactor, answer.made.iter_mut().flat_map(MadeAnswer::texts_mut));
    match &mut answer.content {
        AnswerContent::Choices { choices, .. } => {
            for choice in choices {
                as_value(choice, |whole| redact_body(redactor, whole));
                if choice.get("logprobs").is_some_and(Value::is_null) {
                    choice.shift_remove("logprobs");
                }
            }
        }
        AnswerContent::Json(value) => drop(redact_body(redactor, value)),
        AnswerContent::Text(text) => {
            redact_lines(redactor, text).into_iter().for_each(|clean| *text = clean);
            redact_texts(redactor, [text]);
        }
        AnswerContent::Events(events) => redact_events(redactor, events),
        AnswerContent::Bytes(bytes) => redact_bytes(redactor, bytes),
        AnswerContent::Empty => {}
    }
}

/// Leaves out the lists of messages, of which a stream's last piece is there: what the pieces spell together is not seen in it.
fn leave_out_lists(content: &mut AnswerContent) {
    let AnswerContent::Choices { choices, .. } = content else { return };
    for message in choices.iter_mut().filter_map(|choice| choice.get_mut("message")?.as_object_mut()) {
        message.retain(|name, value| name == "tool_calls" || !value.is_array());
    }
}

fn redact_bytes(redactor: &mut Redactor<'_>, bytes: &mut Vec<u8>) {
    redactor.bytes(bytes).into_iter().for_each(|redacted| *bytes = redacted);
}

/// A path with its query as it is compared and shown.
pub(super) fn shown_path(redactor: &mut Redactor<'_>, path: &str) -> String {
    let mut of_pair = |pair: &str| match pair.split_once('=') {
        Some((name, value)) => redactor
            .parameter(&percent_decoded(name), &percent_decoded(value))
            .map_or_else(|| pair.to_owned(), |clean| format!("{name}={clean}")),
        None => pair.to_owned(),
    };
    let path = match path.split_once('?') {
        Some((route, query)) => {
            format!("{route}?{}", query.split('&').map(&mut of_pair).collect::<Vec<_>>().join("&"))
        }
        None => path.to_owned(),
    };
    redactor.text(&percent_decoded(&path)).unwrap_or(path)
}

/// How far a conversation was searched for secrets; requests that continue it go on from there.
#[derive(Debug, Clone, Default)]
pub(super) struct SearchedConversation {
    messages: SharedList<Value>,
    seen: SeenSecrets,
    pub(super) has_any: bool,
}

/// A request's body as it is compared and shown, and what a request can go on with that continues it. Only what comes after the
/// start is searched: the messages of an earlier request and what was found in them.
pub(super) fn shown_body(
    redactor: &mut Redactor<'_>,
    body: &SharedBody,
    start: Option<(&SharedList<Value>, SearchedConversation)>,
) -> (SharedBody, SearchedConversation) {
    let (Some(messages), Some(list)) = (body.messages(), body.list()) else {
        let mut whole = body.fields().clone();
        let has_any = redactor.json(&mut whole);
        return (
            if has_any { whole.into() } else { body.clone() },
            SearchedConversation { has_any, ..SearchedConversation::default() },
        );
    };
    let (mut before, mut after) = body.around_messages();
    let goes_on = start.filter(|(earlier, searched)| {
        messages.since(earlier).is_some()
            && goes_on_from(redactor, (&before, &after), (list, messages), (*earlier, searched))
    });
    let found_before = goes_on.is_none() && {
        learn_body(redactor, (&before, &after), (list, messages), 0);
        redactor.fields(&mut before)
    };
    let nothing = SharedList::default();
    let (earlier, mut searched) = goes_on.unwrap_or((&nothing, SearchedConversation::default()));
    let found = search_messages(redactor, (list, messages), earlier, &mut searched);
    searched.seen = redactor.seen();
    let found_after = redactor.fields(&mut after);
    searched.has_any |= found || found_before;
    if !(found_before || found_after) {
        return (body.clone().with_messages(searched.messages.clone()), searched);
    }
    before.insert(list.to_owned(), Value::Null);
    before.extend(after);
    let shown = SharedBody::from(Value::Object(before)).with_list(list, searched.messages.clone());
    (shown, searched)
}

/// Whether what was searched before stays as it is: neither the fields around the messages nor the new messages name a secret or hold
/// one. The redactor then knows what was seen.
fn goes_on_from(
    redactor: &mut Redactor<'_>,
    (before, after): (&Map<String, Value>, &Map<String, Value>),
    (list, messages): (&str, &SharedList<Value>),
    (earlier, searched): (&SharedList<Value>, &SearchedConversation),
) -> bool {
    let start = redactor.checkpoint();
    learn_body(redactor, (before, after), (list, messages), earlier.len());
    if redactor.known() > 0 {
        redactor.restore(start);
        return false;
    }
    redactor.go_on(searched.seen.clone());
    let found = redactor.fields(&mut before.clone());
    if found {
        redactor.restore(start);
    }
    !found
}

/// Notes the secrets that a body names, in the messages from this one on.
fn learn_body(
    redactor: &mut Redactor<'_>,
    (before, after): (&Map<String, Value>, &Map<String, Value>),
    (list, messages): (&str, &SharedList<Value>),
    from: usize,
) {
    redactor.learn_fields(before);
    for (at, message) in messages.after(from).into_iter().enumerate() {
        redactor.learn_item(list, from + at, message);
    }
    redactor.learn_fields(after);
}

/// Searches the messages after the earlier ones and adds them to those that are shown. True where anything was found in them.
fn search_messages(
    redactor: &mut Redactor<'_>,
    (list, messages): (&str, &SharedList<Value>),
    earlier: &SharedList<Value>,
    searched: &mut SearchedConversation,
) -> bool {
    let was_clean = searched.messages.is_same(earlier);
    let mut found = false;
    for (at, message) in messages.after(earlier.len()).into_iter().enumerate() {
        let mut message = message.clone();
        found |= redactor.item(list, earlier.len() + at, &mut message);
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
pub(super) fn shown_record(rules: &RedactionRules, record: &CassetteRecord) -> Value {
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
