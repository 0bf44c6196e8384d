//! A conversation in canonical form: a chain with a link for each message, whose hash names all messages before it too. A request
//! that continues another one only adds its new messages.

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    CanonicalRules, Normalisation, SharedBody, SharedList,
    ids::IdNames,
    normal::{self, sorted},
};

const LISTS: [&str; 2] = ["messages", "input"];

/// One message of a conversation, or one text that counts as one.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainLink {
    /// The hash of all messages up to this one.
    pub hash: u128,
    /// The message in canonical form; `None` where it is a field of its own (`system`, `instructions`, `prompt`).
    pub value: Option<Value>,
}

/// The canonical form of a conversation's messages so far; where they are a body's `messages`, other requests can continue it.
#[derive(Debug, Clone, Default)]
pub struct CanonicalProgress {
    pub(super) chain: SharedList<ChainLink>,
    /// The hash of what comes before the messages.
    lead: u128,
    /// Names the messages as they came.
    pub(super) exact: u128,
    names: IdNames,
    count: usize,
}

/// Start of a conversation that a request continues: the messages of an earlier request, in canonical form.
#[derive(Debug)]
pub struct ConversationStart<'a> {
    /// The messages as they came.
    pub messages: &'a SharedList<Value>,
    /// Their canonical form.
    pub progress: CanonicalProgress,
}

pub(super) struct CanonicalParts {
    /// Everything but the listed messages.
    pub(super) fields: Value,
    /// The list that the messages were in.
    pub(super) list: Option<&'static str>,
    pub(super) chain: SharedList<ChainLink>,
    pub(super) exact: u128,
    /// Progress that a request continuing this one can start from.
    pub(super) progress: Option<CanonicalProgress>,
}

impl CanonicalProgress {
    fn link(&mut self, bytes: &[u8], value: Option<Value>) {
        self.chain.push(link(&self.chain, bytes, value));
    }

    /// The hashes of the conversation, the last one first.
    pub fn hashes(&self) -> impl Iterator<Item = u128> {
        self.chain.backward().map(|link| link.hash)
    }

    /// The hash of everything so far; 0 for nothing.
    pub(crate) fn hash(&self) -> u128 {
        self.chain.last().map_or(0, |link| link.hash)
    }
}

fn link(chain: &SharedList<ChainLink>, bytes: &[u8], value: Option<Value>) -> ChainLink {
    let before = chain.last().map_or(0, |link| link.hash);
    let hash = xxh3_128(&[&before.to_le_bytes(), bytes].concat());
    ChainLink { hash, value }
}

impl CanonicalRules {
    /// Adds a message to a conversation in a body's `messages`.
    pub fn add(&self, progress: &mut CanonicalProgress, message: &Value) {
        self.add_to("messages", progress, message);
    }

    fn add_to(&self, list: &str, progress: &mut CanonicalProgress, message: &Value) {
        let text = message.to_string();
        progress.exact = xxh3_128(&[&progress.exact.to_le_bytes(), text.as_bytes()].concat());
        let canonical = self.message(list, progress, message);
        progress.link(&sorted(&canonical), Some(canonical));
        progress.count += 1;
    }

    fn message(&self, list: &str, progress: &mut CanonicalProgress, message: &Value) -> Value {
        #[cfg(test)]
        WORK.with(|work| work.set(work.get() + 1));
        let mut message = message.clone();
        self.ignored.iter().for_each(|path| path.remove_from_item(list, progress.count, &mut message));
        if self.form == Normalisation::Even {
            normal::drop_nulls(&mut message);
            normal::respell_item(&mut message);
        }
        if self.joins_texts {
            normal::join_texts(&mut message);
        }
        self.scrubs.iter().for_each(|scrub| scrub.apply(&mut message));
        progress.names.rename_item(&mut message);
        normal::even_numbers(&mut message);
        message
    }

    /// The start of a body's conversation, before its messages.
    pub(crate) fn lead(&self, body: &SharedBody) -> CanonicalProgress {
        let fields = body.fields().as_object().into_iter().flatten();
        let kept = fields.filter(|(name, _)| ["system", "instructions"].contains(&name.as_str()));
        let kept: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        led_by(&self.fields("", kept.into(), None))
    }

    /// The canonical form of a body, of which only what comes after the start has to be looked at.
    pub(super) fn parts(
        &self,
        boundary: &str,
        body: &SharedBody,
        start: Option<ConversationStart<'_>>,
    ) -> CanonicalParts {
        let list = list_of(body);
        if list.is_some_and(|list| self.ignored.iter().any(|path| !path.keeps_items(list))) {
            return self.whole(boundary, body);
        }
        let fields = self.fields(boundary, body.fields().clone(), list);
        let mut progress = led_by(&fields);
        let items = |before: usize| match (list, body.messages()) {
            (Some(_), Some(messages)) => messages.after(before),
            (Some(list), _) => body.get(list).and_then(Value::as_array).into_iter().flatten().collect(),
            (None, _) => Vec::new(),
        };
        let continued = start.filter(|start| {
            start.progress.lead == progress.lead
                && body.messages().is_some_and(|own| own.since(start.messages).is_some())
        });
        let items = match continued {
            Some(start) => {
                progress = start.progress;
                items(start.messages.len())
            }
            None => items(0),
        };
        items.into_iter().for_each(|item| self.add_to(list.unwrap_or_default(), &mut progress, item));
        let mut fields = fields;
        progress.names.for_fields(&mut fields).rename(&mut fields);
        let mut chain = progress.chain.clone();
        single(&fields).into_iter().for_each(|text| chain.push(link(&chain, &sorted(text), None)));
        let can_continue = body.list().is_some();
        CanonicalParts { fields, list, chain, exact: progress.exact, progress: can_continue.then_some(progress) }
    }

    /// As [`parts`](Self::parts), where items of the list have to be looked at together.
    fn whole(&self, boundary: &str, body: &SharedBody) -> CanonicalParts {
        let mut fields = self.canonical(boundary, &body.value());
        let list = LISTS.into_iter().find(|name| fields.get(*name).is_some());
        let list = list.filter(|name| fields.get(*name).is_some_and(Value::is_array));
        let listed = list.and_then(|name| fields.as_object_mut()?.shift_remove(name));
        let mut chain = led_by(&fields).chain;
        if let Some(Value::Array(items)) = listed {
            items.into_iter().for_each(|item| chain.push(link(&chain, &sorted(&item), Some(item))));
        }
        single(&fields).into_iter().for_each(|text| chain.push(link(&chain, &sorted(text), None)));
        CanonicalParts { fields, list, chain, exact: xxh3_128(body.to_string().as_bytes()), progress: None }
    }

    /// The fields beside the list, their ids as they came.
    fn fields(&self, boundary: &str, mut fields: Value, list: Option<&str>) -> Value {
        list.and_then(|list| fields.as_object_mut()?.shift_remove(list));
        self.even(boundary, &mut fields);
        normal::even_numbers(&mut fields);
        fields
    }
}

fn list_of(body: &SharedBody) -> Option<&'static str> {
    if body.list().is_some() {
        return body.list();
    }
    let is_there = body.get("messages").is_some_and(|messages| !messages.is_null());
    let input = body.get("input").filter(|input| !is_there && input.is_array());
    input.map(|_| "input")
}

/// A conversation of which only what comes before the messages is known.
fn led_by(fields: &Value) -> CanonicalProgress {
    let mut progress = CanonicalProgress::default();
    let leading = ["system", "instructions"].iter().filter_map(|name| fields.get(*name));
    leading.for_each(|value| progress.link(&sorted(value), None));
    progress.lead = progress.hash();
    progress
}

fn single(fields: &Value) -> Option<&Value> {
    ["input", "prompt"].iter().find_map(|name| fields.get(*name).filter(|value| value.is_string()))
}

#[cfg(test)]
thread_local! {
    /// Number of messages brought into canonical form on this thread.
    pub(crate) static WORK: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
