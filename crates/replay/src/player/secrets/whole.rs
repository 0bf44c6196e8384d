//! Takes the secrets out of a cassette: what `cassette redact` writes.

use serde_json::{Map, Value};

use super::{
    RedactionResult, SearchedConversation, learn_body, learn_rest, lint::search_side, redact_after, redact_texts,
};
use crate::player::record::session_values::SessionValues;
use recording::{
    canonical::SharedList,
    cassette::{Cassette, CassetteRecord, Inherited, Moment, Sidecar, bases},
    redaction::{NamedValues, RedactionRules, Redactor, SeenSecrets},
};

/// The cassette without its secrets. The numbers of the records that held some.
pub fn redact_cassette(rules: &RedactionRules, cassette: &mut Cassette) -> Vec<u64> {
    let named = named_in(rules, cassette).seen();
    let mut redactor = Redactor::new(rules).knowing(&named);
    let header = &mut cassette.header;
    header.redact.is_off = false;
    redact_texts(&mut redactor, header.ignore.iter_mut().chain(&mut header.scrub).chain(&mut header.match_headers));
    redact_texts(&mut redactor, header.matching.iter_mut().chain(&mut header.clock));
    redactor.fields(&mut header.recorded);
    redact_records(rules, &named, cassette)
}

/// As [`redact_cassette`], of the records and the definitions of tools, which were searched without what others name. A recording does
/// so at its end, with all that its records name.
pub fn redact_named(rules: &RedactionRules, named: &NamedValues, cassette: &mut Cassette) -> Vec<u64> {
    redact_records(rules, &named.seen(), cassette)
}

/// The secrets that names show anywhere in a cassette. Messages that a request repeats are read once.
pub(super) fn named_in(rules: &RedactionRules, cassette: &Cassette) -> NamedValues {
    let (mut redactor, mut named) = (Redactor::new(rules), NamedValues::default());
    redactor.learn_fields(&cassette.header.recorded);
    cassette.tools.values().for_each(|definition| redactor.learn(definition));
    named.add(&redactor.seen());
    for (record, base) in cassette.records.iter().zip(bases(&cassette.records)) {
        redactor.begin_another();
        learn_rest(&mut redactor, record);
        match (record.body.messages(), record.body.list()) {
            (Some(messages), Some(list)) => {
                let earlier = base.and_then(|base| cassette.records.get(base)?.body.messages());
                let from = earlier.filter(|earlier| messages.since(earlier).is_some()).map_or(0, SharedList::len);
                let (before, after) = record.body.around_messages();
                learn_body(&mut redactor, (&before, &after), (list, messages), from);
            }
            _ => redactor.learn(record.body.fields()),
        }
        named.add(&redactor.seen());
    }
    named
}

/// Takes the secrets out of the definitions of tools. What a tool is called says nothing of its schema.
pub(super) fn redact_tools(redactor: &mut Redactor<'_>, tools: &mut Map<String, Value>) {
    for (name, mut definition) in std::mem::take(tools) {
        redactor.json(&mut definition);
        tools.insert(redactor.text(&name).unwrap_or(name), definition);
    }
}

fn redact_records(rules: &RedactionRules, named: &SeenSecrets, cassette: &mut Cassette) -> Vec<u64> {
    redact_tools(&mut Redactor::new(rules).knowing(named), &mut cassette.tools);
    let mut values = SessionValues::default();
    let mut begun: Inherited<(SharedList<Value>, SearchedConversation)> = Inherited::new(&bases(&cassette.records));
    let mut changed = Vec::new();
    for (at, record) in cassette.records.iter_mut().enumerate() {
        let earlier = begun.of(at).map(|(_, earlier)| earlier);
        let messages = record.body.messages().cloned().unwrap_or_default();
        let redacted = redact_record(rules, named, record, earlier);
        // Requests to a server have sessions of their own.
        let session = record.mcp_call().map(|call| call.server).unwrap_or_default();
        if !record.is_fixture {
            values.name_in(record, &session, &redacted.answered);
            values.add(record.id, &session, &redacted.requested);
        }
        begun.keep(at, (messages, redacted.searched));
        changed.extend(redacted.had_any.then_some(record.id));
    }
    changed
}

/// Takes the secrets out of a record that continues the earlier messages.
fn redact_record(
    rules: &RedactionRules,
    named: &SeenSecrets,
    record: &mut CassetteRecord,
    earlier: Option<(SharedList<Value>, SearchedConversation)>,
) -> RedactionResult {
    let was_recorded = record.is_as_recorded();
    let mut side = record.side.take().unwrap_or_default();
    let had = side != Sidecar::default();
    // The text from before an edit was not searched with the answer.
    let mut stale = Redactor::new(rules).knowing(named);
    if had && !was_recorded {
        search_side(&mut stale, &record.path, &side);
    }
    if stale.found_any() {
        (side.body, side.ids) = (None, side.ids.into_iter().filter(|(_, id)| stale.text(id).is_none()).collect());
        side.events.iter_mut().for_each(|Moment(_, data, _)| *data = None);
    }
    let mut redactor = Redactor::new(rules).knowing(named);
    let (messages, known) = earlier.unzip();
    let mut redacted = redact_after(&mut redactor, (record, &mut side), messages.as_ref().zip(known));
    redacted.had_any |= stale.found_any();
    if redacted.had_any && was_recorded {
        side.answer = record.answer.fingerprint();
    }
    record.side = had.then_some(side);
    redacted
}
