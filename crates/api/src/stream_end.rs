//! The last event of a stream, for every family of endpoints: after it the response is whole, whatever the client does.

use std::borrow::Cow;

use serde::Deserialize;

/// Data of the last event of a chat or completions stream.
pub const DONE: &str = "[DONE]";

/// Returns whether an event of this type is the last one of a stream in the Messages or Responses family.
#[must_use]
pub fn is_last_event_type(kind: &str) -> bool {
    kind == "message_stop" || ends_response(kind)
}

/// Returns whether an event of this type ends a stream in the Responses family; it holds the whole response.
#[must_use]
pub fn ends_response(kind: &str) -> bool {
    matches!(kind, "response.completed" | "response.incomplete" | "response.failed")
}

/// Returns whether an event with this data is the last one of its stream.
#[must_use]
pub fn ends_stream(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct TypedEvent<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    data == DONE.as_bytes()
        || serde_json::from_slice::<TypedEvent<'_>>(data).is_ok_and(|event| is_last_event_type(&event.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_events_of_all_families_are_known() {
        for last in [
            "[DONE]",
            r#"{"type": "message_stop"}"#,
            r#"{"response":{"status":"completed"},"type":"response.completed"}"#,
            r#"{"type":"response.incomplete","response":{}}"#,
            r#"{"type": "response.failed"}"#,
        ] {
            assert!(ends_stream(last.as_bytes()), "{last}");
        }
        for other in ["", "{}", "[]", r#"{"delta":"\"type\":\"message_stop\""}"#, r#"{"type":"response.created"}"#] {
            assert!(!ends_stream(other.as_bytes()), "{other}");
        }
    }
}
