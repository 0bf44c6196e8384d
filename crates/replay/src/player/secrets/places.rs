//! Texts of events by their places: what has an index of its own (choices, calls, blocks) is a place of its own, so that pieces that
//! come by turns are joined with their own.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Fields that distinguish the parts of a response.
const INDICES: [&str; 3] = ["index", "output_index", "content_index"];

/// Fields whose texts are pieces of JSON.
const JSON: [&str; 3] = ["arguments", "partial_json", "delta"];

/// Places by number; the whole event is 0.
#[derive(Debug, Default)]
pub(super) struct Places {
    steps: HashMap<(usize, Step), usize>,
    pub(super) are_json: HashSet<usize>,
}

/// A step from one place to the next.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Any item of a list.
    Item,
    /// One item of a list.
    Rank(usize),
    /// The part of a response with this index.
    Index(u64),
    /// A field.
    Field(Box<str>),
}

impl Places {
    pub(super) fn step(&mut self, place: usize, step: Step) -> usize {
        let next = self.steps.len() + 1;
        *self.steps.entry((place, step)).or_insert(next)
    }

    /// The place of an object, by its indices.
    pub(super) fn object(&mut self, place: usize, fields: &Map<String, Value>) -> usize {
        let indices = INDICES.iter().filter_map(|name| fields.get(*name)?.as_u64());
        indices.fold(place, |place, index| self.step(place, Step::Index(index)))
    }

    /// Shows every text with its place.
    pub(super) fn texts_of(&mut self, value: &mut Value, place: usize, show: &mut dyn FnMut(usize, &mut String)) {
        match value {
            Value::String(text) => show(place, text),
            Value::Array(items) => {
                let place = self.step(place, Step::Item);
                items.iter_mut().for_each(|item| self.texts_of(item, place, show));
            }
            Value::Object(map) => {
                let place = self.object(place, map);
                for (name, value) in map {
                    let place = self.step(place, Step::Field(name.as_str().into()));
                    if JSON.iter().any(|end| name.ends_with(end)) {
                        self.are_json.insert(place);
                    }
                    self.texts_of(value, place, show);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
