//! A fault of a set with what is counted for it.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use base::lock::Lock;

use crate::{fault::Fault, kind::FaultKind, quota::QuotaBook, request::SelectionFacts, selection::SequenceKey};

/// Maximum number of sequences of a fault, and most different requests, that are counted; later ones count as the first of their kind.
const MOST_COUNTED: usize = 1 << 20;

/// Counts one more of this key, and returns how many there are.
pub(crate) fn count(counts: &Lock<HashMap<u64, u64>>, key: u64) -> u64 {
    let mut counts = counts.lock();
    if counts.len() >= MOST_COUNTED && !counts.contains_key(&key) {
        return 1;
    }
    let count = counts.entry(key).or_default();
    *count += 1;
    *count
}

#[derive(Debug)]
pub(crate) struct FaultRule {
    pub(crate) fault: Arc<Fault>,
    pub(crate) quota: QuotaBook,
    /// The first batch of each publisher that it could concern.
    pub(crate) began: Lock<HashMap<(u32, u32), u64>>,
    /// Requests of each sequence that fulfil all its conditions.
    sequences: Lock<HashMap<u64, u64>>,
    pub(crate) happened: AtomicU64,
    pub(crate) unapplied: AtomicU64,
}

impl FaultRule {
    pub(crate) fn new(fault: Fault) -> Self {
        Self {
            fault: Arc::new(fault),
            quota: QuotaBook::default(),
            began: Lock::default(),
            sequences: Lock::default(),
            happened: AtomicU64::new(0),
            unapplied: AtomicU64::new(0),
        }
    }

    pub(crate) fn happened(&self) -> u64 {
        self.happened.load(Ordering::Relaxed)
    }

    /// Returns true if only some of a sequence get it.
    pub(crate) fn counts(&self) -> bool {
        self.fault.selection.first.is_some() || self.fault.selection.nth.is_some()
    }

    /// Takes the next place in the sequence of a request that fulfils all other conditions, and returns true if it is one that gets the fault.
    pub(crate) fn takes_next(&self, facts: &mut SelectionFacts<'_>) -> bool {
        if !self.counts() {
            return true;
        }
        let selection = &self.fault.selection;
        let is_of_request = selection.per == SequenceKey::Request;
        // All of the same requests fulfil them then, and their number stands in the line of a hit.
        if is_of_request && selection.is_of_request_alone() && !matches!(self.fault.kind, FaultKind::NotReady { .. }) {
            return self.is_among(facts.nth);
        }
        self.takes_next_of(facts.sequence(&selection.per))
    }

    fn takes_next_of(&self, sequence: u64) -> bool {
        !self.counts() || self.is_among(count(&self.sequences, sequence))
    }

    fn is_among(&self, place: u64) -> bool {
        let selection = &self.fault.selection;
        selection.first.is_none_or(|first| place <= first) && selection.nth.is_none_or(|nth| place == nth)
    }
}

/// Of a fault with a condition about the record: whether it concerns the answer, which is known once a record is.
#[derive(Debug)]
pub(crate) struct RecordCondition {
    rule: Arc<FaultRule>,
    sequence: u64,
    concerns: OnceLock<bool>,
}

impl RecordCondition {
    pub(crate) fn new(rule: &Arc<FaultRule>, facts: &mut SelectionFacts<'_>) -> Self {
        let sequence = if rule.counts() { facts.sequence(&rule.fault.selection.per) } else { 0 };
        Self { rule: Arc::clone(rule), sequence, concerns: OnceLock::new() }
    }

    /// Returns true if the fault concerns an answer of this record. The request takes its place in the sequence where that is asked first.
    pub(crate) fn holds_for(&self, record: Option<&str>) -> bool {
        let is_it = record.is_some_and(|record| self.rule.fault.selection.is_of_record_named(record));
        is_it && *self.concerns.get_or_init(|| self.rule.takes_next_of(self.sequence))
    }

    /// Returns true if it was found to concern the answer.
    pub(crate) fn has_held(&self) -> bool {
        self.concerns.get().is_some_and(|concerns| *concerns)
    }
}
