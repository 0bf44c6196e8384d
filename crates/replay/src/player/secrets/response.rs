//! Secrets in a response as it was sent.

use serde_json::Value;

use super::{redact_body, redact_events, spelled::has_tokens};
use net::wire::recorded_json_as_utf8;
use recording::{
    cassette::{Moment, SseEvent},
    redaction::Redactor,
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
