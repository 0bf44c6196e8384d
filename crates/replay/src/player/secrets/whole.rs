//! Takes the secrets out of a cassette: what `cassette redact` writes.

use serde_json::Value;

use super::{
    Searched, learn_rest, lint::search_side, name_sources, redact_request_rest, redact_rest, redact_texts, shown_body,
};
use recording::{
    canonical::SharedList,
    cassette::{Cassette, Inherited, Moment, Record, Side, bases},
    redaction::{Redactor, Rules},
};

/// The cassette without its secrets. The numbers of the records that held some.
pub fn redact_cassette(rules: &Rules, cassette: &mut Cassette) -> Vec<u64> {
    let mut redactor = Redactor::new(rules);
    let header = &mut cassette.header;
    header.redact.is_off = false;
    redact_texts(&mut redactor, header.ignore.iter_mut().chain(&mut header.scrub).chain(&mut header.match_headers));
    redact_texts(&mut redactor, header.matching.iter_mut().chain(&mut header.clock));
    redactor.fields(&mut header.recorded);
    redactor.fields(&mut cassette.tools);
    let mut begun: Inherited<(SharedList<Value>, Searched)> = Inherited::new(&bases(&cassette.records));
    let mut changed = Vec::new();
    for (at, record) in cassette.records.iter_mut().enumerate() {
        let earlier = begun.of(at).map(|(_, earlier)| earlier);
        let messages = record.body.messages().cloned().unwrap_or_default();
        let (is_changed, searched) = redact_record(rules, record, earlier);
        begun.keep(at, (messages, searched));
        changed.extend(is_changed.then_some(record.id));
    }
    changed
}

/// Takes the secrets out of a record that continues the earlier messages. Whether it held any, and how far its messages were
/// searched.
fn redact_record(
    rules: &Rules,
    record: &mut Record,
    earlier: Option<(SharedList<Value>, Searched)>,
) -> (bool, Searched) {
    let mut side = record.side.take().unwrap_or_default();
    let (had, was_recorded) = (side != Side::default(), side.answer == record.answer.fingerprint());
    // The text from before an edit was not searched with the answer.
    let mut stale = Redactor::new(rules);
    if had && !was_recorded {
        search_side(&mut stale, &record.path, &side);
    }
    if stale.found_any() {
        (side.body, side.ids) = (None, side.ids.into_iter().filter(|(_, id)| stale.text(id).is_none()).collect());
        side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
    }
    let mut redactor = Redactor::new(rules);
    learn_rest(&mut redactor, record);
    let (messages, known) = earlier.unzip();
    let (body, searched) = shown_body(&mut redactor, &record.body, messages.as_ref().zip(known));
    record.body = body;
    redact_request_rest(&mut redactor, record);
    let asked = redactor.seen();
    // What earlier messages held may be spelled by the events of this record too.
    let changed = redact_rest(&mut redactor, record, &mut side, searched.has_any) || stale.found_any();
    name_sources(record, &asked, &redactor.seen());
    if changed && was_recorded {
        side.answer = record.answer.fingerprint();
    }
    record.side = had.then_some(side);
    (changed, searched)
}
