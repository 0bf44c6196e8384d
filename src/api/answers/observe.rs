//! Reader of what one event of a stream adds, without copying.

use super::words::{CALLS, DELTA, ELSEWHERE, OF_MESSAGE};
use crate::net::wire::RawObject;

/// Addition of an event to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observation {
    /// The choice that it adds text to, or arguments of a call; `None` where it adds none.
    pub choice: Option<usize>,
    /// True where it ends the stream.
    pub is_end: bool,
}

impl Observation {
    /// Reads an event's data.
    #[must_use]
    pub fn read(data: &[u8]) -> Self {
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return Self { choice: None, is_end: true };
        }
        let Some(event) = RawObject::read(data) else { return Self::default() };
        let kind: String = event.value("type").unwrap_or_default();
        let is_end = crate::api::is_last_event_type(&kind);
        let choices: Option<Vec<RawObject<'_>>> = event.value("choices");
        let choice = match choices.as_ref().map(|choices| choices.first()) {
            Some(Some(part)) => adds_to_choice(part).then(|| part.value("index").unwrap_or(0)),
            Some(None) => None,
            None => {
                let in_delta = |delta: RawObject<'_>| ELSEWHERE.iter().any(|(name, _)| is_text(&delta, name));
                (is_text(&event, DELTA) || event.object(DELTA).is_some_and(in_delta)).then_some(0)
            }
        };
        Self { choice, is_end }
    }
}

fn adds_to_choice(part: &RawObject<'_>) -> bool {
    let Some(delta) = part.object("delta") else { return is_text(part, "text") };
    let calls = CALLS.iter().filter_map(|name| delta.value::<Vec<RawObject<'_>>>(name)).flatten();
    let has_arguments = |call: RawObject<'_>| call.object("function").is_some_and(|it| is_text(&it, "arguments"));
    OF_MESSAGE.iter().any(|(name, _)| is_text(&delta, name)) || calls.into_iter().any(has_arguments)
}

/// Returns whether a field is a text that is not empty.
fn is_text(object: &RawObject<'_>, name: &str) -> bool {
    object.get(name).is_some_and(|text| text.get().starts_with('"') && text.get() != "\"\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_text_are_recognised() {
        let adds = |choice| Observation { choice: Some(choice), is_end: false };
        let end = Observation { choice: None, is_end: true };
        for (event, expected) in [
            (r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#, adds(1)),
            (r#"{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}"#, Observation::default()),
            (
                r#"{"choices":[{"index":12,"delta":{"tool_calls":[{"index":3,"function":{"arguments":"{"}}]}}]}"#,
                adds(12),
            ),
            (r#"{"choices":[{"index":0,"text":"a"}]}"#, adds(0)),
            (r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, Observation::default()),
            (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, Observation::default()),
            (r#"{"index":2,"delta":{"type":"text_delta","text":"a"}}"#, adds(0)),
            (r#"{"type":"response.output_text.delta","delta":"a"}"#, adds(0)),
            (r#"{"type":"response.output_text.done","text":"a"}"#, Observation::default()),
            (r#"{"type":"response.completed","response":{"output":[{"text":"a"}]}}"#, end),
            (r#"{"type":"message_stop"}"#, end),
            ("[DONE]\n", end),
            ("", Observation::default()),
        ] {
            assert_eq!(Observation::read(event.as_bytes()), expected, "{event}");
        }
    }
}
