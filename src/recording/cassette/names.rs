//! Ids of the wire and the names that a file gives them: `call_1`, `call_2`, … in order of appearance. The originals are in the
//! sidecar.
//!
//! An id that looks like such a name already is one, as in what was a cassette before.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::{
    continued::bases,
    record::{Answer, Content, Record},
};
use crate::recording::canonical::{SharedList, renamed, visit_ids};

/// Ids of the wire and the names that the file gives them.
#[derive(Debug, Default)]
pub(super) struct Names {
    short: HashMap<String, String>,
    given: HashSet<String>,
}

impl Names {
    /// Learns what records have already.
    pub(super) fn learn(&mut self, records: &[Record]) {
        for (record, base) in records.iter().zip(bases(records)) {
            let ids = record.side.iter().flat_map(|side| &side.ids);
            self.short.extend(ids.map(|(short, original)| (original.clone(), short.clone())));
            let known = base.and_then(|base| records.get(base)?.body.messages()).map_or(0, SharedList::len);
            let mut body = record.body.fields().clone();
            if let (Some(messages), Some(place)) = (record.body.messages(), body.get_mut("messages")) {
                *place = messages.after(known).into_iter().cloned().collect();
            }
            let mut given = |id: &mut String| {
                self.given.insert(id.clone());
            };
            visit_ids(&mut body, &mut given);
            for_answer(&mut record.answer.clone(), &mut |part| visit_ids(part, &mut given));
        }
    }

    /// Gives the ids of a record their short names; returns those that were new.
    pub(super) fn shorten(&mut self, record: &mut Record) -> BTreeMap<String, String> {
        let mut fresh = BTreeMap::new();
        let mut body = std::mem::take(&mut record.body).value();
        visit(&mut body, &mut record.answer, &mut |id| {
            if is_short(id) {
                self.given.insert(id.clone());
            }
            if self.given.contains(id) || self.short.contains_key(id) {
                return;
            }
            let mut next = (self.given.len() + 1..).map(|number| format!("call_{number}"));
            let name = next.find(|name| !self.given.contains(name)).unwrap_or_default();
            self.given.insert(name.clone());
            fresh.insert(name.clone(), id.clone());
            self.short.insert(id.clone(), name);
        });
        record.body = renamed(body, &self.short).into();
        for_answer(&mut record.answer, &mut |part| *part = renamed(std::mem::take(part), &self.short));
        fresh
    }
}

/// Shows every id of a record, the request's first.
fn visit(body: &mut Value, answer: &mut Answer, show: &mut dyn FnMut(&mut String)) {
    visit_ids(body, show);
    for_answer(answer, &mut |part| visit_ids(part, show));
}

/// Shows the parts of an answer that look like a body of messages.
fn for_answer(answer: &mut Answer, show: &mut dyn FnMut(&mut Value)) {
    match &mut answer.content {
        Content::Choices { choices, .. } => {
            for message in choices.iter_mut().filter_map(|choice| choice.get_mut("message")) {
                let mut body = json!({"messages": [std::mem::take(message)]});
                show(&mut body);
                *message =
                    body.get_mut("messages").and_then(|list| list.get_mut(0)).map(Value::take).unwrap_or_default();
            }
        }
        Content::Json(value) => show(value),
        Content::Empty | Content::Events(_) | Content::Text(_) | Content::Bytes(_) => {}
    }
}

/// Returns true if an id is a word and a number of few digits, not a random one.
fn is_short(id: &str) -> bool {
    id.split_once('_').is_some_and(|(word, number)| {
        let is_word = (1..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase());
        is_word && (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
