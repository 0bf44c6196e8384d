//! Values in place of the placeholders that a cassette has for secrets, so that an agent does what it did when it was recorded.
//!
//! Where each value comes from is found when the cassette is loaded: the request that the record answers, where the record's own has
//! the placeholder; an earlier request of the session, where the record names it (`put_back`); or what the user
//! [supplies](SuppliedSecrets). Records without placeholders have no entry and are served as before. Limits: bodies of bytes stay as they are.
//!
//! See docs/decisions/0074-values-are-put-back.md.

pub(crate) mod held;
mod supplied;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use self::held::{RequestPlaceholders, held, kinds};
pub use self::supplied::{SuppliedSecrets, SuppliedSecretsError};
use crate::{
    player::{
        CassettePlayer,
        incoming::IncomingRequest,
        secrets::{note_all, placeholders_of, put_into, put_into_moments},
    },
    values::{EarlierValues, RecordKey, ValuePlan, ValuePlans},
};
use recording::{
    cassette::{Cassette, CassetteRecord, Moment, ValueSource},
    redaction::{Placeholder, PlaceholderValues},
};
use serde_json::Value;

/// Placeholders that a warning names each; others are counted.
const MOST_NAMED: usize = 20;

/// Finds where the placeholders in the answers of these cassettes have their values; with a warning for each that has none. Only records
/// that are played count.
#[must_use]
pub fn value_plans(
    cassettes: &[Cassette],
    supplied: &SuppliedSecrets,
    is_played: impl Fn(&CassetteRecord) -> bool,
) -> (ValuePlans, Vec<String>) {
    let (mut plans, mut warnings) = (ValuePlans::default(), Vec::new());
    for (at, cassette) in cassettes.iter().enumerate().filter(|(_, cassette)| !kinds(cassette).is_empty()) {
        let records = &cassette.records;
        let places = records.iter().enumerate().map(|(at, it)| (it.id, at)).collect();
        let requests = CassetteRequests { cassette: at, records, held: held(records), places };
        let mut unknown = Vec::new();
        for (place, record) in records.iter().enumerate().filter(|(_, record)| is_played(record)) {
            let placeholders = placeholders_of(&record.answer);
            if placeholders.is_empty() {
                continue;
            }
            let mut plan = ValuePlan { bytes: record.answer.shown().to_string().len(), ..ValuePlan::default() };
            let mut values = Vec::new();
            for placeholder in &placeholders {
                let is_planned = requests.plan(&mut plan, (record, place), placeholder);
                let value = supplied.value(&cassette.path, record.id, placeholder);
                match value {
                    None if !is_planned => unknown.push((record, placeholder.clone())),
                    value => values.extend(value.map(|value| (placeholder.clone(), value))),
                }
            }
            (plan.supplied, plan.placeholders) = (values.into_iter().collect(), placeholders);
            plans.add(RecordKey { cassette: at, record: record.id }, plan);
        }
        warnings.extend(warnings_of(cassette, &unknown, "served as it is, since no request has its value"));
    }
    (plans, warnings)
}

/// Puts supplied values into requests that are sent again, each with the place of its record. A warning for each placeholder that
/// stays.
pub fn restore_requests<'a>(
    cassette: &Cassette,
    requests: impl Iterator<Item = (usize, &'a mut Value)>,
    supplied: &SuppliedSecrets,
) -> Vec<String> {
    let mut unknown = Vec::new();
    for (record, request) in requests.filter_map(|(at, request)| Some((cassette.records.get(at)?, request))) {
        let left = restore_request((cassette, record), request, supplied).unknown;
        unknown.extend(left.into_iter().map(|placeholder| (record, placeholder)));
    }
    warnings_of(cassette, &unknown, "sent as it is")
}

/// Outcome of the placeholders of a request that is sent again.
#[derive(Debug, Default)]
pub(crate) struct RestoredRequest {
    pub(crate) had_any: bool,
    /// Those without a value, which stay.
    pub(crate) unknown: Vec<Placeholder>,
}

/// Puts supplied values into one request.
pub(crate) fn restore_request(
    (cassette, record): (&Cassette, &CassetteRecord),
    request: &mut Value,
    supplied: &SuppliedSecrets,
) -> RestoredRequest {
    let (mut found, mut values) = (BTreeSet::new(), PlaceholderValues::default());
    note_all(request, &mut found);
    let mut restored = RestoredRequest { had_any: !found.is_empty(), ..RestoredRequest::default() };
    for placeholder in found {
        match supplied.value(&cassette.path, record.id, &placeholder) {
            Some(value) => values.insert(placeholder, &value),
            None => restored.unknown.push(placeholder),
        }
    }
    values.json(request);
    restored
}

/// How the user gives the value of a placeholder.
pub(crate) fn how_to_give(cassette: &Cassette, record: u64, placeholder: &Placeholder) -> String {
    let name = cassette.path.file_name().unwrap_or_default().to_string_lossy();
    let (short, variable) = (placeholder.short(), supplied::variable(placeholder));
    format!("give it with --secrets FILE (a line `{name}#{record} {short} = VALUE`) or {variable}")
}

fn warnings_of(cassette: &Cassette, unknown: &[(&CassetteRecord, Placeholder)], what: &str) -> Vec<String> {
    let file = cassette.path.display();
    let warning = |(record, placeholder): &(&CassetteRecord, Placeholder)| {
        let (line, id, how) = (record.line, record.id, how_to_give(cassette, record.id, placeholder));
        format!("{file}:{line}: record {id}: {placeholder} is {what}; {how}")
    };
    let mut warnings: Vec<String> = unknown.iter().take(MOST_NAMED).map(warning).collect();
    if let Some(more) = unknown.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        warnings.push(format!("{file}: {more} more placeholders stay as they are"));
    }
    warnings
}

struct CassetteRequests<'a> {
    cassette: usize,
    records: &'a [CassetteRecord],
    held: Vec<RequestPlaceholders>,
    /// Of the records, by their numbers.
    places: HashMap<u64, usize>,
}

impl CassetteRequests<'_> {
    /// Adds where the value of a placeholder stands to a record's plan; false where no request has it.
    fn plan(&self, plan: &mut ValuePlan, (record, at): (&CassetteRecord, usize), placeholder: &Placeholder) -> bool {
        let has =
            |at: usize, placeholder: &Placeholder| self.held.get(at).is_some_and(|held| held.contains(placeholder));
        let named = record.put_back.iter().find(|(named, _)| named == placeholder).map(|(_, source)| source);
        match named {
            Some(ValueSource { placeholder: source, record: None }) if has(at, source) => {
                plan.requested.push((placeholder.clone(), source.clone()));
            }
            Some(ValueSource { placeholder: source, record: Some(id) }) => {
                let is_asked =
                    |earlier: &usize| *earlier < at && has(*earlier, source) && self.share_sessions(*earlier, at);
                if self.places.get(id).is_none_or(|earlier| !is_asked(earlier)) {
                    return false;
                }
                let earlier = RecordKey { cassette: self.cassette, record: *id };
                plan.earlier.push((placeholder.clone(), earlier, source.clone()));
            }
            None if has(at, placeholder) => plan.requested.push((placeholder.clone(), placeholder.clone())),
            Some(_) | None => return false,
        }
        true
    }

    /// Whether requests of both records come to the same sessions: each MCP server has its own, beside those of the models.
    fn share_sessions(&self, one: usize, other: usize) -> bool {
        let server = |at: usize| self.records.get(at)?.mcp_call().map(|call| call.server);
        server(one) == server(other)
    }
}

/// The placeholders of a cassette that are served as they are where no value is supplied, each with its file and line.
#[must_use]
pub fn not_put_back(cassette: &Cassette) -> Vec<String> {
    value_plans(std::slice::from_ref(cassette), &SuppliedSecrets::default(), |_| true).1
}

impl CassettePlayer {
    /// Keeps the values of a request that later answers of its session have.
    pub(crate) fn keep_values(&self, incoming: &IncomingRequest, record: usize) {
        if let Some(key) = self.key_of(record).filter(|key| self.put_back.is_source(*key)) {
            self.in_session(&incoming.session, |state| state.values.insert(key, incoming.seen.clone()));
        }
    }

    /// Returns the record with values in place of its placeholders; `None` where it has none that are known. Counts answers that have
    /// placeholders still.
    pub(crate) fn with_values(
        &self,
        at: usize,
        record: &CassetteRecord,
        incoming: &IncomingRequest,
    ) -> Option<CassetteRecord> {
        let plan = self.plan_of(at)?;
        let earlier = match plan.earlier.is_empty() {
            true => EarlierValues::new(),
            false => self.sessions.lock().get(&incoming.session).map(|state| state.values.clone()).unwrap_or_default(),
        };
        let values = plan.values(&incoming.seen, &earlier);
        if plan.leaves_any(&values) {
            self.in_session(&incoming.session, |state| state.counts.placeholders += 1);
        }
        restored(record, &values)
    }

    pub(crate) fn plan_of(&self, record: usize) -> Option<&Arc<ValuePlan>> {
        self.put_back.of(self.key_of(record)?)
    }

    fn key_of(&self, record: usize) -> Option<RecordKey> {
        let (cassette, record) = self.records.get(record)?;
        Some(RecordKey { cassette: *cassette, record: record.id })
    }
}

/// The record with these values. Copies of its answer are left out: they have the placeholders.
fn restored(record: &CassetteRecord, values: &PlaceholderValues) -> Option<CassetteRecord> {
    if values.is_empty() {
        return None;
    }
    let mut restored = record.clone();
    if !put_into(values, &mut restored.answer) {
        return None;
    }
    if let Some(side) = &mut restored.side {
        side.body = None;
        // Those of a client that left are played as far as they came.
        if record.aborted.is_some() {
            put_into_moments(values, &mut side.events);
        } else {
            side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
        }
    }
    Some(restored)
}
