//! The record that is most like a request without one, and how they differ.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::record_index::{IndexedRecord, RecordIndex};
use crate::recording::canonical::{Difference, differences, leaves};

/// Records that are compared with a request.
const MOST_COMPARED: usize = 2000;

/// Differences that are counted.
const MOST_DIFFERENCES: usize = 1000;

/// A request of a client, in canonical form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// Its method.
    pub method: &'a str,
    /// What counts of it.
    pub canonical: &'a Value,
}

/// The record that is most like a request, and the differences.
#[derive(Debug)]
pub(super) struct Nearest<'t> {
    /// Its place in the recording.
    pub at: usize,
    /// The record.
    pub indexed: &'t IndexedRecord,
    /// How the request differs from it.
    pub differences: Vec<Difference>,
}

/// Finds the record of the same method and tool that differs least; of several the first that was not served, then the first.
#[must_use]
pub(super) fn nearest<'t>(
    index: &'t RecordIndex,
    asked: Asked<'_>,
    served: impl Fn(usize) -> bool,
) -> Option<Nearest<'t>> {
    let same_method = index.records().iter().enumerate().filter(|(_, indexed)| indexed.record.method == asked.method);
    let distance = |(at, indexed): &(usize, &IndexedRecord)| {
        let is_other = name_of(&indexed.canonical) != name_of(asked.canonical);
        (is_other, leaves(&indexed.canonical, asked.canonical, MOST_DIFFERENCES), served(*at))
    };
    let (at, indexed) = same_method.take(MOST_COMPARED).min_by_key(distance)?;
    Some(Nearest { at, indexed, differences: differences(&indexed.canonical, asked.canonical) })
}

/// Finds the record that may answer in place of one that was not recorded: of the same method and tool, with at least half of the names
/// of all arguments in common.
#[must_use]
pub(super) fn alike<'t>(
    index: &'t RecordIndex,
    asked: Asked<'_>,
    served: impl Fn(usize) -> bool,
) -> Option<Nearest<'t>> {
    let found = nearest(index, asked, served)?;
    let is_same = name_of(&found.indexed.canonical) == name_of(asked.canonical);
    (is_same && shares_half(&found.indexed.canonical, asked.canonical)).then_some(found)
}

/// The tool or prompt that a canonical request names.
#[must_use]
pub(super) fn name_of(canonical: &Value) -> Option<&str> {
    canonical.get("params")?.get("name")?.as_str()
}

/// Whether two requests have at least half of the names of their arguments in common.
fn shares_half(a: &Value, b: &Value) -> bool {
    let names = |canonical: &Value| -> HashSet<String> {
        let params = canonical.get("params").unwrap_or(&Value::Null);
        // Calls name a tool and have arguments, other requests only have parameters.
        let named = if params.get("name").is_some() { params.get("arguments") } else { Some(params) };
        named.and_then(Value::as_object).map(Map::keys).into_iter().flatten().cloned().collect()
    };
    let (a, b) = (names(a), names(b));
    let both = a.intersection(&b).count();
    let any = a.union(&b).count();
    2 * both >= any
}
