//! Takes the secrets out of a cassette: what `cassette redact` writes.

use super::{lint::search_side, redact, redact_texts};
use crate::{
    cassette::{Cassette, Moment, Record, Side},
    redaction::{Redactor, Rules},
};

/// The cassette without its secrets. The numbers of the records that held some.
pub fn redact_cassette(rules: &Rules, cassette: &mut Cassette) -> Vec<u64> {
    let mut redactor = Redactor::new(rules);
    let header = &mut cassette.header;
    redact_texts(&mut redactor, header.ignore.iter_mut().chain(&mut header.scrub).chain(&mut header.match_headers));
    redact_texts(&mut redactor, header.matching.iter_mut().chain(&mut header.clock));
    redactor.fields(&mut header.recorded);
    redactor.fields(&mut cassette.tools);
    cassette.records.iter_mut().filter_map(|record| redact_record(rules, record).then_some(record.id)).collect()
}

fn redact_record(rules: &Rules, record: &mut Record) -> bool {
    let mut side = record.side.take().unwrap_or_default();
    let (had, was_recorded) = (side != Side::default(), side.answer == record.answer.fingerprint());
    // What was said before an edit was not searched with the answer.
    let mut stale = Redactor::new(rules);
    if had && !was_recorded {
        search_side(&mut stale, &record.path, &side);
    }
    if stale.found_any() {
        (side.body, side.ids) = (None, side.ids.into_iter().filter(|(_, id)| stale.text(id).is_none()).collect());
        side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
    }
    let changed = redact(rules, record, &mut side) || stale.found_any();
    if changed && was_recorded {
        side.answer = record.answer.fingerprint();
    }
    record.side = had.then_some(side);
    changed
}
