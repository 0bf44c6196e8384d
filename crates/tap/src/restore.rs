//! Removes the effects of `amend` from a response, so that the client gets the bytes it would have got without the tap.
//!
//! Added ids: `token_ids` and `prompt_token_ids` go back to `null` where the keys are there either way, and are left out of events that leave
//! out fields without a value; events that exist only to carry ids are dropped, and a completion that repeats its prompt does so again; the prompt's ids
//! stay on the event that repeats it, where the engine returns them unrequested. Added usage: the usage event is dropped,
//! and `system_fingerprint`, which moved to it, goes back to the last event of each choice. Added counts of every event become `null`.

use std::ops::Range;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    amend::Added,
    capabilities::StreamFingerprint,
    event::{EventChoice, StreamEvent, omits_empty_fields},
};
use net::wire::{Edits, RawEvent, RawObject, span_in};

/// Result of restoring one event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// Unchanged.
    Kept,
    /// Dropped: without the tap there would be no such event.
    Dropped,
    /// Replaced by these bytes.
    Edited(Bytes),
    /// As it is, but for what is at this place: a list of ids becomes `null`, or its whole member nothing.
    Without { span: Range<usize>, with: &'static [u8] },
}

/// Restores one event of a stream; `parsed` is its payload.
pub(super) fn restore_event(
    event: &RawEvent,
    payload: &[u8],
    parsed: &StreamEvent<'_>,
    added: &Added,
    fingerprint: Option<&StreamFingerprint>,
) -> Restored {
    if added.usage && parsed.is_usage_only() {
        return Restored::Dropped;
    }
    if added.ids && !parsed.choices.is_empty() && parsed.choices.iter().all(EventChoice::is_only_ids) {
        return Restored::Dropped;
    }
    let mut edits = Edits::default();
    if added.continuous && parsed.usage.is_some() {
        let usage = RawObject::read(payload).and_then(|fields| span_in(payload, fields.get("usage")?.get().as_bytes()));
        usage.into_iter().for_each(|span| edits.replace(span, "null"));
    }
    if added.ids {
        repeat_prompts(&mut edits, payload, parsed, added);
        forget_ids(&mut edits, payload, parsed, (added, omits_empty_fields(payload)));
    }
    if added.usage
        && let Some(StreamFingerprint::Is(text)) = fingerprint
        && parsed.choices.iter().any(|choice| choice.finish_reason.is_some())
        && let Some(end) = payload.iter().rposition(|byte| *byte == b'}')
    {
        let text = serde_json::Value::from(text.as_str());
        edits.replace(end..end, format!(",\"system_fingerprint\":{text}"));
    }
    if edits.is_empty() {
        return Restored::Kept;
    }
    let Some(place) = span_in(&event.raw, payload) else { return Restored::Kept };
    let (Some(before), Some(after)) = (event.raw.get(..place.start), event.raw.get(place.end..)) else {
        return Restored::Kept;
    };
    Restored::Edited(Bytes::from([before, &edits.apply(payload), after].concat()))
}

/// Restores a whole response; `None` if there is nothing to remove.
pub(super) fn restore_answer(body: &[u8], parsed: &StreamEvent<'_>, added: &Added) -> Option<Vec<u8>> {
    let mut edits = Edits::default();
    repeat_prompts(&mut edits, body, parsed, added);
    forget_ids(&mut edits, body, parsed, (&Added { echo: None, ..added.clone() }, false));
    (!edits.is_empty()).then(|| edits.apply(body))
}

/// Puts the prompt before the text of an event or response that has both the prompt's ids and its own.
fn repeat_prompts(edits: &mut Edits, payload: &[u8], parsed: &StreamEvent<'_>, added: &Added) {
    let Some(echo) = &added.echo else { return };
    for choice in parsed.choices.iter().filter(|choice| choice.token_ids.is_some() && choice.prompt_token_ids.is_some())
    {
        let text = choice.text.and_then(|text| span_in(payload, text.get().as_bytes()));
        if let (Some(text), Some(prompt)) = (text, echo.of_choice(choice.index)) {
            edits.replace(text.start + 1..text.start + 1, prompt);
        }
    }
}

/// Takes the ids out; where fields without a value are omitted, with their names.
fn forget_ids(edits: &mut Edits, payload: &[u8], parsed: &StreamEvent<'_>, (added, omits): (&Added, bool)) {
    let mut forget = |value: Option<&RawValue>| {
        let Some(span) = value.and_then(|value| span_in(payload, value.get().as_bytes())) else { return };
        match omits {
            true => edits.replace(member_at(payload, span), ""),
            false => edits.replace(span, "null"),
        }
    };
    forget(parsed.prompt_token_ids);
    for choice in &parsed.choices {
        forget(choice.prompt_token_ids.filter(|_| added.echo.is_none()));
        forget(choice.token_ids);
    }
}

/// Extends the span of a value of an object to its name and to the comma before it, or after it if it is the first.
pub(super) fn member_at(json: &[u8], value: Range<usize>) -> Range<usize> {
    let before = json.get(..value.start).unwrap_or_default().trim_ascii_end();
    let name = before.strip_suffix(b":").map(<[u8]>::trim_ascii_end).and_then(|name| name.strip_suffix(b"\""));
    let Some(quote) = name.and_then(|name| name.iter().rposition(|byte| *byte == b'"')) else { return value };
    let before = json.get(..quote).unwrap_or_default().trim_ascii_end();
    if let Some(rest) = before.strip_suffix(b",") {
        return rest.len()..value.end;
    }
    let after = json.get(value.end..).unwrap_or_default();
    match after.trim_ascii_start().strip_prefix(b",") {
        Some(rest) => quote..json.len() - rest.len(),
        None => quote..value.end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(payload: &str, added: &Added, fingerprint: Option<&StreamFingerprint>) -> Option<String> {
        let event = RawEvent { raw: Bytes::from(format!("data: {payload}\n\n")) };
        let data = event.data().unwrap();
        let parsed = StreamEvent::read(&data).unwrap();
        match restore_event(&event, &data, &parsed, added, fingerprint) {
            Restored::Kept => Some(payload.to_owned()),
            Restored::Dropped => None,
            Restored::Without { span, .. } => panic!("events are recognised elsewhere: {span:?}"),
            Restored::Edited(bytes) => {
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                Some(text.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap().to_owned())
            }
        }
    }

    const BOTH: &Added = &Added { ids: true, usage: true, continuous: false, echo: None };

    #[test]
    fn ids_go_back_to_null() {
        assert_eq!(
            restored(
                r#"{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null,"token_ids":[1,2]}],"prompt_token_ids":[3]}"#,
                BOTH,
                None
            ),
            Some(
                r#"{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null,"token_ids":null}],"prompt_token_ids":null}"#
                    .to_owned()
            )
        );
        assert_eq!(
            restored(r#"{"choices":[{"text":"x","logprobs":null,"finish_reason":null,"prompt_token_ids":[1],"token_ids":[2]}]}"#, BOTH, None),
            Some(r#"{"choices":[{"text":"x","logprobs":null,"finish_reason":null,"prompt_token_ids":null,"token_ids":null}]}"#.to_owned())
        );
    }

    /// Events as `vllm-rs` 0.32 sends them.
    #[test]
    fn ids_go_with_their_names_where_fields_without_a_value_are_left_out() {
        for (amended, plain) in [
            (
                r#"{"choices":[{"index":0,"text":",","token_ids":[11]}]}"#,
                Some(r#"{"choices":[{"index":0,"text":","}]}"#),
            ),
            (
                r#"{"choices":[{"index":0,"text":"","token_ids":[222]}]}"#,
                Some(r#"{"choices":[{"index":0,"text":""}]}"#),
            ),
            (r#"{"choices":[{"index":0,"text":"","token_ids":[],"prompt_token_ids":[6023]}]}"#, None),
            (
                r#"{"choices":[{"index":0,"text":"","finish_reason":"length","token_ids":[]}]}"#,
                Some(r#"{"choices":[{"index":0,"text":"","finish_reason":"length"}]}"#),
            ),
            (
                r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1,2]}"#,
                Some(r#"{"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#),
            ),
            (r#"{"choices":[{"index":0,"delta":{},"token_ids":[148864]}]}"#, None),
            (
                r#"{"choices":[{"token_ids" : [1] , "index":0,"delta":{"content":"x"}}]}"#,
                Some(r#"{"choices":[{ "index":0,"delta":{"content":"x"}}]}"#),
            ),
        ] {
            assert_eq!(restored(amended, BOTH, None).as_deref(), plain, "{amended}");
        }
    }

    #[test]
    fn events_that_only_carry_ids_are_dropped() {
        let only_ids = r#"{"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[1]}]}"#;
        assert_eq!(restored(only_ids, BOTH, None), None);
        let finish = only_ids.replace("\"finish_reason\":null", "\"finish_reason\":\"stop\"");
        assert!(restored(&finish, BOTH, None).is_some());
        let logprobs = only_ids.replace("\"logprobs\":null", "\"logprobs\":{}");
        assert!(restored(&logprobs, BOTH, None).is_some());
    }

    #[test]
    fn usage_goes_and_the_fingerprint_comes_back() {
        assert_eq!(restored(r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, BOTH, None), None);
        let finish = r#"{"choices":[{"delta":{"content":"x"},"finish_reason":"stop","token_ids":null}]}"#;
        let known = StreamFingerprint::Is("vllm-1".to_owned());
        assert_eq!(
            restored(finish, BOTH, Some(&known)),
            Some(format!("{},\"system_fingerprint\":\"vllm-1\"}}", &finish[..finish.len() - 1]))
        );
        assert_eq!(restored(finish, BOTH, Some(&StreamFingerprint::Absent)), Some(finish.to_owned()));
    }

    #[test]
    fn counts_of_every_event_go() {
        let event = |usage: &str| format!(r#"{{"choices":[{{"delta":{{"content":"x"}}}}],"usage":{usage}}}"#);
        let added = Added { usage: true, continuous: true, ..Added::default() };
        let counted = event(r#"{"prompt_tokens":1,"completion_tokens":2}"#);
        assert_eq!(restored(&counted, &added, None), Some(event("null")));
        assert_eq!(restored(&counted, &Added { continuous: false, ..added }, None), Some(counted));
    }

    #[test]
    fn fields_that_the_client_requested_stay() {
        let event = r#"{"choices":[{"delta":{},"token_ids":[1]}],"usage":{"prompt_tokens":1}}"#;
        assert_eq!(restored(event, &Added::default(), None), Some(event.to_owned()));
    }
}
