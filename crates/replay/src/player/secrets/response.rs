//! Secrets in a response as it was sent.

use serde_json::Value;

use super::{redact_body, redact_events, spelled::has_tokens};
use crate::player::secrets::{
    Searched, learn_rest, lint::search_side, name_sources, redact_request_rest, redact_rest, redact_texts, shown_body,
};
use net::wire::recorded_json_as_utf8;
use recording::{
    canonical::SharedList,
    cassette::{Cassette, Inherited, Moment, Record, Side, SseEvent, bases},
    redaction::{Redactor, Rules},
    trace::{Response, ResponseContent},
};

/// Takes the secrets out of a response. True where anything was found; what holds none stays byte for byte.
pub fn redact_response(redactor: &mut Redactor<'_>, response: &mut Response) -> bool {
    let mut found = false;
    if let ResponseContent::Body(body) = &response.content {
        redactor.learn_text(&String::from_utf8_lossy(body));
    }
    for (name, value) in &mut response.headers {
        found |= redactor.header(name, value).map(|clean| *value = clean).is_some();
    }
    let in_content = match &mut response.content {
        ResponseContent::Body(body) => clean_body(redactor, body),
        ResponseContent::Events(events) => return redact_moments(redactor, events) || found,
    };
    if let (ResponseContent::Body(body), Some(clean)) = (&mut response.content, in_content) {
        (*body, found) = (clean, true);
    }
    found
}

/// A body without its secrets; `None` where it has none. JSON in UTF-16 and UTF-32 is searched as UTF-8.
fn clean_body(redactor: &mut Redactor<'_>, body: &[u8]) -> Option<Vec<u8>> {
    let text = recorded_json_as_utf8(body);
    let value = serde_json::from_slice::<Value>(&text).ok().filter(has_tokens);
    if let Some(mut value) = value
        && redact_body(redactor, &mut value)
    {
        return Some(value.to_string().into_bytes());
    }
    if std::str::from_utf8(&text).is_err() { redactor.bytes(&text) } else { redactor.body(&text) }
}

fn redact_moments(redactor: &mut Redactor<'_>, moments: &mut [Moment]) -> bool {
    let event = |Moment(_, data, name): &Moment| {
        let data = data.clone().unwrap_or_default();
        let parsed = serde_json::from_str::<Value>(&data).ok().filter(|value| value.is_object() || value.is_array());
        SseEvent { name: name.clone(), data: parsed.unwrap_or(Value::String(data)) }
    };
    let before: Vec<SseEvent> = moments.iter().map(event).collect();
    let mut after = before.clone();
    redact_events(redactor, &mut after);
    let mut found = false;
    for ((moment, before), after) in moments.iter_mut().zip(before).zip(after) {
        if before != after {
            found = true;
            let text = after.data.as_str().map_or_else(|| after.data.to_string(), str::to_owned);
            *moment = Moment(moment.0, Some(text), after.name);
        }
    }
    found
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use recording::redaction::Rules;

    #[test]
    fn a_secret_that_events_cut_is_found_and_the_rest_stays_as_it_was() {
        let event = |text: &str| {
            let data = format!(r#"{{"type": "content_block_delta", "delta":{{"type":"text_delta","text":"{text}"}}}}"#);
            Moment(1.0, Some(data), Some("content_block_delta".to_owned()))
        };
        let first = event("Write to jane.d");
        let moments = vec![first.clone(), event("oe@example.org now"), event("ok")];
        let mut response = Response { content: ResponseContent::Events(moments), ..Response::default() };
        let rules = Rules::all();
        assert!(redact_response(&mut Redactor::new(&rules), &mut response));
        let ResponseContent::Events(events) = &response.content else { panic!("no events") };
        let text: String = events.iter().filter_map(|Moment(_, data, _)| data.clone()).collect();
        assert!(
            !text.contains("jane") && !text.contains("oe@example") && text.contains("[REDACTED:email:1]"),
            "{text}"
        );
        assert_eq!(events[2], event("ok"));
        let mut body = Response { content: ResponseContent::Body(b"{\"a\": 1}".to_vec()), ..Response::default() };
        assert!(!redact_response(&mut Redactor::new(&rules), &mut body));
        assert_eq!(body.content, ResponseContent::Body(b"{\"a\": 1}".to_vec()));
    }
}
