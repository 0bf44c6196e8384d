//! Where the values of a record's placeholders come from when it is served; players of models and of MCP servers put them back alike.
//!
//! A record is known by its cassette and its number there, so that a plan can meet no other one, whatever is left out of a list.
//!
//! See docs/decisions/0074-values-are-put-back.md.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use recording::redaction::{Placeholder, PlaceholderValues, SeenSecrets};

/// A record among those of some cassettes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordKey {
    /// Place of its cassette in the list of all, from 0.
    pub cassette: usize,
    /// Its number in the file.
    pub record: u64,
}

/// Values of requests that records answered, by the records.
pub type EarlierValues = HashMap<RecordKey, SeenSecrets>;

/// Where the values of one record's placeholders come from.
#[derive(Debug, Default)]
pub struct ValuePlan {
    /// The placeholders of the answer.
    pub placeholders: BTreeSet<Placeholder>,
    /// Those with a value in the request that is answered, each with the placeholder that it has there.
    pub requested: Vec<(Placeholder, Placeholder)>,
    /// Those with a value in the request that an earlier record answered, each with the placeholder that it has there.
    pub earlier: Vec<(Placeholder, RecordKey, Placeholder)>,
    /// Values that the user supplied.
    pub supplied: PlaceholderValues,
    /// Size of the answer in bytes.
    pub bytes: usize,
}

impl ValuePlan {
    /// The values for a request with these values, in a session with those earlier ones.
    pub(crate) fn values(&self, requested: &SeenSecrets, earlier: &EarlierValues) -> PlaceholderValues {
        let mut values = self.supplied.clone();
        let mut wanted: HashMap<RecordKey, Vec<(&Placeholder, &Placeholder)>> = HashMap::new();
        for (placeholder, source, there) in &self.earlier {
            wanted.entry(*source).or_default().push((placeholder, there));
        }
        for (seen, wanted) in wanted.iter().filter_map(|(source, wanted)| Some((earlier.get(source)?, wanted))) {
            take(&mut values, seen, wanted);
        }
        let of_asked: Vec<(&Placeholder, &Placeholder)> =
            self.requested.iter().map(|(it, there)| (it, there)).collect();
        take(&mut values, requested, &of_asked);
        values
    }

    /// Whether a placeholder is served as it is, since these values have none for it.
    pub(crate) fn leaves_any(&self, values: &PlaceholderValues) -> bool {
        self.placeholders.iter().any(|placeholder| !values.has(placeholder))
    }
}

/// Adds the values that a request has, by the placeholders of an answer.
fn take(values: &mut PlaceholderValues, seen: &SeenSecrets, wanted: &[(&Placeholder, &Placeholder)]) {
    let kinds: BTreeSet<&str> = wanted.iter().map(|(_, there)| &*there.kind).collect();
    let known: HashMap<(&str, usize), &str> = kinds
        .into_iter()
        .flat_map(|kind| seen.of_kind(kind).map(move |(number, value)| ((kind, number), value)))
        .collect();
    for (placeholder, there) in wanted {
        if let Some(value) = known.get(&(&*there.kind, there.number)) {
            values.insert((*placeholder).clone(), value);
        }
    }
}

/// Plans of all records that have placeholders in their answers.
#[derive(Debug, Default)]
pub struct ValuePlans {
    plans: HashMap<RecordKey, Arc<ValuePlan>>,
    /// Records whose requests have values of later answers.
    sources: HashSet<RecordKey>,
}

impl ValuePlans {
    /// Adds the plan of a record.
    pub fn add(&mut self, record: RecordKey, plan: ValuePlan) {
        self.sources.extend(plan.earlier.iter().map(|(_, source, _)| *source));
        self.plans.insert(record, Arc::new(plan));
    }

    /// The plan of a record; `None` where its answer has no placeholders.
    pub(crate) fn of(&self, record: RecordKey) -> Option<&Arc<ValuePlan>> {
        self.plans.get(&record)
    }

    /// Whether later answers have values of the request that a record answers.
    pub(crate) fn is_source(&self, record: RecordKey) -> bool {
        self.sources.contains(&record)
    }
}
