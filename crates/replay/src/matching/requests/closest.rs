//! The records that are closest to a request without one.

use std::{cmp::Reverse, collections::HashSet};

use serde_json::Value;

use super::{CassetteIndex, likeness::Likeness, path_of};
use recording::canonical::{ChainLink, Identity, leaves};

/// Maximum number of records compared field by field.
const COMPARED: usize = 24;

/// Maximum number of differences counted.
const MOST: usize = 100;

/// Maximum number of last messages that are compared.
const LAST: usize = 256;

/// A record by its closeness, the closest first: of the boundary, with only turns more or less, likeness, shared messages.
type Ranked = (bool, bool, Reverse<u64>, Reverse<usize>);

impl CassetteIndex {
    /// The closest records, the closest first: those of the same path and boundary, those that have the same messages but for turns
    /// that were left out or put in, with the most words in common, with the fewest differences, not among the `served` ones, in
    /// recorded order.
    pub(crate) fn closest(&self, identity: &Identity, served: &HashSet<usize>, most: usize) -> Vec<usize> {
        let shared = self.conversations.shared(identity, &self.boundaries());
        let path = path_of(identity);
        let mut likeness = Likeness::new(identity);
        let mut candidates: Vec<(Ranked, bool, usize)> = Vec::new();
        for (at, other) in self.identities.iter().enumerate() {
            if self.is_servable(at) && path_of(other) == path {
                let shared = shared.get(&at).copied().unwrap_or(0);
                let alike = likeness.of(other, shared);
                let is_of_other = other.boundary != identity.boundary;
                let ranked = (is_of_other, !differs_by_turns(other, identity, shared), Reverse(alike), Reverse(shared));
                candidates.push((ranked, served.contains(&at), at));
            }
        }
        if candidates.len() > COMPARED {
            candidates.select_nth_unstable(COMPARED);
            candidates.truncate(COMPARED);
        }
        // What both begin with is no difference.
        let differing = |at: usize, shared: usize| {
            let other = self.identity(at);
            other.map_or(MOST, |other| leaves(&other.body_after(shared), &identity.body_after(shared), MOST))
        };
        let mut ranked: Vec<_> = candidates
            .into_iter()
            .map(|(ranked, consumed, at)| ((ranked, differing(at, ranked.3.0), consumed, at), at))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, at)| at).take(most).collect()
    }

    /// Returns whether a record's request is about the same as another one.
    pub(crate) fn is_alike(&self, identity: &Identity, record: usize) -> bool {
        let shared = self.conversations.shared(identity, &self.boundaries());
        let shared = shared.get(&record).copied().unwrap_or(0);
        self.identity(record).is_some_and(|other| {
            let is_near = differs_by_turns(other, identity, shared) || differs_by_results(other, identity, shared);
            is_near || Likeness::new(identity).is_alike(other, shared)
        })
    }
}

/// Returns whether one of two conversations is the other one without some of its turns, the last message of both being the same.
fn differs_by_turns(recorded: &Identity, received: &Identity, shared: usize) -> bool {
    let (a, b) = (&recorded.chain, &received.chain);
    let rest = a.len().min(b.len()).saturating_sub(shared);
    let mut last = a.backward().zip(b.backward()).take(rest);
    a.len() != b.len() && (1..=LAST).contains(&rest) && last.all(|(a, b)| a.value.is_some() && a.value == b.value)
}

/// Returns whether two conversations have the same messages but for results of tools, whatever these hold.
fn differs_by_results(recorded: &Identity, received: &Identity, shared: usize) -> bool {
    let (a, b) = (&recorded.chain, &received.chain);
    let rest = a.len().saturating_sub(shared);
    let is_alike = |(a, b): (&ChainLink, &ChainLink)| {
        let both = a.value.as_ref().zip(b.value.as_ref());
        both.is_some_and(|(a, b)| a == b || is_result(a) && is_result(b))
    };
    a.len() == b.len()
        && (1..=LAST).contains(&rest)
        && shared > 0
        && a.backward().zip(b.backward()).take(rest).all(is_alike)
}

/// Whether a message has the result of a tool and nothing else.
fn is_result(message: &Value) -> bool {
    let is = |value: &Value, name: &str, expected: &[&str]| {
        value.get(name).and_then(Value::as_str).is_some_and(|value| expected.contains(&value))
    };
    let parts = message.get("content").and_then(Value::as_array);
    is(message, "role", &["tool", "function"])
        || is(message, "type", &["function_call_output"])
        || parts.is_some_and(|parts| !parts.is_empty() && parts.iter().all(|part| is(part, "type", &["tool_result"])))
}
