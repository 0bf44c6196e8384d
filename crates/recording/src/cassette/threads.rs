//! Finds the record that a request continues.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    echo::{FORMS, conversation_of, echo},
    marks::{EarlierMarks, earlier_marks, marked, unmarked},
    record::{Echo, Record},
    write::can_continue,
};
use crate::canonical::{Progress, Rules, SharedList};

/// Finds the record that a request continues.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// By the conversation after the answer, however it is repeated.
    after: HashMap<u128, (usize, Echo)>,
    /// By the conversation that was asked.
    asked: HashMap<u128, usize>,
}

/// A record's conversation, on its own route.
#[derive(Debug)]
pub(super) struct Chain {
    route: u128,
    progress: Progress,
}

impl Chain {
    pub(super) fn of(record: &Record) -> Self {
        let route = xxhash_rust::xxh3::xxh3_128(record.path.as_bytes());
        let mut progress = Rules::default().lead(&record.body);
        if let Some((_, messages)) = conversation_of(&record.body) {
            messages.iter().for_each(|message| add(&mut progress, message));
        }
        Self { route, progress }
    }

    /// The conversation of a record that continues another one, of which only the new messages have to be looked at.
    pub(super) fn of_next(record: &Record, base: &Record, before: Self) -> Self {
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

impl Clone for Chain {
    fn clone(&self) -> Self {
        Self { route: self.route, progress: self.progress.clone() }
    }
}

impl Threads {
    /// Adds a record, whose place is `at`.
    pub(super) fn add(&mut self, record: &Record, chain: &Chain, at: usize) {
        if chain.progress.hash() != 0 {
            self.asked.insert(chain.route ^ chain.progress.hash(), at);
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

    /// Forgets the records before a place.
    pub(super) fn forget(&mut self, before: usize) {
        self.after.retain(|_, (at, _)| *at >= before);
        self.asked.retain(|_, at| *at >= before);
    }

    /// The record with the longest part of the conversation.
    pub(super) fn base_of(&self, record: &Record, chain: &Chain) -> Option<(usize, Echo)> {
        record.body.messages()?;
        let after = chain.progress.hashes().find_map(|hash| self.after.get(&(chain.route ^ hash)));
        let asked = || self.asked.get(&(chain.route ^ chain.progress.hash())).map(|at| (*at, Echo::Plain));
        after.copied().or_else(asked)
    }
}

/// Adds a message; marks that move do not count.
fn add(progress: &mut Progress, message: &Value) {
    Rules::default().add(progress, &unmarked(message));
}

/// Shares the messages of the record that another one [continues](Threads::base_of), as the file does: what is the same is in
/// memory once. Nothing is shared where the file shows the request in full.
pub(super) fn share(record: &mut Record, base: &Record) {
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
