//! Placeholders in the answer of a record, and values in place of them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::events::texts_of;
use recording::{
    cassette::{Answer, Content, SseEvent},
    children::children,
    redaction::{Placeholder, Values, has_placeholder, placeholders},
};

/// The placeholders of an answer. Those that events cut into pieces are whole here; bytes have none.
pub(in crate::player) fn placeholders_of(answer: &Answer) -> BTreeSet<Placeholder> {
    let mut found = BTreeSet::new();
    answer.headers.iter().for_each(|(_, value)| note(value, &mut found));
    match &answer.content {
        Content::Choices { choices, .. } => {
            for (name, value) in choices.iter().flatten() {
                note(name, &mut found);
                note_all(value, &mut found);
            }
        }
        Content::Json(value) => note_all(value, &mut found),
        Content::Text(text) => note(text, &mut found),
        Content::Events(events) => {
            let mut data: Vec<Value> = events.iter().map(|event| event.data.clone()).collect();
            let (_, texts) = texts_of(data.iter_mut());
            texts.values().for_each(|texts| note(&texts.concat(), &mut found));
        }
        Content::Bytes(_) | Content::Empty => {}
    }
    found
}

/// Adds the placeholders in the texts of a value, and in the names of its fields.
pub(in crate::player) fn note_all(value: &Value, found: &mut BTreeSet<Placeholder>) {
    value.as_str().into_iter().for_each(|text| note(text, found));
    for (name, value) in children(value) {
        name.into_iter().for_each(|name| note(name, found));
        note_all(value, found);
    }
}

/// Adds the placeholders of a text.
pub(in crate::player) fn note(text: &str, found: &mut BTreeSet<Placeholder>) {
    if has_placeholder(text) {
        found.extend(placeholders(text).map(|(_, placeholder)| placeholder));
    }
}

/// Puts values in place of the placeholders of an answer. True where there were any.
pub(in crate::player) fn put_into(values: &Values, answer: &mut Answer) -> bool {
    let mut any = false;
    for (_, value) in &mut answer.headers {
        any |= values.text(value).map(|with| *value = with).is_some();
    }
    let in_content = match &mut answer.content {
        Content::Choices { choices, .. } => {
            choices.iter_mut().filter_map(|choice| values.fields(choice).then_some(())).count() > 0
        }
        Content::Json(value) => values.json(value),
        Content::Text(text) => values.text(text).map(|with| *text = with).is_some(),
        Content::Events(events) => put_into_events(values, events),
        Content::Bytes(_) | Content::Empty => false,
    };
    any || in_content
}

/// Puts values into events: the texts at each place of them are one text, as where they were searched.
fn put_into_events(values: &Values, events: &mut [SseEvent]) -> bool {
    let (mut places, mut texts) = texts_of(events.iter_mut().map(|event| &mut event.data));
    let any = texts.values_mut().filter_map(|texts| values.pieces(texts).then_some(())).count() > 0;
    if any {
        places.put(texts, events);
    }
    any
}
