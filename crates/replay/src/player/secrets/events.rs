//! Secrets in the events of a stream, which may cut them into pieces.
//!
//! The texts at each place of the events are searched as one, whatever the place is called. A text that comes again and holds a
//! secret by itself has a placeholder each time, and so has a message or a line of a log, if none there begins or ends with a space. Limits:
//! what follows such a text without a space may be the rest of its secret and is redacted too.
//!
//! See docs/decisions/0072-secrets-in-pieces.md.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{
    redact_texts,
    spelled::{has_tokens, leave_out_spelled, leave_out_tokens},
};
use net::wire::value_text;
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
        places.redact(redactor, *place, texts);
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

/// As [`redact_events`], of the events of a stream as they came. True where anything was found.
pub(super) fn redact_moments(redactor: &mut Redactor<'_>, moments: &mut [Moment]) -> bool {
    change(moments, |events| redact_events(redactor, events))
}

/// Changes the data of events; what stays the same stays byte for byte. True where anything did not.
pub(super) fn change(moments: &mut [Moment], change: impl FnOnce(&mut [SseEvent])) -> bool {
    let before: Vec<SseEvent> = moments.iter().map(event_of).collect();
    let mut after = before.clone();
    change(&mut after);
    let mut is_changed = false;
    for ((moment, before), after) in moments.iter_mut().zip(before).zip(after) {
        if before != after {
            is_changed = true;
            *moment = Moment(moment.0, Some(value_text(&after.data).into_owned()), after.name);
        }
    }
    is_changed
}

/// Lines of JSON without the secrets that they spell together, as the events of a stream do; `None` where there are none, or no such lines.
pub(super) fn redact_lines(redactor: &mut Redactor<'_>, text: &str) -> Option<String> {
    let is_json = |at: usize| {
        text.lines()
            .nth(at)
            .is_some_and(|line| line.starts_with('{') && serde_json::from_str::<IgnoredAny>(line).is_ok())
    };
    if !(is_json(1) && is_json(0)) {
        return None;
    }
    let mut lines: Vec<Moment> = text.split('\n').map(|line| Moment(0.0, Some(line.to_owned()), None)).collect();
    let texts = |lines: Vec<Moment>| lines.into_iter().map(|Moment(_, line, _)| line.unwrap_or_default());
    redact_moments(redactor, &mut lines).then(|| texts(lines).collect::<Vec<_>>().join("\n"))
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
        found |= places.redact(redactor, place, &mut texts);
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

/// Fields whose texts may be whole in each event, as messages and lines of logs are.
const LINES: [&str; 7] = ["data", "log", "line", "message", "msg", "status", "detail"];

/// Whether none of several texts begins or ends with a space, though they have some: as the pieces of one text they would be whole words
/// that run into each other.
fn are_lines(texts: &[String]) -> bool {
    let is_at_the_end = |text: &String| text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace);
    texts.iter().any(|text| text.contains(' ')) && !texts.iter().any(is_at_the_end)
}

/// Places of texts in events by number. What has an index of its own (choices, calls, blocks) is a place of its own, so that pieces that
/// come by turns are joined with their own. The whole event is 0.
#[derive(Debug, Default)]
pub(super) struct EventPlaces {
    steps: HashMap<(usize, EventStep), usize>,
    pub(super) are_json: HashSet<usize>,
    are_lines: HashSet<usize>,
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

    /// Takes the secrets out of the texts at a place. True where anything was found.
    fn redact(&self, redactor: &mut Redactor<'_>, place: usize, texts: &mut [String]) -> bool {
        let in_json = self.are_json.contains(&place) && redactor.json_pieces(texts);
        let are_lines = self.are_lines.contains(&place) && are_lines(texts);
        let found = if are_lines { redactor.lines(texts) } else { redactor.pieces(texts) };
        found || in_json
    }

    pub(super) fn texts_of(&mut self, data: &mut Value, each: &mut dyn FnMut(usize, &mut String)) {
        self.visit(data, &mut |places, (place, name), value| {
            if name.is_some_and(|name| JSON.iter().any(|end| name.ends_with(end))) {
                places.are_json.insert(place);
            }
            if name.is_some_and(|name| LINES.contains(&name)) {
                places.are_lines.insert(place);
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
