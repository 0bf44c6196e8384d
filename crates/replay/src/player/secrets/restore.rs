//! Placeholders in the answer of a record, and values in place of them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::events::{change, texts_of};
use recording::{
    cassette::{AnswerContent, Moment, RecordedAnswer, SseEvent},
    children::children,
    redaction::{Placeholder, PlaceholderValues, has_placeholder, placeholders},
};

/// The placeholders of an answer. Those that events cut into pieces are whole here; bytes have none.
pub(crate) fn placeholders_of(answer: &RecordedAnswer) -> BTreeSet<Placeholder> {
    let mut found = BTreeSet::new();
    answer.headers.iter().for_each(|(_, value)| note(value, &mut found));
    match &answer.content {
        AnswerContent::Choices { choices, .. } => {
            for (name, value) in choices.iter().flatten() {
                note(name, &mut found);
                note_all(value, &mut found);
            }
        }
        AnswerContent::Json(value) => note_all(value, &mut found),
        AnswerContent::Text(text) => note(text, &mut found),
        AnswerContent::Events(events) => {
            let mut data: Vec<Value> = events.iter().map(|event| event.data.clone()).collect();
            let (_, texts) = texts_of(data.iter_mut());
            texts.values().for_each(|texts| note(&texts.concat(), &mut found));
        }
        AnswerContent::Bytes(_) | AnswerContent::Empty => {}
    }
    found
}

/// Adds the placeholders in the texts of a value, and in the names of its fields.
pub(crate) fn note_all(value: &Value, found: &mut BTreeSet<Placeholder>) {
    value.as_str().into_iter().for_each(|text| note(text, found));
    for (name, value) in children(value) {
        name.into_iter().for_each(|name| note(name, found));
        note_all(value, found);
    }
}

pub(crate) fn note(text: &str, found: &mut BTreeSet<Placeholder>) {
    if has_placeholder(text) {
        found.extend(placeholders(text).map(|(_, placeholder)| placeholder));
    }
}

/// Puts values in place of the placeholders of an answer. True where there were any.
pub(crate) fn put_into(values: &PlaceholderValues, answer: &mut RecordedAnswer) -> bool {
    let mut any = false;
    for (_, value) in &mut answer.headers {
        any |= values.text(value).map(|with| *value = with).is_some();
    }
    let in_content = match &mut answer.content {
        AnswerContent::Choices { choices, .. } => {
            choices.iter_mut().filter_map(|choice| values.fields(choice).then_some(())).count() > 0
        }
        AnswerContent::Json(value) => values.json(value),
        AnswerContent::Text(text) => values.text(text).map(|with| *text = with).is_some(),
        AnswerContent::Events(events) => put_into_events(values, events),
        AnswerContent::Bytes(_) | AnswerContent::Empty => false,
    };
    any || in_content
}

/// Puts values into events: the texts at each place of them are one text, as where they were searched.
fn put_into_events(values: &PlaceholderValues, events: &mut [SseEvent]) -> bool {
    let (mut places, mut texts) = texts_of(events.iter_mut().map(|event| &mut event.data));
    let any = texts.values_mut().filter_map(|texts| values.pieces(texts).then_some(())).count() > 0;
    if any {
        places.put(texts, events);
    }
    any
}

/// Puts values into the events of a stream as they came.
pub(crate) fn put_into_moments(values: &PlaceholderValues, moments: &mut [Moment]) {
    change(moments, |events| {
        put_into_events(values, events);
    });
}
