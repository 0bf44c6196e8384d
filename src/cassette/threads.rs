//! Finds the record that a request continues.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    message::echo,
    record::{Echo, Record},
};
use crate::identity::Rules;

/// Finds the record that a request continues.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// By the conversation after the answer, however it is repeated.
    after: HashMap<u64, (usize, Echo)>,
    /// By the conversation that was asked.
    asked: HashMap<u64, usize>,
}

/// The hashes of a record's conversation, on its own route.
#[derive(Debug)]
pub(super) struct Chain(Vec<u64>);

impl Chain {
    pub(super) fn of(record: &Record) -> Self {
        Self(chain(record, &record.body))
    }
}

impl Threads {
    /// Adds a record, whose place is `at`.
    pub(super) fn add(&mut self, record: &Record, chain: &Chain, at: usize) {
        self.asked.extend(chain.0.last().map(|last| (*last, at)));
        let plain = echo(&record.answer, Echo::Plain);
        for how in [Echo::Whole, Echo::Plain] {
            let answer = match how {
                Echo::Whole => echo(&record.answer, how).filter(|whole| plain.as_ref() != Some(whole)),
                Echo::Plain => plain.clone(),
            };
            let Some(answer) = answer else { continue };
            let mut body = record.body.clone();
            let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else { return };
            messages.push(answer);
            self.after.extend(self::chain(record, &body).last().map(|last| (*last, (at, how))));
        }
    }

    /// The record with the longest part of the conversation.
    pub(super) fn base_of(&self, record: &Record, chain: &Chain) -> Option<(usize, Echo)> {
        record.body.get("messages")?.as_array()?;
        let asked = || chain.0.last().and_then(|last| self.asked.get(last)).map(|at| (*at, Echo::Plain));
        chain.0.iter().rev().find_map(|hash| self.after.get(hash)).copied().or_else(asked)
    }
}

fn chain(record: &Record, body: &Value) -> Vec<u64> {
    let route = xxhash_rust::xxh3::xxh3_64(record.path.as_bytes());
    Rules::default().conversation(body).into_iter().map(|hash| hash ^ route).collect()
}
