//! Ids of tool calls that were written by hand without one: `call_1`, `call_2`, … counted within the conversation, so that a file has the
//! same ids whenever it is read, whatever other records it holds.
//!
//! A result in `messages+` or `input+` that names no call belongs to the next call of the answer before it that got its id here. Requests
//! are left as they are otherwise, and so are recorded calls, which have the form of the wire: some engines send none.
//!
//! See docs/decisions/0065-calls-without-ids.md.

use serde_json::{Map, Value};

use super::{
    echo::conversation_of,
    record::{AnswerContent, CassetteRecord, RecordedAnswer},
};

/// The calls of messages and items: the list that they are in, their type, and the key of their id.
const CALLS: [(&str, &str, &str); 2] = [("content", "tool_use", "id"), ("output", "function_call", "call_id")];

/// The ids of records' calls, in the records' order.
#[derive(Debug, Default)]
pub(super) struct RecordCallIds(Vec<Numbered>);

#[derive(Debug, Default)]
struct Numbered {
    /// The highest number of a call so far in the conversation.
    last: u64,
    /// Ids that the answer's calls got here.
    added: Vec<String>,
}

impl RecordCallIds {
    /// The ids that the calls of a record's answer got here; `at` is the record's place.
    pub(super) fn added(&self, at: usize) -> &[String] {
        self.0.get(at).map(|numbered| &*numbered.added).unwrap_or_default()
    }

    /// Adds ids to the calls of the next record's answer. `base` is the record that it continues, with its place.
    pub(super) fn fill(&mut self, record: &mut CassetteRecord, base: Option<(usize, &CassetteRecord)>) {
        // Each response of a fixture has ids of its own.
        if record.is_fixture {
            return self.0.push(Numbered::default());
        }
        let begun = base.and_then(|(at, base)| Some((self.0.get(at)?.last, base.body.messages()?)));
        let new = begun.and_then(|(last, earlier)| Some((last, record.body.messages()?.since(earlier)?)));
        let mut numbered = Numbered::default();
        match new {
            Some((last, messages)) => {
                numbered.last = last;
                messages.into_iter().for_each(|message| numbered.count_message(message));
            }
            None => {
                let conversation = conversation_of(&record.body).map(|(_, messages)| messages).unwrap_or_default();
                conversation.iter().for_each(|message| numbered.count_message(message));
            }
        }
        numbered.fill(&mut record.answer);
        self.0.push(numbered);
    }
}

impl Numbered {
    /// Counts the calls of a message or an item, and those that its results name: a response that is continued by its id has only these.
    fn count_message(&mut self, message: &Value) {
        let parts = |name: &str| message.get(name).and_then(Value::as_array).into_iter().flatten();
        parts("tool_calls").for_each(|call| self.count(call.get("id")));
        parts("content").filter(|part| is_of(part, "tool_use")).for_each(|call| self.count(call.get("id")));
        parts("content").for_each(|part| self.raise(part.get("tool_use_id")));
        if is_of(message, "function_call") {
            self.count(message.get("call_id"));
        } else {
            self.raise(message.get("call_id"));
        }
        self.raise(message.get("tool_call_id"));
    }

    fn count(&mut self, id: Option<&Value>) {
        if number_of(id).is_some() {
            self.raise(id);
        } else {
            self.last = self.last.saturating_add(1);
        }
    }

    fn raise(&mut self, id: Option<&Value>) {
        self.last = number_of(id).map_or(self.last, |number| self.last.max(number));
    }

    fn fill(&mut self, answer: &mut RecordedAnswer) {
        for_calls(answer, &mut |call, key| {
            sent(call, key).into_iter().for_each(|id| self.count(Some(id)));
        });
        for_calls(answer, &mut |call, key| {
            if sent(call, key).is_none() && !call.contains_key("function") {
                self.last = self.last.saturating_add(1);
                let id = format!("call_{}", self.last);
                put(call, key, &id);
                self.added.push(id);
            }
        });
    }
}

/// Adds ids to the calls of an answer that have none; `name` makes one of the call's place among the answer's calls, from 1.
pub fn name_calls(answer: &mut RecordedAnswer, mut name: impl FnMut(usize) -> String) {
    let mut place = 0;
    for_calls(answer, &mut |call, key| {
        place += 1;
        if sent(call, key).is_none() {
            put(call, key, &name(place));
        }
    });
}

/// Names the calls of results that name none, in their order.
pub(super) fn name_results(messages: &mut [Value], added: &[String]) {
    let mut ids = added.iter();
    let mut name = |result: &mut Value, key: &str| {
        let Some(result) = result.as_object_mut().filter(|result| sent(result, key).is_none()) else { return };
        if let Some(id) = ids.next() {
            result.insert(key.to_owned(), id.clone().into());
        }
    };
    for message in messages {
        if message.get("role").is_some_and(|role| role == "tool") {
            name(message, "tool_call_id");
        } else if is_of(message, "function_call_output") {
            name(message, "call_id");
        }
        let blocks = message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
        blocks.filter(|block| is_of(block, "tool_result")).for_each(|block| name(block, "tool_use_id"));
    }
}

/// Shows the calls of an answer in order, with the key of their id.
fn for_calls(answer: &mut RecordedAnswer, show: &mut dyn FnMut(&mut Map<String, Value>, &'static str)) {
    match &mut answer.content {
        AnswerContent::Choices { choices, .. } => {
            for message in choices.iter_mut().filter_map(|choice| choice.get_mut("message")?.as_object_mut()) {
                objects(message, "tool_calls").for_each(|call| show(call, "id"));
            }
        }
        AnswerContent::Json(Value::Object(body)) => {
            for (list, kind, key) in CALLS {
                let calls = objects(body, list).filter(|call| call.get("type").is_some_and(|own| own == kind));
                calls.for_each(|call| show(call, key));
            }
        }
        _ => {}
    }
}

fn objects<'a>(map: &'a mut Map<String, Value>, list: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn is_of(value: &Value, kind: &str) -> bool {
    value.get("type").is_some_and(|own| own == kind)
}

/// The id of a call, or the one that a result names.
fn sent<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|id| !id.is_null())
}

fn put(call: &mut Map<String, Value>, key: &str, id: &str) {
    call.shift_remove(key);
    let place = usize::from(call.contains_key("type"));
    call.shift_insert(place, key.to_owned(), id.into());
}

fn number_of(id: Option<&Value>) -> Option<u64> {
    id.and_then(Value::as_str)?.strip_prefix("call_")?.parse().ok()
}
