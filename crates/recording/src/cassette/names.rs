//! Ids of the wire and the names that a file gives them: `call_1`, `call_2`, … in order of appearance in the conversation. The
//! originals are in the sidecar.
//!
//! Names are local to a conversation: what else is recorded, before it or at the same time, changes none of them. An id that looks
//! like such a name already is one, as in what was a cassette before.
//!
//! See docs/decisions/0077-records-keep-their-places.md.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
};

use serde_json::{Value, json};

use super::{
    continued::bases,
    record::{AnswerContent, CassetteRecord, RecordedAnswer},
};
use crate::canonical::{renamed, visit_ids};

#[derive(Debug, Default)]
pub(super) struct ShortNames {
    /// The conversation of each record: the place of its first one.
    conversations: Vec<usize>,
    /// By the conversation.
    short: HashMap<usize, HashMap<String, String>>,
    /// Records by the id of their response, which later requests may name.
    responses: HashMap<String, usize>,
}

impl ShortNames {
    /// Learns what records have already; they are all that there are.
    pub(super) fn learn(&mut self, records: &[CassetteRecord]) {
        for (record, base) in records.iter().zip(bases(records)) {
            let conversation = self.begin(record, base);
            let ids = record.side.iter().flat_map(|side| &side.ids);
            let known = self.short.entry(conversation).or_default();
            known.extend(ids.map(|(short, original)| (original.clone(), short.clone())));
            let response = record.side.as_ref().and_then(|side| side.head.get("id")?.as_str());
            self.end(conversation, response);
        }
    }

    /// Gives the ids of the next record their short names; returns those that were new. `base` is the place of the record that it
    /// continues, `response` the id of its response.
    pub(super) fn shorten(
        &mut self,
        record: &mut CassetteRecord,
        base: Option<usize>,
        response: Option<&str>,
    ) -> BTreeMap<String, String> {
        let conversation = self.begin(record, base);
        let known = self.short.entry(conversation).or_default();
        let mut body = std::mem::take(&mut record.body).value();
        let ids = distinct_ids(&mut body, &mut record.answer);
        let (mut names, mut given) = (HashMap::new(), HashSet::new());
        let is_named = ids.iter().filter(|id| is_short(id)).map(|id| (id, id));
        let is_known = ids.iter().filter_map(|id| Some((id, known.get(id)?)));
        for (id, name) in is_named.chain(is_known) {
            if !names.contains_key(id) && given.insert(name.clone()) {
                names.insert(id.clone(), name.clone());
            }
        }
        let mut last = given.iter().filter_map(|name| number_of(name)).max().unwrap_or(0).max(given.len());
        let mut fresh = BTreeMap::new();
        for id in ids {
            if names.contains_key(&id) {
                continue;
            }
            last += 1;
            let name = format!("call_{last}");
            fresh.insert(name.clone(), id.clone());
            names.insert(id, name);
        }
        known.extend(fresh.iter().map(|(name, id)| (id.clone(), name.clone())));
        rename(record, body, &names);
        self.end(conversation, response);
        fresh
    }

    /// Forgets what only the records before a place have.
    pub(super) fn forget(&mut self, before: usize) {
        let going_on: HashSet<usize> = self.conversations.iter().skip(before).copied().collect();
        self.short.retain(|conversation, _| going_on.contains(conversation));
        self.responses.retain(|_, at| *at >= before);
    }

    fn begin(&self, record: &CassetteRecord, base: Option<usize>) -> usize {
        let named = || self.responses.get(record.body.get("previous_response_id")?.as_str()?).copied();
        let conversation = base.or_else(named).and_then(|base| self.conversations.get(base).copied());
        conversation.unwrap_or(self.conversations.len())
    }

    fn end(&mut self, conversation: usize, response: Option<&str>) {
        let at = self.conversations.len();
        self.responses.extend(response.map(|id| (id.to_owned(), at)));
        self.conversations.push(conversation);
    }
}

fn distinct_ids(body: &mut Value, answer: &mut RecordedAnswer) -> Vec<String> {
    let (mut ids, mut seen) = (Vec::new(), HashSet::new());
    let mut note = |id: &mut String| {
        if seen.insert(id.clone()) {
            ids.push(id.clone());
        }
    };
    visit_ids(body, &mut note);
    for_answer(answer, &mut |part| visit_ids(part, &mut note));
    ids
}

/// Sets a record's body with other ids, and those of its answer.
pub(super) fn rename(record: &mut CassetteRecord, body: Value, names: &HashMap<String, String>) {
    record.body = renamed(body, names).into();
    rename_answer(&mut record.answer, names);
}

pub(super) fn rename_answer(answer: &mut RecordedAnswer, names: &HashMap<String, String>) {
    for_answer(answer, &mut |part| *part = renamed(std::mem::take(part), names));
}

impl CassetteRecord {
    /// The answer with the ids that were recorded, where the sidecar has them and it was not edited since.
    #[must_use]
    pub fn answer_with_ids(&self) -> Cow<'_, RecordedAnswer> {
        let Some(side) = self.side.as_ref().filter(|side| self.is_as_recorded() && !side.ids.is_empty()) else {
            return Cow::Borrowed(&self.answer);
        };
        let (mut answer, names) = (self.answer.clone(), side.ids.clone().into_iter().collect());
        rename_answer(&mut answer, &names);
        Cow::Owned(answer)
    }
}

pub(super) fn ids_of_answer(answer: &RecordedAnswer) -> Vec<String> {
    let mut ids = Vec::new();
    for_answer(&mut answer.clone(), &mut |part| visit_ids(part, &mut |id| ids.push(id.clone())));
    ids
}

/// The answer of a record as a file shows it, with ids named in their order in the request and the answer.
#[must_use]
pub fn shown_by_order(record: &CassetteRecord) -> Value {
    let mut answer = record.answer.clone();
    let ids = distinct_ids(&mut record.body.value(), &mut answer);
    let names = ids.into_iter().zip(1..).map(|(id, number)| (id, format!("id_{number}"))).collect();
    rename_answer(&mut answer, &names);
    answer.shown()
}

/// Shows the parts of an answer that look like a body of messages.
fn for_answer(answer: &mut RecordedAnswer, show: &mut dyn FnMut(&mut Value)) {
    match &mut answer.content {
        AnswerContent::Choices { choices, .. } => {
            for message in choices.iter_mut().filter_map(|choice| choice.get_mut("message")) {
                let mut body = json!({"messages": [std::mem::take(message)]});
                show(&mut body);
                *message =
                    body.get_mut("messages").and_then(|list| list.get_mut(0)).map(Value::take).unwrap_or_default();
            }
        }
        AnswerContent::Json(value) => show(value),
        AnswerContent::Empty | AnswerContent::Events(_) | AnswerContent::Text(_) | AnswerContent::Bytes(_) => {}
    }
}

/// Returns true if an id is a word and a number of few digits, not a random one.
fn is_short(id: &str) -> bool {
    id.split_once('_').is_some_and(|(word, number)| {
        let is_word = (1..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase());
        is_word && (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix("call_")?.parse().ok()
}
