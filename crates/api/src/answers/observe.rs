//! Reader of what one event of a stream adds, without copying.

use super::words::{CALLS, DELTA, ELSEWHERE, OF_MESSAGE};
use net::wire::RawObject;

/// The text that an event adds to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// The choice to which it adds text, or arguments of a call.
    pub choice: usize,
    /// Bytes of that text as JSON; at least 1.
    pub size: usize,
}

impl Observation {
    /// Reads an event's data; `None` where it adds no text.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let event = RawObject::read(data.trim_ascii())?;
        let choices: Option<Vec<RawObject<'_>>> = event.value("choices");
        let (choice, size) = match choices {
            Some(choices) => {
                let part = choices.first()?;
                (part.value("index").unwrap_or(0), added_to_choice(part))
            }
            None => {
                let in_delta =
                    |delta: RawObject<'_>| ELSEWHERE.iter().map(|(name, _)| size_of_text(&delta, name)).sum();
                (0, size_of_text(&event, DELTA) + event.object(DELTA).map_or(0, in_delta))
            }
        };
        (size > 0).then_some(Self { choice, size })
    }
}

fn added_to_choice(part: &RawObject<'_>) -> usize {
    let Some(delta) = part.object("delta") else { return size_of_text(part, "text") };
    let calls = CALLS.iter().filter_map(|name| delta.value::<Vec<RawObject<'_>>>(name)).flatten();
    let arguments = |call: RawObject<'_>| call.object("function").map_or(0, |it| size_of_text(&it, "arguments"));
    OF_MESSAGE.iter().map(|(name, _)| size_of_text(&delta, name)).chain(calls.map(arguments)).sum()
}

/// Returns the size of a field that is a text, without its quotes; 0 for any other.
fn size_of_text(object: &RawObject<'_>, name: &str) -> usize {
    let text = object.get(name).map(|text| text.get()).filter(|text| text.starts_with('"'));
    text.map_or(0, |text| text.len().saturating_sub(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_text_are_recognised() {
        let adds = |choice, size| Some(Observation { choice, size });
        for (event, expected) in [
            (r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#, adds(1, 1)),
            (r#"{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}"#, None),
            (
                r#"{"choices":[{"index":12,"delta":{"tool_calls":[{"index":3,"function":{"arguments":"{"}}]}}]}"#,
                adds(12, 1),
            ),
            (r#"{"choices":[{"index":0,"text":"a"}]}"#, adds(0, 1)),
            (r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, None),
            (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, None),
            (r#"{"index":2,"delta":{"type":"text_delta","text":"a"}}"#, adds(0, 1)),
            (r#"{"type":"response.output_text.delta","delta":"abc"}"#, adds(0, 3)),
            (r#"{"type":"response.output_text.done","text":"a"}"#, None),
            (r#"{"type":"response.completed","response":{"output":[{"text":"a"}]}}"#, None),
            (r#"{"type":"message_stop"}"#, None),
            ("[DONE]\n", None),
            ("", None),
        ] {
            assert_eq!(Observation::read(event.as_bytes()), expected, "{event}");
        }
    }
}
