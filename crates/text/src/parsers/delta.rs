//! Parts of an answer: whole ones, and deltas as the engine writes them: keys in its order, and no others than it set.

use serde::ser::{Serialize, SerializeMap, Serializer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::names::ToolFormat;

/// Delta that one step adds to a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delta {
    /// Text of the answer; may be empty.
    pub content: Option<String>,
    /// Text of the reasoning.
    pub reasoning: Option<String>,
    /// New calls, and more of known ones.
    pub calls: Vec<CallDelta>,
    /// The content's key is present with `null`, as beside tool calls.
    pub is_content_null: bool,
    /// The reasoning's key is present with `null`.
    pub is_reasoning_null: bool,
}

/// Delta that one step adds to one tool call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallDelta {
    /// The call's place in the answer.
    pub index: usize,
    /// Its id, where the call begins.
    pub id: Option<String>,
    /// The function's name, where the call begins.
    pub name: Option<String>,
    /// More of its arguments.
    pub arguments: Option<String>,
    /// The name's key is present with `null`.
    pub is_nameless: bool,
}

impl Delta {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { content: Some(text.into()), ..Self::default() }
    }
}

impl Serialize for Delta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.content.is_some() || self.is_content_null {
            map.serialize_entry("content", &self.content)?;
        }
        if self.reasoning.is_some() || self.is_reasoning_null {
            map.serialize_entry("reasoning", &self.reasoning)?;
        }
        if !self.calls.is_empty() {
            map.serialize_entry("tool_calls", &self.calls)?;
        }
        map.end()
    }
}

impl Serialize for CallDelta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(id) = &self.id {
            map.serialize_entry("id", id)?;
            map.serialize_entry("type", "function")?;
        }
        map.serialize_entry("index", &self.index)?;
        map.serialize_entry("function", &CalledFunction(self))?;
        map.end()
    }
}

/// The `function` of a call.
struct CalledFunction<'a>(&'a CallDelta);

impl Serialize for CalledFunction<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CallDelta { name, arguments, is_nameless, .. } = self.0;
        let mut map = serializer.serialize_map(None)?;
        if name.is_some() || *is_nameless {
            map.serialize_entry("name", name)?;
        }
        if arguments.is_some() {
            map.serialize_entry("arguments", arguments)?;
        }
        map.end()
    }
}

/// The parts of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedMessage {
    /// The text.
    pub content: Option<String>,
    /// The reasoning.
    pub reasoning: Option<String>,
    /// The calls.
    pub calls: Vec<ParsedCall>,
}

/// One call of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// The function's name.
    pub name: String,
    /// Its arguments as JSON text.
    pub arguments: String,
}

/// Ids of tool calls: `chatcmpl-tool-` and 16 hexadecimal digits, the lower half of a random UUID; Mistral's are 9 letters
/// and digits.
#[derive(Debug, Clone, Copy)]
pub struct CallIds {
    seed: u64,
    count: u64,
    is_short: bool,
}

impl CallIds {
    /// The ids that follow from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, count: 0, is_short: false }
    }

    /// These ids as a format has them.
    #[must_use]
    pub fn of(self, format: ToolFormat) -> Self {
        Self { is_short: format == ToolFormat::Mistral, ..self }
    }

    /// The next id.
    pub fn make(&mut self) -> String {
        let hash = xxh3_64_with_seed(&self.count.to_le_bytes(), self.seed);
        self.count = self.count.wrapping_add(1);
        if self.is_short {
            const DIGITS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
            let digit = |byte: u8| DIGITS.get(usize::from(byte) % DIGITS.len()).copied();
            let last = hash.rotate_left(17).to_le_bytes();
            return hash.to_le_bytes().into_iter().chain(last).take(9).filter_map(digit).map(char::from).collect();
        }
        format!("chatcmpl-tool-{:016x}", (hash >> 2) | 0x8000_0000_0000_0000)
    }
}
