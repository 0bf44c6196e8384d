//! Order and numbers of what is recorded again: a record whose request the file had keeps its place and its number, whatever was
//! recorded before it or at the same time.
//!
//! A record that is the same as the old one stays as the file shows it, with its ids, its form and its rate limits; only its times are new. One
//! whose request changed takes the place of the old record that is gone, where that stood next.
//!
//! Hand-written records of the file stay as a person wrote them, and no recorded request stands for them.
//!
//! Limits: of equal requests the first stays the first, since they are played in their order.
//!
//! See docs/decisions/0077-records-keep-their-places.md and docs/decisions/0083-hand-written-records.md.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::{
    continued::{Inherited, bases, identified},
    header::Header,
    names::{ids_of_answer, rename_answer},
    record::{CassetteRecord, HIGH_ID},
};
use crate::{
    canonical::{CanonicalKey, CanonicalRules, Normalisation, SharedBody, SharedList, renamed, visit_ids},
    trace::varies,
};

/// Ways to find a record by its place or its number, which the order of requests gives.
const BY_PLACE: [&str; 2] = ["ordered", "index"];

/// Returns true if records may stand in another order than that of their requests.
pub(super) fn may_move(header: &Header) -> bool {
    !header.matching.iter().any(|way| BY_PLACE.contains(&way.as_str()))
}

/// Brings new records into the order of an old file. Returns the number that each has now by the one that it had.
pub(super) fn arrange(
    header: &Header,
    old: &[CassetteRecord],
    new: Vec<CassetteRecord>,
) -> (Vec<CassetteRecord>, HashMap<u64, u64>) {
    let loose = header.rules();
    let exact = CanonicalRules {
        counts_volatile: true,
        form: Normalisation::Strict,
        counts_tool_descriptions: true,
        ..loose.clone()
    };
    let partners = partners(&keys(&loose, old), &keys(&loose, &new));
    let (old_keys, new_keys) = (keys(&exact, old), keys(&exact, &new));
    let bases = bases(&new);
    let slots = slots(old, &new, &bases, &partners);
    let numbers = numbers(old, &new, &slots);
    let mut arranging = Arranging {
        numbers,
        placed: HashMap::new(),
        done: new.iter().map(|_| None).collect(),
        renamed: Inherited::new(&bases),
    };
    let mut new: Vec<Option<CassetteRecord>> = new.into_iter().map(Some).collect();
    let order = order(&slots);
    for at in &order {
        let Some(record) = new.get_mut(*at).and_then(Option::take) else { continue };
        let partner = partners.get(*at).copied().flatten();
        let asks_the_same = partner.is_some_and(|place| old_keys.get(place) == new_keys.get(*at));
        let old = partner.and_then(|place| old.get(place));
        if record.is_fixture {
            arranging.put(*at, old.cloned().unwrap_or(record));
        } else {
            arranging.place(*at, record, old, asks_the_same);
        }
    }
    let Arranging { numbers, mut done, .. } = arranging;
    (order.into_iter().filter_map(|at| done.get_mut(at)?.take()).collect(), numbers)
}

/// The hand-written ones of these records, with numbers from `next` on.
pub(super) fn by_hand(old: &[CassetteRecord], next: u64) -> Vec<CassetteRecord> {
    let fixtures = old.iter().filter(|record| record.is_fixture);
    fixtures.zip(next..).map(|(record, id)| CassetteRecord { id, ..record.clone() }).collect()
}

fn keys(rules: &CanonicalRules, records: &[CassetteRecord]) -> Vec<CanonicalKey> {
    identified(rules, records).map(|identified| identified.identity.key).collect()
}

/// The old record of each new one: of equal requests the first has the first.
fn partners(old: &[CanonicalKey], new: &[CanonicalKey]) -> Vec<Option<usize>> {
    let mut places: HashMap<CanonicalKey, VecDeque<usize>> = HashMap::new();
    old.iter().enumerate().for_each(|(at, key)| places.entry(*key).or_default().push_back(at));
    new.iter().map(|key| places.get_mut(key)?.pop_front()).collect()
}

/// Place of a new record among the old ones.
#[derive(Debug, Clone, Copy)]
enum RecordSlot {
    At(usize),
    /// Behind so many old records.
    Behind(usize),
}

impl RecordSlot {
    /// Number of old records up to and with this place.
    fn end(self) -> usize {
        match self {
            Self::At(place) => place + 1,
            Self::Behind(count) => count,
        }
    }
}

/// Old records that no new one stands for, by route and the record that they continue.
struct Gone<'a>(HashMap<(&'a str, &'a str, Option<u64>), BTreeSet<usize>>);

impl<'a> Gone<'a> {
    fn new(old: &'a [CassetteRecord], partners: &[Option<usize>]) -> Self {
        let taken: HashSet<usize> = partners.iter().flatten().copied().collect();
        let mut gone: HashMap<_, BTreeSet<usize>> = HashMap::new();
        for (place, record) in old.iter().enumerate().filter(|(place, old)| !taken.contains(place) && !old.is_fixture) {
            gone.entry((record.method.as_str(), record.path.as_str(), record.like)).or_default().insert(place);
        }
        Self(gone)
    }

    /// Takes the place of one that continued the record that the base stands for; of one that began where there is no base, the
    /// next one if there is one.
    fn take(&mut self, record: &'a CassetteRecord, base: Option<u64>, behind: usize) -> Option<usize> {
        let route = (record.method.as_str(), record.path.as_str());
        let mut pick = |like, choose: &dyn Fn(&BTreeSet<usize>) -> Option<usize>| {
            let places = self.0.get_mut(&(route.0, route.1, like))?;
            let place = choose(places)?;
            places.remove(&place);
            Some(place)
        };
        match base {
            Some(_) => pick(base, &|places| places.range(behind..).next().copied())
                .or_else(|| pick(None, &|places| places.get(&behind).copied())),
            None => pick(None, &|places| places.range(behind..).chain(places).next().copied()),
        }
    }
}

/// The place of each new record. What the file did not have follows the record that it continues, or the one before it.
fn slots(
    old: &[CassetteRecord],
    new: &[CassetteRecord],
    bases: &[Option<usize>],
    partners: &[Option<usize>],
) -> Vec<RecordSlot> {
    let mut gone = Gone::new(old, partners);
    let mut slots: Vec<RecordSlot> = Vec::with_capacity(new.len());
    for (at, record) in new.iter().enumerate() {
        if let Some(place) = partners.get(at).copied().flatten() {
            slots.push(RecordSlot::At(place));
            continue;
        }
        let base = bases.get(at).copied().flatten().and_then(|base| slots.get(base));
        let before = base.or_else(|| slots.last());
        let behind = before.map_or(0, |slot| slot.end());
        let continued = base.map(|slot| match slot {
            RecordSlot::At(place) => old.get(*place).map_or(u64::MAX, |old| old.id),
            RecordSlot::Behind(_) => u64::MAX,
        });
        slots.push(gone.take(record, continued, behind).map_or(RecordSlot::Behind(behind), RecordSlot::At));
    }
    slots
}

fn order(slots: &[RecordSlot]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|at| slots.get(*at).map(|slot| (slot.end(), matches!(slot, RecordSlot::Behind(_)))));
    order
}

/// The new numbers, by those that were given while it was recorded.
fn numbers(old: &[CassetteRecord], new: &[CassetteRecord], slots: &[RecordSlot]) -> HashMap<u64, u64> {
    let mut taken: HashSet<u64> = old.iter().map(|record| record.id).collect();
    let highest = taken.iter().max().copied().filter(|id| *id < HIGH_ID);
    let mut next = highest.map_or(0, |id| id + 1);
    let mut number = |slot: &RecordSlot| match slot {
        RecordSlot::At(place) => old.get(*place).map_or(0, |record| record.id),
        RecordSlot::Behind(_) => {
            while !taken.insert(next) {
                next += 1;
            }
            next
        }
    };
    new.iter().zip(slots).map(|(record, slot)| (record.id, number(slot))).collect()
}

struct Arranging {
    numbers: HashMap<u64, u64>,
    /// Numbers of what is in place, by those that it had.
    placed: HashMap<u64, u64>,
    /// What is in place, by its place among the new records.
    done: Vec<Option<CassetteRecord>>,
    /// Names of ids that are others in the old file.
    renamed: Inherited<HashMap<String, String>>,
}

impl Arranging {
    /// Puts a record in its place. `old` is the one that it stands for; `asks_the_same` is true where their requests are the same
    /// but for ids.
    fn place(&mut self, at: usize, mut record: CassetteRecord, old: Option<&CassetteRecord>, asks_the_same: bool) {
        let (base, names) = self.renamed.of(at).unzip();
        let base = base.and_then(|base| self.done.get(base)?.as_ref());
        let from = base.and_then(|base| base.body.messages()).map_or(0, SharedList::len);
        let names = names_after(names.unwrap_or_default(), &record, old, from);
        record.like = record.like.and_then(|id| self.placed.get(&id).copied());
        continue_from(&mut record, base, from, &names);
        rename_answer(&mut record.answer, &names);
        let number = self.numbers.get(&record.id).copied().unwrap_or(record.id);
        self.placed.insert(record.id, number);
        record.id = number;
        record.retry_of = record.retry_of.and_then(|id| self.numbers.get(&id).copied());
        // The values of placeholders stand where they stood, under the new numbers.
        for (_, source) in &mut record.put_back {
            source.record = source.record.map(|id| self.numbers.get(&id).copied().unwrap_or(id));
        }
        if let Some(old) = old {
            record.holds_large = old.holds_large;
            record.group = record.group.take().or_else(|| old.group.clone());
            if record.tags.is_empty() {
                record.tags.clone_from(&old.tags);
            }
            if old.answer.status == record.answer.status {
                let mut known: Vec<_> = old.answer.headers.iter().filter(|(name, _)| varies(name)).collect();
                for (name, value) in &mut record.answer.headers {
                    let at = known.iter().position(|(it, _)| it == name);
                    at.into_iter().for_each(|at| value.clone_from(&known.remove(at).1));
                }
            }
            if asks_the_same && old.aborted == record.aborted && old.answer.shown() == record.answer.shown() {
                let CassetteRecord { id, side, retry_of, put_back, .. } = record;
                record = CassetteRecord { id, side, retry_of, put_back, ..old.clone() };
            }
        }
        if let Some(side) = &mut record.side {
            let name = |name: String| names.get(&name).cloned().unwrap_or(name);
            side.ids = std::mem::take(&mut side.ids).into_iter().map(|(short, id)| (name(short), id)).collect();
            (side.id, side.answer) = (record.id, record.answer.fingerprint());
            record.is_edited = false;
        }
        self.renamed.keep(at, names);
        self.put(at, record);
    }

    fn put(&mut self, at: usize, record: CassetteRecord) {
        if let Some(place) = self.done.get_mut(at) {
            *place = Some(record);
        }
    }
}

/// A body with only the messages after so many.
fn body_after(body: &SharedBody, from: usize) -> Value {
    let mut left = body.fields().clone();
    if let (Some(messages), Some(list)) = (body.messages(), body.list())
        && let Some(place) = left.get_mut(list)
    {
        *place = messages.after(from).into_iter().cloned().collect();
    }
    left
}

fn ids_after(body: &SharedBody, from: usize) -> Vec<String> {
    let mut ids = Vec::new();
    visit_ids(&mut body_after(body, from), &mut |id| ids.push(id.clone()));
    ids
}

/// Sets the messages of a record to those of its base, as it is now, and its own with other ids.
fn continue_from(
    record: &mut CassetteRecord,
    base: Option<&CassetteRecord>,
    from: usize,
    names: &HashMap<String, String>,
) {
    if base.is_none() && names.is_empty() {
        return;
    }
    let own = SharedBody::from(renamed(body_after(&record.body, from), names));
    let earlier = base.and_then(|base| base.body.messages());
    let whole = earlier.zip(own.messages()).map(|(earlier, added)| {
        let mut messages = earlier.clone();
        messages.extend(added.iter().cloned());
        messages
    });
    record.body = match whole {
        Some(messages) => own.with_messages(messages),
        None => own,
    };
}

/// The names that the old file gives ids, where they are others; those of the earlier messages are known.
fn names_after(
    mut names: HashMap<String, String>,
    record: &CassetteRecord,
    old: Option<&CassetteRecord>,
    from: usize,
) -> HashMap<String, String> {
    let mut own = ids_after(&record.body, from);
    let mut paired = HashSet::new();
    let length = |record: &CassetteRecord| record.body.messages().map(SharedList::len);
    let old = old.filter(|old| length(old) == length(record));
    let requested = old.map(|old| ids_after(&old.body, from)).filter(|theirs| theirs.len() == own.len());
    let answered = ids_of_answer(&record.answer);
    let theirs = old.map(|old| ids_of_answer(&old.answer));
    let pairs = own.iter().zip(requested.into_iter().flatten());
    for (id, name) in pairs.chain(answered.iter().zip(theirs.into_iter().flatten())) {
        paired.insert(id.clone());
        if *id != name {
            names.entry(id.clone()).or_insert(name);
        }
    }
    own.extend(answered);
    let mut given: HashSet<String> = names.values().cloned().collect();
    for id in own.into_iter().filter(|id| !paired.contains(id)) {
        if !given.contains(&id) || names.contains_key(&id) {
            continue;
        }
        // Another id has that name in the old file.
        let free = (given.len() + 1..).map(|number| format!("call_{number}")).find(|name| !given.contains(name));
        let name = free.unwrap_or_default();
        given.insert(name.clone());
        names.insert(id, name);
    }
    names
}
