//! Reasoning and tool-call parsers: the text and ids of an answer, step by step, made into vLLM's deltas.
//!
//! A [`StreamParser`] takes what each engine step made and gives the delta that vLLM would send for it, or none; a whole
//! answer goes through [`whole`]. Formats bear vLLM's names: [`ReasoningFormat`], [`ToolFormat`]. Behaviour on broken and
//! truncated calls is the engine's, which is not always what one would wish: streams distinguish a tag of ordinary tokens from
//! the tag's own token, whole answers do not.
//!
//! Limits: vLLM's other formats are refused by name; a server is taken to run with `VLLM_ENFORCE_STRICT_TOOL_CALLING` as
//! it is by default; Mistral's tokenizers before version 11 write calls in a way that is not read.
//!
//! See docs/decisions/0024-parsers-are-our-own.md.

mod deepseek;
mod delta;
mod engine;
mod granite;
mod hermes;
mod json;
mod llama;
mod names;
mod partial;
mod reasoning;
mod required;
mod stream;
mod tools;
mod vocabulary;
mod whole;

pub use delta::{CallDelta, CallIds, Delta, ParsedCall, ParsedMessage};
pub use names::{Formats, Function, Parsing, ReasoningFormat, ToolChoice, ToolFormat, UnknownParser};
pub use reasoning::ReasoningMarks;
pub use stream::StreamParser;
pub use vocabulary::Vocabulary;
pub use whole::{count_reasoning_tokens, counts_by_text, is_reasoning_closed, reads_calls, reasoning_marks, whole};
