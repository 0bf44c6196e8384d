//! A whole answer's parts.

use super::{
    hermes,
    names::Parsing,
    reasoning::{Thinking, Vocabulary},
    stream::ToolChoice,
};

/// The parts of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The text.
    pub content: Option<String>,
    /// The reasoning.
    pub reasoning: Option<String>,
    /// The calls.
    pub calls: Vec<Call>,
}

/// One call of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function's name.
    pub name: String,
    /// Its arguments as JSON text.
    pub arguments: String,
}

/// Takes a whole answer apart. Beside a named function the content is empty, never absent.
#[must_use]
pub fn whole(parsing: &Parsing, vocabulary: &Vocabulary, text: &str) -> Message {
    let Parsing { formats, thinking, choice } = parsing;
    let (reasoning, content) = match (formats.reasoning, thinking) {
        (Some(_), Thinking::On) => vocabulary.split(text),
        _ => (None, Some(text.to_owned())),
    };
    let (calls, content) = match (formats.tools, choice) {
        (None, _) | (_, ToolChoice::None) => (Vec::new(), content),
        (Some(_), ToolChoice::Auto) => match content {
            Some(content) => hermes::whole(&content),
            None => (Vec::new(), None),
        },
        (Some(_), ToolChoice::Named(name)) => match content.filter(|content| !content.trim().is_empty()) {
            Some(arguments) => (vec![Call { name: name.clone(), arguments }], Some(String::new())),
            None => (Vec::new(), Some(String::new())),
        },
    };
    Message { content, reasoning, calls }
}

/// Tokens of reasoning in a whole answer.
#[must_use]
pub fn count_reasoning_tokens(parsing: &Parsing, vocabulary: &Vocabulary, ids: &[u32]) -> usize {
    match (parsing.formats.reasoning, parsing.thinking) {
        (Some(_), Thinking::On) => vocabulary.count(ids),
        _ => 0,
    }
}
