//! The placeholders that a cassette has.

use std::{collections::BTreeSet, sync::Arc};

use crate::player::secrets::{note, note_all, placeholders_of};
use recording::{
    cassette::{AnswerContent, Cassette, CassetteRecord, Inherited, bases},
    redaction::Placeholder,
};

/// The placeholders of a request, shared with those that continue it.
pub(crate) type RequestPlaceholders = Arc<BTreeSet<Placeholder>>;

/// The placeholders of each record's request; what a conversation repeats is read once.
pub(crate) fn held(records: &[CassetteRecord]) -> Vec<RequestPlaceholders> {
    let bases = bases(records);
    let mut begun: Inherited<RequestPlaceholders> = Inherited::new(&bases);
    let of_record = |(at, record): (usize, &CassetteRecord)| {
        let (earlier, mut in_messages) = match begun.of(at) {
            Some((base, held)) => {
                (records.get(base).and_then(|base| base.body.messages()).map_or(0, |it| it.len()), held)
            }
            None => (0, RequestPlaceholders::default()),
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

/// All placeholders of a cassette's records, of their requests and their answers.
pub(crate) fn placeholders(cassette: &Cassette) -> impl Iterator<Item = (u64, Placeholder)> {
    cassette.records.iter().zip(held(&cassette.records)).flat_map(|(record, held)| {
        let mut found = placeholders_of(&record.answer);
        found.extend(held.iter().cloned());
        found.into_iter().map(|placeholder| (record.id, placeholder))
    })
}

/// The kinds of the placeholders in a cassette, those that events cut into pieces too.
pub(crate) fn kinds(cassette: &Cassette) -> BTreeSet<Arc<str>> {
    let in_events = |record: &&CassetteRecord| matches!(record.answer.content, AnswerContent::Events(_));
    let cut = cassette.records.iter().filter(in_events).flat_map(|record| placeholders_of(&record.answer));
    cassette.placeholders.iter().cloned().chain(cut.map(|placeholder| placeholder.kind)).collect()
}

fn add(held: &mut RequestPlaceholders, found: BTreeSet<Placeholder>) {
    if !found.is_subset(held) {
        Arc::make_mut(held).extend(found);
    }
}
