//! Cassettes put together: the records of one behind those of another, under numbers of their own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{Cassette, writer::HIGH_ID};

impl Cassette {
    /// Adds the records of another cassette behind its own, and what stands at its top. Returns the new numbers of its records.
    ///
    /// # Errors
    /// When both cannot stand at one top: the name of the entry.
    pub fn append(&mut self, other: Self) -> Result<BTreeMap<u64, u64>, &'static str> {
        let (own, added) = (&self.header, &other.header);
        if own.matching != added.matching {
            return Err("match");
        }
        if own.clock != added.clock {
            return Err("clock");
        }
        let recorded = both_recorded(own.recorded.clone(), &added.recorded);
        let numbers = self.numbers(&other);
        self.header = other.header.over(std::mem::take(&mut self.header));
        self.header.recorded = recorded;
        // Those that are still used are defined again.
        self.tools.clear();
        let number = |id: u64| numbers.get(&id).copied().unwrap_or(id);
        for mut record in other.records {
            record.id = number(record.id);
            record.like = record.like.map(number);
            record.retry_of = record.retry_of.map(number);
            for (_, source) in &mut record.put_back {
                source.record = source.record.map(number);
            }
            record.side.iter_mut().for_each(|side| side.id = record.id);
            self.records.push(record);
        }
        Ok(numbers)
    }

    /// Numbers for the records of another cassette: those after its own, or the smallest that are free.
    fn numbers(&self, other: &Self) -> BTreeMap<u64, u64> {
        let taken: BTreeSet<u64> = self.records.iter().map(|record| record.id).collect();
        let first = taken.last().filter(|id| **id < HIGH_ID).map_or(0, |id| id + 1);
        let free = (first..).filter(|id| !taken.contains(id));
        other.records.iter().map(|record| record.id).zip(free).collect()
    }
}

/// What is known of both recordings: the first one's, with everything that lists of the other have beside it.
fn both_recorded(mut own: Map<String, Value>, other: &Map<String, Value>) -> Map<String, Value> {
    for (name, value) in other {
        match (own.get_mut(name), value) {
            (Some(Value::Array(listed)), Value::Array(more)) => {
                let new: Vec<Value> = more.iter().filter(|item| !listed.contains(item)).cloned().collect();
                listed.extend(new);
            }
            (Some(_), _) => {}
            (None, value) => drop(own.insert(name.clone(), value.clone())),
        }
    }
    own
}
