//! Values in place of the placeholders that a cassette has for secrets, so that an agent does what it did when it was recorded.
//!
//! Where each value comes from is found when the cassette is loaded: the request that the record answers, where the record's own has
//! the placeholder; an earlier request of the session, where the record names it (`put_back`); or what the user
//! [supplies](SuppliedSecrets). Records without placeholders have no entry and are served as before. Limits: bodies of bytes stay as they are.
//!
//! See docs/decisions/0074-values-are-put-back.md.

mod supplied;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

pub use self::supplied::{SuppliedSecrets, SuppliedSecretsError};
use super::{
    CassettePlayer,
    request::IncomingRequest,
    secrets::{note, note_all, placeholders_of, put_into},
};
use crate::{
    recording::cassette::{Cassette, Content, Inherited, Moment, Record, ValueSource, bases},
    recording::redaction::{Placeholder, Seen, Values},
};

/// Placeholders that a warning names each; others are counted.
const MOST_NAMED: usize = 20;

/// Plans of all records that have placeholders in their answers.
#[derive(Debug, Default)]
pub(super) struct PutBack {
    /// By the places of the records.
    plans: HashMap<usize, Plan>,
    /// Records whose requests have values of later answers.
    sources: HashSet<usize>,
    /// What cannot be put back, for people.
    pub(super) warnings: Vec<String>,
}

/// Where the values of one record's placeholders come from.
#[derive(Debug, Default)]
struct Plan {
    /// Values in the request that is answered, by the placeholder that it has there.
    asked: Vec<(Placeholder, Placeholder)>,
    /// Values in the request that an earlier record answered.
    earlier: Vec<(Placeholder, usize, Placeholder)>,
    /// Values that the user supplied.
    supplied: Values,
    /// Bytes of the answer.
    bytes: usize,
}

/// The placeholders of a request, shared with those that continue it.
type Held = Arc<BTreeSet<Placeholder>>;

impl PutBack {
    /// Finds where the placeholders in the answers of these cassettes have their values.
    pub(super) fn new(cassettes: &[Cassette], supplied: &SuppliedSecrets) -> Self {
        let (mut put_back, mut first) = (Self::default(), 0);
        for cassette in cassettes {
            if !kinds(cassette).is_empty() {
                put_back.add(cassette, first, supplied);
            }
            first += cassette.records.len();
        }
        put_back
    }

    fn add(&mut self, cassette: &Cassette, first: usize, supplied: &SuppliedSecrets) {
        let held = held(&cassette.records);
        let places: HashMap<u64, usize> = cassette.records.iter().enumerate().map(|(at, it)| (it.id, at)).collect();
        let mut unknown = Vec::new();
        for (at, record) in cassette.records.iter().enumerate() {
            let in_answer = placeholders_of(&record.answer);
            if in_answer.is_empty() {
                continue;
            }
            let mut plan = Plan { bytes: size_of_answer(record), ..Plan::default() };
            let mut values = Vec::new();
            for placeholder in in_answer {
                let is_planned = plan.add(record, at, &placeholder, (held.as_slice(), &places));
                let value = supplied.value(&cassette.path, record.id, &placeholder);
                match value {
                    None if !is_planned => unknown.push((record, placeholder)),
                    value => values.extend(value.map(|value| (placeholder, value))),
                }
            }
            plan.supplied = values.into_iter().collect();
            plan.earlier.iter_mut().for_each(|(_, source, _)| *source += first);
            self.sources.extend(plan.earlier.iter().map(|(_, source, _)| *source));
            self.plans.insert(first + at, plan);
        }
        self.warn(cassette, &unknown);
    }

    fn warn(&mut self, cassette: &Cassette, unknown: &[(&Record, Placeholder)]) {
        let file = cassette.path.display();
        for (record, placeholder) in unknown.iter().take(MOST_NAMED) {
            let name = cassette.path.file_name().unwrap_or_default().to_string_lossy();
            let (line, id, short) = (record.line, record.id, placeholder.short());
            let variable = supplied::variable(placeholder);
            self.warnings.push(format!(
                "{file}:{line}: record {id}: {placeholder} is served as it is, since no request has its value; give it with --secrets \
                 FILE (a line `{name}#{id} {short} = VALUE`) or {variable}"
            ));
        }
        if let Some(more) = unknown.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
            self.warnings.push(format!("{file}: {more} more placeholders are served as they are"));
        }
    }

    /// Returns the size of a record's answer where values are put into it, in bytes.
    pub(super) fn size(&self, record: usize) -> usize {
        self.plans.get(&record).map_or(0, |plan| plan.bytes)
    }
}

impl Plan {
    /// Adds where the value of a placeholder stands; false where no request has it.
    fn add(
        &mut self,
        record: &Record,
        at: usize,
        placeholder: &Placeholder,
        (held, places): (&[Held], &HashMap<u64, usize>),
    ) -> bool {
        let has = |at: usize, placeholder: &Placeholder| held.get(at).is_some_and(|held| held.contains(placeholder));
        let named = record.put_back.iter().find(|(named, _)| named == placeholder).map(|(_, source)| source);
        match named {
            Some(ValueSource { placeholder: source, record: None }) if has(at, source) => {
                self.asked.push((placeholder.clone(), source.clone()));
            }
            Some(ValueSource { placeholder: source, record: Some(id) }) => {
                let earlier = places.get(id).copied().filter(|earlier| *earlier < at && has(*earlier, source));
                let Some(earlier) = earlier else { return false };
                self.earlier.push((placeholder.clone(), earlier, source.clone()));
            }
            None if has(at, placeholder) => self.asked.push((placeholder.clone(), placeholder.clone())),
            Some(_) | None => return false,
        }
        true
    }
}

/// The placeholders of a cassette that are served as they are where no value is supplied, each with its file and line.
#[must_use]
pub fn not_put_back(cassette: &Cassette) -> Vec<String> {
    PutBack::new(std::slice::from_ref(cassette), &SuppliedSecrets::default()).warnings
}

/// The kinds of the placeholders in a cassette, those that events cut into pieces too.
pub(super) fn kinds(cassette: &Cassette) -> BTreeSet<Arc<str>> {
    let in_events = |record: &&Record| matches!(record.answer.content, Content::Events(_));
    let cut = cassette.records.iter().filter(in_events).flat_map(|record| placeholders_of(&record.answer));
    cassette.placeholders.iter().cloned().chain(cut.map(|placeholder| placeholder.kind)).collect()
}

/// The placeholders of each record's request; what a conversation repeats is read once.
fn held(records: &[Record]) -> Vec<Held> {
    let bases = bases(records);
    let mut begun: Inherited<Held> = Inherited::new(&bases);
    let of_record = |(at, record): (usize, &Record)| {
        let (earlier, mut in_messages) = match begun.of(at) {
            Some((base, held)) => {
                (records.get(base).and_then(|base| base.body.messages()).map_or(0, |it| it.len()), held)
            }
            None => (0, Held::default()),
        };
        let mut found = BTreeSet::new();
        let messages = record.body.messages().map(|messages| messages.after(earlier)).unwrap_or_default();
        messages.into_iter().for_each(|message| note_all(message, &mut found));
        add(&mut in_messages, found);
        begun.keep(at, Arc::clone(&in_messages));
        let mut around = BTreeSet::new();
        note_all(record.body.fields(), &mut around);
        note(&record.path, &mut around);
        record.headers.iter().for_each(|(_, value)| note(value, &mut around));
        add(&mut in_messages, around);
        in_messages
    };
    records.iter().enumerate().map(of_record).collect()
}

fn add(held: &mut Held, found: BTreeSet<Placeholder>) {
    if !found.is_subset(held) {
        Arc::make_mut(held).extend(found);
    }
}

fn size_of_answer(record: &Record) -> usize {
    record.answer.shown().to_string().len()
}

impl CassettePlayer {
    /// Keeps the values of a request that later answers of its session have.
    pub(super) fn keep_values(&self, asked: &IncomingRequest, record: usize) {
        if self.put_back.sources.contains(&record) {
            let mut sessions = self.lock();
            sessions.entry(asked.session.clone()).or_default().values.insert(record, asked.seen.clone());
        }
    }

    /// Returns the record with values in place of its placeholders; `None` where it has none that are known.
    pub(super) fn with_values(&self, at: usize, record: &Record, asked: &IncomingRequest) -> Option<Record> {
        let plan = self.put_back.plans.get(&at)?;
        let earlier: HashMap<usize, Seen> = match plan.earlier.is_empty() {
            true => HashMap::new(),
            false => self.lock().get(&asked.session).map(|state| state.values.clone()).unwrap_or_default(),
        };
        let mut values = plan.supplied.clone();
        let mut wanted: HashMap<usize, Vec<(&Placeholder, &Placeholder)>> = HashMap::new();
        for (placeholder, source, there) in &plan.earlier {
            wanted.entry(*source).or_default().push((placeholder, there));
        }
        wanted.iter().filter_map(|(source, wanted)| Some((earlier.get(source)?, wanted))).for_each(|(seen, wanted)| {
            take(&mut values, seen, wanted);
        });
        let of_asked: Vec<(&Placeholder, &Placeholder)> = plan.asked.iter().map(|(it, there)| (it, there)).collect();
        take(&mut values, &asked.seen, &of_asked);
        restored(record, &values)
    }
}

/// Adds the values that a request has, by the placeholders of an answer.
fn take(values: &mut Values, seen: &Seen, wanted: &[(&Placeholder, &Placeholder)]) {
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

/// The record with these values. Copies of its answer are left out: they have the placeholders.
fn restored(record: &Record, values: &Values) -> Option<Record> {
    if values.is_empty() {
        return None;
    }
    let mut restored = record.clone();
    if !put_into(values, &mut restored.answer) {
        return None;
    }
    let is_as_recorded = record.is_as_recorded();
    if let Some(side) = &mut restored.side {
        side.body = None;
        side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
        if is_as_recorded {
            side.answer = restored.answer.fingerprint();
        }
    }
    Some(restored)
}
