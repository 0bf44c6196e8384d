//! Fields of an answer that carry generated text, in every endpoint's shape. Readers of whole answers, of events and of raw
//! bytes take it from here.

/// Kind of a field's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// Text for the user.
    Text,
    /// Text that precedes it.
    Reasoning,
    /// An answer that is refused.
    Refusal,
    /// Arguments of a tool call.
    Arguments,
}

/// Fields of a chat's message or delta that are text, in the order in which a stream has them. Engines call reasoning by
/// either name.
pub const OF_MESSAGE: [(&str, TextKind); 4] = [
    ("reasoning", TextKind::Reasoning),
    ("reasoning_content", TextKind::Reasoning),
    ("content", TextKind::Text),
    ("refusal", TextKind::Refusal),
];

/// Fields of a chat's message or delta that are tool calls.
pub const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// Fields of other shapes: a completion's choice, blocks of messages, a call's function.
pub const ELSEWHERE: [(&str, TextKind); 4] = [
    ("text", TextKind::Text),
    ("thinking", TextKind::Reasoning),
    ("partial_json", TextKind::Arguments),
    ("arguments", TextKind::Arguments),
];

/// The field by which events of responses add to any of these.
pub const DELTA: &str = "delta";

/// Returns the kind of a field's text; `None` for fields that have none.
#[must_use]
pub fn words(field: &str) -> Option<TextKind> {
    let known = OF_MESSAGE.iter().chain(&ELSEWHERE).find(|(name, _)| *name == field);
    known.map(|(_, words)| *words)
}
