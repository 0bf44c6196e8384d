//! Finds the record that a request continues.
//!
//! Marks of messages move from request to request: a client that has prompts cached sets `cache_control` on its last blocks and
//! removes it from those before them. `cached` in a record lists the earlier messages that still have it.

use std::{borrow::Cow, collections::HashMap};

use serde_json::Value;

use super::{
    echo::{FORMS, conversation_of, echo},
    record::{CassetteRecord, Echo},
    write::can_continue,
};
use crate::canonical::{CanonicalProgress, CanonicalRules, SharedList};

#[derive(Debug, Default)]
pub(super) struct Threads {
    /// By the conversation after the answer, however it is repeated.
    after: HashMap<u128, (usize, Echo)>,
    /// By the conversation that was asked.
    requested: HashMap<u128, usize>,
}

/// A record's conversation, on its own route.
#[derive(Debug, Clone)]
pub(super) struct ConversationChain {
    route: u128,
    progress: CanonicalProgress,
}

impl ConversationChain {
    pub(super) fn of(record: &CassetteRecord) -> Self {
        let route = xxhash_rust::xxh3::xxh3_128(record.path.as_bytes());
        let mut progress = CanonicalRules::default().lead(&record.body);
        if let Some((_, messages)) = conversation_of(&record.body) {
            messages.iter().for_each(|message| add(&mut progress, message));
        }
        Self { route, progress }
    }

    /// The conversation of a record that continues another one, of which only the new messages have to be looked at.
    pub(super) fn of_next(record: &CassetteRecord, base: &CassetteRecord, before: Self) -> Self {
        let new = record.body.messages().zip(base.body.messages()).and_then(|(own, earlier)| own.since(earlier));
        let same = |name| record.body.get(name) == base.body.get(name);
        match new {
            Some(new) if same("system") && same("instructions") && record.path == base.path => {
                let mut progress = before.progress;
                new.into_iter().for_each(|message| add(&mut progress, message));
                Self { progress, ..before }
            }
            _ => Self::of(record),
        }
    }
}

impl Threads {
    pub(super) fn add(&mut self, record: &CassetteRecord, chain: &ConversationChain, at: usize) {
        if chain.progress.hash() != 0 {
            self.requested.insert(chain.route ^ chain.progress.hash(), at);
        }
        if conversation_of(&record.body).is_none() {
            return;
        }
        let forms: Vec<_> = FORMS.into_iter().map(|how| (how, echo(&record.answer, how))).collect();
        for (place, (how, answer)) in forms.iter().enumerate() {
            let is_again = || forms.iter().skip(place + 1).any(|(_, later)| later == answer);
            let Some(answer) = answer.as_ref().filter(|_| !is_again()) else { continue };
            let mut progress = chain.progress.clone();
            answer.iter().for_each(|message| add(&mut progress, message));
            self.after.insert(chain.route ^ progress.hash(), (at, *how));
        }
    }

    pub(super) fn forget(&mut self, before: usize) {
        self.after.retain(|_, (at, _)| *at >= before);
        self.requested.retain(|_, at| *at >= before);
    }

    /// The record with the longest part of the conversation.
    pub(super) fn base_of(&self, record: &CassetteRecord, chain: &ConversationChain) -> Option<(usize, Echo)> {
        record.body.messages()?;
        let after = chain.progress.hashes().find_map(|hash| self.after.get(&(chain.route ^ hash)));
        let requested = || self.requested.get(&(chain.route ^ chain.progress.hash())).map(|at| (*at, Echo::Plain));
        after.copied().or_else(requested)
    }
}

/// Adds a message; marks that move do not count.
fn add(progress: &mut CanonicalProgress, message: &Value) {
    CanonicalRules::default().add(progress, &unmarked(message));
}

/// Shares the messages of the record that another one [continues](Threads::base_of), as the file does: what is the same is in
/// memory once. Nothing is shared where the file shows the request in full.
pub(super) fn share(record: &mut CassetteRecord, base: &CassetteRecord) {
    let (Some(messages), Some((list, earlier))) = (record.body.messages(), conversation_of(&base.body)) else { return };
    if record.body.list() != Some(list) || !can_continue(record, base) {
        return;
    }
    let shared: SharedList<_> = if messages.len() <= earlier.len() {
        if *messages != earlier {
            return;
        }
        earlier
    } else {
        let Some(answer) = echo(&base.answer, record.echo) else { return };
        let known: Vec<Value> = earlier.iter().cloned().chain(answer.iter().cloned()).collect();
        record.cached = match earlier_marks(messages, &known) {
            EarlierMarks::All => None,
            EarlierMarks::Only(places) => Some(places),
            EarlierMarks::Others => return,
        };
        let added = messages.after(known.len()).into_iter().cloned();
        let mut shared = earlier;
        match &record.cached {
            Some(places) => shared = marked(known, Some(places)).into_iter().collect(),
            None => shared.extend(answer),
        }
        shared.extend(added);
        shared
    };
    record.body = std::mem::take(&mut record.body).with_messages(shared);
}

const MARK: &str = "cache_control";

fn unmarked(message: &Value) -> Cow<'_, Value> {
    if marks(message).is_empty() {
        return Cow::Borrowed(message);
    }
    let mut message = message.clone();
    remove(&mut message);
    Cow::Owned(message)
}

/// The earlier messages that still have their marks, by their place.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EarlierMarks {
    /// All that had any.
    All,
    /// These and no others.
    Only(Vec<u64>),
    /// A message has other marks than it had.
    Others,
}

fn earlier_marks(own: &SharedList<Value>, earlier: &[Value]) -> EarlierMarks {
    let (mut unchanged, mut has_moved) = (Vec::new(), false);
    for ((message, before), place) in own.iter().zip(earlier).zip(0..) {
        let (now, then) = (marks(message), marks(before));
        match (now.is_empty(), now == then) {
            (true, true) => {}
            (true, false) => has_moved = true,
            (false, true) => unchanged.push(place),
            (false, false) => return EarlierMarks::Others,
        }
    }
    if has_moved { EarlierMarks::Only(unchanged) } else { EarlierMarks::All }
}

/// The earlier messages, of which only those at these places have their marks.
pub(super) fn marked(mut earlier: Vec<Value>, places: Option<&[u64]>) -> Vec<Value> {
    let Some(places) = places else { return earlier };
    let unmarked = earlier.iter_mut().zip(0..).filter(|(_, place)| !places.contains(place));
    unmarked.for_each(|(message, _)| remove(message));
    earlier
}

fn blocks(message: &Value) -> &[Value] {
    message.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The marks of a message, each with the place of its block. Results of tools have blocks in their blocks.
fn marks(message: &Value) -> Vec<(usize, &Value)> {
    let mut found = Vec::new();
    for (at, block) in blocks(message).iter().enumerate() {
        found.extend(block.get(MARK).map(|mark| (at, mark)));
        found.extend(marks(block));
    }
    found
}

fn remove(message: &mut Value) {
    for block in message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten() {
        block.as_object_mut().and_then(|block| block.shift_remove(MARK));
        remove(block);
    }
}
