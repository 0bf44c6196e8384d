//! Reasoning and tool-call parsers: the text and ids of an answer, step by step, made into vLLM's deltas.
//!
//! A [`StreamParser`] takes what each engine step made and gives the delta that vLLM would send for it, or none; a whole
//! answer goes through [`whole`]. Formats: reasoning as `qwen3` marks it ([`ReasoningFormat`]), tool calls as `hermes`
//! does ([`ToolFormat`]). Behaviour on broken and truncated calls is the engine's, which is not always what one would
//! wish: streams tell a tag of ordinary tokens from the tag's own token, whole answers do not.
//!
//! Limits: other formats are not known; `tool_choice: "required"` is read as `auto`.

mod delta;
mod hermes;
mod lexer;
mod names;
mod reasoning;
mod stream;
mod whole;

pub use delta::{CallDelta, CallIds, Content, Delta};
pub use names::{Formats, Parsing, ReasoningFormat, ToolFormat, UnknownParser};
pub use reasoning::{Thinking, Vocabulary};
pub use stream::{Finished, StreamParser, ToolChoice};
pub use whole::{Call, Message, count_reasoning_tokens, whole};
