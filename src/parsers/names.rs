//! The parsers by vLLM's names.

use super::{reasoning::Thinking, stream::ToolChoice};

/// How reasoning is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>`, reasoning from the start on; a tool call ends it too.
    Qwen3,
}

/// How tool calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name":…,"arguments":…}</tool_call>`
    Hermes,
}

/// The parsers of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Formats {
    /// vLLM's `--reasoning-parser`.
    pub reasoning: Option<ReasoningFormat>,
    /// vLLM's `--tool-call-parser`, where `--enable-auto-tool-choice` is set.
    pub tools: Option<ToolFormat>,
}

/// How one answer is to be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parsing {
    /// The server's parsers.
    pub formats: Formats,
    /// Whether the model thinks.
    pub thinking: Thinking,
    /// Whether tools are called.
    pub choice: ToolChoice,
}

impl Parsing {
    /// Whether the parsers need the text of special tokens, whatever the request says of it.
    #[must_use]
    pub fn shows_special_tokens(&self) -> bool {
        self.formats.reasoning.is_some() || (self.formats.tools.is_some() && self.choice != ToolChoice::None)
    }
}

/// A name that stands for no parser here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} parser is called '{name}'; there is: {known}")]
pub struct UnknownParser {
    kind: &'static str,
    name: String,
    known: &'static str,
}

impl std::str::FromStr for ReasoningFormat {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        match name {
            "qwen3" => Ok(Self::Qwen3),
            _ => Err(UnknownParser { kind: "reasoning", name: name.to_owned(), known: "qwen3" }),
        }
    }
}

impl std::str::FromStr for ToolFormat {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        match name {
            "hermes" => Ok(Self::Hermes),
            _ => Err(UnknownParser { kind: "tool-call", name: name.to_owned(), known: "hermes" }),
        }
    }
}
