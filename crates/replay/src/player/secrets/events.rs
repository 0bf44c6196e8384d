//! Secrets in the events of a stream, which may cut them into pieces.
//!
//! The texts at each place of the events are searched as one, whatever the place is called. Limits: a place whose texts are all equal,
//! such as an id that each event repeats, is searched once.
//!
//! See docs/decisions/0072-secrets-in-pieces.md.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};

use super::{
    redact_texts,
    spelled::{has_tokens, leave_out_spelled, leave_out_tokens},
};
use recording::{
    cassette::{Moment, SseEvent},
    children::children_mut,
    redaction::Redactor,
};

/// Takes the secrets out of events: the texts at each place of them are searched as one, and then each for itself.
pub(super) fn redact_events(redactor: &mut Redactor<'_>, events: &mut [SseEvent]) {
    events.iter().for_each(|event| redactor.learn(&event.data));
    leave_out_spelled(redactor, &mut events.iter_mut().map(|event| &mut event.data).collect::<Vec<_>>());
    let (mut places, mut texts) = texts_of(events.iter_mut().map(|event| &mut event.data));
    for (place, texts) in &mut texts {
        if places.are_json.contains(place) {
            redactor.json_pieces(texts);
        }
        redactor.pieces(texts);
    }
    redact_texts(redactor, events.iter_mut().filter_map(|event| event.name.as_mut()));
    let before: Vec<Option<Value>> =
        events.iter().map(|event| has_tokens(&event.data).then(|| event.data.clone())).collect();
    places.put(texts, events);
    for (event, before) in events.iter_mut().zip(before) {
        // Not before: the start of a key over several events would be taken for all of it.
        redactor.json(&mut event.data);
        if before.is_some_and(|before| before != event.data) {
            leave_out_tokens(&mut event.data);
        }
    }
}

/// An event, its data as JSON where it is.
pub(super) fn event_of(Moment(_, data, name): &Moment) -> SseEvent {
    SseEvent { name: name.clone(), data: value_of(data.as_deref().unwrap_or_default()) }
}

fn value_of(data: &str) -> Value {
    let parsed = serde_json::from_str::<Value>(data).ok().filter(|value| value.is_object() || value.is_array());
    parsed.unwrap_or_else(|| Value::from(data))
}

/// Whether the data of events spell a secret together.
pub(super) fn finds_across<'d>(redactor: &mut Redactor<'_>, data: impl Iterator<Item = &'d str>) -> bool {
    let mut data: Vec<Value> = data.map(value_of).collect();
    data.iter().for_each(|data| redactor.learn(data));
    let mut found = leave_out_spelled(redactor, &mut data.iter_mut().collect::<Vec<_>>());
    // The tokens of lists were searched by their ranks.
    data.iter_mut().for_each(leave_out_tokens);
    let (places, texts) = texts_of(data.iter_mut());
    for (place, mut texts) in texts {
        if texts.windows(2).all(|pair| matches!(pair, [one, next] if one == next)) {
            texts.truncate(1);
        }
        let in_json = places.are_json.contains(&place) && redactor.json_pieces(&mut texts);
        found |= redactor.pieces(&mut texts) || in_json;
    }
    found
}

/// Texts by their places, in their order.
pub(super) type Texts = BTreeMap<usize, Vec<String>>;

/// The texts at each place, in their order.
pub(super) fn texts_of<'v>(data: impl Iterator<Item = &'v mut Value>) -> (EventPlaces, Texts) {
    let (mut places, mut texts) = (EventPlaces::default(), Texts::new());
    for data in data {
        places.texts_of(data, &mut |place, text| texts.entry(place).or_default().push(text.clone()));
    }
    (places, texts)
}

/// Fields that distinguish the parts of a response.
const INDICES: [&str; 3] = ["index", "output_index", "content_index"];

/// Fields whose texts are pieces of JSON.
const JSON: [&str; 3] = ["arguments", "partial_json", "delta"];

/// Places of texts in events by number. What has an index of its own (choices, calls, blocks) is a place of its own, so that pieces that
/// come by turns are joined with their own. The whole event is 0.
#[derive(Debug, Default)]
pub(super) struct EventPlaces {
    steps: HashMap<(usize, EventStep), usize>,
    pub(super) are_json: HashSet<usize>,
}

/// What a visit does with a value at a place, which has a name where it is a field.
type Show<'s> = &'s mut dyn FnMut(&mut EventPlaces, (usize, Option<&str>), &mut Value) -> bool;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum EventStep {
    /// Any item of a list.
    Item,
    /// One item of a list.
    Rank(usize),
    /// The part of a response with this index.
    Index(u64),
    Field(Box<str>),
}

impl EventPlaces {
    pub(super) fn step(&mut self, place: usize, step: EventStep) -> usize {
        let next = self.steps.len() + 1;
        *self.steps.entry((place, step)).or_insert(next)
    }

    fn object(&mut self, place: usize, fields: &Map<String, Value>) -> usize {
        let indices = INDICES.iter().filter_map(|name| fields.get(*name)?.as_u64());
        indices.fold(place, |place, index| self.step(place, EventStep::Index(index)))
    }

    /// Shows the data of an event and every value in it with its place and its name; goes into those for which `show` returns true.
    pub(super) fn visit(&mut self, data: &mut Value, show: Show<'_>) {
        self.visit_at((0, None), data, show);
    }

    fn visit_at(&mut self, (place, name): (usize, Option<&str>), value: &mut Value, show: Show<'_>) {
        if !show(self, (place, name), value) {
            return;
        }
        let place = match value {
            Value::Array(_) => self.step(place, EventStep::Item),
            Value::Object(fields) => self.object(place, fields),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => place,
        };
        for (name, value) in children_mut(value) {
            let place = name.map_or(place, |name| self.step(place, EventStep::Field(name.into())));
            self.visit_at((place, name), value, show);
        }
    }

    pub(super) fn texts_of(&mut self, data: &mut Value, each: &mut dyn FnMut(usize, &mut String)) {
        self.visit(data, &mut |places, (place, name), value| {
            if name.is_some_and(|name| JSON.iter().any(|end| name.ends_with(end))) {
                places.are_json.insert(place);
            }
            if let Value::String(text) = value {
                each(place, text);
            }
            true
        });
    }

    pub(super) fn put(&mut self, texts: Texts, events: &mut [SseEvent]) {
        let mut left: HashMap<usize, _> = texts.into_iter().map(|(place, texts)| (place, texts.into_iter())).collect();
        for event in events {
            self.texts_of(&mut event.data, &mut |place, text| {
                let next = left.get_mut(&place).and_then(Iterator::next);
                next.into_iter().for_each(|next| *text = next);
            });
        }
    }
}
